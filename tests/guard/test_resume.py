"""What happens after a halt: resume, fallback, cancel, pause, and what the policy wants."""

from __future__ import annotations

from typing import Any

import pytest

from guard import (
    Budget,
    Decision,
    Effect,
    EndReason,
    Flag,
    Guard,
    GuardAction,
    GuardPolicy,
    Language,
    NextStep,
    OnLoop,
    OnRepeatedError,
    Outcome,
    ReasonCode,
    Spent,
    ToolCall,
    ToolTraits,
    Trace,
    after_halt,
)

ALLOW, WARN, BLOCK, HALT = GuardAction.ALLOW, GuardAction.WARN, GuardAction.BLOCK, GuardAction.HALT
TOOLS = {"ocr": ToolTraits(Effect.READ_ONLY), "look": ToolTraits(Effect.READ_ONLY)}
LOW = Outcome.failed("LOW_CONFIDENCE", result="confidence 0.12")


def low(number: int) -> Outcome:
    return Outcome.failed("LOW_CONFIDENCE", result=f"confidence 0.{10 + number}")


def tuned(number: int) -> ToolCall:
    return ToolCall("ocr", {"file": "p1", "contrast": 1 + number / 16})


def halted(policy: GuardPolicy | None = None) -> tuple[Guard, Decision]:
    guard = Guard(policy, tools=TOOLS)
    for number in range(4):
        assert guard.before(tuned(number)).execute
        decision = guard.after(tuned(number), low(number))
    assert decision.action is HALT
    return guard, decision


def loop(guard: Guard, call: ToolCall) -> Decision:
    for _ in range(4):
        decision = guard.before(call)
        if decision.execute:
            decision = guard.after(call, Outcome.ok("same"))
    return decision


def test_a_halted_run_refuses_everything_without_counting_it_again() -> None:
    guard, first = halted()
    for call in (tuned(9), ToolCall("look", {})):
        decision = guard.before(call)
        assert (decision.action, decision.execute, decision.escalates) == (HALT, False, False)
        assert decision.flags == (Flag.ENDED,)
        assert decision.reason is not None
        assert decision.reason.code is ReasonCode.REPEATED_ERROR
    assert guard.halts == first.halt_number == 1


def test_an_old_signature_is_blocked_at_once_after_a_resume() -> None:
    guard, _ = halted()
    assert guard.resume(extra_steps=5, note="use the barcode").epoch == 1
    decision = guard.before(tuned(0))
    assert (decision.action, decision.execute, decision.epoch) == (BLOCK, False, 1)
    assert guard.before(tuned(0)).action is HALT


def test_varying_the_call_after_a_resume_is_stopped_within_the_ladder_and_says_that_it_is_the_second() -> None:
    guard, _ = halted()
    guard.resume()
    decisions = []
    for number in range(10, 14):
        assert guard.before(tuned(number)).execute
        decisions.append(guard.after(tuned(number), low(number)))
    assert [d.action for d in decisions] == [ALLOW, WARN, WARN, HALT]
    last = decisions[-1]
    assert last.halt_number == 2
    assert last.escalates
    assert last.escalation is not None
    assert (last.escalation.occurrence, last.escalation.halt_number) == (2, 2)
    assert last.reason is not None
    assert "2" in last.reason.text


def test_something_new_lifts_the_block_from_old_signatures() -> None:
    guard, _ = halted()
    guard.resume()
    look = ToolCall("look", {"at": "p2"})
    guard.before(look)
    guard.after(look, Outcome.ok("a page that was not seen before"))
    assert guard.before(tuned(0)).execute


def test_an_empty_answer_that_is_known_is_nothing_new() -> None:
    guard = Guard(tools=TOOLS)
    assert loop(guard, ToolCall("look", {"at": "p1"})).action is HALT
    guard.resume()
    other = ToolCall("look", {"at": "p2"})
    guard.before(other)
    guard.after(other, Outcome.ok("same"))
    assert guard.before(ToolCall("look", {"at": "p1"})).action is BLOCK


def test_a_forgiven_signature_starts_afresh() -> None:
    guard = Guard(tools=TOOLS)
    call = ToolCall("look", {"at": "p1"})
    signature = loop(guard, call).signature
    guard.resume(forgive=[signature])
    assert guard.before(call).action is ALLOW


def test_banned_tools_stay_closed_and_asking_on_halts() -> None:
    guard, _ = halted()
    assert guard.resume(ban_tools=["ocr"]).banned_tools == ("ocr",)
    decisions = [guard.before(tuned(number)) for number in range(20, 23)]
    assert [d.action for d in decisions] == [BLOCK, BLOCK, HALT]
    assert {d.reason.code for d in decisions if d.reason} == {ReasonCode.TOOL_BANNED}
    assert decisions[0].banned_tools == ("ocr",)
    guard.resume()
    assert guard.before(tuned(30)).action is BLOCK


