"""What the guard answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from guard.escalation import Escalation
from guard.finding import EndReason, Finding, ReasonCode
from guard.ladder import GuardAction
from guard.snapshot import dump

BLOCKED_CODE: Final = "guard_blocked"
"""The error code of a synthetic tool result."""


class Phase(Enum):
    """Which question a decision answers."""

    BEFORE = "before"
    AFTER = "after"


class Flag(Enum):
    """What was odd about the question; never a reason to refuse an answer."""

    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments are no JSON; `append` says so, for the error that the tool will give."""
    UNASKED = "unasked"
    """The outcome came without a question before; it was counted."""
    NOT_EXECUTED = "not_executed"
    """The outcome belongs to a call that was not let through; it was ignored."""
    KNOWN_OUTCOME = "known_outcome"
    """The call's outcome had come before; it was ignored."""
    ENDED = "ended"
    """The run had already ended, or is paused."""
    RULE_FAILED = "rule_failed"
    """A rule raised; the call was judged without it if read-only, and refused if mutating."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a call was warned about or refused."""

    code: ReasonCode
    text: str
    """For the model; `append` or the tool result carry the same words."""
    signature: str
    rule: str | None = None
    """The meta-rule's name, or the error code of a row of errors."""


@dataclass(slots=True)
class Counts:
    """Where the call stands."""

    same: int
    """Identical calls, this one included, as the ladder counts them."""
    similar: int
    """Calls that some detector counts as the same, this one included."""
    errors_same_code: int
    """Errors of this tool in a row with its latest code."""
    steps: int
    steps_max: int | None


@dataclass(frozen=True, slots=True)
class SeenBefore:
    """The earlier call that a refused one repeats."""

    call_id: str
    step: int
    digest: str | None
    excerpt: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The synthetic result that closes a call that was not run."""

    text: str
    seen_before: SeenBefore | None = None
    code: str = BLOCKED_CODE
    is_error: bool = True


@dataclass(slots=True)
class Decision:
    """The guard's answer about one call. In shadow mode everything passes; `shadow_action` says what it would be."""

    phase: Phase
    step: int
    epoch: int
    call_id: str
    tool: str
    signature: str
    action: GuardAction
    execute: bool
    """Before a call: whether to run it. After: whether it ran."""
    counts: Counts
    reason: Reason | None = None
    append: str | None = None
    """Guidance to add to the real result."""
    tool_result: ToolResult | None = None
    same_as: str | None = None
    """Id of the identical call of the same message whose result this call shares."""
    banned_tools: tuple[str, ...] = ()
    ends_turn: bool = False
    escalates: bool = False
    """A person is needed, and was not asked about this tool and reason since the last resume."""
    escalation: Escalation | None = None
    end_reason: EndReason | None = None
    """Why the run ends, at a halt."""
    halt_number: int = 0
    """At a halt: 1 for the first of this run."""
    shadow_action: GuardAction | None = None
    explanation: tuple[Finding, ...] = ()
    """What each detector saw, those that saw a first call left out."""
    flags: tuple[Flag, ...] = ()

    @property
    def is_resumable(self) -> bool:
        """Whether the run ended here and can go on by `Guard.resume`."""
        return self.ends_turn and self.end_reason is not EndReason.CANCELLED

    def to_json(self) -> dict[str, object]:
        """This decision as JSON values, enums by their value."""
        stored: dict[str, object] = dump(self)
        return stored
