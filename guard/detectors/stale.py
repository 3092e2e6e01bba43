"""Stale results: calls in a row that bring nothing that was not seen since the last progress, whatever the mix.

The case that it alone catches: wandering among a handful of reads in no order, each seldom enough to stay under its own
ladder for long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from guard.detectors.repeat import Seen
from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction, action_for
from guard.marks import Marks
from guard.policy import GuardPolicy
from guard.streak import Streak, count, restart, standing
from guard.trace import CallView, OutcomeRecord

MAX_RESULTS: Final = 32
"""Results of one signature that are remembered; the oldest are forgotten first."""


@dataclass(slots=True)
class StaleMemory:
    """The row of calls that brought nothing but what was seen since the last progress.

    What each signature brought since then stands in the memory of `repeat`.
    """

    row: Streak = field(default_factory=Streak)
    last_was_stale: bool = False


def find(memory: StaleMemory, seen: Seen | None, call: CallView, marks: Marks, policy: GuardPolicy) -> Finding | None:
    """Before the call: refuses from the ladder's block on, but never a call not made since the last progress."""
    if seen is None or seen.answered_at != marks.progress or call.poller or call.kept_wait:
        return None
    occurrence = standing(memory.row, marks) + 1
    if occurrence < 2:
        return None
    action = action_for(policy.ladders.stale, occurrence)
    return _finding(memory, occurrence, GuardAction.ALLOW if action is GuardAction.WARN else action)


def find_after(memory: StaleMemory, call: CallView, marks: Marks, policy: GuardPolicy) -> Finding | None:
    """After the outcome was observed: a warning when it brought nothing new."""
    if call.poller or call.kept_wait or not memory.last_was_stale:
        return None
    occurrence = standing(memory.row, marks) + 1
    reached = action_for(policy.ladders.stale, occurrence)
    return _finding(memory, occurrence, GuardAction.ALLOW if reached is GuardAction.ALLOW else GuardAction.WARN)


def observe_call(memory: StaleMemory, call: CallView, executes: bool, marks: Marks) -> None:
    """Fold the judged call in; a refused one counts."""
    if call.poller or call.kept_wait:
        return
    if not executes:
        count(memory.row, marks, call.step)


def observe_outcome(
    memory: StaleMemory, seen: Seen | None, call: CallView, outcome: OutcomeRecord, marks: Marks
) -> None:
    """Fold the outcome in."""
    if call.poller or call.kept_wait:
        return
    if seen is not None and seen.answered_at == marks.progress and outcome.digest in seen.answers:
        memory.last_was_stale = True
        count(memory.row, marks, call.step)
        return
    memory.last_was_stale = False
    restart(memory.row, marks, 0)
    if seen is None:
        return
    if seen.answered_at == marks.progress:
        kept = seen.answers.split(" ")[1 - MAX_RESULTS :]
        seen.answers = " ".join([*kept, outcome.digest])
    else:
        seen.answered_at, seen.answers = marks.progress, outcome.digest


def keep_own(seen: Seen | None, digest: str, progress: int) -> None:
    """Progress by this call leaves its own result seen under the new number."""
    if seen is not None and seen.answered_at == progress - 1:
        seen.answered_at, seen.answers = progress, digest


def _finding(memory: StaleMemory, occurrence: int, action: GuardAction) -> Finding:
    return Finding(Detector.STALE, ReasonCode.STALE_RESULTS, occurrence, action, memory.row.steps)
