"""The guard around plain Python functions, sync and async.

    @traits(Effect.READ_ONLY, group="vision")
    def ocr_extract(file: str, contrast: float = 1.0) -> str: ...

    tools = GuardedTools(Guard(policy), [ocr_extract, save_copy])
    answer = tools.call("ocr_extract", '{"file": "p1"}', call_id="c1", turn=1)

`answer.text` goes back to the model; when `answer.ends_turn`, the run stops there. `guarded` wraps a single function.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from guard.adapters.ledger import Clock, RunHalted
from guard.call import ToolCall
from guard.decision import Decision
from guard.guard import Guard
from guard.policy import INVALID_ARGUMENTS, UNKNOWN_TOOL, Effect, PolicyError, ToolTraits
from guard.results import Outcome, ToolError, result_text

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")

_TRAITS: Final = "__guard_traits__"
_MAX_SHARED: Final = 1_000


class ToolFailure(Exception):
    """A tool raises this to fail with a code of its own."""

    def __init__(
        self, code: str, message: str = "", *, retryable: bool | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message or code)
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one call."""

    decision: Decision
    """The last word of the guard about it."""
    text: str
    """For the model: the result with the guard's guidance, or why the call was not run."""
    value: object = None
    """What the tool returned; None when it was not run or failed."""
    is_error: bool = False

    @property
    def ends_turn(self) -> bool:
        """Whether the run stops here."""
        return self.decision.ends_turn


def traits(
    effect: Effect = Effect.MUTATING,
    *,
    group: str | None = None,
    poller: bool = False,
    ignore_args: Iterable[str] = (),
    number_args: Iterable[str] = (),
    volatile_result: Iterable[str] = (),
    retryable_codes: Iterable[str] = (),
    max_calls: int | None = None,
    max_writes: int | None = None,
    needs_approval: bool = False,
) -> Callable[[F], F]:
    """Declare the traits of a tool where it is defined; the arguments are those of `ToolTraits`."""
    declared = ToolTraits(
        effect,
        group,
        poller,
        _listed(ignore_args),
        _listed(number_args),
        _listed(volatile_result),
        _listed(retryable_codes),
        max_calls,
        max_writes,
        needs_approval,
    )

    return lambda tool: declare(tool, declared)


