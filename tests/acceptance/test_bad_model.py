"""Whatever a model sends: a counted error code, a case for a person or a kind failure; never a crash, never an unguarded call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.store.steps import StepKind
from tests.acceptance.reviewing import Desk
from tests.acceptance.talking_model import Raw, TalkingModel, always, calls, completion, in_turn, saves, says
from tests.gateway.model_stub import COPY
from tests.gateway.running import Service

LOOKUP = ("lookup_attributes", {"query": "brand"})


def body_of(message: object, **changes: object) -> Raw:
    """A completion whose message is of any shape."""
    document = {**json.loads(completion(says("x"))), **changes}
    document["choices"] = [{"index": 0, "finish_reason": "stop", "message": message}]
    raw = json.dumps(document).encode()
    return Raw([raw], length=len(raw))


def plain(raw: bytes, status: int = 200, **headers: str) -> Raw:
    return Raw([raw], status, {name.replace("_", "-"): value for name, value in headers.items()}, length=len(raw))


def endless() -> Iterator[bytes]:
    """A body that begins like an answer and never ends."""
    yield b'{"id": "x", "choices": [{"message": {"content": "'
    while True:
        yield b"x" * 65_536


# --- calls that cannot be carried out as they stand ------------------------------------------------------------------

CALLS: dict[str, tuple[tuple[str, object], str]] = {
    "arguments that are no JSON": (("ocr_extract", "{file: p1"), "INVALID_ARGUMENTS"),
    "arguments that end early": (("ocr_extract", '{"file": "p1"'), "INVALID_ARGUMENTS"),
    "arguments that are a list": (("ocr_extract", "[1, 2]"), "INVALID_ARGUMENTS"),
    "arguments that are a text": (("ocr_extract", '"p1"'), "INVALID_ARGUMENTS"),
    "arguments that are a number": (("ocr_extract", "7"), "INVALID_ARGUMENTS"),
    "arguments that are null": (("ocr_extract", "null"), "INVALID_ARGUMENTS"),
    "no arguments": (("ocr_extract", ""), "INVALID_ARGUMENTS"),
    "an argument of a wrong type": (("ocr_extract", {"file": "p1", "contrast": "much"}), "INVALID_ARGUMENTS"),
    "an argument too many": (("ocr_extract", {"file": "p1", "zoom": 2}), "INVALID_ARGUMENTS"),
    "an argument out of range": (("ocr_extract", {"file": "p1", "contrast": 1e9}), "INVALID_ARGUMENTS"),
    "a region upside down": (("ocr_extract", {"file": "p1", "region": [0.9, 0.9, 0.1, 0.1]}), "INVALID_ARGUMENTS"),
    "NaN": (("ocr_extract", '{"file": "p1", "contrast": NaN}'), "INVALID_ARGUMENTS"),
    "infinity": (("ocr_extract", '{"file": "p1", "contrast": 1e999}'), "INVALID_ARGUMENTS"),
    "a number of 5,000 digits": (("ocr_extract", '{"file": "p1", "threshold": %s}' % ("9" * 5000)), "INVALID_ARGUMENTS"),
    "a name twice": (("ocr_extract", '{"file": "p1", "file": "p2"}'), "INVALID_ARGUMENTS"),
    "a NUL": (("lookup_attributes", '{"query": "a\\u0000b"}'), "INVALID_ARGUMENTS"),
    "half a surrogate pair": (("lookup_attributes", '{"query": "\\ud800"}'), "INVALID_ARGUMENTS"),
    "nesting without end": (("ocr_extract", "[" * 30_000), "INVALID_ARGUMENTS"),
    "5 MB of arguments": (("ocr_extract", {"file": "x" * 5_000_000}), "INVALID_ARGUMENTS"),
    "a tool that is not there": (("delete_everything", {}), "UNKNOWN_TOOL"),
    "a name of 300 characters": (("x" * 300, {}), "UNKNOWN_TOOL"),
    "a name with control characters": (("ocr\n\x1b[31m_extract", {"file": "p1"}), "UNKNOWN_TOOL"),
    "a name with a blank": (("save copy", COPY), "UNKNOWN_TOOL"),
    "a path as a file": (("read_pdf", {"file": "../../etc/passwd"}), "NO_SUCH_FILE"),
    "copy that breaks the schema": (("save_copy", {**COPY, "bullets": []}), "INVALID_COPY"),
    "copy of another shape": (("save_copy", {"text": "Buy it."}), "INVALID_COPY"),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_call_that_cannot_be_carried_out_is_a_coded_error_and_the_run_goes_on(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes, case: str
) -> None:
    wanted, code = CALLS[case]
    talk = model.plays(name, in_turn(calls(wanted), calls(LOOKUP)))
    item = desk.written(name, sheet, attributes={"brand": "Vestland"})
    assert (item["status"], item["result"]["title"]) == ("succeeded", COPY["title"]), item["failure"]
    assert [(row.outcome or {}).get("code") for row in tools(desk, item)] == [code, None, None]
    assert item["usage"]["steps"] == 3
    assert f'"code":"{code}"' in json.dumps(talk.messages, separators=(",", ":")).replace('\\"', '"')
    assert max(len(json.dumps(request)) for request in talk.requests) < 200_000


def tools(desk: Desk, item: dict[str, Any]) -> list[Any]:
    """The calls that were judged; each has the guard's record of it."""
    rows = [row for row in desk.steps(item["id"]) if row.kind is StepKind.TOOL]
    assert all(row.intent["records"] for row in rows)
    return rows


