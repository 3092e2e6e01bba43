"""Calls that a person has to agree to: held before they run, let through once, and no mark against the run."""

from __future__ import annotations

import pytest

from guard import (
    Effect,
    EndReason,
    Guard,
    GuardAction,
    GuardPolicy,
    NextStep,
    Outcome,
    PolicyError,
    ReasonCode,
    ToolCall,
    Trace,
    after_halt,
)
from guard import ToolTraits as Traits

TOOLS = {
    "pay": Traits(needs_approval=True),
    "save": Traits(),
    "look": Traits(effect=Effect.READ_ONLY),
}


def pay(call_id: str = "c1", amount: int = 5, turn: str | None = None) -> ToolCall:
    return ToolCall("pay", {"amount": amount}, call_id=call_id, turn=turn)


@pytest.mark.parametrize(
    ("named", "tool", "is_held"),
    [
        ((), "pay", True),
        ((), "save", False),
        (("save",), "save", True),
        (("save",), "look", False),
        (("look",), "look", True),
        (("mutating",), "save", True),
        (("mutating",), "unknown", True),
        (("mutating",), "look", False),
    ],
)
def test_trait_or_policy_says_which_calls_are_held(named: tuple[str, ...], tool: str, is_held: bool) -> None:
    guard = Guard(GuardPolicy(needs_approval=named), tools=TOOLS)
    decision = guard.before(ToolCall(tool, {}, call_id="c1"))
    assert (decision.execute, decision.action is GuardAction.HALT) == (not is_held, is_held)


def test_held_call_asks_a_person_whatever_the_policy_and_counts_as_no_halt() -> None:
    guard = Guard(tools=TOOLS)
    decision = guard.before(pay())
    assert decision.reason is not None
    assert decision.escalation is not None
    assert (decision.reason.code, decision.end_reason) == (ReasonCode.APPROVAL_NEEDED, EndReason.APPROVAL_NEEDED)
    assert decision.escalation.question.endswith("May it run as it stands?")
    assert after_halt(guard.policy, decision, guard.halts) is NextStep.HUMAN
    assert (guard.halts, guard.is_halted, decision.halt_number) == (0, True, 0)


def test_approved_call_runs_once_and_every_other_is_held_again() -> None:
    guard = Guard(tools=TOOLS)
    held = guard.before(pay())
    guard.resume(approve=[held.signature], forgive=[held.signature])
    assert guard.before(pay("c2", amount=6)).action is GuardAction.HALT
    guard.resume(approve=[held.signature], forgive=[held.signature])
    ran = guard.before(pay())
    assert (ran.action, ran.execute) == (GuardAction.ALLOW, True)
    assert guard.after(pay(), Outcome.ok("paid"), step=ran.step).flags == ()
    again = guard.before(pay("c3"))
    assert (again.action, again.reason is not None and again.reason.code) == (
        GuardAction.BLOCK,
        ReasonCode.REPEATED_CALL,
    )


def test_twin_in_one_message_shares_the_result_of_the_call_that_was_approved() -> None:
    guard = Guard(tools=TOOLS)
    held = guard.before(pay(turn="m1"))
    guard.resume(approve=[held.signature], forgive=[held.signature])
    assert guard.before(pay("c1", turn="m2")).execute
    twin = guard.before(pay("c2", turn="m2"))
    assert (twin.execute, twin.same_as) == (False, "c1")


def test_call_that_is_refused_anyway_is_refused_without_a_question() -> None:
    guard = Guard(tools=TOOLS)
    guard.resume(ban_tools=["pay"])
    decision = guard.before(pay())
    assert decision.reason is not None
    assert decision.reason.code is ReasonCode.TOOL_BANNED


def test_arguments_that_are_no_json_are_no_call_to_agree_to() -> None:
    guard = Guard(tools=TOOLS)
    assert guard.before(ToolCall("pay", args_raw="{amount", call_id="c1")).execute


def test_consent_survives_the_trace_and_the_snapshot() -> None:
    guard = Guard(tools=TOOLS)
    held = guard.before(pay())
    guard.resume(approve=[held.signature], forgive=[held.signature])
    stored = Trace.from_jsonl(guard.trace.to_jsonl())
    for again in (
        Guard.from_trace(stored, tools=TOOLS),
        Guard.from_trace(stored, tools=TOOLS, snapshot=guard.snapshot()),
    ):
        assert again.before(pay()).execute
        assert again.before(pay("c2", amount=6)).action is GuardAction.HALT


@pytest.mark.parametrize("wrong", ["pay", [1], {"pay": True}, None])
def test_policy_that_names_no_list_of_tools_is_refused(wrong: object) -> None:
    with pytest.raises(PolicyError, match="needs_approval"):
        GuardPolicy.from_mapping({"needs_approval": wrong})


def test_policy_and_traits_are_read_and_written() -> None:
    policy = GuardPolicy.from_mapping({"needs_approval": ["save", "mutating"]})
    assert GuardPolicy.from_mapping(policy.to_mapping()) == policy
    assert Traits.from_mapping({"needs_approval": True}).needs_approval
    with pytest.raises(PolicyError, match="needs_approval"):
        Traits.from_mapping({"needs_approval": "yes"})
