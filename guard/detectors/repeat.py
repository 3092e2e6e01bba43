"""Exact repeats: the same tool with the same arguments, while its result stays the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction, Ladder, action_for
from guard.marks import Marks
from guard.memory import BoundedMap
from guard.policy import Counting, Effect, ErrorClass, GuardPolicy
from guard.trace import CallView, OutcomeRecord


@dataclass(slots=True)
class Seen:
    """What is remembered of one signature."""

    first_step: int
    first_call_id: str
    progress: int
    epoch: int
    has_run: bool = False
    """It was let through at least once: only then is it evidence."""
    count: int = 0
    """Calls in the current streak of equal results, refused ones included."""
    result: str | None = None
    """Digest of the latest result."""
    last_step: int = 0
    excerpt: str = ""
    """Of the first result."""
    success_step: int | None = None
    """Step of the latest success."""
    success_mark: int = -1
    """Number of successful writes in the run just after this call's own latest success."""
    is_transient: bool = False
    """The latest result was an error that may pass."""
    answered_at: int = -1
    """Progress number at which `answers` were collected."""
    answers: str = ""
    """Digests of its results since then, blanks between them; `stale` reads and writes them."""


@dataclass(slots=True)
class TurnCall:
    """A call of the current message that was let through."""

    call_id: str
    step: int
    is_open: bool = True


@dataclass(slots=True)
class RepeatMemory:
    """Signatures of the run, and the calls of the current message."""

    seen: BoundedMap[Seen] = field(default_factory=BoundedMap)
    turn_calls: dict[str, TurnCall] = field(default_factory=dict)


def ladder_for(seen: Seen | None, call: CallView, marks: Marks, policy: GuardPolicy) -> Ladder:
    """The ladder that identical calls like `call` climb now."""
    ladders = policy.ladders
    if call.effect is Effect.READ_ONLY:
        ladder = ladders.read_only
        if seen is not None and seen.is_transient:
            ladder = ladder.later(policy.transient_read_extra)
    elif seen is not None and seen.success_mark == marks.writes:
        ladder = ladders.mutating
    else:
        ladder = ladders.mutating_otherwise
    return ladder.later(policy.poller_extra) if call.poller else ladder


def find(memory: RepeatMemory, call: CallView, marks: Marks, policy: GuardPolicy) -> Finding | None:
    """Before the call: refuses from the ladder's block on; a warning waits for the result.

    A call that is already in the current message is never run twice.
    """
    seen = memory.seen.get(call.keys.signature)
    if seen is None:
        return None
    ladder = ladder_for(seen, call, marks, policy)
    twin = memory.turn_calls.get(call.keys.signature)
    occurrence = _standing(seen, call, marks, policy, ladder) + 1 + (twin is not None and twin.is_open)
    action = action_for(ladder, occurrence)
    if twin is None:
        if action is GuardAction.WARN:
            action = GuardAction.ALLOW
    elif call.effect is Effect.MUTATING and not action.refuses:
        action = GuardAction.BLOCK
    if occurrence < 2:
        return None
    return _finding(seen, occurrence, action)


def find_after(memory: RepeatMemory, call: CallView, marks: Marks, policy: GuardPolicy) -> Finding | None:
    """After the outcome was observed: a warning when it was the same again."""
    seen = memory.seen.get(call.keys.signature)
    if seen is None or seen.count < 2:
        return None
    reached = action_for(ladder_for(seen, call, marks, policy), seen.count)
    return _finding(seen, seen.count, GuardAction.ALLOW if reached is GuardAction.ALLOW else GuardAction.WARN)


def observe_call(memory: RepeatMemory, call: CallView, executes: bool, marks: Marks, policy: GuardPolicy) -> None:
    """Fold the judged call in."""
    signature = call.keys.signature
    seen = memory.seen.get(signature)
    if seen is None:
        seen = Seen(call.step, call.call_id, marks.progress, marks.epoch)
        memory.seen.put(signature, seen)
    else:
        memory.seen.touch(signature)
        if executes:
            _renew(seen, call, marks, policy)
        else:
            seen.count = _standing(seen, call, marks, policy, ladder_for(seen, call, marks, policy))
            seen.progress, seen.epoch = marks.progress, marks.epoch
    if executes:
        if len(memory.turn_calls) < policy.max_signatures:
            memory.turn_calls[signature] = TurnCall(call.call_id, call.step)
        seen.has_run = True
    else:
        seen.count += 1
    seen.last_step = call.step


def observe_outcome(
    memory: RepeatMemory, call: CallView, outcome: OutcomeRecord, marks: Marks, policy: GuardPolicy
) -> None:
    """Fold the outcome in. `marks.writes` already counts this call, if it was a successful write."""
    twin = memory.turn_calls.get(call.keys.signature)
    if twin is not None and twin.step == call.step:
        twin.is_open = False
    seen = memory.seen.get(call.keys.signature)
    if seen is None:
        return
    same = seen.result is None or seen.result == outcome.digest or policy.counting is Counting.STRICT
    if not seen.excerpt:
        seen.excerpt = outcome.excerpt or (outcome.code or "")
    seen.count = seen.count + 1 if same else 1
    seen.result = outcome.digest
    seen.is_transient = outcome.error_class is ErrorClass.TRANSIENT
    if outcome.code is None:
        seen.success_step = call.step
        if call.effect is Effect.MUTATING:
            seen.success_mark = marks.writes


def keep_own(memory: RepeatMemory, signature: str, progress: int) -> None:
    """Progress by this signature's call leaves its own count standing under the new number."""
    seen = memory.seen.get(signature)
    if seen is not None and seen.progress == progress - 1:
        seen.progress = progress


def forgive(memory: RepeatMemory, signature: str, marks: Marks) -> None:
    """A person says that refusing this call was a mistake: it starts afresh."""
    seen = memory.seen.get(signature)
    if seen is not None:
        seen.count, seen.result, seen.progress, seen.epoch = 0, None, marks.progress, marks.epoch


def is_guarded_from_resume(seen: Seen, marks: Marks) -> bool:
    """Whether the call was made before the last resume, and nothing new has happened since."""
    return marks.resumed and seen.has_run and seen.epoch < marks.epoch


def _standing(seen: Seen, call: CallView, marks: Marks, policy: GuardPolicy, ladder: Ladder) -> int:
    if is_guarded_from_resume(seen, marks):
        return (ladder.block_at or ladder.halt_at or 2) - 1
    if call.kept_wait or (seen.progress != marks.progress and policy.counting is Counting.PROGRESS):
        return 0
    return seen.count


def _renew(seen: Seen, call: CallView, marks: Marks, policy: GuardPolicy) -> None:
    is_old = seen.progress != marks.progress and policy.counting is Counting.PROGRESS
    if call.kept_wait or is_old:
        seen.count, seen.result = 0, None
    seen.progress, seen.epoch = marks.progress, marks.epoch


def _finding(seen: Seen, occurrence: int, action: GuardAction) -> Finding:
    evidence = (seen.first_step,) if seen.first_step == seen.last_step else (seen.first_step, seen.last_step)
    return Finding(Detector.REPEAT, ReasonCode.REPEATED_CALL, occurrence, action, evidence)
