"""One table for all adapters: real frameworks, a scripted model, and the same ladder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from guard import Effect, Escalation, Guard, GuardAction, GuardPolicy, Mode, ToolTraits
from guard.adapters.plain import GuardedTools, ToolFailure, traits
from guard.decision import Decision

Asked = tuple[str, Any]
"""Tool, and arguments: an object, or text that is no JSON."""


@dataclass
class Played:
    executed: list[str]
    model_calls: int
    answers: dict[str, str]
    decision: Decision | None = None
    escalation: Escalation | None = None
    final: str | None = None


@dataclass
class Case:
    name: str
    messages: list[list[Asked]]
    executed: int
    model_calls: int
    """Including the one that answers in words, where the run is not stopped."""
    is_halted: bool = False
    escalates: bool = False
    marks: dict[str, str] = field(default_factory=dict)
    """What the answer of a call (`message.place`, from 1) contains."""
    may_end_sooner: bool = False
    """A framework may give up on such calls before the guard does: an escalation all the same."""


LOOK = ("look", {"file": "p1"})
SAVE = ("save", {"text": "Fresh tea"})
CASES = [
    Case("honest work", [[("look", {"file": f"p{n}"})] for n in range(6)], 6, 7),
    Case(
        "identical reads",
        [[LOOK]] * 8,
        2,
        4,
        is_halted=True,
        marks={"1.1": "text of p1", "2.1": "[guard]", "3.1": "ot run", "4.1": "is kept"},
    ),
    Case("identical writes", [[SAVE]] * 8, 1, 3, is_halted=True, marks={"2.1": "step 1", "3.1": "[guard]"}),
    Case(
        "one error code, new arguments each time",
        [[("ask", {"q": "a" * n})] for n in range(1, 9)],
        4,
        4,
        is_halted=True,
        escalates=True,
        marks={"1.1": "QUOTA", "2.1": "[guard]"},
    ),
    Case(
        "tuned numbers",
        [[("tune", {"file": "p1", "contrast": 1 + n / 7})] for n in range(1, 9)],
        3,
        5,
        is_halted=True,
        marks={"3.1": "numbers"},
    ),
    Case("twins in one message", [[LOOK, LOOK]], 1, 2, marks={"1.1": "text of p1", "1.2": "text of p1"}),
    Case(
        "halt in the middle of a message",
        [[LOOK], [LOOK], [LOOK], [LOOK, ("look", {"file": "p2"}), SAVE]],
        2,
        4,
        is_halted=True,
        marks={"4.1": "is kept", "4.2": "[guard]", "4.3": "[guard]"},
    ),
    Case(
        "tools that do not exist",
        [[(f"invented_{n}", {"n": n})] for n in range(8)],
        0,
        4,
        is_halted=True,
        escalates=True,
        may_end_sooner=True,
    ),
    Case(
        "arguments that are no JSON",
        [[("look", '{"file": "' + "p" * n)] for n in range(8)],
        0,
        4,
        is_halted=True,
        escalates=True,
        may_end_sooner=True,
    ),
    Case(
        "a mistake that the model mends",
        [[("look", '{"file": ')], [LOOK]],
        1,
        3,
        marks={"2.1": "text of p1"},
    ),
]


def _tools(executed: list[str]) -> list[Callable[..., Any]]:
    @traits(Effect.READ_ONLY)
    def look(file: str) -> str:
        """Look at a picture."""
        executed.append("look")
        return f"text of {file}"

    @traits(Effect.READ_ONLY, number_args=("contrast",))
    def tune(file: str, contrast: float) -> str:
        """Look at a picture with another contrast."""
        executed.append("tune")
        return "unreadable"

    @traits(Effect.READ_ONLY)
    def ask(q: str) -> str:
        """Ask a shop."""
        executed.append("ask")
        raise ToolFailure("QUOTA", "no quota left")

    @traits(Effect.MUTATING)
    def save(text: str) -> str:
        """Save the copy."""
        executed.append("save")
        return "saved"

    return [look, tune, ask, save]


def _raw(args: Any) -> str:
    return args if isinstance(args, str) else json.dumps(args)


def play_plain(case: Case, guard: Guard) -> Played:
    executed: list[str] = []
    tools = GuardedTools(guard, _tools(executed))
    played = Played(executed, 0, {})
    for number, message in enumerate(case.messages, 1):
        played.model_calls += 1
        for place, (tool, args) in enumerate(message, 1):
            answer = tools.call(tool, _raw(args), call_id=f"{number}.{place}", turn=number)
            played.answers[f"{number}.{place}"] = answer.text
            if answer.ends_turn and played.decision is None:
                played.decision, played.escalation = answer.decision, answer.decision.escalation
        if guard.is_halted:
            return played
    played.model_calls += 1
    played.final = "done"
    return played


def play_pydantic_ai(case: Case, guard: Guard) -> Played:
    from pydantic_ai import Agent
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        RetryPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from guard.adapters.plain import traits_of
    from guard.adapters.pydantic_ai import run_guarded

    executed: list[str] = []
    played = Played(executed, 0, {})

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        played.model_calls += 1
        number = played.model_calls
        if number > len(case.messages):
            return ModelResponse([TextPart("done")])
        calls = case.messages[number - 1]
        return ModelResponse([ToolCallPart(t, a, f"{number}.{p}") for p, (t, a) in enumerate(calls, 1)])

    tools = _tools(executed)
    for tool in tools:
        declared = traits_of(tool)
        assert declared is not None
        guard.declare(tool.__name__, declared)
    agent = Agent(FunctionModel(respond), tools=tools)
    run = asyncio.run(run_guarded(agent, "Write.", guard))
    for message in run.messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, ToolReturnPart):
                played.answers[part.tool_call_id] = part.model_response_str()
            elif isinstance(part, RetryPromptPart):
                played.answers[part.tool_call_id] = part.model_response()
    played.decision, played.escalation = run.decision, run.escalation
    played.final = None if run.result is None else run.result.output
    return played


def _play_langchain(case: Case, guard: Guard, *, is_async: bool) -> Played:
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    from guard.adapters.langchain import GuardMiddleware
    from guard.adapters.plain import traits_of

    executed: list[str] = []
    played = Played(executed, 0, {})

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            played.model_calls += 1
            number = played.model_calls
            message = AIMessage("done")
            if number <= len(case.messages):
                valid, broken = [], []
                for place, (tool, args) in enumerate(case.messages[number - 1], 1):
                    call = {"name": tool, "args": args, "id": f"{number}.{place}"}
                    (broken if isinstance(args, str) else valid).append(call)
                message = AIMessage("", tool_calls=valid, invalid_tool_calls=[{**c, "error": None} for c in broken])
            return ChatResult(generations=[ChatGeneration(message=message)])

    tools = _tools(executed)
    for tool in tools:
        declared = traits_of(tool)
        assert declared is not None
        guard.declare(tool.__name__, declared)
    middleware = GuardMiddleware(guard)
    agent = create_agent(Scripted(), tools, middleware=[middleware])
    asked = {"messages": [("user", "Write.")]}
    state = asyncio.run(agent.ainvoke(asked)) if is_async else agent.invoke(asked)
    for message in state["messages"]:
        if isinstance(message, ToolMessage):
            played.answers[message.tool_call_id] = str(message.content)
    played.decision = middleware.end
    played.escalation = None if middleware.end is None else middleware.end.escalation
    played.final = state["messages"][-1].text if isinstance(state["messages"][-1], AIMessage) else None
    return played


def play_langchain(case: Case, guard: Guard) -> Played:
    return _play_langchain(case, guard, is_async=False)


def play_langchain_async(case: Case, guard: Guard) -> Played:
    return _play_langchain(case, guard, is_async=True)


def play_openai_agents(case: Case, guard: Guard) -> Played:
    from agents import Agent, Model, ModelResponse, RunConfig, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from guard.adapters.ledger import Ledger
    from guard.adapters.openai_agents import guarded_tools, run_guarded

    executed: list[str] = []
    played = Played(executed, 0, {})

    class Scripted(Model):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
            played.model_calls += 1
            number = played.model_calls
            _note(input)
            if number > len(case.messages):
                text = ResponseOutputText(text="done", type="output_text", annotations=[])
                output: list[Any] = [
                    ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
                ]
            else:
                output = [
                    ResponseFunctionToolCall(
                        name=tool, arguments=_raw(args), call_id=f"{number}.{place}", type="function_call"
                    )
                    for place, (tool, args) in enumerate(case.messages[number - 1], 1)
                ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    def _note(items: Any) -> None:
        for item in items if isinstance(items, list) else ():
            if item.get("type") == "function_call_output":
                played.answers[item["call_id"]] = str(item["output"])

    ledger = Ledger(guard)
    agent = Agent(name="writer", model=Scripted(), tools=guarded_tools(ledger, _tools(executed)))
    config = RunConfig(tracing_disabled=True)
    run = asyncio.run(run_guarded(agent, "Write.", ledger, run_config=config, max_turns=30))
    _note(run.items)
    played.decision, played.escalation = run.decision, run.escalation
    played.final = None if run.result is None else run.result.final_output
    return played


PLAYERS = [play_plain, play_pydantic_ai, play_langchain, play_langchain_async, play_openai_agents]
_players = pytest.mark.parametrize("play", PLAYERS, ids=lambda play: play.__name__.removeprefix("play_"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@_players
def test_every_framework_climbs_the_same_ladder(play: Callable[[Case, Guard], Played], case: Case) -> None:
    played = play(case, Guard())
    assert len(played.executed) == case.executed
    if case.may_end_sooner:
        assert played.model_calls <= case.model_calls
    else:
        assert played.model_calls == case.model_calls
        assert (played.decision is not None) is case.is_halted
    if played.decision is not None:
        assert played.decision.action is GuardAction.HALT
        assert played.decision.escalates is case.escalates
    assert (played.final is None) is case.is_halted
    assert (played.escalation is not None) >= case.escalates
    if case.escalates and played.escalation is not None:
        assert played.escalation.evidence
        assert played.escalation.question.endswith("?")
    for call, text in case.marks.items():
        assert text in played.answers[call]
    if case.is_halted and not case.may_end_sooner:
        last = case.messages[played.model_calls - 1]
        assert {f"{played.model_calls}.{place}" for place in range(1, len(last) + 1)} <= set(played.answers)


@pytest.mark.parametrize("case", [case for case in CASES if not case.may_end_sooner], ids=lambda case: case.name)
@_players
def test_shadow_mode_runs_every_call_and_says_nothing(play: Callable[[Case, Guard], Played], case: Case) -> None:
    played = play(case, Guard(GuardPolicy(mode=Mode.SHADOW)))
    valid = [call for message in case.messages for call in message if not isinstance(call[1], str)]
    assert len(played.executed) == len(valid)
    assert played.final == "done"
    assert not any("[guard]" in text for text in played.answers.values())


@_players
def test_a_resumed_run_goes_on_and_blocks_what_was_done_before(play: Callable[[Case, Guard], Played]) -> None:
    guard = Guard()
    halted = Case("", [[LOOK]] * 8, 2, 4)
    play(halted, guard)
    guard.resume()
    again = play(Case("", [[LOOK], [("look", {"file": "p9"})]], 1, 3), guard)
    assert again.executed == ["look"]
    assert "ot run" in again.answers["1.1"]
    assert "text of p9" in again.answers["2.1"]
    assert again.final == "done"


def test_pydantic_ai_keeps_results_that_are_no_text_and_adds_the_guidance_beside_them() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturn
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from guard.adapters.pydantic_ai import run_guarded

    def measure(file: str) -> dict[str, int]:
        """Measure a picture."""
        return {"width": 640}

    def look_twice(file: str) -> Any:
        """Look at a picture."""
        return ToolReturn({"seen": file}, content="as above", metadata={"kept": True})

    asked = [ToolCallPart("measure", {"file": "p1"}), ToolCallPart("look_twice", {"file": "p1"})]
    scripted = [[asked[0]], [asked[0]], [asked[1]], [asked[1]]]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse([*scripted[number]] if number < len(scripted) else [TextPart("done")])

    tools = {name: ToolTraits(Effect.READ_ONLY) for name in ("measure", "look_twice")}
    agent = Agent(FunctionModel(respond), tools=[measure, look_twice])
    run = asyncio.run(run_guarded(agent, "Write.", Guard(tools=tools)))
    returned = [part for message in run.messages for part in message.parts if part.part_kind == "tool-return"]
    assert [part.content for part in returned] == [{"width": 640}, {"width": 640}, {"seen": "p1"}, {"seen": "p1"}]
    assert returned[3].metadata == {"kept": True}
    said = [part.content for message in run.messages for part in message.parts if part.part_kind == "user-prompt"]
    assert str(said).count("[guard]") == 2
    assert str(said).count("as above") == 2
    assert run.result.output == "done"
