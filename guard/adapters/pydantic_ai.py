"""The guard around a pydantic-ai agent.

    guard = Guard(policy, tools={"ocr_extract": ToolTraits(Effect.READ_ONLY, group="vision")})
    run = await run_guarded(agent, "Write the copy.", guard)
    if run.decision is not None: ...   # halted: run.decision says why, run.messages is the history to go on with

One guard, one run. What a tool raises becomes a result that the model reads, so that the guard's ladder decides about
it, and not the framework's limit of retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai import Agent, RunContext, capture_run_messages
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    AgentRunError,
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolRetryError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    ToolCallPart,
    ToolReturn,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition

from guard.adapters.ledger import Clock, Ledger, RunHalted, as_call, joined
from guard.adapters.plain import ToolFailure, error_text, failure_of
from guard.decision import Decision
from guard.escalation import Escalation
from guard.guard import Guard
from guard.results import Outcome

_RETRY: Final = "RETRY_ASKED"
"""The code of a tool that raises `ModelRetry`."""

_NOT_FAILURES = (CallDeferred, ApprovalRequired, AgentRunError, UserError)
"""How the framework itself leaves a tool."""


class GuardCapability(AbstractCapability[Any]):
    """Judges every function-tool call of one run; output tools are the answer itself and are left alone.

    Raises RunHalted before the next model request once the guard ended the run: by then all calls have their results.
    """

    def __init__(self, guard: Guard, *, clock: Clock | None = None) -> None:
        self.ledger = Ledger(guard, clock=clock)

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Judge the message as a whole, in the order of its calls."""
        answers = {tool.name for tool in request_context.model_request_parameters.output_tools}
        self.ledger.ask(
            as_call(part.tool_name, part.args, part.tool_call_id)
            for part in response.parts
            if isinstance(part, ToolCallPart) and part.tool_name not in answers
        )
        return response

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Count the calls that never reached a tool, and stop where the guard said so."""
        known = {tool.name for tool in request_context.model_request_parameters.function_tools}
        for pending in self.ledger.left_over():
            guidance = self.ledger.settle_unrun(
                pending, "The call was turned down.", is_known_tool=pending.call.tool in known
            )
            if guidance is not None:
                _add_guidance(request_context.messages, pending.call.call_id, guidance)
        if self.ledger.end is not None:
            raise RunHalted(self.ledger.end)
        return request_context

    async def wrap_tool_validate(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> dict[str, Any]:
        """A refused call is not even validated: its refusal is the answer."""
        pending = self.ledger.peek(call.tool_call_id)
        if pending is not None and not pending.decision.execute:
            return {}
        validated: dict[str, Any] = await handler(args)
        return validated

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Run the call if it may run, and add what the guard has to say."""
        ledger = self.ledger
        pending = ledger.take(as_call(call.tool_name, call.args, call.tool_call_id))
        if not pending.decision.execute:
            twin = ledger.shared(pending)
            if twin is None:
                return ledger.refusal(pending)
            return joined(await asyncio.shield(asyncio.wrap_future(twin)), pending.decision.append)
        try:
            value = await self._run(handler, args)
        except _NOT_FAILURES:
            pending.answer.set_result("")
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a tool raises is its outcome
            outcome = failure_of(exc)
            text = joined(error_text(outcome), ledger.settle(pending, outcome))
            pending.answer.set_result(text)
            return text
        except BaseException:
            pending.answer.cancel()
            raise
        returned = value.return_value if isinstance(value, ToolReturn) else value
        guidance = ledger.settle(pending, Outcome.ok(returned))
        pending.answer.set_result(str(returned))
        return value if guidance is None else _with_guidance(value, guidance)

    async def _run(self, handler: Any, args: Any) -> Any:
        """What the tool returns. A retry that it asks for is an error of its, however often it asks."""
        try:
            return await handler(args)
        except (ToolRetryError, UnexpectedModelBehavior) as exc:
            asked = exc.__cause__ if isinstance(exc, UnexpectedModelBehavior) else exc
            if not isinstance(asked, (ToolRetryError, ModelRetry, ValidationError)):
                raise
            reason = asked.__cause__ if isinstance(asked, ToolRetryError) and asked.__cause__ is not None else asked
            raise ToolFailure(_RETRY, str(reason)) from exc


@dataclass(frozen=True, slots=True)
class GuardedRun:
    """What became of a run."""

    result: Any
    """The agent's result; None when it was stopped."""
    messages: list[ModelMessage]
    """All messages, every call closed where the guard stopped the run: the history to go on with."""
    decision: Decision | None = None
    """Why the guard stopped it."""
    escalation: Escalation | None = None
    """What a person has to decide."""


async def run_guarded(
    agent: Agent[Any, Any], prompt: str | Sequence[Any] | None, guard: Guard, *, clock: Clock | None = None, **run: Any
) -> GuardedRun:
    """`agent.run(prompt, **run)` under `guard`.

    Where the framework gives up on invalid or unknown calls before the guard does, that is an escalation too; what it gives
    up on for other reasons is raised as without a guard.
    """
    capability = GuardCapability(guard, clock=clock)
    capabilities = [*(run.pop("capabilities", None) or ()), capability]
    with capture_run_messages() as messages:
        try:
            result = await agent.run(prompt, capabilities=capabilities, **run)
        except RunHalted as halted:
            return GuardedRun(None, list(messages), halted.decision, halted.decision.escalation)
        except UnexpectedModelBehavior as exc:
            escalation = capability.ledger.escalation(exc.message)
            if escalation is None and capability.ledger.end is None:
                raise
            return GuardedRun(None, list(messages), capability.ledger.end, escalation)
    return GuardedRun(result, list(messages))


def _with_guidance(value: Any, guidance: str) -> Any:
    if isinstance(value, str):
        return joined(value, guidance)
    if not isinstance(value, ToolReturn):
        return ToolReturn(value, content=guidance)
    content = value.content
    more = [guidance] if content is None else [content, guidance] if isinstance(content, str) else [*content, guidance]
    return replace(value, content=more)


def _add_guidance(messages: list[ModelMessage], call_id: str | None, guidance: str) -> None:
    """Below the framework's own words about a call that it turned down."""
    request = messages[-1]
    if not isinstance(request, ModelRequest):
        return
    request.parts = [
        replace(part, content=joined(part.model_response(), guidance))
        if isinstance(part, RetryPromptPart) and part.tool_call_id == call_id
        else part
        for part in request.parts
    ]
