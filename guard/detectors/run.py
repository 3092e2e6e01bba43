"""Unbroken runs and rings: one call, or 2 to 4 calls in turn, again and again whatever they bring.

The case that it alone catches: a command whose output always differs (a clock), so that no comparison of results fires.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import action_for
from guard.policy import GuardPolicy
from guard.trace import CallView

MAX_PERIOD: Final = 4


@dataclass(slots=True)
class RunMemory:
    """The latest signatures, and for each period how many of them in a row equal the one that many calls before."""

    recent: list[str] = field(default_factory=list)
    matches: list[int] = field(default_factory=lambda: [0] * MAX_PERIOD)
    steps: list[int] = field(default_factory=list)


def find(memory: RunMemory, call: CallView, policy: GuardPolicy) -> Finding | None:
    """Before the call: the run's length or the ring's laps, this call included."""
    recent, best, best_period = memory.recent, 1, 1
    if call.poller or call.keys.signature not in recent:
        return None
    for period in range(1, min(MAX_PERIOD, len(recent)) + 1):
        if recent[-period] == call.keys.signature:
            lap = 1 + (memory.matches[period - 1] + period) // period
            if lap > best:
                best, best_period = lap, period
    if best < 2:
        return None
    reason = ReasonCode.REPEATED_CALL if best_period == 1 else ReasonCode.CYCLE
    return Finding(Detector.RUN, reason, best, action_for(policy.ladders.run, best), tuple(memory.steps))


def observe_call(memory: RunMemory, call: CallView) -> None:
    """Fold the call in; a poller's call breaks every run and is part of none."""
    if call.poller:
        rearm(memory)
        return
    recent, signature = memory.recent, call.keys.signature
    if signature in recent:
        for period in range(1, MAX_PERIOD + 1):
            same = period <= len(recent) and recent[-period] == signature
            memory.matches[period - 1] = memory.matches[period - 1] + 1 if same else 0
    else:
        memory.matches = [0] * MAX_PERIOD
    recent.append(signature)
    memory.steps.append(call.step)
    if len(recent) > MAX_PERIOD:
        del recent[0], memory.steps[0]


def rearm(memory: RunMemory) -> None:
    """Start anew."""
    memory.recent.clear()
    memory.steps.clear()
    memory.matches[:] = [0] * MAX_PERIOD
