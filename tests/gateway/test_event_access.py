"""A reader of the event log, by pages or live, sees what happened to what they may read, and misses none of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from gateway.person import Role
from gateway.store import events, people
from gateway.store.engine import Database
from gateway.store.items import now_ms
from tests.gateway.conftest import store_key
from tests.gateway.running import Service, bearer
from tests.gateway.sse import stream

KINDS = (
    "key.created", "item.queued", "person.added", "escalation.opened", "person.changed", "webhook.disabled",
    "budget.changed", "item.ready", "switch.paused", "escalation.resolved", "key.revoked", "something.new",
)  # fmt: skip
OF_ITEMS = ["item.queued", "item.ready"]
OF_CASES = ["item.queued", "escalation.opened", "item.ready", "escalation.resolved"]


@pytest.fixture
def rows(api: Service) -> Iterator[Database]:
    database = Database(f"sqlite:///{api.data_dir / 'sluicegate.db'}")
    yield database
    database.close()


@pytest.fixture
def tenant(rows: Database, name: str) -> str:
    """A tenant to which something of each family has happened."""
    for kind in KINDS:
        happen(rows, name, kind)
    return name


def happen(rows: Database, tenant: str, kind: str) -> None:
    rows.transact(
        lambda c: events.append(c, tenant=tenant, kind=kind, resource="r", version=1, at_ms=1, body={"by": "somebody"})
    )


def paged(client: httpx.Client, headers: dict[str, str], limit: int) -> list[str]:
    """All that a reader gets who goes on after the last event until nothing comes."""
    after, told = 0, list[str]()
    while True:
        page = client.get("/v1/events", params={"after": after, "limit": limit}, headers=headers).json()
        if not page["events"]:
            assert page["after"] == after
            return told
        after = page["after"]
        told += [event["type"] for event in page["events"]]


@pytest.mark.parametrize(
    ("scopes", "seen"),
    [
        (("items:read",), OF_ITEMS),
        (("items:read", "guard", "items:write", "review:delegate"), OF_ITEMS),
        (("items:read", "review"), OF_CASES),
        (("items:read", "admin"), list(KINDS)),
    ],
    ids=["items", "items-and-more", "cases", "admin"],
)
def test_reader_sees_events_of_what_the_scopes_let_it_read(
    api: Service, api_client: httpx.Client, rows: Database, tenant: str, scopes: tuple[str, ...], seen: list[str]
) -> None:
    secret = store_key(api, tenant, *scopes)
    assert paged(api_client, bearer(secret), limit=1) == seen
    assert paged(api_client, bearer(secret), limit=200) == seen
    token = api_client.post("/v1/stream-tokens", headers=bearer(secret)).json()["token"]
    with (
        stream(api.port, "/v1/events?after=1", f"Authorization: Bearer {secret}") as by_key,
        stream(api.port, f"/v1/events?after=1&token={token}") as by_token,
    ):
        told = [[sent.event for sent in opened.until(seen[-1])] for opened in (by_key, by_token)]
        assert told == [seen, seen]
        for kind in ("key.rotated", "escalation.claimed", "item.cancelled"):
            happen(rows, tenant, kind)
        live = [[sent.event for sent in opened.until("item.cancelled")] for opened in (by_key, by_token)]
    assert live[0] == live[1]
    assert ("key.rotated" in live[0], "escalation.claimed" in live[0]) == ("admin" in scopes, seen != OF_ITEMS)


@pytest.mark.parametrize(("role", "seen"), [(Role.VIEWER, OF_CASES), (Role.LEAD, OF_CASES), (Role.ADMIN, list(KINDS))])
def test_person_sees_events_of_what_the_console_shows_their_role(
    api: Service, rows: Database, tenant: str, role: Role, seen: list[str]
) -> None:
    limits = people.SessionLimits(idle_ms=1, total_ms=3_600_000)
    person = rows.transact(lambda c: people.add(c, tenant=tenant, name=tenant, role=role, password_hash="-", at_ms=1))
    cookie = rows.transact(lambda c: people.start_session(c, person, at_ms=now_ms(c), limits=limits))
    with api.client() as browser:
        browser.cookies.set("sluicegate_session", cookie)
        answer = browser.get("/v1/events", params={"after": 0, "limit": 200})
    assert [event["type"] for event in answer.json()["events"]] == seen
