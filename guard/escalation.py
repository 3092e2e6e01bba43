"""A question to a person, with all that is needed to answer it; and what a policy says should follow a halt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from guard.finding import RUN_BUDGETS, ReasonCode, RuleEffect
from guard.policy import GuardPolicy, OnLoop, OnRepeatedError
from guard.snapshot import dump

if TYPE_CHECKING:
    from guard.decision import Decision


@dataclass(frozen=True, slots=True)
class Escalation:
    """What a person has to decide. An incident is (run, tool, reason): the same again is its next occurrence."""

    question: str
    tool: str
    reason: ReasonCode
    args: str
    """Up to 2 KB, secrets redacted."""
    first_answer: str
    """The first result or error, one line."""
    attempts: int
    """How often it was tried, as the detector counts."""
    evidence: tuple[int, ...]
    """Step numbers that show it, oldest first."""
    resume_point: int
    """The step at which the run stands; a resume goes on after it and never repeats a finished call."""
    steps: int
    """Calls of the run so far."""
    tokens: int
    cost: float
    occurrence: int
    """1 for the first time that this run stopped for this tool and reason."""
    halt_number: int
    """1 for the first halt of this run, whatever its reason."""

    def to_json(self) -> dict[str, object]:
        """This escalation as JSON values."""
        stored: dict[str, object] = dump(self)
        return stored


class NextStep(Enum):
    """What follows a halt."""

    HUMAN = "human"
    """Put the escalation before a person."""
    FALLBACK = "fallback"
    """Close the tool (`Guard.fall_back`) and go on once more without it."""
    ERROR = "error"
    """End the run with an error."""
    STOP = "stop"
    """End the run as halted; the caller decides."""


def after_halt(policy: GuardPolicy, decision: Decision, halts_so_far: int) -> NextStep:
    """What `policy` wants after this halt; `halts_so_far` counts the run's halts, this one included.

    A halt that escalates follows `on_repeated_error`, every other one `on_loop`; a rule that rejects ends the run. A call
    that needs a person's consent goes to one, whatever the policy. Closing a tool does not help a run that has spent its
    budget, so there the fallback is a person too.
    """
    if decision.reason is not None and decision.reason.code is ReasonCode.APPROVAL_NEEDED:
        return NextStep.HUMAN
    if any(finding.effect is RuleEffect.REJECT for finding in decision.explanation):
        return NextStep.STOP
    if decision.escalates:
        return NextStep.HUMAN if policy.on_repeated_error is OnRepeatedError.HUMAN else NextStep.ERROR
    if policy.on_loop is OnLoop.HALT:
        return NextStep.STOP
    has_spent_all = decision.reason is not None and decision.reason.code in RUN_BUDGETS
    if policy.on_loop is OnLoop.HUMAN or halts_so_far > 1 or has_spent_all:
        return NextStep.HUMAN
    return NextStep.FALLBACK
