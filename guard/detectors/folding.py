"""Folded spelling: calls that differ only in case, blanks, path forms or sentence punctuation, with an equal result.

The case that it alone catches: one question asked in ever new spellings, each of them a new signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction, action_for
from guard.marks import Marks
from guard.memory import BoundedMap
from guard.policy import GuardPolicy
from guard.streak import Streak, count, forget, restart, standing
from guard.trace import CallView, OutcomeRecord


@dataclass(slots=True)
class Folded(Streak):
    """Calls that are one call but for their spelling."""

    result: str | None = None
    same: bool = False
    """The latest outcome equalled the one before it."""


@dataclass(slots=True)
class FoldingMemory:
    """Folded forms of the run."""

    classes: BoundedMap[Folded] = field(default_factory=BoundedMap)


def find(memory: FoldingMemory, call: CallView, marks: Marks, policy: GuardPolicy) -> Finding | None:
    """Before the call: refuses from the ladder's block on; a warning waits for the result."""
    folded = memory.classes.get(call.keys.folded)
    occurrence = 0 if folded is None or call.kept_wait else standing(folded, marks) + 1
    if folded is None or occurrence < 2:
        return None
    action = action_for(policy.ladders.folding.later(policy.poller_extra if call.poller else 0), occurrence)
    return _finding(folded, occurrence, GuardAction.ALLOW if action is GuardAction.WARN else action)


def find_after(memory: FoldingMemory, call: CallView, marks: Marks, policy: GuardPolicy) -> Finding | None:
    """After the outcome was observed: a warning when it was the same again."""
    folded = memory.classes.get(call.keys.folded)
    if folded is None or not folded.same:
        return None
    occurrence = standing(folded, marks) + 1
    ladder = policy.ladders.folding.later(policy.poller_extra if call.poller else 0)
    reached = action_for(ladder, occurrence)
    return _finding(folded, occurrence, GuardAction.ALLOW if reached is GuardAction.ALLOW else GuardAction.WARN)


def observe_call(memory: FoldingMemory, call: CallView, executes: bool, marks: Marks) -> None:
    """Fold the judged call in; a refused one counts, a running one counts with its outcome."""
    folded = memory.classes.get(call.keys.folded)
    if executes and folded is not None and call.kept_wait:
        forget(folded, marks)
    elif not executes:
        folded = folded or Folded()
        count(folded, marks, call.step)
        memory.classes.put(call.keys.folded, folded)


def observe_outcome(memory: FoldingMemory, call: CallView, outcome: OutcomeRecord, marks: Marks) -> None:
    """Fold the outcome in."""
    folded = memory.classes.get(call.keys.folded)
    if folded is None:
        first = Folded(marks.progress, marks.turn, 0, True, None, (call.step,), outcome.digest)
        memory.classes.put(call.keys.folded, first)
        return
    memory.classes.touch(call.keys.folded)
    folded.same = standing(folded, marks) > 0 and folded.result == outcome.digest
    if folded.result is not None and folded.result != outcome.digest:
        restart(folded, marks, 1)
    else:
        count(folded, marks, call.step)
    folded.result = outcome.digest


def keep_own(memory: FoldingMemory, key: str, progress: int) -> None:
    """Progress by a call of this spelling class leaves its count standing under the new number."""
    folded = memory.classes.get(key)
    if folded is not None and folded.progress == progress - 1:
        folded.progress = progress


def _finding(folded: Folded, occurrence: int, action: GuardAction) -> Finding:
    return Finding(Detector.FOLDING, ReasonCode.REPEATED_CALL, occurrence, action, folded.steps)
