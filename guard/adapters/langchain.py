"""The guard around a LangChain agent (`langchain.agents.create_agent`, which runs on LangGraph).

    middleware = GuardMiddleware(lambda: Guard(policy, tools={"ocr_extract": ToolTraits(Effect.READ_ONLY, group="vision")}))
    agent = create_agent(model, tools, middleware=[middleware])  # once, for all runs
    state = agent.invoke({"messages": [...]})                    # each with a guard of its own
    end = middleware.end_of(state)
    if end is not None: ...   # halted: all calls are closed, and the state can be gone on with

Each `invoke`, `ainvoke`, `stream` and `astream` is a run, and runs may go on side by side. To go on with an earlier run
(after `guard.resume`), hand in the guard itself, for an agent that serves that run alone. What a tool raises becomes a
result that the model reads. An answer that does not fit the `response_format` is an error too, so that asking for it again has
an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, NotRequired
from uuid import uuid4

from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
from langchain.agents.middleware.types import ModelRequest, ModelResponse, OmitFromInput, ToolCallRequest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from guard.adapters.ledger import Clock, Ledger, Pending, as_call, joined
from guard.adapters.plain import error_text, failure_of
from guard.adapters.runs import Runs
from guard.decision import Decision
from guard.guard import Guard
from guard.policy import INVALID_ARGUMENTS, UNKNOWN_TOOL
from guard.results import Outcome

Answer = ToolMessage | Command[Any]


class GuardState(AgentState[Any]):
    """The agent's state, with the name of the run."""

    guard_run: NotRequired[Annotated[str, OmitFromInput]]


