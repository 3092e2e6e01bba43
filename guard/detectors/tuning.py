"""Tuning: look-alikes in a row that each end in an error, or in a result that this shape of call had before.

The case that it alone catches: settings of which no two are alike, while low confidence and empty results alternate.
It reads the memory of `jitter`, which keeps the calls of each shape.
"""

from __future__ import annotations

from guard.call import Number
from guard.detectors.jitter import Alike, is_look_alike, own_like
from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction, action_for
from guard.policy import GuardPolicy
from guard.streak import MAX_EVIDENCE
from guard.trace import CallView


def find(alike: Alike | None, call: CallView, policy: GuardPolicy) -> Finding | None:
    """Before the call: refuses from the ladder's block on; a warning waits for the result."""
    steps = () if alike is None else _row(alike, call, call.keys.numbers)
    if not steps:
        return None
    occurrence = len(steps) + 1
    action = action_for(policy.ladders.tuning.later(policy.poller_extra if call.poller else 0), occurrence)
    return _finding(occurrence, GuardAction.ALLOW if action is GuardAction.WARN else action, steps)


def find_after(alike: Alike | None, call: CallView, policy: GuardPolicy) -> Finding | None:
    """After the outcome was observed: a warning unless it was new."""
    own = None if alike is None or len(alike.shape.likes) < 2 else own_like(alike.shape, call)
    if alike is None or own is None or own.is_fresh:
        return None
    steps = _row(alike, call, own.numbers)
    if not steps:
        return None
    occurrence = len(steps) + 1
    reached = action_for(policy.ladders.tuning.later(policy.poller_extra if call.poller else 0), occurrence)
    return _finding(occurrence, GuardAction.ALLOW if reached is GuardAction.ALLOW else GuardAction.WARN, steps)


def _row(alike: Alike, call: CallView, numbers: tuple[Number, ...]) -> tuple[int, ...]:
    """Steps of the row that `call` would continue, one step a message, oldest first."""
    steps: list[int] = []
    turn, is_over = call.turn, False
    for like in reversed(alike.shape.likes):
        if like.turn >= call.turn or (like.result is None and not like.refused):
            continue
        if like.turn != turn:
            if is_over or not is_look_alike(numbers, like.numbers, alike.knobs):
                break
            turn = like.turn
            steps.append(like.step)
        # A new ok result is where the row starts; it starts with the whole message that brought it.
        is_over = is_over or like.is_fresh
        numbers = like.numbers
    return tuple(reversed(steps))


def _finding(occurrence: int, action: GuardAction, steps: tuple[int, ...]) -> Finding:
    return Finding(Detector.TUNING, ReasonCode.JITTER, occurrence, action, steps[-MAX_EVIDENCE:])
