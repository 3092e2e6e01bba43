"""The pure parts of webhooks: signatures, schedule, filters, secrets at rest, settings; and what receivers verify with."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from standardwebhooks.webhooks import Webhook

from examples import webhook_receiver
from gateway.settings import Settings
from gateway.webhooks import signing
from gateway.webhooks.catalogue import EVENT_TYPES, is_filter, lets_through
from gateway.webhooks.redaction import shown_response
from gateway.webhooks.schedule import RETRIES_S, Health, RetryPolicy, after_failure, next_delay_s
from gateway.webhooks.vault import SecretUnreadable, Vault
from guard.call import ToolCall
from guard.redact import redacted_args

ROOT = Path(__file__).parents[2]
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(range(1, 33))).decode()
AT = 1_796_000_000
BODY = '{"id":"evt_1","type":"item.succeeded","seq":3,"resource":"itm_1","resource_version":2,"data":{"n":"灯 ✓"}}'.encode()
HEADERS = signing.headers([SECRET], message_id="evt_1", timestamp=AT, body=BODY)

Verify = Callable[[str, Mapping[str, str], bytes, float], Any]


def by_the_gateway(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> None:
    signing.verify(secret, headers, body, now=now)


def by_the_example(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> None:
    webhook_receiver.verify(secret, headers, body, now=now)


def by_the_page(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> None:
    """The snippet as it stands in the documents."""
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/webhooks.md").read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    names["verify"](secret, headers, body, now)


VERIFIERS = pytest.mark.parametrize("verify", [by_the_gateway, by_the_example, by_the_page])


def test_signature_is_that_of_the_independent_implementation() -> None:
    theirs = Webhook(SECRET).sign("evt_1", datetime.fromtimestamp(AT, UTC), BODY.decode())
    ours = HEADERS
    assert ours == {"webhook-id": "evt_1", "webhook-timestamp": str(AT), "webhook-signature": theirs}


@VERIFIERS
@pytest.mark.parametrize("offset_s", [0, 299, -299])
@pytest.mark.parametrize("spelling", [str.lower, str.upper, str.title])
def test_signed_request_is_taken(verify: Verify, offset_s: int, spelling: Callable[[str], str]) -> None:
    headers = {spelling(name): value for name, value in HEADERS.items()}
    verify(SECRET, headers, BODY, AT + offset_s)


@VERIFIERS
def test_either_secret_of_a_rotation_is_taken(verify: Verify) -> None:
    headers = signing.headers([OTHER, SECRET], message_id="evt_1", timestamp=AT, body=BODY)
    verify(SECRET, headers, BODY, AT)
    verify(OTHER, headers, BODY, AT)


WRONG: dict[str, tuple[str, dict[str, str], bytes, float]] = {
    "another secret": (OTHER, {}, BODY, AT),
    "another body": (SECRET, {}, BODY + b" ", AT),
    "another id": (SECRET, {"webhook-id": "evt_2"}, BODY, AT),
    "another time": (SECRET, {"webhook-timestamp": str(AT + 1)}, BODY, AT),
    "too old": (SECRET, {}, BODY, AT + 301),
    "too new": (SECRET, {}, BODY, AT - 301),
    "another kind of signature": (SECRET, {"webhook-signature": "v2," + HEADERS["webhook-signature"][3:]}, BODY, AT),
    "no signature": (SECRET, {"webhook-signature": "v1,"}, BODY, AT),
}


@VERIFIERS
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_forged_or_late_request_is_refused(verify: Verify, wrong: tuple[str, dict[str, str], bytes, float]) -> None:
    secret, changes, body, now = wrong
    with pytest.raises((signing.NotVerified, webhook_receiver.NotVerified, ValueError)):
        verify(secret, {**HEADERS, **changes}, body, now)


@pytest.mark.parametrize(
    ("changes", "now", "code"),
    [
        ({}, AT + 301.0, "too_old"),
        ({}, AT - 301.0, "too_new"),
        ({"webhook-timestamp": "yesterday"}, AT, "headers"),
        ({"webhook-timestamp": "9" * 40}, AT, "headers"),
        ({"webhook-id": ""}, AT, "headers"),
        ({"webhook-signature": "v1,ö"}, AT, "signature"),
    ],
)
def test_refusal_tells_past_from_future_and_both_from_a_forgery(changes: dict[str, str], now: float, code: str) -> None:
    with pytest.raises(signing.NotVerified) as refused:
        signing.verify(SECRET, {**HEADERS, **changes}, BODY, now=now)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "secret", ["", "secret", "whsec_", "whsec_!!!", "whsec_" + base64.b64encode(b"x" * 23).decode()]
)
def test_secret_that_is_none_is_refused(secret: str) -> None:
    with pytest.raises(ValueError):
        signing.key_of(secret)


def test_secrets_are_long_and_never_the_same() -> None:
    made = {signing.new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(signing.key_of(secret)) for secret in made} == {32}


def test_receiver_takes_each_event_once_and_nothing_that_is_stale() -> None:
    inbox = webhook_receiver.Inbox()

    def event(seq: int, version: int, resource: str = "itm_1") -> dict[str, Any]:
        return {"id": f"evt_{seq}", "seq": seq, "resource": resource, "resource_version": version}

    told = [event(1, 1), event(3, 3), event(3, 3), event(2, 2), event(4, 1, "itm_2"), event(5, 4)]
    assert [inbox.is_news(each) for each in told] == [True, True, False, False, True, True]


@pytest.mark.parametrize("tries", range(1, len(RETRIES_S) + 1))
def test_wait_lies_within_a_fifth_of_the_schedule(tries: int) -> None:
    planned = RETRIES_S[tries - 1]
    waits = [next_delay_s(tries, RETRIES_S, chance=chance, retry_after_s=None) for chance in (0.0, 0.25, 0.5, 1.0)]
    assert waits == pytest.approx([planned * 0.8, planned * 0.9, planned, planned * 1.2])
    assert next_delay_s(len(RETRIES_S) + 1, RETRIES_S, chance=0.5, retry_after_s=9.0) is None


def test_schedule_is_ten_attempts_over_three_days() -> None:
    assert 3 <= sum(RETRIES_S) / 86400 <= 4
    assert len(RETRIES_S) + 1 == 10


@pytest.mark.parametrize(("failures", "pause_s"), [(4, 0), (5, 30), (6, 60), (7, 120), (9, 480), (10, 900), (60, 900)])
def test_each_further_failure_doubles_how_long_an_address_is_left_alone(failures: int, pause_s: int) -> None:
    before = Health(failures=failures - 1, failing_since_ms=0)
    after = after_failure(before, 1000, RetryPolicy(), retry_after_s=None).health
    assert ((after.paused_until_ms or 1000) - 1000) / 1000 == pause_s


@pytest.mark.parametrize(
    ("filters", "event", "expected"),
    [
        (["*"], "item.succeeded", True),
        (["*"], "key.created", False),
        (["item.*"], "item.succeeded", True),
        (["item.*"], "item.something_new", True),
        (["item.*"], "items.succeeded", False),
        (["item.succeeded"], "item.succeeded", True),
        (["item.succeeded"], "item.failed", False),
        ([], "item.failed", False),
        (["rule.*", "budget.threshold"], "budget.threshold", True),
    ],
)
def test_filter_lets_through(filters: list[str], event: str, expected: bool) -> None:
    assert lets_through(filters, event) is expected


def test_filter_is_a_known_name_a_family_or_everything() -> None:
    assert all(is_filter(name) for name in (*EVENT_TYPES, "*", "item.*", "webhook.*"))
    assert not any(is_filter(name) for name in ("", "item", "item.*.x", "key.*", "item.sucseeded", "**", ".*"))


def test_contract_names_are_all_known() -> None:
    families = {
        "item": "queued rejected ready running halted awaiting_human info_requested succeeded failed cancelled expired duplicate",
        "escalation": "opened claimed due_soon resolved expired withdrawn reopened",
        "rule": "proposed activated retired",
        "budget": "threshold",
        "webhook": "disabled test",
    }
    contract = [f"{family}.{word}" for family, words in families.items() for word in words.split()]
    assert [name for name in contract if name not in EVENT_TYPES] == []
    page = (ROOT / "docs/webhooks.md").read_text("utf-8")
    words = page.split("\nEvents: ")[1].split("\n\n")[0]
    assert [name for name in EVENT_TYPES if name.split(".")[1] not in words] == []


def test_vault_opens_what_it_sealed_and_only_that() -> None:
    plain, first, second = Vault(()), Vault(("a" * 32,)), Vault(("b" * 32, "a" * 32))
    assert plain.open(plain.seal(SECRET)) == SECRET
    sealed = first.seal(SECRET)
    assert SECRET[6:] not in sealed
    assert sealed != first.seal(SECRET)
    assert second.open(sealed) == SECRET
    assert second.open(plain.seal(SECRET)) == SECRET
    for vault, stored in ((plain, sealed), (first, second.seal(SECRET)), (first, sealed[:-4] + "AAAA")):
        with pytest.raises(SecretUnreadable):
            vault.open(stored)


@pytest.mark.parametrize(
    ("raw", "hidden"),
    [
        (b"ok \x00\x1b[31m", "\x1b"),
        (b"Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        (b'{"password":"hunter22"}', "hunter22"),
        (b"key sgk_abcdefghijklmnop", "abcdefghijklmnop"),
        (b"\xff\xfe" * 2000, "\xff"),
    ],
)
def test_answer_is_shown_short_and_without_secrets(raw: bytes, hidden: str) -> None:
    shown = shown_response(raw)
    assert hidden not in shown
    assert len(shown.encode()) <= 1024


def test_bearer_token_in_unreadable_arguments_is_hidden_too() -> None:
    call = ToolCall("fetch", args_raw='{"headers": "Authorization: Bearer abcdefghijkl", ')
    assert "abcdefghijkl" not in redacted_args(call)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("webhook_ports", "0"),
        ("webhook_ports", "https"),
        ("webhook_ports", ","),
        ("webhook_retries_s", "5,soon"),
        ("webhook_retries_s", "-1"),
        ("webhook_retries_s", "nan"),
        ("webhook_private_networks", "169.254.0.0/16"),
        ("webhook_private_networks", "0.0.0.0/0"),
        ("webhook_private_networks", "10.0.0.1/8"),
        ("webhook_secret_key", "short"),
        ("webhook_secret_key", "a" * 32 + ",short"),
        ("callback_origins", "https://hooks.example.com/path"),
        ("callback_origins", "ftp://hooks.example.com"),
        ("webhook_timeout_s", "0"),
    ],
)
def test_setting_that_cannot_be_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"SLUICEGATE_{name.upper()}", value)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert refused.value.errors()[0]["loc"] == (name,)
    said = refused.value.errors()[0]["msg"]
    assert "invalid literal" not in said
    assert "could not convert" not in said
    if name == "webhook_secret_key":
        assert "short" not in said
