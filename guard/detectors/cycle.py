"""Cycles: 2 to 4 calls in turn with the same results lap after lap.

The case that it alone catches in time: one call whose two results alternate; each result restarts the call's own count,
and yet every lap is like the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction, action_for
from guard.policy import GuardPolicy
from guard.trace import CallView, OutcomeRecord

PERIODS: Final = (2, 3, 4)
_WINDOW: Final = 12


@dataclass(slots=True)
class Link:
    """One call of the sequence; `result` is None while it is open, or when it was refused out of rhythm."""

    index: int
    step: int
    signature: str
    result: str | None = None
    refused: bool = False


@dataclass(slots=True)
class CycleMemory:
    """The latest calls, and for each period the index of the last call that did not fit it."""

    links: list[Link] = field(default_factory=list)
    last_index: int = 0
    broken_at: list[int] = field(default_factory=lambda: [0] * len(PERIODS))


def find(memory: CycleMemory, call: CallView, policy: GuardPolicy) -> Finding | None:
    """Before the call: the lap in which it would be."""
    if memory.broken_at[0] == memory.broken_at[1] == memory.broken_at[2] == memory.last_index or call.poller:
        return None
    best = 0
    for place, period in enumerate(PERIODS):
        matched = memory.last_index - memory.broken_at[place]
        if matched >= period and memory.links[-period].signature == call.keys.signature and _is_proven(memory, period):
            best = max(best, 2 + matched // period)
    if best < 2:
        return None
    action = action_for(policy.ladders.cycle, best)
    return _finding(memory, best, GuardAction.ALLOW if action is GuardAction.WARN else action)


def find_after(memory: CycleMemory, call: CallView, policy: GuardPolicy) -> Finding | None:
    """After the outcome was observed: a warning when it completed a lap like the last."""
    if memory.broken_at[0] == memory.broken_at[1] == memory.broken_at[2] == memory.last_index:
        return None
    if call.poller or not memory.links or memory.links[-1].step != call.step:
        return None
    best = 0
    for place, period in enumerate(PERIODS):
        matched = memory.last_index - memory.broken_at[place]
        if matched >= period and _is_proven(memory, period):
            best = max(best, 1 + matched // period)
    if best < 2:
        return None
    reached = action_for(policy.ladders.cycle, best)
    return _finding(memory, best, GuardAction.ALLOW if reached is GuardAction.ALLOW else GuardAction.WARN)


def observe_call(memory: CycleMemory, call: CallView, executes: bool) -> None:
    """Fold the judged call in; a poller's call breaks every cycle and is part of none."""
    if call.poller:
        rearm(memory)
        return
    memory.last_index += 1
    link = Link(memory.last_index, call.step, call.keys.signature, refused=not executes)
    links, broken_at = memory.links, memory.broken_at
    known = len(links)
    for place, period in enumerate(PERIODS):
        if period > known or links[-period].signature != link.signature:
            broken_at[place] = link.index
        elif link.refused and link.result is None:
            link.result = links[-period].result
    links.append(link)
    if known == _WINDOW:
        del links[0]


def observe_outcome(memory: CycleMemory, call: CallView, outcome: OutcomeRecord) -> None:
    """Fold the outcome in; outcomes may come in any order."""
    links = memory.links
    position = len(links) - 1
    while position >= 0 and links[position].step != call.step:
        position -= 1
    if position < 0:
        return
    link = links[position]
    link.result = outcome.digest
    broken_at, is_last = memory.broken_at, position == len(links) - 1
    if is_last and broken_at[0] == broken_at[1] == broken_at[2] == link.index:
        return
    for place, period in enumerate(PERIODS):
        if broken_at[place] < link.index and (position < period or not _fits(links[position - period], link)):
            broken_at[place] = link.index
        if is_last:
            continue
        later = links[position + period] if position + period < len(links) else None
        if later is not None and later.result is not None and not _fits(link, later):
            broken_at[place] = max(broken_at[place], later.index)


def rearm(memory: CycleMemory) -> None:
    """Start anew."""
    memory.links.clear()
    memory.broken_at[:] = [memory.last_index] * len(PERIODS)


def _fits(earlier: Link, link: Link) -> bool:
    if earlier.signature != link.signature:
        return False
    return earlier.refused if earlier.result is None else earlier.result == link.result


def _is_proven(memory: CycleMemory, period: int) -> bool:
    """Whether the last lap has two different (call, result) pairs and none of the last two laps is still open."""
    last = memory.links[-period:]
    if len({(link.signature, link.result) for link in last}) < 2:
        return False
    return all(link.result is not None or link.refused for link in memory.links[-2 * period :])


def _finding(memory: CycleMemory, lap: int, action: GuardAction) -> Finding:
    steps = tuple(link.step for link in memory.links[-8:])
    return Finding(Detector.CYCLE, ReasonCode.CYCLE, lap, action, steps)
