"""The guard around a LangChain agent (`langchain.agents.create_agent`, which runs on LangGraph).

    guard = Guard(policy, tools={"ocr_extract": ToolTraits(Effect.READ_ONLY, group="vision")})
    middleware = GuardMiddleware(guard)
    agent = create_agent(model, tools, middleware=[middleware])
    state = agent.invoke({"messages": [...]})
    if middleware.end is not None: ...   # halted: all calls are closed, and the state can be gone on with

One guard, one run. What a tool raises becomes a result that the model reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from guard.adapters.ledger import Clock, Ledger, Pending, as_call, joined
from guard.adapters.plain import error_text, failure_of
from guard.decision import Decision
from guard.guard import Guard
from guard.policy import INVALID_ARGUMENTS, UNKNOWN_TOOL
from guard.results import Outcome

Answer = ToolMessage | Command[Any]


class GuardMiddleware(AgentMiddleware[Any, Any]):
    """Judges every tool call of one run.

    A jump out of `wrap_tool_call` would not stop the agent, so a halted run ends before the next model call.
    """

    def __init__(self, guard: Guard, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._ledger = Ledger(guard, clock=clock)

    @property
    def end(self) -> Decision | None:
        """The decision that halted the run; None while it goes on."""
        return self._ledger.end

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End a halted run; every call has its result by now."""
        return None if self.end is None else {"jump_to": "end"}

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
        message = state["messages"][-1]
        if not isinstance(message, AIMessage):
            return None
        valid = [as_call(call["name"], call["args"], call["id"]) for call in message.tool_calls]
        broken = [as_call(call["name"] or "", call["args"] or "", call["id"]) for call in message.invalid_tool_calls]
        self._ledger.ask([*valid, *broken])
        if not broken:
            return None
        closed = [self._close_broken(self._ledger.take(call)) for call in broken]
        return {"messages": closed} if valid else {"messages": closed, "jump_to": "model"}

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_model`."""
        return self.after_model(state, runtime)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]) -> Answer:
        """Run the call if it may run, and add what the guard has to say."""
        pending = self._take(request)
        if not pending.decision.execute:
            twin = self._ledger.shared(pending)
            text = self._ledger.refusal(pending) if twin is None else joined(twin.result(), pending.decision.append)
            return _message(request, text, is_error=twin is None)
        try:
            answer = handler(request)
        except GraphBubbleUp:
            pending.answer.set_result("")
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a tool raises is its outcome
            return self._failed(request, pending, exc)
        return self._settled(request, pending, answer)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        """As `wrap_tool_call`."""
        pending = self._take(request)
        if not pending.decision.execute:
            twin = self._ledger.shared(pending)
            if twin is None:
                return _message(request, self._ledger.refusal(pending), is_error=True)
            text = await asyncio.shield(asyncio.wrap_future(twin))
            return _message(request, joined(text, pending.decision.append), is_error=False)
        try:
            answer = await handler(request)
        except GraphBubbleUp:
            pending.answer.set_result("")
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a tool raises is its outcome
            return self._failed(request, pending, exc)
        except BaseException:
            pending.answer.cancel()
            raise
        return self._settled(request, pending, answer)

    def _take(self, request: ToolCallRequest) -> Pending:
        call = request.tool_call
        return self._ledger.take(as_call(call["name"], call["args"], call["id"]))

    def _close_broken(self, pending: Pending) -> ToolMessage:
        call, text = pending.call, ""
        if pending.decision.execute:
            guidance = self._ledger.settle(pending, Outcome.failed(INVALID_ARGUMENTS, "The arguments are no JSON."))
            text = joined(f"{INVALID_ARGUMENTS}: the call was not run.", guidance)
            pending.answer.set_result(text)
        else:
            text = self._ledger.refusal(pending)
        return ToolMessage(text, tool_call_id=call.call_id, name=call.tool, status="error")

    def _failed(self, request: ToolCallRequest, pending: Pending, exc: Exception) -> ToolMessage:
        outcome = failure_of(exc)
        text = joined(error_text(outcome), self._ledger.settle(pending, outcome))
        pending.answer.set_result(text)
        return _message(request, text, is_error=True)

    def _settled(self, request: ToolCallRequest, pending: Pending, answer: Answer) -> Answer:
        if not isinstance(answer, ToolMessage):
            self._ledger.settle(pending, Outcome.ok("a command to the graph"))
            pending.answer.set_result("")
            return answer
        text = answer.text if isinstance(answer.content, str) else str(answer.content)
        pending.answer.set_result(text)
        if answer.status == "error":
            # The node itself turned the call down: there is no such tool, or its arguments do not fit.
            outcome = Outcome.failed(UNKNOWN_TOOL if request.tool is None else INVALID_ARGUMENTS, text)
        else:
            outcome = Outcome.ok(answer.content)
        guidance = self._ledger.settle(pending, outcome)
        if guidance is None:
            return answer
        content = joined(answer.content, guidance) if isinstance(answer.content, str) else [*answer.content, guidance]
        return answer.model_copy(update={"content": content})


def _message(request: ToolCallRequest, text: str, *, is_error: bool) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(
        text, tool_call_id=call["id"] or "", name=call["name"], status="error" if is_error else "success"
    )