class GuardMiddleware(AgentMiddleware[Any, Any]):
    """Judges every tool call of its runs.

    A jump out of `wrap_tool_call` would not stop the agent, so a halted run ends before the next model call.
    """

    state_schema = GuardState

    def __init__(self, guard: Guard | Callable[[], Guard], *, clock: Clock | None = None) -> None:
        """`guard` makes the guard of each run; a guard itself is for an agent that has one run at a time."""
        super().__init__()
        self._ledger = Ledger(guard, clock=clock) if isinstance(guard, Guard) else None
        self._runs = None if isinstance(guard, Guard) else Runs(guard, clock)

    @property
    def end(self) -> Decision | None:
        """The decision that halted the run of the one guard that was handed in; None while it goes on."""
        return None if self._ledger is None else self._ledger.end

    def end_of(self, state: Any) -> Decision | None:
        """The decision that halted the run with this state; None for one that was not halted. Raises as `guard_of`."""
        return self._known(state).end

    def guard_of(self, state: Any) -> Guard:
        """The guard of the run with this state. Raises LookupError where it is not kept any more.

        Kept are those of all runs that go on, and of the latest thousand that ended.
        """
        return self._known(state).guard

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Begin a run."""
        return None if self._runs is None else {"guard_run": uuid4().hex}

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_agent`."""
        return self.before_agent(state, runtime)

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """The run is over."""
        if self._runs is not None:
            self._runs.finish(state["guard_run"])
        return None

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_agent`."""
        return self.after_agent(state, runtime)

    def _run_of(self, state: Any) -> Ledger:
        if self._ledger is not None:
            return self._ledger
        assert self._runs is not None
        return self._runs.going_on(state["guard_run"])

    def _known(self, state: Any) -> Ledger:
        if self._ledger is not None:
            return self._ledger
        assert self._runs is not None
        if "guard_run" not in state:
            raise LookupError(
                "This is not the state of a run of this middleware; take the whole state that `invoke` gives."
            )
        return self._runs.find(state["guard_run"])

    def wrap_model_call(self, request: Any, handler: Callable[[Any], ModelResponse[Any]]) -> ModelResponse[Any]:
        """Judge answers that do not fit the response format: they never come to a tool."""
        return self._with_misfits(request, handler(request))

    async def awrap_model_call(
        self, request: Any, handler: Callable[[Any], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """As `wrap_model_call`."""
        return self._with_misfits(request, await handler(request))

    def _with_misfits(self, request: ModelRequest[Any], response: ModelResponse[Any]) -> ModelResponse[Any]:
        turned_down = {m.tool_call_id: m for m in response.result if isinstance(m, ToolMessage)}
        if not turned_down or response.structured_response is not None:
            return response
        calls = [c for m in response.result if isinstance(m, AIMessage) for c in m.tool_calls if c["id"] in turned_down]
        ledger = self._run_of(request.state)
        for pending in ledger.ask(as_call(call["name"], call["args"], call["id"]) for call in calls):
            message = turned_down[str(pending.call.call_id)]
            text = _misfit_text(ledger, ledger.take(pending.call), message.text)
            turned_down[message.tool_call_id] = message.model_copy(update={"content": text})
        result = [turned_down[m.tool_call_id] if isinstance(m, ToolMessage) else m for m in response.result]
        return replace(response, result=result)

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End a halted run; every call has its result by now."""
        return None if self._run_of(state).end is None else {"jump_to": "end"}

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_model`."""
        return self.before_model(state, runtime)

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Judge the message as a whole.

        Calls whose arguments are no JSON never come to a tool, so they are closed here; without this the agent would
        end as if it had answered.
        """
        message, answered = _latest(state["messages"])
        if message is None:
            return None
        unanswered = [call for call in message.tool_calls if call["id"] not in answered]
        valid = [as_call(call["name"], call["args"], call["id"]) for call in unanswered]
        broken = [as_call(call["name"] or "", call["args"] or "", call["id"]) for call in message.invalid_tool_calls]
        if not valid and not broken:
            return None
        ledger = self._run_of(state)
        ledger.ask([*valid, *broken])
        if not broken:
            return None
        closed = [_close_broken(ledger, ledger.take(call)) for call in broken]
        return {"messages": closed} if valid else {"messages": closed, "jump_to": "model"}

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_model`."""
        return self.after_model(state, runtime)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]) -> Answer:
        """Run the call if it may run, and add what the guard has to say."""
        ledger = self._run_of(request.state)
        pending = _take(ledger, request)
        if not pending.decision.execute:
            twin = ledger.shared(pending)
            text = ledger.refusal(pending) if twin is None else joined(twin.result(), pending.decision.append)
            return _message(request, text, is_error=twin is None)
        try:
            answer = handler(request)
        except GraphBubbleUp:
            pending.answer.set_result("")
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a tool raises is its outcome
            return _failed(ledger, request, pending, exc)
        return _settled(ledger, request, pending, answer)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        """As `wrap_tool_call`."""
        ledger = self._run_of(request.state)
        pending = _take(ledger, request)
        if not pending.decision.execute:
            twin = ledger.shared(pending)
            if twin is None:
                return _message(request, ledger.refusal(pending), is_error=True)
            text = await asyncio.shield(asyncio.wrap_future(twin))
            return _message(request, joined(text, pending.decision.append), is_error=False)
        try:
            answer = await handler(request)
        except GraphBubbleUp:
            pending.answer.set_result("")
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a tool raises is its outcome
            return _failed(ledger, request, pending, exc)
        except BaseException:
            pending.answer.cancel()
            raise
        return _settled(ledger, request, pending, answer)


def _latest(messages: Sequence[BaseMessage]) -> tuple[AIMessage | None, set[str]]:
    """The model's message at the end, and ids of its calls that have an answer already."""
    answered: set[str] = set()
    for message in reversed(messages):
        if not isinstance(message, ToolMessage):
            return (message if isinstance(message, AIMessage) else None), answered
        answered.add(message.tool_call_id)
    return None, answered


def _misfit_text(ledger: Ledger, pending: Pending, complaint: str) -> str:
    """What the model reads where the framework turned its answer down, with complaint."""
    if not pending.decision.execute:
        return joined(complaint, ledger.refusal(pending))
    text = joined(complaint, ledger.settle(pending, Outcome.failed(INVALID_ARGUMENTS, complaint)))
    pending.answer.set_result(text)
    return text


def _take(ledger: Ledger, request: ToolCallRequest) -> Pending:
    call = request.tool_call
    return ledger.take(as_call(call["name"], call["args"], call["id"]))


def _close_broken(ledger: Ledger, pending: Pending) -> ToolMessage:
    call, text = pending.call, ""
    if pending.decision.execute:
        guidance = ledger.settle(pending, Outcome.failed(INVALID_ARGUMENTS, "The arguments are no JSON."))
        text = joined(f"{INVALID_ARGUMENTS}: the call was not run.", guidance)
        pending.answer.set_result(text)
    else:
        text = ledger.refusal(pending)
    return ToolMessage(text, tool_call_id=call.call_id, name=call.tool, status="error")


def _failed(ledger: Ledger, request: ToolCallRequest, pending: Pending, exc: Exception) -> ToolMessage:
    outcome = failure_of(exc)
    text = joined(error_text(outcome), ledger.settle(pending, outcome))
    pending.answer.set_result(text)
    return _message(request, text, is_error=True)


def _settled(ledger: Ledger, request: ToolCallRequest, pending: Pending, answer: Answer) -> Answer:
    if not isinstance(answer, ToolMessage):
        ledger.settle(pending, Outcome.ok("a command to the graph"))
        pending.answer.set_result("")
        return answer
    text = answer.text if isinstance(answer.content, str) else str(answer.content)
    pending.answer.set_result(text)
    if answer.status == "error":
        # The node itself turned the call down: there is no such tool, or its arguments do not fit.
        outcome = Outcome.failed(UNKNOWN_TOOL if request.tool is None else INVALID_ARGUMENTS, text)
    else:
        outcome = Outcome.ok(answer.content)
    guidance = ledger.settle(pending, outcome)
    if guidance is None:
        return answer
    content = joined(answer.content, guidance) if isinstance(answer.content, str) else [*answer.content, guidance]
    return answer.model_copy(update={"content": content})


def _message(request: ToolCallRequest, text: str, *, is_error: bool) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(
        text, tool_call_id=call["id"] or "", name=call["name"], status="error" if is_error else "success"
    )
