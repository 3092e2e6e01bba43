"""One table for all adapters: real frameworks, a scripted model, and the same ladder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def _pydantic_agent(case: Case, played: Played) -> Any:
    """An agent whose scripted model plays the case, streamed or not."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        played.model_calls += 1
        number = played.model_calls
        if number > len(case.messages):
            return ModelResponse([TextPart("done")])
        calls = case.messages[number - 1]
        return ModelResponse([ToolCallPart(t, a, f"{number}.{p}") for p, (t, a) in enumerate(calls, 1)])

    async def respond_streaming(messages: list[ModelMessage], info: AgentInfo) -> Any:
        for place, part in enumerate(respond(messages, info).parts):
            if isinstance(part, ToolCallPart):
                text = _raw(part.args)
                yield {place: DeltaToolCall(part.tool_name, text[:3], tool_call_id=part.tool_call_id)}
                yield {place: DeltaToolCall(None, text[3:])}
            elif isinstance(part, TextPart):
                yield part.content

    model = FunctionModel(respond, stream_function=respond_streaming)
    return Agent(model, tools=_tools(played.executed))


def _note_messages(played: Played, messages: list[Any]) -> None:
    from pydantic_ai.messages import ModelRequest, RetryPromptPart, ToolReturnPart

    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, ToolReturnPart):
                played.answers[part.tool_call_id] = part.model_response_str()
            elif isinstance(part, RetryPromptPart):
                played.answers[part.tool_call_id] = part.model_response()


def _play_pydantic_ai(case: Case, guard: Guard, **options: Any) -> Played:
    from guard.adapters.pydantic_ai import run_guarded

    played = Played([], 0, {})
    run = asyncio.run(run_guarded(_pydantic_agent(case, played), "Write.", _declared(guard), **options))
    _note_messages(played, run.messages)
    played.decision, played.escalation = run.decision, run.escalation
    played.final = None if run.result is None else run.result.output
    return played


def play_pydantic_ai(case: Case, guard: Guard) -> Played:
    return _play_pydantic_ai(case, guard)


def play_pydantic_ai_streamed(case: Case, guard: Guard) -> Played:
    kinds: list[str] = []

    async def handle(context: Any, events: Any) -> None:
        kinds.extend([event.event_kind async for event in events])

    played = _play_pydantic_ai(case, guard, event_stream_handler=handle)
    assert "part_start" in kinds
    return played


def _play_pydantic_ai_alone(case: Case, guard: Guard, steps: Callable[[Any, Played, Any], Any]) -> Played:
    """Where nobody catches for the caller that the run was halted."""
    from pydantic_ai import capture_run_messages
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    from guard.adapters.ledger import RunHalted
    from guard.adapters.pydantic_ai import GuardCapability

    played = Played([], 0, {})
    capability = GuardCapability(_declared(guard))
    with capture_run_messages() as messages:
        try:
            asyncio.run(steps(_pydantic_agent(case, played), played, capability))
        except RunHalted as halted:
            played.decision, played.escalation = halted.decision, halted.decision.escalation
        except UnexpectedModelBehavior as exc:
            played.decision, played.escalation = capability.ledger.end, capability.ledger.escalation(exc.message)
    _note_messages(played, messages)
    return played


def play_pydantic_ai_step_by_step(case: Case, guard: Guard) -> Played:
    async def steps(agent: Any, played: Played, capability: Any) -> None:
        async with agent.iter("Write.", capabilities=[capability]) as nodes:
            async for node in nodes:
                if agent.is_model_request_node(node):
                    async with node.stream(nodes.ctx) as parts:
                        assert [part async for part in parts]
            played.final = nodes.result.output

    return _play_pydantic_ai_alone(case, guard, steps)


def play_pydantic_ai_run_stream(case: Case, guard: Guard) -> Played:
    async def steps(agent: Any, played: Played, capability: Any) -> None:
        async with agent.run_stream("Write.", capabilities=[capability]) as result:
            played.final = [text async for text in result.stream_text()][-1]

    return _play_pydantic_ai_alone(case, guard, steps)


def _langchain_agent(case: Case, played: Played, middleware: Any) -> Any:
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

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
                valid: list[Any] = []
                broken: list[Any] = []
                for place, (tool, args) in enumerate(case.messages[number - 1], 1):
                    call = {"name": tool, "args": args, "id": f"{number}.{place}"}
                    (broken if isinstance(args, str) else valid).append(call)
                message = AIMessage("", tool_calls=valid, invalid_tool_calls=[{**c, "error": None} for c in broken])
            return ChatResult(generations=[ChatGeneration(message=message)])

    return create_agent(Scripted(), _tools(played.executed), middleware=[middleware])


