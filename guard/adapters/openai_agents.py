"""The guard around an agent of the OpenAI Agents SDK.

    guard = Guard(policy)
    agent = Agent(name="writer", model=model, tools=guarded_tools(ledger := Ledger(guard), [ocr_extract, save_copy]))
    run = await run_guarded(agent, "Write the copy.", ledger)
    if run.decision is not None: ...   # halted: run.decision says why, run.items is the history to go on with

One guard, one run. Tools are plain functions, or `FunctionTool`s of the SDK. What a function raises becomes a result
that the model reads; of a ready-made `FunctionTool` only those errors are seen that it lets through
(`failure_error_function=None`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    ModelBehaviorError,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    function_tool,
)
from agents.tool_context import ToolContext

from guard.adapters.ledger import Ledger, RunHalted, as_call, joined
from guard.adapters.plain import error_text, failure_of, traits_of
from guard.call import ToolCall
from guard.decision import Decision
from guard.escalation import Escalation
from guard.policy import INVALID_ARGUMENTS
from guard.results import Outcome


def guarded_tools(ledger: Ledger, tools: Iterable[Callable[..., Any] | FunctionTool]) -> list[Any]:
    """`tools` with each call judged; functions may declare their traits by `guard.adapters.plain.traits`."""
    return [_guarded(ledger, tool) for tool in tools]


class GuardHooks(RunHooks[Any]):
    """Judges each model message as a whole, and stops a halted run before the next one.

    Raises RunHalted once every call has its result.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.items: list[Any] = []
        """What the model was about to read, when the run was stopped."""

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Judge the calls of the message in order."""
        self.ledger.ask(
            as_call(item.name, item.arguments, item.call_id) for item in response.output if item.type == "function_call"
        )

    async def on_llm_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], system_prompt: str | None, input_items: list[Any]
    ) -> None:
        """Count the calls of tools that do not exist, and stop where the guard said so."""
        for pending in self.ledger.left_over():
            guidance = self.ledger.settle_unrun(pending, "There is no such tool.", is_known_tool=False)
            for item in input_items if guidance is not None else ():
                if item.get("type") == "function_call_output" and item.get("call_id") == pending.call.call_id:
                    item["output"] = joined(str(item["output"]), guidance)
        if self.ledger.end is not None:
            self.items = list(input_items)
            raise RunHalted(self.ledger.end)


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


async def run_guarded(agent: Agent[Any], prompt: Any, ledger: Ledger, **run: Any) -> GuardedRun:
    """`Runner.run(agent, prompt, **run)` under the guard of `ledger`.

    A call of a tool that does not exist is an error that the model reads; where the SDK gives up on the model's calls
    before the guard does, that is an escalation too.
    """
    hooks = GuardHooks(ledger)
    config = replace(run.pop("run_config", None) or RunConfig(), tool_not_found_behavior="return_error_to_model")
    try:
        result = await Runner.run(agent, prompt, hooks=hooks, run_config=config, **run)
    except RunHalted as halted:
        return GuardedRun(None, hooks.items, halted.decision, halted.decision.escalation)
    except ModelBehaviorError as exc:
        return GuardedRun(None, hooks.items, ledger.end, ledger.escalation(exc.message))
    return GuardedRun(result)


def _guarded(ledger: Ledger, tool: Callable[..., Any] | FunctionTool) -> FunctionTool:
    if isinstance(tool, FunctionTool):
        inner = tool
    else:
        declared = traits_of(tool)
        # Errors are ours to word; the SDK's own words would make each of them look like a result.
        inner = function_tool(tool, failure_error_function=None)
        if declared is not None:
            ledger.guard.declare(inner.name, declared)

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
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

    return replace(inner, on_invoke_tool=invoke)