def test_the_fallback_closes_the_tool_until_a_resume_opens_it() -> None:
    guard = Guard(tools=TOOLS)
    assert loop(guard, ToolCall("look", {})).action is HALT
    assert guard.fall_back().banned_tools == ("look",)
    assert not guard.is_halted
    assert guard.before(ToolCall("look", {"at": "p9"})).action is BLOCK
    assert guard.before(tuned(0)).execute
    guard.resume()
    assert guard.closed_tools == ()
    assert guard.before(ToolCall("look", {"at": "p9"})).execute


@pytest.mark.parametrize("language", Language)
def test_the_fallback_says_what_was_tried_and_that_the_run_goes_on_without_the_tool(language: Language) -> None:
    guard = Guard(GuardPolicy(language=language), tools=TOOLS)
    halt = loop(guard, ToolCall("look", {}))
    told = guard.fall_back().text
    assert halt.reason is not None
    assert told is not None
    stops = ("stops here", "ends the turn", "停止", "结束")
    assert any(word in halt.reason.text for word in stops)
    assert not any(word in told for word in stops)
    assert "same" in told
    assert any(word in told for word in ("without it", "has no look", "已关闭", "不再提供"))
    assert Guard().fall_back().text is None


@pytest.mark.parametrize("budget", [Budget(steps=1), Budget(tokens=1), Budget(cost=0.1), Budget(seconds=1)])
def test_a_spent_budget_closes_no_tool_but_asks_a_person(budget: Budget) -> None:
    guard = Guard(GuardPolicy(budget=budget), tools=TOOLS)
    guard.before(ToolCall("look", {"at": 1}), now=0)
    guard.after(ToolCall("look", {"at": 1}), Outcome.ok(1, tokens=9, cost=9), now=9)
    decision = guard.before(ToolCall("look", {"at": 2}), now=9)
    assert decision.end_reason is EndReason.BUDGET
    assert after_halt(guard.policy, decision, guard.halts) is NextStep.HUMAN
    assert after_halt(GuardPolicy(on_loop=OnLoop.HALT), decision, guard.halts) is NextStep.STOP


def test_the_worker_may_die_between_any_two_calls() -> None:
    guard = Guard(tools=TOOLS)
    actions = []
    for number in range(4):
        guard = Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl()), tools=TOOLS)
        guard.before(tuned(number))
        guard = Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl()), tools=TOOLS)
        actions.append(guard.after(tuned(number), low(number)).action)
    assert actions == [ALLOW, WARN, WARN, HALT]


@pytest.mark.parametrize(
    ("policy", "halts", "escalating", "otherwise"),
    [
        (GuardPolicy(), 1, NextStep.HUMAN, NextStep.FALLBACK),
        (GuardPolicy(), 2, NextStep.HUMAN, NextStep.HUMAN),
        (GuardPolicy(on_loop=OnLoop.HUMAN), 1, NextStep.HUMAN, NextStep.HUMAN),
        (GuardPolicy(on_loop=OnLoop.HALT), 2, NextStep.HUMAN, NextStep.STOP),
        (GuardPolicy(on_repeated_error=OnRepeatedError.ERROR), 1, NextStep.ERROR, NextStep.FALLBACK),
    ],
)
def test_what_follows_a_halt_is_policy(
    policy: GuardPolicy, halts: int, escalating: NextStep, otherwise: NextStep
) -> None:
    _, failed = halted(policy)
    looped = loop(Guard(policy, tools=TOOLS), ToolCall("look", {}))
    assert (failed.escalates, looped.escalates) == (True, False)
    assert after_halt(policy, failed, halts) is escalating
    assert after_halt(policy, looped, halts) is otherwise
    assert looped.escalation is not None
    assert looped.end_reason is EndReason.REPEATED_TOOL_CALLS


def test_any_halt_of_a_tool_that_failed_since_the_last_progress_escalates_once() -> None:
    guard = Guard(tools=TOOLS)
    call = ToolCall("ocr", {"file": "p1"})
    decisions = []
    for _ in range(5):
        decision = guard.before(call)
        decisions.append(guard.after(call, LOW) if decision.execute else decision)
    assert [d.action for d in decisions] == [ALLOW, WARN, BLOCK, HALT, HALT]
    assert [d.escalates for d in decisions] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(steps=3), ReasonCode.STEP_BUDGET),
        (Budget(tokens=30), ReasonCode.TOKEN_BUDGET),
        (Budget(cost=0.75), ReasonCode.COST_BUDGET),
        (Budget(seconds=30.0), ReasonCode.TIME_BUDGET),
    ],
    ids=lambda value: value.value if isinstance(value, ReasonCode) else "",
)
def test_budgets_halt(budget: Budget, reason: ReasonCode) -> None:
    guard = Guard(GuardPolicy(budget=budget), tools=TOOLS)
    for number in range(3):
        call = ToolCall("look", {"n": "x" * number})
        assert guard.before(call, now=number * 10.0).execute
        guard.after(call, Outcome.ok(f"{number}", tokens=10, cost=0.25), now=number * 10.0)
    decision = guard.before(ToolCall("look", {"n": "more"}), now=30.0)
    assert decision.action is HALT
    assert decision.reason is not None
    assert decision.reason.code is reason
    assert decision.end_reason is EndReason.BUDGET


