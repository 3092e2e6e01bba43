"""Backstops: limits that are blind to what calls bring.

The case that it alone catches: work that is new at every step and never ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction
from guard.marks import Marks
from guard.memory import BoundedMap
from guard.policy import Budget, Effect, GuardPolicy, ToolTraits
from guard.trace import CallView, OutcomeRecord


@dataclass(slots=True)
class Tally:
    """What one tool was used for."""

    calls: int = 0
    writes: int = 0
    """Successful calls of a mutating tool."""


@dataclass(slots=True)
class BudgetMemory:
    """What was spent so far."""

    tools: BoundedMap[Tally] = field(default_factory=BoundedMap)
    tokens: int = 0
    cost: float = 0.0
    started_at: float | None = None
    latest: float | None = None
    paused_s: float = 0.0
    extra_steps: int = 0
    extra_tokens: int = 0
    extra_cost: float = 0.0
    extra_seconds: float = 0.0


def steps_max(memory: BudgetMemory, policy: GuardPolicy) -> int | None:
    """The step limit with what people added to it."""
    return None if policy.budget.steps is None else policy.budget.steps + memory.extra_steps


def limits(memory: BudgetMemory, policy: GuardPolicy) -> Budget:
    """The limits of the policy with what people added to them."""
    budget = policy.budget
    return Budget(
        steps_max(memory, policy),
        budget.calls_per_tool,
        None if budget.tokens is None else budget.tokens + memory.extra_tokens,
        None if budget.cost is None else budget.cost + memory.extra_cost,
        None if budget.seconds is None else budget.seconds + memory.extra_seconds,
    )


def find(memory: BudgetMemory, marks: Marks, policy: GuardPolicy) -> Finding | None:
    """Before the call: the first limit of the run that it would pass."""
    budget = policy.budget
    if budget.steps is not None and marks.step + 1 > budget.steps + memory.extra_steps:
        return _halt(ReasonCode.STEP_BUDGET, marks.step + 1)
    if budget.tokens is not None and memory.tokens >= budget.tokens + memory.extra_tokens:
        return _halt(ReasonCode.TOKEN_BUDGET, memory.tokens)
    if budget.cost is not None and memory.cost >= budget.cost + memory.extra_cost:
        return _halt(ReasonCode.COST_BUDGET, 1)
    if budget.seconds is not None and seconds_spent(memory) >= budget.seconds + memory.extra_seconds:
        return _halt(ReasonCode.TIME_BUDGET, 1)
    return None


def is_tool_spent(memory: BudgetMemory, tool: str, policy: GuardPolicy, traits: ToolTraits) -> bool:
    """Whether one more call of `tool` would pass the limit of its calls, or of its successful writes."""
    limit = policy.budget.calls_per_tool
    if limit is None and traits.max_calls is None and traits.max_writes is None:
        return False
    tally = memory.tools.get(tool) or Tally()
    if limit is not None and tally.calls >= limit:
        return True
    if traits.max_calls is not None and tally.calls >= traits.max_calls:
        return True
    return traits.max_writes is not None and tally.writes >= traits.max_writes


def seconds_spent(memory: BudgetMemory) -> float:
    """Seconds between the first and the latest time handed in, pauses taken out."""
    if memory.started_at is None or memory.latest is None:
        return 0.0
    return memory.latest - memory.started_at - memory.paused_s


def observe_now(memory: BudgetMemory, now: float | None) -> None:
    """Fold a time in; a clock that goes back is ignored."""
    if now is None:
        return
    if memory.started_at is None:
        memory.started_at = now
    if memory.latest is None or now > memory.latest:
        memory.latest = now


def observe_call(memory: BudgetMemory, call: CallView) -> None:
    """Fold the call in."""
    tally = memory.tools.get(call.tool)
    if tally is None:
        memory.tools.put(call.tool, Tally(1))
    else:
        tally.calls += 1
        memory.tools.touch(call.tool)


def observe_outcome(memory: BudgetMemory, call: CallView, outcome: OutcomeRecord) -> None:
    """Fold the outcome in."""
    memory.tokens += outcome.tokens
    memory.cost += outcome.cost
    if outcome.code is None and call.effect is Effect.MUTATING:
        tally = memory.tools.get(call.tool)
        if tally is not None:
            tally.writes += 1


def charge(memory: BudgetMemory, tokens: int, cost: float) -> None:
    """Add what was spent outside tool calls, such as model calls."""
    memory.tokens += tokens
    memory.cost += cost


def _halt(reason: ReasonCode, occurrence: int) -> Finding:
    return Finding(Detector.BUDGET, reason, occurrence, GuardAction.HALT)
