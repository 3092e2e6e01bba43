"""Jitter and oscillation: calls that differ only in tuned numbers, with an equal result.

The case that it alone catches: contrast that never repeats, and an ok result that never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from guard.call import Number, is_integral
from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction, action_for
from guard.marks import Marks
from guard.memory import BoundedMap
from guard.policy import GuardPolicy
from guard.streak import MAX_EVIDENCE
from guard.trace import CallView, OutcomeRecord

MAX_LIKES: Final = 24
"""Calls of one shape that are remembered: more than any ladder needs."""

_MAX_RESULTS: Final = 32
_MAX_KNOBS: Final = 256


@dataclass(slots=True)
class Like:
    """One call of a shape."""

    step: int
    turn: int
    numbers: tuple[Number, ...]
    refused: bool
    result: str | None = None
    """None while it is open, or when it was refused."""
    is_fresh: bool = False
    """It ended ok, with a result that this shape had not had before."""


@dataclass(slots=True)
class Shape:
    """Calls that are equal but for their numbers."""

    paths: tuple[str, ...]
    progress: int
    likes: list[Like] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    """The latest different results."""
    known: int = 0
    """How many knobs of the tool were known when `knobs` was written."""
    knobs: tuple[int, ...] = ()
    """Which of `paths` are knobs, by index."""


@dataclass(slots=True)
class JitterMemory:
    """Shapes of the run, and the number positions of each tool that are known to be knobs."""

    shapes: BoundedMap[Shape] = field(default_factory=BoundedMap)
    knobs: BoundedMap[list[str]] = field(default_factory=BoundedMap)


class Alike(NamedTuple):
    """The earlier calls of one shape, and which of their numbers are knobs as known today."""

    shape: Shape
    knobs: tuple[int, ...]


def look_alikes(memory: JitterMemory, call: CallView, marks: Marks) -> Alike | None:
    """The shape of `call` since the last progress; None when it has no knob, or was not called since."""
    key = call.keys.shape
    shape = None if key is None or call.kept_wait else memory.shapes.get(key)
    if shape is None or shape.progress != marks.progress or not shape.likes:
        return None
    known = memory.knobs.get(call.tool)
    if not known:
        return None
    knobs = shape.knobs if shape.known == len(known) else _places(shape.paths, known)
    return Alike(shape, knobs) if knobs else None


def is_look_alike(numbers: tuple[Number, ...], others: tuple[Number, ...], knobs: tuple[int, ...]) -> bool:
    """Whether two calls of one shape count as the same: equal, or a knob moved (and whatever moved with it)."""
    if numbers == others:
        return True
    for place in knobs:  # noqa: SIM110 - a generator would double the cost
        if numbers[place] != others[place]:
            return True
    return False


def find(alike: Alike | None, call: CallView, policy: GuardPolicy) -> Finding | None:
    """Before the call: refuses from the ladder's block on; a warning waits for the result."""
    if alike is None:
        return None
    steps = _equal_results(alike, call.keys.numbers, call, None)
    if not steps:
        return None
    occurrence = len(steps) + 1
    action = action_for(policy.ladders.jitter.later(policy.poller_extra if call.poller else 0), occurrence)
    return _finding(occurrence, GuardAction.ALLOW if action is GuardAction.WARN else action, steps)


def own_like(shape: Shape, call: CallView) -> Like | None:
    """What is remembered of `call` itself."""
    for like in reversed(shape.likes):
        if like.step == call.step:
            return like
    return None


def find_after(alike: Alike | None, call: CallView, policy: GuardPolicy) -> Finding | None:
    """After the outcome was observed: a warning when it was the same again."""
    own = None if alike is None or len(alike.shape.likes) < 2 else own_like(alike.shape, call)
    if alike is None or own is None:
        return None
    steps = _equal_results(alike, own.numbers, call, own.result)
    if not steps:
        return None
    occurrence = len(steps) + 1
    reached = action_for(policy.ladders.jitter.later(policy.poller_extra if call.poller else 0), occurrence)
    return _finding(occurrence, GuardAction.ALLOW if reached is GuardAction.ALLOW else GuardAction.WARN, steps)


