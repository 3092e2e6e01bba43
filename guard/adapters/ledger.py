"""What all framework adapters share: calls are judged a message at a time, and each answer is kept until its call is run.

Frameworks run the calls of one message side by side, and never hand over those whose arguments are invalid or whose
tool is unknown. So the whole message is judged in order as soon as the model has sent it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from guard.call import ToolCall
from guard.decision import Decision
from guard.escalation import Escalation
from guard.finding import Detector, Finding, ReasonCode
from guard.guard import Guard
from guard.guidance import Said, question
from guard.ladder import GuardAction
from guard.policy import INVALID_ARGUMENTS, UNKNOWN_TOOL, ToolTraits
from guard.results import Outcome

Clock = Callable[[], float]
_NEVER_RUN: Final = frozenset({INVALID_ARGUMENTS, UNKNOWN_TOOL})


class RunHalted(Exception):
    """The guard ended the run; every call of the model's last message has its result."""

    code = "run_halted"
    retryable = False

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.public = decision.reason.text if decision.reason is not None else "The run was stopped."
        super().__init__(self.public)


@dataclass(slots=True)
class Pending:
    """A call that was judged and has no result yet."""

    call: ToolCall
    decision: Decision
    answer: Future[str] = field(default_factory=Future)
    """What the model reads; identical calls of the same message wait for it."""


class Ledger:
    """The judged calls of one run. Safe to use from several threads."""

    def __init__(self, guard: Guard, tools: Mapping[str, ToolTraits] | None = None, clock: Clock | None = None) -> None:
        """`clock` gives seconds (such as `time.monotonic`), for time budgets and announced waits."""
        self.guard = guard
        for name, traits in (tools or {}).items():
            guard.declare(name, traits)
        self._clock = clock
        self._lock = threading.RLock()
        self._pending: dict[str | None, list[Pending]] = {}
        self._answers: dict[str, Future[str]] = {}
        self._end: Decision | None = None

    @property
    def end(self) -> Decision | None:
        """The decision that halted the run; None while it goes on."""
        return self._end if self.guard.is_halted else None

    def ask(self, calls: Iterable[ToolCall]) -> list[Pending]:
        """Judge the calls of one model message, in order."""
        with self._lock:
            turn = f"message-{self.guard.steps}"
            self._answers.clear()
            return [self._judge(replace(call, turn=turn)) for call in calls]

    def peek(self, call_id: str | None) -> Pending | None:
        """The oldest judged call of this id that was not taken."""
        waiting = self._pending.get(call_id)
        return waiting[0] if waiting else None

    def take(self, call: ToolCall) -> Pending:
        """The judged call that is about to be run; one that was never asked about is judged now."""
        with self._lock:
            if self.peek(call.call_id) is None:
                self._judge(replace(call, turn=f"alone-{self.guard.steps}"))
            waiting = self._pending[call.call_id]
            pending = waiting.pop(0)
            if not waiting:
                del self._pending[call.call_id]
            return pending

    def shared(self, pending: Pending) -> Future[str] | None:
        """The answer of the identical call of the same message that this one shares."""
        decision = pending.decision
        if decision.same_as is None or decision.tool_result is not None:
            return None
        return self._answers.get(decision.same_as)

    def refusal(self, pending: Pending) -> str:
        """What the model reads instead of a result."""
        decision = pending.decision
        text = decision.tool_result.text if decision.tool_result is not None else decision.append or ""
        pending.answer.set_result(text)
        return text

    def settle(self, pending: Pending, outcome: Outcome) -> str | None:
        """Tell the guard what came of the call, and return the guidance to add."""
        with self._lock:
            after = self.guard.after(pending.call, outcome, step=pending.decision.step, now=self._now())
            if after.ends_turn:
                self._end = after
        said = [text for text in (pending.decision.append, after.append) if text is not None]
        return "\n".join(said) if said else None

    def left_over(self) -> list[Pending]:
        """Calls that were judged and never handed over to be run; they are taken."""
        with self._lock:
            left = [pending for waiting in self._pending.values() for pending in waiting]
            self._pending.clear()
            return sorted(left, key=lambda pending: pending.decision.step)

    def settle_unrun(self, pending: Pending, message: str, *, is_known_tool: bool) -> str | None:
        """As `settle`, for a call that the framework itself turned down; a refused one needs no outcome."""
        if not pending.decision.execute:
            return pending.decision.append
        code = INVALID_ARGUMENTS if is_known_tool else UNKNOWN_TOOL
        return self.settle(pending, Outcome.failed(code, message))

    def escalation(self, problem: str) -> Escalation | None:
        """A question for a person where the framework gave up on the model's calls before the guard did.

        None when no call was turned down, so that something else is wrong.
        """
        for pending in self.left_over():
            self.settle_unrun(pending, problem, is_known_tool=pending.call.tool in self.guard.tools)
        if self._end is not None and self._end.escalation is not None:
            return self._end.escalation
        steps = list(self.guard.trace.steps())
        failed = [step for step in steps if step.outcome is not None and step.outcome.code in _NEVER_RUN]
        if not failed or failed[-1].outcome is None:
            return None
        last, code = failed[-1], failed[-1].outcome.code or INVALID_ARGUMENTS
        evidence = tuple(step.number for step in failed if step.outcome is not None and step.outcome.code == code)
        view, spent = last.call.view, self.guard.spent
        finding = Finding(
            Detector.ERROR_CODES, ReasonCode.REPEATED_ERROR, len(evidence), GuardAction.HALT, evidence, code
        )
        said = Said(view.tool[:128], len(evidence), evidence[0], problem, code)
        return Escalation(
            question=question(finding, said, self.guard.policy.language),
            tool=view.tool,
            reason=ReasonCode.REPEATED_ERROR,
            args=last.call.args,
            first_answer=problem,
            attempts=len(evidence),
            evidence=evidence,
            resume_point=view.step,
            steps=view.step,
            tokens=spent.tokens,
            cost=spent.cost,
            occurrence=1,
            halt_number=self.guard.halts + 1,
        )

    def _now(self) -> float | None:
        return None if self._clock is None else self._clock()

    def _judge(self, call: ToolCall) -> Pending:
        decision = self.guard.before(call, now=self._now())
        pending = Pending(replace(call, call_id=decision.call_id), decision)
        self._pending.setdefault(call.call_id, []).append(pending)
        if decision.execute:
            self._answers[decision.call_id] = pending.answer
        if decision.ends_turn and self._end is None:
            self._end = decision
        return pending


def joined(text: str, guidance: str | None) -> str:
    """`text` with the guard's guidance below it."""
    return text if guidance is None else f"{text}\n{guidance}"


def as_call(tool: str, args: Any, call_id: str | None) -> ToolCall:
    """A call from what frameworks hand over: parsed arguments, or the model's own text."""
    return ToolCall(tool, None, args, call_id) if isinstance(args, str) else ToolCall(tool, args, None, call_id)