def _declared(guard: Guard) -> Guard:
    from guard.adapters.plain import traits_of

    for tool in _tools([]):
        declared = traits_of(tool)
        assert declared is not None
        guard.declare(tool.__name__, declared)
    return guard


def _play_langchain(case: Case, guard: Guard, run: Callable[[Any, Any], Any], *, is_made_for_run: bool) -> Played:
    from langchain_core.messages import AIMessage, ToolMessage

    from guard.adapters.langchain import GuardMiddleware

    played = Played([], 0, {})
    middleware = GuardMiddleware((lambda: _declared(guard)) if is_made_for_run else _declared(guard))
    state = run(_langchain_agent(case, played, middleware), {"messages": [("user", "Write.")]})
    for message in state["messages"]:
        if isinstance(message, ToolMessage):
            played.answers[message.tool_call_id] = str(message.content)
    played.decision = middleware.end_of(state)
    played.escalation = None if played.decision is None else played.decision.escalation
    played.final = state["messages"][-1].text if isinstance(state["messages"][-1], AIMessage) else None
    return played


async def _last_of(stream: Any) -> Any:
    return [state async for state in stream][-1]


def play_langchain(case: Case, guard: Guard) -> Played:
    return _play_langchain(case, guard, lambda agent, asked: agent.invoke(asked), is_made_for_run=False)


def play_langchain_async(case: Case, guard: Guard) -> Played:
    return _play_langchain(case, guard, lambda agent, asked: asyncio.run(agent.ainvoke(asked)), is_made_for_run=True)


def play_langchain_stream(case: Case, guard: Guard) -> Played:
    return _play_langchain(
        case, guard, lambda agent, asked: [*agent.stream(asked, stream_mode="values")][-1], is_made_for_run=True
    )


def play_langchain_astream(case: Case, guard: Guard) -> Played:
    return _play_langchain(
        case,
        guard,
        lambda agent, asked: asyncio.run(_last_of(agent.astream(asked, stream_mode="values"))),
        is_made_for_run=False,
    )


def _openai_agent(case: Case, played: Played) -> Any:
    """An agent whose scripted model plays the case, streamed or not."""
    from agents import Agent, Model, ModelResponse, Usage
    from openai.types.responses import (
        Response,
        ResponseCompletedEvent,
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    from guard.adapters.openai_agents import guarded_tools

    class Scripted(Model):
        def _next(self, input: Any) -> list[Any]:
            played.model_calls += 1
            number = played.model_calls
            _note_outputs(played, input)
            if number > len(case.messages):
                text = ResponseOutputText(text="done", type="output_text", annotations=[])
                return [
                    ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
                ]
            return [
                ResponseFunctionToolCall(
                    name=tool, arguments=_raw(args), call_id=f"{number}.{place}", type="function_call"
                )
                for place, (tool, args) in enumerate(case.messages[number - 1], 1)
            ]

        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
            return ModelResponse(output=self._next(input), usage=Usage(), response_id=None)

        async def stream_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
            response = Response(
                id="r",
                created_at=0,
                model="scripted",
                object="response",
                output=self._next(input),
                parallel_tool_calls=True,
                tool_choice="auto",
                tools=[],
            )
            yield ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")

    return Agent(name="writer", model=Scripted(), tools=guarded_tools(_tools(played.executed)))


def _note_outputs(played: Played, items: Any) -> None:
    for item in items if isinstance(items, list) else ():
        if item.get("type") == "function_call_output":
            played.answers[item["call_id"]] = str(item["output"])


def _note_run(played: Played, run: Any) -> Played:
    _note_outputs(played, run.items)
    played.decision, played.escalation = run.decision, run.escalation
    played.final = None if run.result is None else run.result.final_output
    return played


def play_openai_agents(case: Case, guard: Guard) -> Played:
    from agents import RunConfig

    from guard.adapters.openai_agents import run_guarded

    played = Played([], 0, {})
    config = RunConfig(tracing_disabled=True)
    agent = _openai_agent(case, played)
    return _note_run(played, asyncio.run(run_guarded(agent, "Write.", guard, run_config=config, max_turns=30)))


def play_openai_agents_streamed(case: Case, guard: Guard) -> Played:
    from agents import RunConfig

    from guard.adapters.openai_agents import stream_guarded

    played = Played([], 0, {})

    async def stream() -> Any:
        config = RunConfig(tracing_disabled=True)
        streamed = stream_guarded(_openai_agent(case, played), "Write.", guard, run_config=config, max_turns=30)
        kinds = [event.type async for event in streamed.events()]
        assert kinds.count("raw_response_event") == played.model_calls
        return streamed.run

    return _note_run(played, asyncio.run(stream()))


PLAYERS = [
    play_plain,
    play_pydantic_ai,
    play_pydantic_ai_streamed,
    play_pydantic_ai_step_by_step,
    play_pydantic_ai_run_stream,
    play_langchain,
    play_langchain_async,
    play_langchain_stream,
    play_langchain_astream,
    play_openai_agents,
    play_openai_agents_streamed,
]
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


# -- many runs of one agent --------------------------------------------------------------------------------------------


def _script(prompt: str, turn: int) -> dict[str, str] | None:
    """The arguments of the next call of a model that repeats itself where the prompt says so; None when it is done."""
    if "loop" in prompt:
        return {"file": "p1"}
    return {"file": f"p{turn}"} if turn < 8 else None


def _langchain_runs(prompts: list[str]) -> list[bool]:
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    from guard.adapters.langchain import GuardMiddleware

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            turn = sum(isinstance(message, AIMessage) for message in messages)
            args = _script(messages[0].text, turn)
            calls = [] if args is None else [{"name": "look", "args": args, "id": f"c{turn}"}]
            return ChatResult(
                generations=[ChatGeneration(message=AIMessage("" if calls else "done", tool_calls=calls))]
            )

    middleware = GuardMiddleware(lambda: _declared(Guard()))
    agent: Any = create_agent(Scripted(), _tools([]), middleware=[middleware])

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(agent.ainvoke({"messages": [("user", prompt)]}) for prompt in prompts))

    states = asyncio.run(all_at_once())
    with ThreadPoolExecutor(4) as pool:
        states += pool.map(lambda prompt: agent.invoke({"messages": [("user", prompt)]}), prompts)
    assert len({id(middleware.guard_of(state)) for state in states}) == len(states)
    return [middleware.end_of(state) is not None for state in states]


