"""Stale results: calls in a row that bring nothing that was not seen since the last progress, whatever the mix.

The case that it alone catches: wandering among a handful of reads in no order, each seldom enough to stay under its own
ladder for long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction, action_for
from guard.marks import Marks
from guard.memory import BoundedMap
from guard.policy import GuardPolicy
from guard.streak import Streak, count, restart, standing
from guard.trace import CallView, OutcomeRecord


@dataclass(slots=True)
class StaleMemory:
    """The progress number at which each signature, and each (signature, result) pair, was last seen."""

    pairs: BoundedMap[int] = field(default_factory=lambda: BoundedMap(20_000))
    row: Streak = field(default_factory=Streak)
    last_was_stale: bool = False


def find(memory: StaleMemory, call: CallView, marks: Marks, policy: GuardPolicy) -> Finding | None:
    """Before the call: refuses from the ladder's block on, but never a call not made since the last progress."""
    if memory.pairs.get(call.keys.signature) != marks.progress or call.poller or call.kept_wait:
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


def observe_outcome(memory: StaleMemory, call: CallView, outcome: OutcomeRecord, marks: Marks) -> None:
    """Fold the outcome in."""
    if call.poller or call.kept_wait:
        return
    pair = pair_of(call.keys.signature, outcome.digest)
    memory.last_was_stale = memory.pairs.get(pair) == marks.progress
    if memory.last_was_stale:
        count(memory.row, marks, call.step)
    else:
        restart(memory.row, marks, 0)
        memory.pairs.put(pair, marks.progress)
    memory.pairs.put(call.keys.signature, marks.progress)


def keep_own(memory: StaleMemory, signature: str, digest: str, progress: int) -> None:
    """Progress by this call leaves its own pair seen under the new number."""
    for key in (signature, pair_of(signature, digest)):
        if memory.pairs.get(key) == progress - 1:
            memory.pairs.put(key, progress)


def pair_of(signature: str, digest: str) -> str:
    """The key of a (signature, result) pair."""
    return f"{signature} {digest}"


def _finding(memory: StaleMemory, occurrence: int, action: GuardAction) -> Finding:
    return Finding(Detector.STALE, ReasonCode.STALE_RESULTS, occurrence, action, tuple(memory.row.steps))
