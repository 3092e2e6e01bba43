"""`sluicegate queue` against a real service: at a terminal, and in scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.cli.terminal import json_line, plain
from tests.gateway.conftest import store_key
from tests.gateway.queue_client import Queue, queue_of
from tests.gateway.running import Service, command, until
from tests.gateway.terminal import at_a_terminal

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\x00\r\n:smile: [red]x[/red]"
"""A title, cleared screen, colours, reversed reading, and the marks of a formatter."""
DRIVING = set("\x1b\x07\x9b\u202e\u2066\x00")


@pytest.fixture
def queue(api: Service, name: str) -> Iterator[Queue]:
    with queue_of(api, name) as made:
        yield made


def variables(queue: Queue) -> dict[str, str]:
    return {"SLUICEGATE_URL": queue.service.url, "SLUICEGATE_API_KEY": queue.key}


def run(queue: Queue, *arguments: str, typed: str = "") -> Any:
    """The command in this process, over real HTTP."""
    return CliRunner().invoke(app, ["queue", *arguments], env=variables(queue), input=typed)


def rows(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def terminal(queue: Queue, *arguments: str) -> Any:
    return at_a_terminal("queue", *arguments, **variables(queue))


# --- at a terminal ---


def test_person_decides_by_a_number_and_takes_it_back(queue: Queue) -> None:
    queue.raised(tool="image_caption", due_ms=1000)
    case = queue.raised(packet={"why": "Called 4 times.", "attempts": 4, "cost": {"spent": "0.11", "currency": "CNY"}})
    with terminal(queue, "next", "--filter", "tool=ocr_extract") as screen:
        screen.sees("> ")
        for shown in (case, "HALT repeated_tool_calls ocr_extract ×4", "spent 0.11 CNY", "Called 4 times.", "[s]kip"):
            assert shown in screen.seen
        assert queue.get(case)["status"] == "claimed"
        screen.types("99\n")
        screen.types("1\n")
        screen.sees("sent: text only (undo 8s with `sluicegate queue undo`)")
        assert screen.ends() == 0
    decided = queue.get(case)
    assert (decided["status"], decided["resolution"]["action"], decided["resolution"]["route"]) == (
        "resolved", "reroute", "text_only",
    )  # fmt: skip
    assert run(queue, "undo").exit_code == 0
    assert queue.get(case)["status"] == "claimed"


@pytest.mark.parametrize(("typed", "status"), [("s\n", 0), ("\x03", 130), ("\x04", 0)], ids=["s", "Ctrl-C", "Ctrl-D"])
def test_case_that_is_not_decided_is_given_back(queue: Queue, typed: str, status: int) -> None:
    case = queue.raised()
    with terminal(queue, "next") as screen:
        screen.sees("> ")
        screen.types(typed)
        assert screen.ends() == status
    assert queue.whats(case)[-2:] == ["claimed", "released"]


def test_lease_is_kept_while_a_person_thinks(queue: Queue) -> None:
    case = queue.raised()
    with terminal(queue, "next", "--lease", "9") as screen:
        screen.sees("> ")
        first = queue.get(case)
        renewed = set()

        def is_renewed_often() -> bool:
            now = queue.get(case)
            assert (now["status"], now["fence"]) == ("claimed", first["fence"])
            renewed.add(now["lease_expires_at"])
            return len(renewed) > 4

        until(is_renewed_often)
        screen.types("2\n")
        screen.sees("advice to the agent: ")
        screen.types("Look at the label only.\n")
        screen.sees("sent: resume")
        assert screen.ends() == 0
    assert queue.get(case)["resolution"]["guidance"] == "Look at the label only."


def test_person_whose_case_was_taken_over_is_told_so(queue: Queue) -> None:
    case = queue.raised()
    with terminal(queue, "next") as screen:
        screen.sees("> ")
        taken = queue.post(f"{case}/assign", {"user": "li"})
        assert taken.status_code == 200, taken.text
        screen.types("6\n")
        screen.sees("lease_lost")
        assert screen.ends() == 6
    assert queue.get(case)["holder"] == "person:li"


def test_hostile_text_never_drives_the_terminal(queue: Queue) -> None:
    packet = {
        "why": HOSTILE,
        "first_answer": HOSTILE,
        "arguments": HOSTILE,
        "calls": [{"tool": HOSTILE, "action": "halt"}],
    }
    case = queue.raised(tool=HOSTILE, packet=packet)
    for arguments in (("next", "--no-color"), ("show", case, "--no-color")):
        with terminal(queue, *arguments) as screen:
            screen.sees("[s]kip")
            screen.types("s\n")
            assert screen.ends() == 0
        assert "evil" in screen.seen
        assert ":smile: [red]x[/red]" in screen.seen
        assert not DRIVING & set(screen.seen)
    listed = run(queue, "list")
    assert [case["why"] for case in rows(listed)] == [HOSTILE]
    assert not DRIVING & set(listed.stdout)


def test_terminal_shows_a_table(queue: Queue) -> None:
    case = queue.raised()
    with terminal(queue, "list") as screen:
        screen.sees(case)
        assert screen.ends() == 0
    assert "reason" in screen.seen
    assert "{" not in screen.seen


@pytest.mark.parametrize(
    ("text", "shown"), [("a\tb\n c", "a b c"), ("\x1b[31mred", "�[31mred"), ("中文 男士", "中文 男士"), (None, "None")]
)
def test_plain_text(text: object, shown: str) -> None:
    assert plain(text) == shown


def test_json_line_escapes_what_drives_a_terminal_and_nothing_else() -> None:
    value = {"a": "中文 \x9b \u202e \U000e0001 \x1b"}
    line = json_line(value)
    assert json.loads(line) == value
    assert line.isprintable()
    assert "中文" in line


# --- in scripts ---


def test_three_ways_to_be_empty_are_told_apart(queue: Queue) -> None:
    nothing = run(queue, "claim")
    case = queue.raised()
    hidden = run(queue, "claim", "--filter", "tool=image_caption")
    queue.claimed(case)
    held = run(queue, "next")
    assert [rows(result)[0]["why"] for result in (nothing, hidden, held)] == [
        "nothing_open", "hidden_by_filter", "all_claimed",
    ]  # fmt: skip
    for result, sentence in (
        (nothing, "Nothing is open."),
        (hidden, "hides 1 open case"),
        (held, "next lease ends at"),
    ):
        assert result.exit_code == 0
        assert sentence in result.stderr


def test_case_is_claimed_and_decided_in_one_command(queue: Queue) -> None:
    case = queue.raised()
    flags = ("--action", "reroute", "--route", "text_only", "--note", "dark photo", "--idempotency-key", f"{case}-1")
    first = run(queue, "resolve", case, *flags)
    assert first.exit_code == 0, first.stderr
    [answer] = rows(first)
    assert (answer["status"], answer["resolution"]["route"]) == ("applied", "text_only")
    assert [entry["note"] for entry in queue.audit(case) if entry["what"] == "resolved"] == ["dark photo"]
    again = run(queue, "resolve", case, *flags)
    assert (again.exit_code, rows(again)) == (0, [answer])
    other = run(queue, "resolve", case, "--action", "dismiss")
    assert other.exit_code == 6
    assert "already_resolved" in other.stderr


def test_refused_decision_gives_back_only_what_was_taken_for_it(queue: Queue) -> None:
    fresh, ours = queue.raised(), queue.raised()
    assert run(queue, "claim", ours).exit_code == 0
    for case, status in ((fresh, "open"), (ours, "claimed")):
        refused = run(queue, "resolve", case, "--action", "answer_item", "--output", '{"wrong": 1}')
        assert refused.exit_code == 2
        assert queue.get(case)["status"] == status


def test_some_of_many_cases_may_fail(queue: Queue) -> None:
    good, decided = queue.raised(), queue.raised()
    queue.decided(decided, "dismiss")
    result = run(queue, "resolve", decided, good, "--action", "dismiss")
    assert (result.exit_code, [row["id"] for row in rows(result)]) == (3, [good])
    assert decided in result.stderr


def test_case_goes_through_the_hands_of_a_script(queue: Queue) -> None:
    case = queue.raised()
    [claimed] = rows(run(queue, "claim", "--lease", "60"))
    assert (claimed["escalation"]["id"], claimed["lease"]["fence"]) == (case, 1)
    assert rows(run(queue, "release", case, "--note", "not mine"))[0]["status"] == "open"
    assert run(queue, "release", case).exit_code == 6
    assert run(queue, "resolve", case, "--action", "reject_item", "--message", "Too dark.").exit_code == 0
    reopened = run(queue, "reopen", case, "--reason", "wrong photo")
    assert reopened.exit_code == 0, reopened.stderr
    assert rows(run(queue, "stats"))[0]["open"] == 1
    assert len(rows(run(queue, "list", "--filter", "status=open"))) == 1


def test_answers_may_come_through_a_pipe(queue: Queue) -> None:
    first, second = queue.raised(), queue.raised()
    result = run(queue, "next", "--all", "--json", typed="6\ns\n")
    assert result.exit_code == 0, result.stderr
    assert [(row["id"], row["resolution"]["action"]) for row in rows(result)] == [(first, "dismiss")]
    assert "Only cases that you skipped are left." in result.stderr
    assert queue.get(second)["status"] == "open"


def test_list_follows_pages_up_to_the_limit(queue: Queue) -> None:
    raised = [queue.raised(due_ms=1000 * number) for number in range(1, 4)]
    assert [case["id"] for case in rows(run(queue, "list", "--limit", "2"))] == raised[:2]
    assert [case["id"] for case in rows(run(queue, "--json", "list"))] == raised


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("list", "--filter", "tol=x"), 2),
        (("list", "--filter", "tool"), 2),
        (("list", "--url", "ftp://127.0.0.1"), 2),
        (("list", "--key", "sgk_secret"), 2),
        (("list", "--key-file", "/nonexistent"), 2),
        (("resolve", "esc_none", "--action", "sing"), 2),
        (("show", "../users"), 2),
        (("show", "esc_none"), 1),
        (("list", "--url", "http://127.0.0.1:9", "--timeout", "5"), 5),
        (("undo",), 6),
    ],
)
def test_exit_status_says_what_went_wrong(queue: Queue, arguments: tuple[str, ...], status: int) -> None:
    result = run(queue, *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr
    assert queue.key not in result.stderr


def test_key_comes_from_a_file_and_its_scopes_count(queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "key"
    for key, status in ((queue.key, 0), ("sgk_wrong", 4), (store_key(queue.service, queue.tenant, "items:read"), 4)):
        file.write_text(f"{key}\n")
        done = command(
            "queue", "list", "--quiet", "--key-file", str(file), data_dir=tmp_path, url=queue.service.url, api_key="sgk_other"
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert key not in done.stderr
