"""The guard around an agent of the OpenAI Agents SDK.

    agent = Agent(name="writer", model=model, tools=guarded_tools([ocr_extract, save_copy]))  # once, for all runs
    run = await run_guarded(agent, "Write the copy.", Guard(policy))                          # each with a guard of its own
    if run.decision is not None: ...   # halted: run.decision says why, run.items is the history to go on with

Runs may go on side by side: each call is judged by the guard of the run that it belongs to. `stream_guarded` is the same
for `Runner.run_streamed`. Tools are plain functions, or `FunctionTool`s of the SDK. What a function raises becomes a
result that the model reads; of a ready-made `FunctionTool` only those errors are seen that it lets through
(`failure_error_function=None`). Tools that are not guarded, such as those of MCP servers, are counted, warned about and
end the run, but are not kept from running. Handoffs are counted like polling.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    ModelBehaviorError,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResultStreaming,
    StreamEvent,
    Tool,
    UserError,
    function_tool,
)
from agents.tool_context import ToolContext

from guard.adapters.ledger import Clock, Ledger, RunHalted, as_call, joined
from guard.adapters.plain import declare, error_text, failure_of, traits_of
from guard.call import ToolCall
from guard.decision import Decision
from guard.escalation import Escalation
from guard.guard import Guard
from guard.policy import INVALID_ARGUMENTS, Effect, ToolTraits
from guard.results import Outcome

_HANDOFF: Final = ToolTraits(Effect.READ_ONLY, poller=True)
"""Going to and fro between agents is no failure; doing it without end is."""

_LEDGER: ContextVar[Ledger] = ContextVar("ledger of the run")


def guarded_tools(tools: Iterable[Callable[..., Any] | FunctionTool]) -> list[Any]:
    """`tools` with each call judged by the guard of its run; functions may declare traits by `guard.adapters.plain.traits`.

    They run under `run_guarded` and `stream_guarded` alone: elsewhere nobody would judge them, so they raise.
    """
    return [_guarded(tool) for tool in tools]


class GuardHooks(RunHooks[Any]):
    """Judges each model message as a whole, and stops a halted run before the next one.

    Raises RunHalted once every call has its result. `others` are the caller's own hooks, which see everything too.
    """

    def __init__(self, ledger: Ledger, others: RunHooks[Any] | None = None) -> None:
        self.ledger = ledger
        self.items: list[Any] = []
        """What the model was about to read, when the run was stopped."""
        self._others: RunHooks[Any] = RunHooks() if others is None else others
        self._handoffs: set[str] = set()
        self._guidance: dict[str, str] = {}
        """For calls that ran without us, by id; each request is made of the SDK's own items, which do not hold it."""
        for name in dir(RunHooks):
            if name.startswith("on_") and name not in vars(GuardHooks):  # those that are none of our business
                setattr(self, name, getattr(self._others, name))

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Judge the calls of the message in order."""
        calls = [item for item in response.output if item.type == "function_call"]
        handoffs = {
            handoff.tool_name if isinstance(handoff, Handoff) else Handoff.default_tool_name(handoff)
            for handoff in agent.handoffs
        }
        for name in handoffs.intersection(item.name for item in calls):
            self.ledger.guard.tools.setdefault(name, _HANDOFF)
        self._handoffs = {item.call_id for item in calls if item.name in handoffs}
        self.ledger.ask(as_call(item.name, item.arguments, item.call_id) for item in calls)
        await self._others.on_llm_end(context, agent, response)

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        """Tell the guard what a tool brought that is not guarded."""
        call_id = getattr(context, "tool_call_id", None)
        if call_id is not None and self.ledger.peek(call_id) is not None:
            pending = self.ledger.take(ToolCall(tool.name, call_id=call_id))
            guidance = self.ledger.settle(pending, Outcome.ok(result))
            if guidance is not None:
                self._guidance[call_id] = guidance
        await self._others.on_tool_end(context, agent, tool, result)

    async def on_llm_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], system_prompt: str | None, input_items: list[Any]
    ) -> None:
        """Count the calls of tools that do not exist, and stop where the guard said so."""
        for tool in agent.tools:
            declared = traits_of(tool)
            if declared is not None and tool.name not in self.ledger.guard.tools:
                self.ledger.guard.declare(tool.name, declared)
        for pending in self.ledger.left_over():
            call_id = str(pending.call.call_id)
            if call_id in self._handoffs:
                guidance = self.ledger.settle(pending, Outcome.ok("handed over"))
            else:
                guidance = self.ledger.settle_unrun(pending, "There is no such tool.", is_known_tool=False)
            if guidance is not None:
                self._guidance[call_id] = guidance
        for item in input_items if self._guidance else ():
            guidance = self._guidance.get(str(item.get("call_id")))
            is_output = guidance is not None and item.get("type") == "function_call_output"
            if is_output and not str(item["output"]).endswith(str(guidance)):
                item["output"] = joined(str(item["output"]), guidance)
        if self.ledger.end is not None:
            self.items = list(input_items)
            raise RunHalted(self.ledger.end)
        await self._others.on_llm_start(context, agent, system_prompt, input_items)


@dataclass(frozen=True, slots=True)
class GuardedRun:
    """What became of a run."""

    result: Any
    """The agent's result; None when it was stopped."""
    items: list[Any] = field(default_factory=list)
    """Where the guard stopped the run: all items, every call closed, to go on with."""
    decision: Decision | None = None
    """Why the guard stopped it."""
    escalation: Escalation | None = None
    """What a person has to decide."""