@pytest.mark.parametrize("case", ["arguments that are no JSON", "a tool that is not there", "5 MB of arguments", "NaN"])
def test_same_bad_call_for_ever_is_stopped_within_the_ladder(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes, case: str
) -> None:
    talk = model.plays(name, always(calls(CALLS[case][0])))
    item = desk.written(name, sheet)
    assert item["status"] == "awaiting_human"
    assert len(talk.requests) <= 5
    assert desk.only_case(item["id"])["question"]


def test_copy_that_stays_invalid_goes_to_a_person(desk: Desk, model: TalkingModel, name: str, sheet: bytes) -> None:
    model.plays(name, lambda talk: saves(bullets=[f"only {len(talk.requests)}"]))
    item = desk.written(name, sheet)
    assert (item["status"], item["result"]) == ("awaiting_human", None)
    assert {row.outcome["code"] for row in tools(desk, item) if row.intent["execute"]} == {"INVALID_COPY"}
    assert item["usage"]["tool_calls"] <= 5


# --- messages of odd shapes ------------------------------------------------------------------------------------------


def test_500_calls_in_one_message_are_judged_in_order_until_the_budget_ends(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    wanted = [("lookup_attributes", {"query": f"word{number}"}) for number in range(500)]
    talk = model.plays(name, in_turn(calls(*wanted)))
    item = desk.written(name, sheet)
    assert (item["status"], item["reason"]) == ("awaiting_human", "budget")
    assert item["usage"]["tool_calls"] <= 20
    assert len(tools(desk, item)) <= 21
    assert len(talk.requests) == 1


def test_identical_calls_of_one_message_run_once_and_share_the_result(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    talk = model.plays(name, in_turn(calls(LOOKUP, LOOKUP, LOOKUP)))
    item = desk.written(name, sheet, attributes={"brand": "Vestland"})
    assert item["status"] == "succeeded"
    assert [row.intent["execute"] for row in tools(desk, item)][:1] == [True]
    assert sum(row.intent["execute"] for row in tools(desk, item)) == 2
    results = [message["content"] for message in talk.messages if message["role"] == "tool"]
    assert len(results) == 3
    assert results[1] == results[0]


@pytest.mark.parametrize(
    "ids", [("same", "same"), ("", ""), ("x" * 5000, "y" * 5000), ("a\nb", "a\nb")], ids=str
)  # fmt: skip
def test_call_ids_that_repeat_or_are_missing_are_replaced(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes, ids: tuple[str, str]
) -> None:
    twice = calls(LOOKUP, ("lookup_attributes", {"query": "size"}), ids=ids)
    talk = model.plays(name, in_turn(twice))
    item = desk.written(name, sheet, attributes={"brand": "Vestland"})
    assert item["status"] == "succeeded"
    asked = [call["id"] for call in talk.calls_before]
    answered = [message["tool_call_id"] for message in talk.messages if message["role"] == "tool"]
    assert answered == asked
    assert len(set(asked)) == 2
    assert max(map(len, asked)) < 65


def test_copy_handed_in_twice_in_one_message_is_taken_once(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    model.plays(name, in_turn(calls(("save_copy", COPY), ("save_copy", {**COPY, "title": "Another"}))))
    item = desk.written(name, sheet)
    assert (item["status"], item["result"]["title"]) == ("succeeded", COPY["title"])
    assert len(tools(desk, item)) == 1


TEXTS: dict[str, str | None] = {
    "words": "I am sorry, I cannot help with that.",
    "nothing": "",
    "null": None,
    "broken JSON": '{"title": ',
    "JSON that breaks the schema": json.dumps({**COPY, "price": "9.99"}),
    "a list": "[1, 2]",
    "5 MB of words": "word " * 1_000_000,
}


@pytest.mark.parametrize("case", TEXTS)
def test_text_instead_of_copy_is_asked_for_again_twice_and_then_goes_to_a_person(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes, case: str
) -> None:
    talk = model.plays(name, always(says(TEXTS[case])))
    item = desk.written(name, sheet)
    assert item["status"] == "awaiting_human"
    assert item["reason"] in {"no_copy", "model_garbage"}
    assert len(talk.requests) <= 3
    case_shown = desk.only_case(item["id"])
    assert (case_shown["resume_point"], case_shown["question"][-1]) == (0, "?")


# --- answers that are none -------------------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[Callable[[], Raw], str]] = {
    "no choices": (lambda: plain(b'{"id": "x", "object": "chat.completion", "choices": []}'), "model_garbage"),
    "choices that are null": (lambda: plain(b'{"choices": null}'), "model_garbage"),
    "choices that are a text": (lambda: plain(b'{"choices": "abc"}'), "model_garbage"),
    "a choice that is null": (lambda: plain(b'{"choices": [null]}'), "model_garbage"),
    "a message that is null": (lambda: body_of(None), "model_garbage"),
    "a message that is a text": (lambda: body_of("hello"), "model_garbage"),
    "calls that are null": (lambda: body_of({"role": "assistant", "tool_calls": [None]}), "model_garbage"),
    "a call without a function": (lambda: body_of({"role": "assistant", "tool_calls": [{"id": "a"}]}), "model_garbage"),
    "arguments that are an object": (
        lambda: body_of({"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "ocr_extract", "arguments": {"file": "p1"}}}]}),
        "model_garbage",
    ),
    "a list": (lambda: plain(b"[1, 2, 3]"), "model_garbage"),
    "a text": (lambda: plain(b'"hello"'), "model_garbage"),
    "null": (lambda: plain(b"null"), "model_garbage"),
    "HTML": (lambda: plain(b"<html>502</html>", Content_Type="text/html"), "model_garbage"),
    "bytes": (lambda: plain(bytes(range(256))), "model_garbage"),
    "nothing": (lambda: plain(b""), "model_garbage"),
    "nesting without end": (lambda: plain(b"[" * 100_000), "model_garbage"),
    "a cut body": (lambda: Raw([b'{"id": "x", "choi'], length=4000), "model_unreachable"),
    "an endless body": (lambda: Raw(endless()), "model_unreachable"),
    "429": (lambda: plain(b"{}", 429), "model_rate_limited"),
    "429 with Retry-After": (lambda: plain(b"{}", 429, Retry_After="0"), "model_rate_limited"),
    "429 with a strange Retry-After": (lambda: plain(b"{}", 429, Retry_After="soon"), "model_rate_limited"),
    "500": (lambda: plain(b"{}", 500), "model_error"),
    "400": (lambda: plain(b"{}", 400), "model_error"),
    "401": (lambda: plain(b"{}", 401), "model_refused_key"),
    "a redirect": (lambda: plain(b"", 302, Location="http://127.0.0.1:9/"), "model_unreachable"),
    "ids of calls that are null": (
        lambda: body_of(calls(("lookup_attributes", {"query": "x"}), ids=[None])),
        "model_garbage",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_answer_that_is_none_is_a_case_for_a_person_who_may_let_the_run_go_on(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes, case: str
) -> None:
    make, code = ANSWERS[case]
    talk = model.plays(name, lambda talk: make())
    item = desk.written(name, sheet)
    assert item["status"] == "awaiting_human", item["failure"]
    assert (
        item["reason"] in {code, "model_timeout", "model_garbage"}
        if case == "an endless body"
        else item["reason"] == code
    )
    assert 1 <= len(talk.requests) <= 2
    assert item["usage"]["tool_calls"] == 0
    shown = desk.only_case(item["id"])
    for inside in ("Traceback", "127.0.0.1", "openai", "pydantic"):
        assert inside not in json.dumps(shown)
    if case in {"500", "no choices"}:
        talk.behave = always(saves())
        desk.decided(shown["id"], "resume", guidance="Try again.")
        assert desk.settled(item["id"])["status"] == "succeeded"


def test_failing_model_ends_the_item_kindly_where_the_policy_says_error(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    model.plays(name, lambda talk: plain(b"{}", 500))
    item = desk.written(name, sheet, profile="error-ends")
    assert (item["status"], item["reason"]) == ("failed", "model_error")
    assert item["failure"]["detail"].endswith(".")


def test_one_failure_is_mended_by_our_own_retry_and_counted_once(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    talk = model.plays(name, in_turn(plain(b"{}", 429, Retry_After="0"), saves()))
    item = desk.written(name, sheet)
    assert (item["status"], len(talk.requests)) == ("succeeded", 2)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": -5, "total_tokens": -10}, {"prompt_tokens": 10**40}, None, "many", {},
        {"prompt_tokens": 1.5, "completion_tokens": None, "total_tokens": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_usage_that_cannot_be_true_costs_no_item(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes, usage: object
) -> None:
    model.plays(name, in_turn(body_of(saves(), usage=usage)))
    item = desk.written(name, sheet)
    assert item["status"] in {"succeeded", "awaiting_human"}
    assert item["usage"]["input_tokens"] >= 0


# --- the worker stays --------------------------------------------------------------------------------------------------


def test_worker_survived_all_of_this_without_a_crash_and_within_its_memory(
    service: Service, model: TalkingModel
) -> None:
    log = service.log.read_text("utf-8")
    assert "item.crashed" not in log
    assert "starting it again" not in log
    for line in log.splitlines():
        assert '"level": "error"' not in line, line
    [worker] = service.children("worker")
    with open(f"/proc/{worker}/status") as status:
        peak_kb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(f"peak memory of the worker: {peak_kb / 1024:.0f} MB")
    assert peak_kb < 900 * 1024
