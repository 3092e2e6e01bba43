"""Runs folded for reading: what becomes one block, what the guard did beside it, where it began to repeat."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from gateway.store.steps import StepKind, StepRow
from gateway.timeline import (
    Block,
    Call,
    Mark,
    Note,
    Remark,
    calls_of,
    entries_of_records,
    entries_of_steps,
    fold,
)


def _call(seq: int, arguments: object, *, mark: Mark = Mark.ALLOW, shape: str | None = None, **changes: Any) -> Call:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    values: dict[str, Any] = {
        "attempt": 1, "step": seq, "tool": "ocr_extract", "signature": f"s:{text}", "executed": mark is not Mark.HALT,
        "reason": None, "said": None, "code": None, "digest": "d", "excerpt": "", "at_ms": seq * 1000,
        "ended_ms": seq * 1000 + 500, "cost": Decimal("0.01"),
    }  # fmt: skip
    look_alike = (f"s:{text}", *((shape,) if shape else ()))
    return Call(**{**values, "seq": seq, "arguments": text, "look_alike": look_alike, "mark": mark, **changes})


def _blocks(calls: list[Call]) -> list[Block]:
    return [block for block in fold(calls).blocks if isinstance(block, Block)]


def test_same_call_in_a_row_is_one_block_with_what_the_guard_did_beside_it() -> None:
    marks = [Mark.ALLOW, Mark.WARN, Mark.BLOCK, Mark.BLOCK, Mark.HALT]
    [block] = _blocks([_call(n, {"file": "p1"}, mark=mark) for n, mark in enumerate(marks, 1)])
    assert (block.count, block.first_step, block.last_step, block.distinct_results) == (5, 1, 5, 1)
    assert [(stretch.mark, stretch.count, stretch.first_step) for stretch in block.rail] == [
        (Mark.ALLOW, 1, 1), (Mark.WARN, 1, 2), (Mark.BLOCK, 2, 3), (Mark.HALT, 1, 5),
    ]  # fmt: skip
    assert (block.worst, block.executed, block.cost) == (Mark.HALT, 4, Decimal("0.05"))
    assert (block.first_ms, block.last_ms) == (1000, 5500)


def test_numbers_that_jitter_are_one_block_and_marked_as_what_changes() -> None:
    calls = [_call(n, {"file": "p1", "contrast": 1 + n / 10}, shape="contrast") for n in range(1, 5)]
    [block] = _blocks(calls)
    changing = {each.name: (each.changes, each.first, each.last, each.values) for each in block.arguments}
    assert changing == {"file": (False, '"p1"', '"p1"', 1), "contrast": (True, "1.1", "1.4", 4)}


@pytest.mark.parametrize(
    ("second", "count"),
    [
        pytest.param(_call(2, {"file": "p1"}), 1, id="the same"),
        pytest.param(_call(2, {"file": "p2"}), 2, id="other arguments"),
        pytest.param(_call(2, {"file": "p1"}, tool="read_pdf"), 2, id="another tool"),
        pytest.param(_call(2, {"file": "p1"}, attempt=2), 2, id="another attempt"),
    ],
)
def test_what_is_not_the_same_is_another_block(second: Call, count: int) -> None:
    assert len(_blocks([_call(1, {"file": "p1"}), second])) == count


@pytest.mark.parametrize(
    ("calls", "first"),
    [
        pytest.param([_call(1, {"a": 1}), _call(2, {"a": 2}), _call(3, {"a": 2})], 2, id="in a row"),
        pytest.param([_call(1, {"a": 1}), _call(2, {"a": 2}), _call(3, {"a": 1})], 3, id="again after another"),
        pytest.param([_call(1, {"a": 1}), _call(2, {"a": 2})], None, id="never"),
        pytest.param(
            [_call(1, {"a": 1}, shape="x", digest="1"), _call(2, {"a": 2}, shape="x", digest="2", mark=Mark.WARN)], 1,
            id="other results, but warned",
        ),
        pytest.param(
            [_call(1, {"a": 1}, shape="x", digest="1"), _call(2, {"a": 2}, shape="x", digest="2")], None,
            id="pages with other results",
        ),
    ],
)  # fmt: skip
def test_first_repetition_is_where_something_was_said_twice(calls: list[Call], first: int | None) -> None:
    assert fold(calls).first_repetition == first


def test_remarks_stand_between_blocks_and_part_them() -> None:
    remark = Remark(2, 1, "resume", "Go on.", "person:Li", 1500)
    folded = fold([_call(1, {"a": 1}), remark, _call(3, {"a": 1})])
    assert [type(block) for block in folded.blocks] == [Block, Note, Block]
    assert (folded.calls, [block.number for block in folded.blocks]) == (2, [1, 2, 3])


def test_calls_of_a_block_are_found_by_its_number() -> None:
    entries = [_call(1, {"a": 1}), _call(2, {"a": 2}), _call(3, {"a": 2}), Remark(4, 1, "nudge", "", None, 1)]
    assert [call.seq for call in calls_of(entries, 2) or []] == [2, 3]
    assert (calls_of(entries, 3), calls_of(entries, 9)) == (None, None)


def test_arguments_that_are_no_object_stay_text() -> None:
    [block] = _blocks([_call(1, "not json"), _call(2, "not json")])
    assert (block.raw_arguments, block.arguments, block.count) == ("not json", (), 2)


def test_thousands_of_calls_are_a_handful_of_blocks_whose_counts_add_up() -> None:
    calls = [_call(n, {"file": "p1"}) for n in range(1, 2_001)]
    calls += [_call(n, {"x": n / 7}, shape="x", tool="image_facts", digest=str(n)) for n in range(2_001, 2_401)]
    folded = fold(calls)
    blocks = _blocks(calls)
    assert (folded.calls, len(blocks), sum(block.count for block in blocks)) == (2_400, 2, 2_400)
    assert folded.cost == Decimal("24.00")


def _row(seq: int, kind: StepKind, intent: dict[str, Any], outcome: dict[str, Any], attempt: int = 1) -> StepRow:
    return StepRow(seq, attempt, kind, intent, seq * 1000, 1, outcome, seq * 1000 + 10)


def test_steps_of_an_item_carry_the_cost_of_the_request_that_asked_for_them() -> None:
    asked = {
        "type": "call",
        "view": {"keys": {"signature": "s"}},
        "args": '{"file":"p1"}',
        "execute": True,
        "text": None,
    }
    came = {
        "type": "outcome",
        "code": "LOW",
        "digest": "d",
        "excerpt": "x",
        "cost": 0.25,
        "text": "stop",
        "reason": "r",
    }
    tool = {"tool": "ocr_extract", "step": 1, "action": "allow", "records": [asked]}
    rows = [
        _row(1, StepKind.PROMPT, {}, {}),
        _row(2, StepKind.MODEL, {}, {"cost": "0.5"}),
        _row(3, StepKind.TOOL, tool, {"action": "warn", "records": [came]}),
        _row(4, StepKind.CONTROL, {"control": "resume", "text": "Go on.", "by": "person:Li"}, {}),
        _row(5, StepKind.MODEL, {}, {"cost": "0.125"}, attempt=2),
    ]
    call, control, attempt, answer = entries_of_steps(rows)
    assert isinstance(call, Call)
    assert (call.cost, call.mark, call.code, call.said) == (Decimal("0.75"), Mark.WARN, "LOW", "stop")
    assert isinstance(control, Remark)
    assert (control.kind, control.text, control.by) == ("resume", "Go on.", "person:Li")
    assert isinstance(attempt, Remark)
    assert (attempt.kind, attempt.attempt) == ("attempt", 2)
    assert isinstance(answer, Remark)
    assert (answer.kind, answer.cost) == ("answer", Decimal("0.125"))


def test_records_of_a_guarded_run_are_read_with_their_outcomes() -> None:
    view = {"step": 1, "tool": "search", "keys": {"signature": "s"}}
    records = [
        {"type": "control", "control": "charge", "cost": 0.5},
        {"type": "call", "view": view, "args": "{}", "execute": True, "action": "allow", "now": 1.5},
        {
            "type": "outcome",
            "step": 1,
            "code": None,
            "digest": "d",
            "excerpt": "e",
            "cost": 0.25,
            "action": "halt",
            "now": 2.0,
        },
        {"type": "outcome", "step": 1, "digest": "late", "action": "allow", "ignored": True},
        {"type": "control", "control": "resume", "note": "Go on.", "now": 3.0},
    ]
    call, control = entries_of_records(records)
    assert isinstance(call, Call)
    assert (call.tool, call.mark, call.digest, call.cost) == ("search", Mark.HALT, "d", Decimal("0.75"))
    assert (call.at_ms, call.ended_ms) == (1500, 2000)
    assert isinstance(control, Remark)
    assert (control.kind, control.text) == ("resume", "Go on.")