def _listed(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise PolicyError(f"tool traits: {names!r} is one text; give a list of names")
    return tuple(names)


def declare(tool: F, declared: ToolTraits) -> F:
    """`tool` itself, after it has declared these traits; a framework's tool object may declare them too."""
    setattr(tool, _TRAITS, declared)
    return tool


def traits_of(tool: object) -> ToolTraits | None:
    """What `tool` declared by `traits`, or None."""
    return getattr(tool, _TRAITS, None)


class GuardedTools:
    """Tools by name, each call of which is judged. One guard, one run; calls of several threads need a lock outside."""

    def __init__(
        self,
        guard: Guard,
        tools: Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]],
        *,
        clock: Clock | None = None,
    ) -> None:
        """`clock` gives seconds (such as `time.monotonic`), for time budgets and announced waits.

        Raises ValueError for a tool without a name, and for two of one name.
        """
        self.guard = guard
        self._tools = dict(tools) if isinstance(tools, Mapping) else _by_name(tools)
        self._clock = clock
        self._shared: dict[str, Answer | asyncio.Future[Answer]] = {}
        for name, tool in self._tools.items():
            declared = traits_of(tool)
            if declared is not None:
                guard.declare(name, declared)

    def call(
        self, tool: str, args: Mapping[str, object] | str | None = None, *, call_id: str | None = None,
        turn: str | int | None = None,
    ) -> Answer:  # fmt: skip
        """Judge and run one call. `args` may be the model's own text.

        Whatever the tool raises is its outcome. Raises TypeError, before anything is judged, for an async tool.
        """
        if inspect.iscoroutinefunction(self._tools.get(tool)):
            raise TypeError(f"{tool} is async: await acall")
        call, decision = self._ask(tool, args, call_id, turn)
        if not decision.execute:
            return self._refused(decision)
        outcome, value = self._run(call)
        return self._settle(call, decision, outcome, value)

    async def acall(
        self, tool: str, args: Mapping[str, object] | str | None = None, *, call_id: str | None = None,
        turn: str | int | None = None,
    ) -> Answer:  # fmt: skip
        """As `call`, for async tools; sync ones run in place. Calls of one message may run side by side."""
        call, decision = self._ask(tool, args, call_id, turn)
        if not decision.execute:
            return await self._refused_async(decision)
        pending = asyncio.get_running_loop().create_future()
        self._share(decision.call_id, pending)
        try:
            outcome, value = await self._run_async(call)
        except BaseException:
            pending.cancel()
            raise
        answer = self._settle(call, decision, outcome, value)
        if not pending.done():
            pending.set_result(answer)
        return answer

    def _now(self) -> float | None:
        return None if self._clock is None else self._clock()

    def _ask(
        self, tool: str, args: Mapping[str, object] | str | None, call_id: str | None, turn: str | int | None
    ) -> tuple[ToolCall, Decision]:
        raw = args if isinstance(args, str) else None
        call = ToolCall(tool, None if raw is not None else args, raw, call_id, turn)
        decision = self.guard.before(call, now=self._now())
        return replace(call, call_id=decision.call_id), decision

    def _refused(self, decision: Decision) -> Answer:
        shared = None if decision.same_as is None else self._shared.get(decision.same_as)
        if isinstance(shared, Answer) and decision.tool_result is None:
            return _share_answer(decision, shared)
        return _refusal(decision)

    async def _refused_async(self, decision: Decision) -> Answer:
        shared = None if decision.same_as is None else self._shared.get(decision.same_as)
        if shared is None or decision.tool_result is not None:
            return _refusal(decision)
        try:
            answer = shared if isinstance(shared, Answer) else await asyncio.shield(shared)
        except asyncio.CancelledError:
            if isinstance(shared, asyncio.Future) and shared.cancelled():
                return _refusal(decision)
            raise
        return _share_answer(decision, answer)

    def _run(self, call: ToolCall) -> tuple[Outcome, object]:
        prepared = self._prepare(call)
        if isinstance(prepared, Outcome):
            return prepared, None
        tool, bound = prepared
        try:
            value = tool(*bound.args, **bound.kwargs)
        except Exception as exc:  # noqa: BLE001 - whatever a tool raises is its outcome
            return failure_of(exc), None
        return _outcome_of(value), value

    async def _run_async(self, call: ToolCall) -> tuple[Outcome, object]:
        prepared = self._prepare(call)
        if isinstance(prepared, Outcome):
            return prepared, None
        tool, bound = prepared
        try:
            value = tool(*bound.args, **bound.kwargs)
            if inspect.isawaitable(value):
                value = await value
        except Exception as exc:  # noqa: BLE001 - whatever a tool raises is its outcome
            return failure_of(exc), None
        return _outcome_of(value), value

    def _prepare(self, call: ToolCall) -> tuple[Callable[..., Any], inspect.BoundArguments] | Outcome:
        tool = self._tools.get(call.tool)
        if tool is None:
            return Outcome.failed(UNKNOWN_TOOL, f"There is no tool named {call.tool[:128]}.")
        try:
            args = call.args if call.args_raw is None else json.loads(call.args_raw)
            if args is not None and not isinstance(args, Mapping):
                return Outcome.failed(INVALID_ARGUMENTS, "The arguments must be one JSON object.")
            return tool, inspect.signature(tool).bind(**(args or {}))
        except (TypeError, ValueError, RecursionError) as exc:
            return Outcome.failed(INVALID_ARGUMENTS, str(exc))

    def _settle(self, call: ToolCall, before: Decision, outcome: Outcome, value: object) -> Answer:
        after = self.guard.after(call, outcome, step=before.step, now=self._now())
        error = outcome.error
        text = result_text(outcome.result) if error is None or outcome.result is not None else error_text(outcome)
        guidance = [said for said in (before.append, after.append) if said is not None]
        answer = Answer(after, "\n".join([text, *guidance]), value if error is None else None, error is not None)
        self._share(after.call_id, replace(answer, text=text))
        return answer

    def _share(self, call_id: str, answer: Answer | asyncio.Future[Answer]) -> None:
        self._shared.pop(call_id, None)
        self._shared[call_id] = answer
        if len(self._shared) > _MAX_SHARED:
            del self._shared[next(iter(self._shared))]