async def run_guarded(
    agent: Agent[Any],
    prompt: Any,
    guard: Guard,
    *,
    clock: Clock | None = None,
    hooks: RunHooks[Any] | None = None,
    **run: Any,
) -> GuardedRun:
    """`Runner.run(agent, prompt, hooks=hooks, **run)` under `guard`, which is this run's alone.

    A call of a tool that does not exist is an error that the model reads; where the SDK gives up on the model's calls
    before the guard does, that is an escalation too. What it gives up on for other reasons is raised as without a guard.
    """
    ours = GuardHooks(Ledger(guard, clock=clock), hooks)
    mine = _LEDGER.set(ours.ledger)
    try:
        return GuardedRun(await Runner.run(agent, prompt, hooks=ours, **_configured(run)))
    except (RunHalted, ModelBehaviorError) as stopped:
        return _stopped(ours, stopped)
    finally:
        _LEDGER.reset(mine)


class GuardedStream:
    """A run that streams: take its `events`, then look at `run`."""

    def __init__(self, streaming: RunResultStreaming, hooks: GuardHooks) -> None:
        self.streaming = streaming
        """The SDK's own object."""
        self.run: GuardedRun | None = None
        """What became of the run; None while its events are still coming."""
        self._hooks = hooks

    async def events(self) -> AsyncIterator[StreamEvent]:
        """The SDK's events. They end where the guard ends the run, without an exception."""
        try:
            async for event in self.streaming.stream_events():
                yield event
        except (RunHalted, ModelBehaviorError) as stopped:
            self.run = _stopped(self._hooks, stopped)
        else:
            self.run = GuardedRun(self.streaming)


def stream_guarded(
    agent: Agent[Any],
    prompt: Any,
    guard: Guard,
    *,
    clock: Clock | None = None,
    hooks: RunHooks[Any] | None = None,
    **run: Any,
) -> GuardedStream:
    """`Runner.run_streamed(agent, prompt, hooks=hooks, **run)` under `guard`, as `run_guarded` does it."""
    ours = GuardHooks(Ledger(guard, clock=clock), hooks)
    mine = _LEDGER.set(ours.ledger)
    try:
        return GuardedStream(Runner.run_streamed(agent, prompt, hooks=ours, **_configured(run)), ours)
    finally:
        _LEDGER.reset(mine)  # the run's own task took it along


def _configured(run: dict[str, Any]) -> dict[str, Any]:
    config = run.pop("run_config", None) or RunConfig()
    return {**run, "run_config": replace(config, tool_not_found_behavior="return_error_to_model")}


def _stopped(hooks: GuardHooks, why: RunHalted | ModelBehaviorError) -> GuardedRun:
    if isinstance(why, RunHalted):
        return GuardedRun(None, hooks.items, why.decision, why.decision.escalation)
    escalation = hooks.ledger.escalation(why.message)
    if escalation is None and hooks.ledger.end is None:
        raise why
    return GuardedRun(None, hooks.items, hooks.ledger.end, escalation)


def _guarded(tool: Callable[..., Any] | FunctionTool) -> FunctionTool:
    # Errors are ours to word; the SDK's own words would make each of them look like a result.
    inner = tool if isinstance(tool, FunctionTool) else function_tool(tool, failure_error_function=None)

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        ledger = _LEDGER.get(None)
        if ledger is None:
            raise UserError(f"{inner.name} is guarded: start the run by run_guarded or stream_guarded.")
        pending = ledger.take(ToolCall(inner.name, None, arguments, context.tool_call_id))
        if not pending.decision.execute:
            twin = ledger.shared(pending)
            if twin is None:
                return ledger.refusal(pending)
            return joined(await asyncio.shield(asyncio.wrap_future(twin)), pending.decision.append)
        try:
            value = await inner.on_invoke_tool(context, arguments)
        except Exception as exc:  # noqa: BLE001 - whatever a tool raises is its outcome
            if isinstance(exc, ModelBehaviorError):
                outcome = Outcome.failed(INVALID_ARGUMENTS, exc.message)
            else:
                outcome = failure_of(exc)
            text = joined(error_text(outcome), ledger.settle(pending, outcome))
            pending.answer.set_result(text)
            return text
        except BaseException:
            pending.answer.cancel()
            raise
        guidance = ledger.settle(pending, Outcome.ok(value))
        pending.answer.set_result(str(value))
        return value if guidance is None else joined(str(value), guidance)

    guarded = replace(inner, on_invoke_tool=invoke)
    declared = traits_of(tool)
    return guarded if declared is None else declare(guarded, declared)