def _openai_runs(prompts: list[str]) -> list[bool]:
    from agents import Agent, Model, ModelResponse, RunConfig, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from guard.adapters.openai_agents import guarded_tools, run_guarded

    class Scripted(Model):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
            turn = sum(item.get("type") == "function_call" for item in input)
            args_ = _script(str(input[0]["content"]), turn)
            await asyncio.sleep(0)
            if args_ is None:
                text = ResponseOutputText(text="done", type="output_text", annotations=[])
                output: Any = ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message"
                )
            else:
                output = ResponseFunctionToolCall(
                    name="look", arguments=json.dumps(args_), call_id=f"c{turn}", type="function_call"
                )
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    agent = Agent(name="writer", model=Scripted(), tools=guarded_tools(_tools([])))
    config = RunConfig(tracing_disabled=True)

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(
            *(run_guarded(agent, prompt, Guard(), run_config=config, max_turns=30) for prompt in prompts * 2)
        )

    return [run.decision is not None for run in asyncio.run(all_at_once())]


@pytest.mark.parametrize("runs", [_langchain_runs, _openai_runs], ids=["langchain", "openai_agents"])
def test_runs_of_one_agent_side_by_side_are_judged_each_by_itself(runs: Callable[[list[str]], list[bool]]) -> None:
    prompts = ["work", "loop", "work", "loop", "loop", "work"]
    assert runs(prompts) == ["loop" in prompt for prompt in prompts * 2]


def test_a_guarded_tool_outside_of_a_guarded_run_is_refused_with_what_to_do() -> None:
    from agents import RunConfig, Runner
    from agents.exceptions import UserError

    played = Played([], 0, {})
    agent = _openai_agent(Case("", [[SAVE]], 1, 2), played)
    with pytest.raises(UserError, match="run_guarded"):
        asyncio.run(Runner.run(agent, "Write.", run_config=RunConfig(tracing_disabled=True)))
    assert played.executed == []


