"""Error codes: one tool failing with one code again and again, whatever its arguments.

The case that it alone catches: a query that is new each time, and a provider that is out of quota each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import Ladder, action_for
from guard.marks import Marks
from guard.memory import BoundedMap
from guard.policy import UNKNOWN_TOOL, ErrorClass, GuardPolicy
from guard.streak import Streak, count, forget, restart, standing
from guard.trace import CallView, OutcomeRecord

_MAX_CODES: Final = 64


@dataclass(slots=True)
class Wait:
    """A wait that a tool announced."""

    until: float
    code: str


@dataclass(slots=True)
class ErrorMemory:
    """Rows by tool and code; invented tool names share one row."""

    rows: BoundedMap[Streak] = field(default_factory=BoundedMap)
    first: BoundedMap[str] = field(default_factory=BoundedMap)
    """Excerpt of the first error of each row."""
    codes: BoundedMap[list[str]] = field(default_factory=BoundedMap)
    """Codes of each tool that have a row."""
    waits: BoundedMap[Wait] = field(default_factory=BoundedMap)
    failed_at: BoundedMap[int] = field(default_factory=BoundedMap)
    """Progress number at which each tool last failed."""


def ladder_for(error_class: ErrorClass, policy: GuardPolicy) -> Ladder:
    """The ladder of errors of this kind."""
    ladders = policy.ladders
    if error_class is ErrorClass.PERMANENT:
        return ladders.permanent_error
    return ladders.unknown_error if error_class is ErrorClass.UNKNOWN else ladders.transient_error


def find_after(
    memory: ErrorMemory, call: CallView, outcome: OutcomeRecord, marks: Marks, policy: GuardPolicy
) -> Finding | None:
    """After the outcome was observed: the only detector that halts here."""
    if outcome.code is None or outcome.error_class is None:
        return None
    row = memory.rows.get(_row_key(call.tool, outcome.code))
    occurrence = standing(row, marks) + 1
    if row is None or occurrence < 2:
        return None
    ladder = ladder_for(outcome.error_class, policy).later(policy.poller_extra if call.poller else 0)
    action = action_for(ladder, occurrence)
    return Finding(Detector.ERROR_CODES, ReasonCode.REPEATED_ERROR, occurrence, action, row.steps, rule=outcome.code)


def errors_in_row(memory: ErrorMemory, tool: str, code: str | None, marks: Marks) -> int:
    """The row of this tool and code, the current message included."""
    row = None if code is None else memory.rows.get(_row_key(tool, code))
    if row is None or row.progress != marks.progress:
        return 0
    return standing(row, marks) + (row.turn == marks.turn and row.hit)


def first_error(memory: ErrorMemory, tool: str, code: str) -> str:
    """Excerpt of the first error of this row."""
    return memory.first.get(_row_key(tool, code)) or ""


def has_failed(memory: ErrorMemory, tool: str, marks: Marks) -> bool:
    """Whether the tool failed since the last progress."""
    return memory.failed_at.get(tool) == marks.progress


def kept_wait(memory: ErrorMemory, tool: str, now: float | None) -> bool:
    """Whether the tool announced a wait, and it is over."""
    wait = memory.waits.get(tool)
    return wait is not None and now is not None and now >= wait.until


def observe_call(memory: ErrorMemory, call: CallView, marks: Marks) -> None:
    """Fold the call in: a kept wait starts its row afresh."""
    if not call.kept_wait:
        return
    wait = memory.waits.pop(call.tool)
    row = None if wait is None else memory.rows.get(_row_key(call.tool, wait.code))
    if row is not None:
        forget(row, marks)


def observe_outcome(memory: ErrorMemory, call: CallView, outcome: OutcomeRecord, marks: Marks) -> None:
    """Fold the outcome in: a success restarts the tool's rows, another code leaves them alone."""
    if outcome.code is None:
        codes = memory.codes.get(call.tool)
        if codes:
            for code in codes:
                row = memory.rows.get(_row_key(call.tool, code))
                if row is not None:
                    restart(row, marks, 0)
            memory.codes.put(call.tool, [])
        memory.waits.pop(call.tool)
        return
    memory.failed_at.put(call.tool, marks.progress)
    key = _row_key(call.tool, outcome.code)
    row = memory.rows.get(key) or Streak()
    if errors_in_row(memory, call.tool, outcome.code, marks) == 0:
        memory.first.put(key, outcome.excerpt)
    count(row, marks, call.step)
    memory.rows.put(key, row)
    codes = memory.codes.get(call.tool) or []
    if outcome.code not in codes and len(codes) < _MAX_CODES:
        memory.codes.put(call.tool, [*codes, outcome.code])
    if outcome.retry_after_s is not None and outcome.now is not None:
        memory.waits.put(call.tool, Wait(outcome.now + outcome.retry_after_s, outcome.code))


def _row_key(tool: str, code: str) -> str:
    return code if code == UNKNOWN_TOOL else f"{tool}\n{code}"