def observe_call(memory: JitterMemory, call: CallView, executes: bool, marks: Marks) -> None:
    """Fold the judged call in."""
    keys = call.keys
    if keys.shape is None:
        return
    known = _learn_knobs(memory, call)
    shape = memory.shapes.get(keys.shape)
    if shape is None:
        shape = Shape(keys.paths, marks.progress)
        memory.shapes.put(keys.shape, shape)
    else:
        memory.shapes.touch(keys.shape)
        if shape.progress != marks.progress or call.kept_wait:
            shape.likes.clear()
            shape.results.clear()
            shape.progress = marks.progress
    if shape.known != len(known):
        shape.known, shape.knobs = len(known), _places(shape.paths, known)
    shape.likes.append(Like(call.step, call.turn, keys.numbers, not executes))
    if len(shape.likes) > MAX_LIKES:
        del shape.likes[0]


def observe_outcome(memory: JitterMemory, call: CallView, outcome: OutcomeRecord) -> None:
    """Fold the outcome in."""
    shape = None if call.keys.shape is None else memory.shapes.get(call.keys.shape)
    if shape is None:
        return
    is_new = outcome.digest not in shape.results
    own = own_like(shape, call)
    if own is not None:
        own.result, own.is_fresh = outcome.digest, is_new and outcome.code is None
    if is_new:
        shape.results.append(outcome.digest)
        if len(shape.results) > _MAX_RESULTS:
            del shape.results[0]


def keep_own(memory: JitterMemory, tool: str, key: str, numbers: tuple[Number, ...], progress: int) -> None:
    """Progress by a call of this shape leaves those that look like it standing under the new number."""
    shape = memory.shapes.get(key)
    if shape is None or shape.progress != progress - 1:
        return
    knobs = _places(shape.paths, memory.knobs.get(tool) or ())
    shape.likes = [like for like in shape.likes if is_look_alike(like.numbers, numbers, knobs)]
    shape.progress = progress


def _places(paths: tuple[str, ...], knobs: Sequence[str]) -> tuple[int, ...]:
    return tuple([place for place, path in enumerate(paths) if path in knobs])


def _learn_knobs(memory: JitterMemory, call: CallView) -> Sequence[str]:
    """The knobs of the tool, with those that this call shows."""
    keys = call.keys
    known: Sequence[str] = memory.knobs.get(call.tool) or ()
    new = list(call.knobs)
    for place, number in enumerate(keys.numbers):
        if type(number) is not int and keys.paths[place] not in known and not is_integral(number):
            new.append(keys.paths[place])
    if not new or len(known) >= _MAX_KNOBS:
        return known
    more = list(dict.fromkeys([*known, *new]))
    if len(more) > len(known):
        memory.knobs.put(call.tool, more)
    return more


def _equal_results(alike: Alike, numbers: tuple[Number, ...], call: CallView, result: str | None) -> tuple[int, ...]:
    """Steps of earlier messages' look-alikes in the latest streak of one result, one step a message, oldest first."""
    steps: list[int] = []
    turn = call.turn
    for like in reversed(alike.shape.likes):
        if like.turn >= call.turn or not is_look_alike(numbers, like.numbers, alike.knobs):
            continue
        if like.result is None:
            if not like.refused:
                continue
        elif result is None:
            result = like.result
        elif like.result != result:
            break
        if like.turn != turn:
            turn = like.turn
            steps.append(like.step)
    return tuple(reversed(steps)) if result is not None else ()


def _finding(occurrence: int, action: GuardAction, steps: tuple[int, ...]) -> Finding:
    return Finding(Detector.JITTER, ReasonCode.JITTER, occurrence, action, steps[-MAX_EVIDENCE:])
