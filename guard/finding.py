"""What a detector saw: a count on a ladder, with the steps that prove it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from guard.ladder import GuardAction


class Detector(Enum):
    """The detectors, in the order in which equal findings win."""

    CONTROL = "control"
    BUDGET = "budget"
    RULE = "rule"
    REPEAT = "repeat"
    RUN = "run"
    CYCLE = "cycle"
    FOLDING = "folding"
    JITTER = "jitter"
    TUNING = "tuning"
    STALE = "stale"
    ERROR_CODES = "error_codes"


class ReasonCode(Enum):
    """Why a call was warned about or refused: the vocabulary of the HTTP API."""

    REPEATED_CALL = "repeated_call"
    CYCLE = "cycle"
    JITTER = "jitter"
    STALE_RESULTS = "stale_results"
    REPEATED_ERROR = "repeated_error"
    STEP_BUDGET = "step_budget"
    TOOL_BUDGET = "tool_budget"
    TOKEN_BUDGET = "token_budget"  # noqa: S105 - a name of the API, not a secret
    COST_BUDGET = "cost_budget"
    TIME_BUDGET = "time_budget"
    TOOL_BANNED = "tool_banned"
    RULE = "rule"
    APPROVAL_NEEDED = "approval_needed"
    RUN_CANCELLED = "run_cancelled"
    RUN_PAUSED = "run_paused"


class EndReason(Enum):
    """Why a run ended at a halt."""

    REPEATED_TOOL_CALLS = "repeated_tool_calls"
    REPEATED_ERROR = "repeated_error"
    BUDGET = "budget"
    RULE = "rule"
    APPROVAL_NEEDED = "approval_needed"
    """Nothing is wrong: a person has to agree before this call runs."""
    CANCELLED = "cancelled"


END_REASONS: dict[ReasonCode, EndReason] = {
    ReasonCode.REPEATED_CALL: EndReason.REPEATED_TOOL_CALLS,
    ReasonCode.CYCLE: EndReason.REPEATED_TOOL_CALLS,
    ReasonCode.JITTER: EndReason.REPEATED_TOOL_CALLS,
    ReasonCode.STALE_RESULTS: EndReason.REPEATED_TOOL_CALLS,
    ReasonCode.REPEATED_ERROR: EndReason.REPEATED_ERROR,
    ReasonCode.STEP_BUDGET: EndReason.BUDGET,
    ReasonCode.TOOL_BUDGET: EndReason.BUDGET,
    ReasonCode.TOKEN_BUDGET: EndReason.BUDGET,
    ReasonCode.COST_BUDGET: EndReason.BUDGET,
    ReasonCode.TIME_BUDGET: EndReason.BUDGET,
    ReasonCode.TOOL_BANNED: EndReason.REPEATED_TOOL_CALLS,
    ReasonCode.RULE: EndReason.RULE,
    ReasonCode.APPROVAL_NEEDED: EndReason.APPROVAL_NEEDED,
    ReasonCode.RUN_CANCELLED: EndReason.CANCELLED,
    ReasonCode.RUN_PAUSED: EndReason.CANCELLED,
}


RUN_BUDGETS = frozenset(
    {ReasonCode.STEP_BUDGET, ReasonCode.TOKEN_BUDGET, ReasonCode.COST_BUDGET, ReasonCode.TIME_BUDGET}
)
"""Spent for the whole run, whichever tool was asked for last."""


class RuleEffect(Enum):
    """What a rule does when it holds."""

    CLOSE_GROUP = "close_group"
    """The call is refused; the third refusal in a row by one rule halts the run."""
    REROUTE = "reroute"
    """The run halts and goes another way, as `on_loop` says."""
    ESCALATE = "escalate"
    """The run halts, and a person is asked."""
    REJECT = "reject"
    """The run halts for good; for rules written by hand only."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One detector's view of one call."""

    detector: Detector
    reason: ReasonCode
    occurrence: int
    """The how-manieth like it this call is, counted as the detector counts; 1 is the first."""
    action: GuardAction
    """What the detector's ladder asks for at this occurrence."""
    evidence: tuple[int, ...] = ()
    """Step numbers that this count rests on, oldest first; not necessarily all of them."""
    rule: str | None = None
    """The rule's name, for findings of rules; the code, for error codes."""
    detail: str | None = None
    """A sentence of its own, where the reason's standard text does not say enough."""
    effect: RuleEffect | None = None
    """For findings of rules."""