def test_what_was_spent_is_told() -> None:
    guard = Guard(GuardPolicy(budget=Budget(steps=20)), tools=TOOLS)
    guard.charge(tokens=100, cost=0.25, now=1.0)
    guard.before(tuned(0), now=2.0)
    guard.after(tuned(0), Outcome.ok("x", tokens=5, cost=0.5), now=4.5)
    assert guard.spent == Spent(steps=1, steps_max=20, tokens=105, cost=0.75, seconds=3.5)


def test_a_person_may_add_steps() -> None:
    guard = Guard(GuardPolicy(budget=Budget(steps=2)), tools=TOOLS)
    actions = [guard.before(ToolCall("look", {"n": "x" * n})).action for n in range(3)]
    assert actions == [ALLOW, ALLOW, HALT]
    assert guard.resume(extra_steps=2).steps_max == 4
    # The call that the budget refused never ran: it is no old signature.
    assert guard.before(ToolCall("look", {"n": "xx"})).action is ALLOW
    assert guard.before(ToolCall("look", {"n": "newer"})).action is HALT


@pytest.mark.parametrize(
    ("budget", "more"),
    [
        (Budget(tokens=10), {"extra_tokens": 10}),
        (Budget(cost=0.5), {"extra_cost": 0.5}),
        (Budget(seconds=10), {"extra_seconds": 10}),
    ],
    ids=["tokens", "cost", "seconds"],
)
def test_a_person_may_add_to_each_budget_of_a_run(budget: Budget, more: dict[str, Any]) -> None:
    guard, now = Guard(GuardPolicy(budget=budget), tools=TOOLS), 0.0

    def work(number: int) -> GuardAction:
        nonlocal now
        call = ToolCall("look", {"at": number})
        decision = guard.before(call, now=now)
        now += 10
        if decision.execute:
            guard.after(call, Outcome.ok(number, tokens=10, cost=0.5), now=now)
        return decision.action

    assert [work(1), work(2)] == [GuardAction.ALLOW, GuardAction.HALT]
    guard.resume(now=now)
    assert work(3) is GuardAction.HALT
    guard.resume(**more, now=now)
    assert [work(4), work(5)] == [GuardAction.ALLOW, GuardAction.HALT]
    name = next(iter(more)).removeprefix("extra_")
    assert getattr(guard.limits, name) == 2 * getattr(budget, name)
    again = Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl()), guard.policy, tools=TOOLS)
    assert (again.snapshot(), again.limits) == (guard.snapshot(), guard.limits)


def test_paused_time_is_no_part_of_the_time_budget() -> None:
    guard = Guard(GuardPolicy(budget=Budget(seconds=30.0)), tools=TOOLS)
    guard.before(ToolCall("look", {"n": "a"}), now=0.0)
    guard.pause(now=10.0)
    assert guard.before(ToolCall("look", {"n": "b"}), now=11.0).reason.code is ReasonCode.RUN_PAUSED  # type: ignore[union-attr]
    guard.unpause(now=1_000.0)
    assert guard.before(ToolCall("look", {"n": "b"}), now=1_005.0).action is ALLOW
    guard.resume(now=9_000.0)
    assert guard.before(ToolCall("look", {"n": "c"}), now=9_005.0).action is ALLOW
    assert guard.before(ToolCall("look", {"n": "d"}), now=9_030.0).action is HALT


@pytest.mark.parametrize("traits", [ToolTraits(max_writes=2), ToolTraits(max_calls=2)])
def test_a_tools_own_budget_closes_only_that_tool(traits: ToolTraits) -> None:
    guard = Guard(tools={**TOOLS, "save": traits})
    actions = []
    for number in range(5):
        call = ToolCall("save", {"n": number})
        decision = guard.before(call)
        actions.append(decision.action)
        if decision.execute:
            guard.after(call, Outcome.ok(f"version {number}"))
        elif decision.action is BLOCK:
            assert decision.reason is not None
            assert decision.reason.code is ReasonCode.TOOL_BUDGET
            assert guard.before(ToolCall("look", {"n": "x" * number})).execute
    assert actions == [ALLOW, ALLOW, BLOCK, BLOCK, HALT]


def test_a_cancelled_run_refuses_and_cannot_be_resumed() -> None:
    guard = Guard(tools=TOOLS)
    guard.cancel()
    decision = guard.before(ToolCall("look", {}))
    assert decision.action is HALT
    assert decision.end_reason is EndReason.CANCELLED
    assert not decision.is_resumable
    guard.resume()
    assert guard.before(ToolCall("look", {})).action is HALT


def test_a_ban_on_a_tool_that_nobody_knows_is_told() -> None:
    guard = Guard(tools={"look": ToolTraits(Effect.READ_ONLY)})
    guard.before(ToolCall("ocr", {}, call_id="c1"))
    assert guard.known_tools == ("look", "ocr")
    resumed = guard.resume(ban_tools=["look", "ocr", "lock"])
    assert resumed.unknown_tools == ("lock",)
    assert resumed.banned_tools == ("look", "ocr", "lock")
    assert guard.resume(ban_tools=["lock"]).unknown_tools == ("lock",)
