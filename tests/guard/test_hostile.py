"""Whatever the model, a caller or a rule sends, the answer is a decision."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard import (
    INVALID_ARGUMENTS,
    UNKNOWN_TOOL,
    Effect,
    EndReason,
    Flag,
    Guard,
    GuardAction,
    GuardPolicy,
    History,
    Outcome,
    ReasonCode,
    RuleCall,
    ToolCall,
    ToolTraits,
    Trace,
)
from guard.metarules import Facts

READ = {"look": ToolTraits(Effect.READ_ONLY)}


def _cyclic_list() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def _cyclic_wide() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value["b"] = [value, value]
    return value


def _doubling() -> list[Any]:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    return value


def _deep_sets() -> Any:
    value: Any = frozenset([1])
    for _ in range(150):
        value = frozenset([value])
    return value


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


class _Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


HOSTILE: dict[str, ToolCall] = {
    "not JSON": ToolCall("t", args_raw='{"a": '),
    "empty text": ToolCall("t", args_raw=""),
    "text as args": ToolCall("t", args="{"),
    "a JSON list": ToolCall("t", args_raw="[1, 2]"),
    "a JSON text": ToolCall("t", args_raw='"x"'),
    "duplicate keys": ToolCall("t", args_raw='{"a": 1, "a": 2}'),
    "NaN": ToolCall("t", args_raw='{"a": NaN}'),
    "Infinity": ToolCall("t", {"a": [float("inf"), float("-inf"), float("nan")]}),
    "overflow": ToolCall("t", args_raw='{"a": 1e999}'),
    "ten thousand digits": ToolCall("t", args_raw='{"a": ' + "9" * 10_000 + "}"),
    "huge integer": ToolCall("t", {"a": 10**5_000}),
    "5 MB text": ToolCall("t", {"a": "x y." * 1_250_000}),
    "5 MB raw": ToolCall("t", args_raw=json.dumps({"a": ["0123456789"] * 400_000})),
    "5 MB broken": ToolCall("t", args_raw='{"a": "' + "x" * 5_000_000),
    "depth 200": ToolCall("t", _deep(200)),
    "depth 200 raw": ToolCall("t", args_raw=json.dumps(_deep(200))),
    "depth 100,000 raw": ToolCall("t", args_raw="[" * 100_000),
    "cyclic list": ToolCall("t", {"a": _cyclic_list()}),
    "cyclic and wide": ToolCall("t", _cyclic_wide()),
    "doubling": ToolCall("t", {"a": _doubling()}),
    "sets within sets": ToolCall("t", {"a": _deep_sets()}),
    "lone surrogate": ToolCall("t\ud800", {"\udc00": "\ud800"}, call_id="\ud800", turn="\ud800"),
    "NUL": ToolCall("t\x00", {"a\x00": "\x00"}),
    "keys of many kinds": ToolCall("t", {1: 1, "1": 2, None: 3, (1, 2): 4}),
    "foreign objects": ToolCall("t", {"a": object(), "b": _Rude(), "c": {1, "x"}, "d": b"\xff"}),
    "empty tool": ToolCall("", {}),
    "long tool": ToolCall("t" * 100_000, {}),
    "braces": ToolCall("{0}{tool}{x!r}", {"a": "{b}"}),
    "odd turn": ToolCall("t", {}, turn=("a", 1)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_calls_climb_the_ladder_like_others(name: str, effect: Effect) -> None:
    call = HOSTILE[name]
    guard = Guard(tools={call.tool: ToolTraits(effect)})
    actions = []
    for _ in range(4):
        decision = guard.before(call)
        if decision.execute:
            decision = guard.after(call, Outcome.failed("NO", "no \ud800"))
        actions.append(decision.action)
        text = json.dumps(decision.to_json())
        if decision.reason is not None and "\ud800" not in call.tool:
            assert decision.reason.text.encode("utf-8")
        assert len(text) < 300_000
    assert actions[0] is GuardAction.ALLOW
    assert actions[-1] is GuardAction.HALT
    Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl()))


def test_broken_json_is_one_signature_per_tool_with_a_hint_and_one_code() -> None:
    guard = Guard(tools=READ)
    for number, expected in enumerate(["allow", "warn", "block", "halt"]):
        call = ToolCall("look", args_raw='{"a": "' + "x" * number)
        decision = guard.before(call)
        assert Flag.INVALID_ARGUMENTS in decision.flags
        if decision.execute:
            assert decision.append is not None
            assert "JSON" in decision.append
            decision = guard.after(call, Outcome.failed("JSONDecodeError", f"column {number}"))
        assert decision.action.value == expected
        if decision.reason is not None:
            assert decision.reason.code is ReasonCode.REPEATED_ERROR
            assert INVALID_ARGUMENTS in decision.reason.text
    assert decision.end_reason is EndReason.REPEATED_ERROR
    assert decision.escalates
    outcomes = [step.outcome for step in guard.trace.steps() if step.outcome is not None]
    assert {outcome.code for outcome in outcomes} == {INVALID_ARGUMENTS}


def test_invented_tools_share_one_row_of_errors() -> None:
    guard = Guard()
    actions = []
    for number in range(4):
        call = ToolCall(f"invented_{number}", {"n": number})
        guard.before(call)
        actions.append(guard.after(call, Outcome.failed(UNKNOWN_TOOL)))
    assert [d.action.value for d in actions] == ["allow", "warn", "warn", "halt"]
    assert actions[0].append is not None
    assert actions[3].escalates


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_results_are_compared_and_never_raise(name: str) -> None:
    guard = Guard(tools=READ)
    actions = []
    for number in range(1, 4):
        call = ToolCall("look", {"at": "p1"}, call_id=f"c{number}", turn=number)
        decision = guard.before(call)
        if decision.execute:
            decision = guard.after(call, Outcome.ok(HOSTILE[name].args))
        actions.append(decision.action)
    assert actions == [GuardAction.ALLOW, GuardAction.WARN, GuardAction.BLOCK]


def test_an_outcome_without_a_question_is_counted_and_flagged() -> None:
    guard = Guard(tools=READ)
    call = ToolCall("look", {"a": 1}, call_id="c1")
    decision = guard.after(call, Outcome.ok("same"))
    assert decision.flags == (Flag.UNASKED,)
    assert guard.steps == 1
    guard.before(call)
    assert guard.after(call, Outcome.ok("same")).action is GuardAction.WARN


def test_the_outcome_of_a_blocked_call_is_no_evidence() -> None:
    guard = Guard()
    call = ToolCall("save", {"a": 1}, call_id="c1")
    guard.before(call)
    guard.after(call, Outcome.ok("saved"))
    again = ToolCall("save", {"a": 1}, call_id="c2")
    assert guard.before(again).action is GuardAction.BLOCK
    decision = guard.after(again, Outcome.ok("saved twice"))
    assert decision.flags == (Flag.NOT_EXECUTED,)
    assert decision.action is GuardAction.ALLOW


def test_an_outcome_that_comes_twice_counts_once() -> None:
    guard = Guard(tools=READ)
    call = ToolCall("look", {"a": 1}, call_id="c1")
    guard.before(call)
    guard.after(call, Outcome.ok("same"))
    assert guard.after(call, Outcome.ok("same")).flags == (Flag.KNOWN_OUTCOME,)
    assert guard.before(ToolCall("look", {"a": 1}, call_id="c2")).counts.same == 2


def test_repeated_and_missing_call_ids_are_told_apart_by_step() -> None:
    guard = Guard(tools=READ)
    for call_id in ("c1", None):
        calls = [ToolCall("look", {"a": f"{call_id} {n}"}, call_id=call_id, turn=str(call_id)) for n in "abc"]
        decisions = [guard.before(call) for call in calls]
        for call, decision in reversed(list(zip(calls, decisions, strict=True))):
            after = guard.after(call, Outcome.ok(str(call.args)), step=decision.step)
            assert after.flags == ()
            assert after.step == decision.step


def test_five_hundred_calls_in_one_message_are_judged_in_order() -> None:
    guard = Guard(tools=READ)
    decisions = guard.before_batch([ToolCall("look", {"a": n % 250}, call_id=f"c{n}") for n in range(500)])
    assert all(d.execute for d in decisions[:250])
    assert not any(d.execute for d in decisions[250:])


def _raising(call: RuleCall, history: History, facts: Facts) -> str | None:
    raise KeyError("missing")


def test_a_rule_that_raises_leaves_reads_to_the_ladder_and_refuses_writes() -> None:
    guard = Guard(tools=READ, rules=[_raising])
    look = ToolCall("look", {"a": 1})
    for expected in ("allow", "warn", "block"):
        decision = guard.before(look)
        assert Flag.RULE_FAILED in decision.flags
        if decision.execute:
            decision = guard.after(look, Outcome.ok("same"))
        assert decision.action.value == expected
    decision = guard.before(ToolCall("save", {"a": 1}))
    assert decision.action is GuardAction.BLOCK
    assert decision.reason is not None
    assert decision.reason.code.value == "rule"


@pytest.mark.parametrize("answer", [True, 5, {"reason": "closed"}, object()], ids=["true", "number", "object", "other"])
def test_a_rule_that_returns_neither_reason_nor_none_counts_as_one_that_raises(answer: Any) -> None:
    guard = Guard(tools=READ, rules=[lambda call, history, facts: answer])
    read, write = guard.before(ToolCall("look", {"a": 1})), guard.before(ToolCall("save", {"a": 1}))
    assert (read.action, write.action) == (GuardAction.ALLOW, GuardAction.BLOCK)
    assert Flag.RULE_FAILED in read.flags
    assert Flag.RULE_FAILED in write.flags


@pytest.mark.parametrize("answer", [None, False, ""], ids=["none", "false", "no reason"])
def test_a_rule_without_a_reason_does_not_hold(answer: Any) -> None:
    decision = Guard(rules=[lambda call, history, facts: answer]).before(ToolCall("save", {"a": 1}))
    assert (decision.action, decision.flags) == (GuardAction.ALLOW, ())


def test_what_a_rule_raised_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    Guard(rules=[_raising]).before(ToolCall("save", {"a": 1}))
    assert "_raising" in caplog.text
    assert "KeyError: 'missing'" in caplog.text


def test_an_error_code_that_is_a_number_counts_like_its_text() -> None:
    guard, status = Guard(tools=READ), cast("str", 503)
    for number in range(4):
        call = ToolCall("look", {"a": number})
        guard.before(call)
        decision = guard.after(call, Outcome.failed(status, cast("str", None)))
    assert decision.action is GuardAction.HALT
    assert decision.reason is not None
    assert decision.reason.rule == "503"
    assert Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl()), tools=READ).snapshot() == guard.snapshot()


def test_one_name_is_a_name_and_not_its_letters() -> None:
    guard = Guard(tools=READ)
    assert guard.fall_back("look").banned_tools == ("look",)
    assert guard.resume(ban_tools="look").banned_tools == ("look",)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.builds(
            ToolCall,
            st.text(max_size=3),
            st.none() | st.dictionaries(st.text(max_size=3), st.floats() | st.text(max_size=5) | st.integers()),
            st.none() | st.text(max_size=8),
            st.none() | st.text(max_size=2),
            st.none() | st.integers(0, 3),
        ),
        max_size=20,
    ),
    st.sampled_from([None, 1.0, float("nan"), float("inf"), -5.0]),
)
def test_the_guard_never_raises(calls: list[ToolCall], now: float | None) -> None:
    guard = Guard(GuardPolicy())
    for number, call in enumerate(calls):
        guard.before(call, now=now)
        guard.after(call, Outcome.failed("", retry_after_s=now) if number % 2 else Outcome.ok(object()), now=now)
    assert Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl())).snapshot() == guard.snapshot()