def _scripted_openai(outputs: list[Any], name: str = "c") -> Any:
    from agents import Model, ModelResponse, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):
        read: list[Any]

        def __init__(self) -> None:
            self.read, self._left = [], list(outputs)

        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
            self.read.append(input)
            asked = self._left.pop(0) if self._left else None
            if asked is None:
                text = ResponseOutputText(text="done", type="output_text", annotations=[])
                message: Any = ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message"
                )
            else:
                message = ResponseFunctionToolCall(
                    name=asked[0], arguments=_raw(asked[1]), call_id=f"{name}{len(self.read)}", type="function_call"
                )
            return ModelResponse(output=[message], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("nobody streams here")

    return Scripted()


def test_openai_handoffs_are_no_unknown_tools_and_go_on_without_a_word() -> None:
    from agents import Agent, RunConfig

    from guard.adapters.openai_agents import guarded_tools, run_guarded

    executed: list[str] = []
    triage = Agent(name="triage", model=_scripted_openai([("transfer_to_writer", {})] * 3))
    writer = Agent(
        name="writer",
        model=_scripted_openai([LOOK, ("transfer_to_triage", {}), ("transfer_to_triage", {})], "w"),
        tools=guarded_tools(_tools(executed)),
    )
    triage.handoffs, writer.handoffs = [writer], [triage]
    guard = Guard()
    run = asyncio.run(run_guarded(triage, "Write.", guard, run_config=RunConfig(tracing_disabled=True), max_turns=30))
    assert run.decision is None
    assert run.result.final_output == "done"
    steps = list(guard.trace.steps())
    assert [step.call.view.tool for step in steps].count("transfer_to_writer") == 3
    assert all(step.outcome is not None and step.outcome.code is None for step in steps)
    assert "[guard]" not in str(writer.model.read) + str(triage.model.read)  # type: ignore[union-attr]  # scripted


def test_openai_agents_that_hand_over_to_and_fro_without_end_are_stopped() -> None:
    from agents import Agent, RunConfig

    from guard.adapters.openai_agents import run_guarded

    one = Agent(name="one", model=_scripted_openai([("transfer_to_two", {})] * 40))
    two = Agent(name="two", model=_scripted_openai([("transfer_to_one", {})] * 40, "two"))
    one.handoffs, two.handoffs = [two], [one]
    run = asyncio.run(run_guarded(one, "Write.", Guard(), run_config=RunConfig(tracing_disabled=True), max_turns=60))
    assert run.decision is not None
    assert run.decision.action is GuardAction.HALT


def test_openai_hooks_of_the_caller_see_everything_beside_the_guard() -> None:
    from agents import Agent, RunConfig, RunHooks

    from guard.adapters.openai_agents import guarded_tools, run_guarded

    seen: list[str] = []

    class Noting(RunHooks[Any]):
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            seen.append("agent_start")

        async def on_llm_start(self, *args: Any) -> None:
            seen.append("llm_start")

        async def on_llm_end(self, *args: Any) -> None:
            seen.append("llm_end")

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            seen.append(f"start {tool.name}")

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            seen.append(f"end {tool.name}: {result}")

        async def on_agent_end(self, *args: Any) -> None:
            seen.append("agent_end")

    agent = Agent(name="writer", model=_scripted_openai([LOOK]), tools=guarded_tools(_tools([])))
    config = RunConfig(tracing_disabled=True)
    run = asyncio.run(run_guarded(agent, "Write.", Guard(), hooks=Noting(), run_config=config))
    assert run.decision is None
    assert seen == [
        *("agent_start", "llm_start", "llm_end", "start look", "end look: text of p1"),
        *("llm_start", "llm_end", "agent_end"),
    ]


def test_openai_tools_that_nobody_wrapped_are_counted_and_end_the_run() -> None:
    from agents import Agent, RunConfig, function_tool

    from guard.adapters.openai_agents import run_guarded

    executed: list[str] = []
    agent = Agent(name="writer", model=_scripted_openai([LOOK] * 9), tools=[function_tool(_tools(executed)[0])])
    guard = _declared(Guard())
    run = asyncio.run(run_guarded(agent, "Write.", guard, run_config=RunConfig(tracing_disabled=True), max_turns=30))
    assert run.decision is not None
    assert run.decision.reason is not None
    assert run.decision.reason.code.value == "repeated_call"
    assert len(executed) == 4
    assert any("[guard]" in str(item.get("output")) for item in run.items if item.get("call_id") == "c2")


def _scripted_langchain(script: list[Any]) -> Any:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Scripted(BaseChatModel):
        asked: int = 0

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            calls = script[self.asked] if self.asked < len(script) else []
            self.asked += 1
            named = [{"name": tool, "args": args, "id": f"{self.asked}.{n}"} for n, (tool, args) in enumerate(calls)]
            message = AIMessage("" if calls else "done", tool_calls=named)
            return ChatResult(generations=[ChatGeneration(message=message)])

    return Scripted()


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
def test_langchain_answers_that_never_fit_the_response_format_are_stopped(is_async: bool) -> None:
    from langchain.agents import create_agent
    from langchain.agents.structured_output import ToolStrategy
    from pydantic import BaseModel

    from guard.adapters.langchain import GuardMiddleware

    class Copy(BaseModel):
        """The copy."""

        title: str

    executed: list[str] = []

    def run(messages: list[Any]) -> tuple[Any, Any, Any]:
        middleware = GuardMiddleware(lambda: _declared(Guard()))
        model = _scripted_langchain(messages)
        agent = create_agent(model, _tools(executed), middleware=[middleware], response_format=ToolStrategy(Copy))
        asked: Any = {"messages": [("user", "Write.")]}
        state = asyncio.run(agent.ainvoke(asked)) if is_async else agent.invoke(asked)
        return model, state, middleware.end_of(state)

    model, state, end = run([[LOOK], [("Copy", {"titel": "x"})], [("Copy", {"title": "x"})]])
    assert (state["structured_response"].title, end) == ("x", None)
    model, state, end = run([[("Copy", {"titel": n * "x"})] for n in range(50)])
    assert model.asked == 4
    assert end is not None
    assert end.escalates
    assert "[guard]" in state["messages"][-1].text
    model, state, end = run([[LOOK, LOOK, ("Copy", {"titel": "x"})], [("Copy", {"title": "x"})]])
    assert end is None
    assert executed.count("look") == 2  # of the first run and of this: twins run once
    assert sum(m.type == "tool" and m.text.startswith("text of p1") for m in state["messages"]) == 2


def test_langchain_keeps_the_guard_of_a_run_however_many_others_begin_and_end_meanwhile() -> None:
    from guard.adapters.langchain import GuardMiddleware
    from guard.adapters.runs import MAX_ENDED

    middleware = GuardMiddleware(Guard)
    mine = middleware.before_agent({}, None)
    guard = middleware._run_of(mine).guard
    states = [middleware.before_agent({}, None) for _ in range(MAX_ENDED + 1)]
    for state in states:
        middleware._run_of(state)
        middleware.after_agent(state, None)
    assert middleware.guard_of(mine) is guard
    assert middleware.end_of(states[-1]) is None
    with pytest.raises(LookupError, match="not kept here"):
        middleware.end_of(states[0])
    with pytest.raises(LookupError, match="whole state"):
        middleware.end_of({"messages": []})


def test_runs_that_never_end_are_bounded() -> None:
    from guard.adapters.runs import MAX_ENDED, MAX_RUNNING, Runs

    runs = Runs(Guard)
    for number in range(MAX_RUNNING + MAX_ENDED + 2):
        runs.going_on(str(number))
    assert runs.find("2") is runs.find("2")
    with pytest.raises(LookupError):
        runs.find("0")


def test_pydantic_ai_tools_that_ask_for_a_retry_climb_the_ladder_of_errors() -> None:
    from pydantic_ai import Agent, ModelRetry
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from guard.adapters.pydantic_ai import run_guarded

    executed: list[str] = []

    def look(file: str) -> str:
        """Look at a picture."""
        executed.append(file)
        raise ModelRetry("try another file")

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([ToolCallPart("look", {"file": f"p{len(messages)}"}, f"c{len(messages)}")])

    run = asyncio.run(run_guarded(Agent(FunctionModel(respond), tools=[look]), "Write.", _declared(Guard())))
    assert len(executed) == 4  # the framework alone gives up at the second, whatever comes of it
    assert run.decision is not None
    assert run.escalation is not None
    assert "try another file" in str(run.messages)
    assert "RETRY_ASKED" in run.escalation.question


def _pydantic_ai_gives_up() -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from guard.adapters.pydantic_ai import run_guarded

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([ToolCallPart("final_result", {"response": "no number"}, f"c{len(messages)}")])

    return run_guarded(Agent(FunctionModel(respond), output_type=int), "Write.", Guard())


def _openai_gives_up() -> Any:
    from agents import Agent, RunConfig

    from guard.adapters.openai_agents import run_guarded

    agent = Agent(name="writer", model=_scripted_openai([]), output_type=list[int])
    return run_guarded(agent, "Write.", Guard(), run_config=RunConfig(tracing_disabled=True))


@pytest.mark.parametrize("start", [_pydantic_ai_gives_up, _openai_gives_up], ids=["pydantic_ai", "openai_agents"])
def test_what_a_framework_gives_up_on_for_other_reasons_is_raised(start: Callable[[], Any]) -> None:
    from agents import ModelBehaviorError
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    with pytest.raises((UnexpectedModelBehavior, ModelBehaviorError)):
        asyncio.run(start())
