from __future__ import annotations

from typing import Any

import pytest

from guard import (
    Effect,
    Guard,
    GuardAction,
    GuardPolicy,
    History,
    Mode,
    Outcome,
    ReasonCode,
    RuleCall,
    ToolCall,
    ToolTraits,
    register_rule,
    unregister_rule,
)
from guard.metarules import Facts
from tests.guard.replay import load_cases, outcome_of, tool_call, traits_of

CASES = load_cases("loops.jsonl", "recorded.jsonl")
VISION = {name: ToolTraits(Effect.READ_ONLY, group="vision") for name in ("ocr_extract", "image_caption")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_shadow_mode_records_the_same_decisions_and_changes_nothing(case: dict[str, Any]) -> None:
    enforcing = Guard(tools=traits_of(case))
    shadow = Guard(GuardPolicy(mode=Mode.SHADOW), tools=traits_of(case))
    for number, recorded in enumerate(case["calls"], 1):
        call = tool_call(number, recorded)
        real, would = enforcing.before(call), shadow.before(call)
        assert would.shadow_action is real.action
        assert (would.action, would.execute) == (GuardAction.ALLOW, True)
        assert (would.append, would.tool_result, would.same_as, would.escalation) == (None, None, None, None)
        assert not would.ends_turn
        if real.execute:
            real = enforcing.after(call, outcome_of(recorded))
        would_after = shadow.after(call, outcome_of(recorded))
        assert (would_after.action, would_after.append, would_after.ends_turn) == (GuardAction.ALLOW, None, False)
        if would_after.flags == ():
            assert would_after.shadow_action is real.action
        if real.action is GuardAction.HALT:
            break


def test_the_vision_group_is_closed_after_two_failures_on_a_sparse_picture() -> None:
    guard = Guard(tools=VISION, facts={"text.tokens": 2})
    for tool in ("ocr_extract", "image_caption"):
        call = ToolCall(tool, {"file": "p1"})
        assert guard.before(call).execute
        guard.after(call, Outcome.failed("LOW_CONFIDENCE", f"of {tool}"))
    decision = guard.before(ToolCall("ocr_extract", {"file": "p1", "contrast": 2}))
    assert decision.action is GuardAction.BLOCK
    assert decision.reason is not None
    assert decision.reason.code is ReasonCode.RULE
    assert decision.reason.rule == "close_vision_on_sparse_text"


@pytest.mark.parametrize("facts", [{}, {"text.tokens": 40}, {"text.tokens": "few"}, {"text.tokens": True}])
def test_the_vision_group_stays_open_when_the_text_is_not_known_to_be_sparse(facts: dict[str, object]) -> None:
    guard = Guard(tools=VISION, facts=facts)
    for number in range(2):
        call = ToolCall("ocr_extract", {"file": f"p{number}"})
        guard.before(call)
        guard.after(call, Outcome.failed("LOW_CONFIDENCE", f"of p{number}"))
    assert guard.before(ToolCall("image_caption", {"file": "p1"})).execute


def test_rules_see_the_flat_facts_of_call_and_history() -> None:
    seen: list[tuple[RuleCall, History, Facts]] = []

    def watch(call: RuleCall, history: History, facts: Facts) -> str | None:
        seen.append((call, history, facts))
        return None

    guard = Guard(tools=VISION, facts={"image.width": 9}, rules=[watch])
    for outcome in (
        Outcome.failed("LOW", "a", cost=0.5),
        Outcome.failed("LOW", "b"),
        Outcome.ok("text"),
        Outcome.ok(""),
    ):
        call = ToolCall("ocr_extract", {"file": "p1"})
        guard.before(call)
        guard.after(call, outcome)
    histories = [history for _, history, _ in seen]
    assert seen[0][0] == RuleCall("ocr_extract", "vision", Effect.READ_ONLY, 1)
    assert seen[0][2] == {"image.width": 9}
    assert [h.steps for h in histories] == [0, 1, 2, 3]
    assert [h.tool_errors_in_row for h in histories] == [0, 1, 2, 0]
    assert [h.group_failures_in_row for h in histories] == [0, 1, 2, 0]
    assert [h.distinct_results_in_group for h in histories] == [0, 1, 2, 3]
    assert [h.last_error_code for h in histories] == [None, "LOW", "LOW", "LOW"]
    assert [h.same_call for h in histories] == [0, 1, 1, 1]
    assert [h.cost for h in histories] == [0.0, 0.5, 0.5, 0.5]


def test_a_registered_rule_judges_guards_that_are_built_afterwards() -> None:
    @register_rule
    def no_saving(call: RuleCall, history: History, facts: Facts) -> str | None:
        return "Nothing is saved today." if call.tool == "save" else None

    try:
        guard = Guard()
        decisions = [guard.before(ToolCall("save", {"n": n})) for n in range(3)]
        assert [d.action.value for d in decisions] == ["block", "block", "halt"]
        assert decisions[0].tool_result is not None
        assert "Nothing is saved today." in decisions[0].tool_result.text
        assert decisions[-1].end_reason is not None
        assert decisions[-1].end_reason.value == "rule"
    finally:
        unregister_rule(no_saving)
    assert Guard().before(ToolCall("save", {"n": 1})).execute