def guarded(
    guard: Guard, *, name: str | None = None, clock: Clock | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Wrap one function, sync or async: the wrapper is called as before, and each call is a model message of its own.

    A refused call returns the guard's text; guidance is appended where the function returns text. What the function
    raises goes on to the caller, with the guidance as a note. Raises RunHalted when the guard ends the run.
    """

    def wrap(tool: Callable[P, R]) -> Callable[P, R]:
        signature, label = inspect.signature(tool), name or tool.__name__
        declared = traits_of(tool)
        if declared is not None:
            guard.declare(label, declared)

        def ask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ToolCall, Decision]:
            bound = signature.bind(*args, **kwargs)
            call = ToolCall(label, dict(bound.arguments))
            return call, guard.before(call, now=None if clock is None else clock())

        def settle(call: ToolCall, before: Decision, outcome: Outcome) -> Decision:
            return guard.after(call, outcome, step=before.step, now=None if clock is None else clock())

        if inspect.iscoroutinefunction(tool):

            @wraps(tool)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                call, before = ask(args, kwargs)
                if not before.execute:
                    return _refuse(before)
                try:
                    value = await cast("Awaitable[Any]", tool(*args, **kwargs))
                except Exception as exc:
                    _fail(exc, settle(call, before, failure_of(exc)))
                    raise
                return _finish(value, before, settle(call, before, _outcome_of(value)))

            return cast("Callable[P, R]", call_async)

        @wraps(tool)
        def call_sync(*args: P.args, **kwargs: P.kwargs) -> Any:
            call, before = ask(args, kwargs)
            if not before.execute:
                return _refuse(before)
            try:
                value = tool(*args, **kwargs)
            except Exception as exc:
                _fail(exc, settle(call, before, failure_of(exc)))
                raise
            return _finish(value, before, settle(call, before, _outcome_of(value)))

        return call_sync

    return wrap


def failure_of(exc: Exception) -> Outcome:
    """An exception as an outcome: its own `code` where it has one, else the name of its class."""
    code = getattr(exc, "code", None)
    retryable = getattr(exc, "retryable", None)
    wait = getattr(exc, "retry_after_s", None)
    return Outcome.failed(
        code if isinstance(code, str) and code else type(exc).__name__,
        str(exc),
        retryable=retryable if isinstance(retryable, bool) else None,
        retry_after_s=float(wait) if isinstance(wait, (int, float)) else None,
    )


def _by_name(tools: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    named: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        name = getattr(tool, "__name__", None)
        if not isinstance(name, str):
            raise ValueError(f"{tool!r} has no name: give tools as a mapping of names")  # noqa: TRY004 - it has no name
        if name in named:
            raise ValueError(f"two tools are named {name}: give tools as a mapping of names")
        named[name] = tool
    return named


def _outcome_of(value: object) -> Outcome:
    return value if isinstance(value, Outcome) else Outcome.ok(value)


def error_text(outcome: Outcome) -> str:
    """What the model reads of a failure."""
    error = outcome.error or ToolError("FAILED")
    return f"{error.code}: {error.message}" if error.message and error.message != error.code else error.code


def _refusal(decision: Decision) -> Answer:
    text = decision.tool_result.text if decision.tool_result is not None else (decision.append or "")
    return Answer(decision, text, is_error=True)


def _share_answer(decision: Decision, shared: Answer) -> Answer:
    text = shared.text if decision.append is None else f"{shared.text}\n{decision.append}"
    return Answer(decision, text, shared.value, shared.is_error)


def _refuse(decision: Decision) -> str:
    if decision.ends_turn:
        raise RunHalted(decision)
    return _refusal(decision).text


def _fail(exc: Exception, after: Decision) -> None:
    if after.ends_turn:
        raise RunHalted(after) from exc
    if after.append is not None:
        exc.add_note(after.append)


def _finish(value: object, before: Decision, after: Decision) -> object:
    if after.ends_turn:
        raise RunHalted(after)
    guidance = [said for said in (before.append, after.append) if said is not None]
    if guidance and isinstance(value, str):
        return "\n".join([value, *guidance])
    return value
