"""The adapter around plain functions: the whole ladder, sync and async."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from guard import Effect, Guard, GuardAction, GuardPolicy, Mode, Outcome
from guard.adapters.plain import Answer, GuardedTools, RunHalted, ToolFailure, guarded, traits, traits_of

runs: list[str] = []


@traits(Effect.READ_ONLY, group="vision")
def look(at: str, contrast: float = 1.0) -> str:
    runs.append(f"look {at}")
    if at == "nowhere":
        raise ToolFailure("NOT_FOUND", "no such place", retryable=False)
    return f"seen {at}"


@traits(Effect.READ_ONLY)
async def look_async(at: str) -> str:
    runs.append(f"look {at}")
    await asyncio.sleep(0)
    if at == "nowhere":
        raise ToolFailure("NOT_FOUND", "no such place", retryable=False)
    return f"seen {at}"


def save(title: str) -> dict[str, object]:
    runs.append(f"save {title}")
    return {"saved": True, "title": title}


@pytest.fixture(autouse=True)
def _forget_runs() -> None:
    runs.clear()


def _sync(tools: GuardedTools, name: str, args: Any, **more: Any) -> Answer:
    return tools.call(name, args, **more)


def _async(tools: GuardedTools, name: str, args: Any, **more: Any) -> Answer:
    return asyncio.run(tools.acall("look_async" if name == "look" else name, args, **more))


BOTH = pytest.mark.parametrize("run", [_sync, _async], ids=["sync", "async"])
Run = Callable[..., Answer]


def tools_of(policy: GuardPolicy | None = None) -> GuardedTools:
    return GuardedTools(Guard(policy), [look, look_async, save])


@BOTH
def test_reads_climb_warn_block_halt_and_run_twice(run: Run) -> None:
    tools = tools_of()
    answers = [run(tools, "look", {"at": "p1"}) for _ in range(4)]
    assert [a.decision.action.value for a in answers] == ["allow", "warn", "block", "halt"]
    assert [a.is_error for a in answers] == [False, False, True, True]
    assert [a.ends_turn for a in answers] == [False, False, False, True]
    assert answers[0].text == "seen p1"
    assert answers[1].text.startswith("seen p1\n[guard] ")
    assert answers[2].text.startswith("[guard] ")
    assert runs == ["look p1"] * 2


@BOTH
def test_writes_run_once(run: Run) -> None:
    tools = tools_of()
    answers = [run(tools, "save", {"title": "x"}) for _ in range(3)]
    assert [a.decision.action.value for a in answers] == ["allow", "block", "halt"]
    assert answers[0].value == {"saved": True, "title": "x"}
    assert answers[0].text == '{"saved":true,"title":"x"}'
    assert runs == ["save x"]


@BOTH
def test_errors_of_a_tool_are_its_outcome(run: Run) -> None:
    tools = tools_of()
    answers = [run(tools, "look", {"at": "nowhere"}) for _ in range(3)]
    assert answers[0].text == "NOT_FOUND: no such place"
    assert answers[0].is_error
    assert [a.decision.action.value for a in answers] == ["allow", "warn", "block"]


@BOTH
@pytest.mark.parametrize("args", ['{"at": ', '["p1"]', {"where": "p1"}, {}, "[" * 50_000], ids=repr)
def test_arguments_that_do_not_fit_are_a_counted_error(run: Run, args: Any) -> None:
    answer = run(tools_of(), "look", args)
    assert answer.is_error
    assert answer.text.startswith("INVALID_ARGUMENTS")
    assert runs == []


@BOTH
def test_an_unknown_tool_is_a_counted_error(run: Run) -> None:
    tools = tools_of()
    answers = [run(tools, f"invented_{n}", {}) for n in range(4)]
    assert [a.decision.action.value for a in answers] == ["allow", "warn", "warn", "halt"]
    assert answers[0].text.startswith("UNKNOWN_TOOL")


@BOTH
def test_the_models_own_text_is_taken_as_arguments(run: Run) -> None:
    assert run(tools_of(), "look", '{"at": "p2"}').text == "seen p2"


@BOTH
def test_shadow_mode_runs_everything(run: Run) -> None:
    tools = tools_of(GuardPolicy(mode=Mode.SHADOW))
    answers = [run(tools, "look", {"at": "p1"}) for _ in range(6)]
    assert {a.text for a in answers} == {"seen p1"}
    assert len(runs) == 6


def test_identical_calls_of_one_message_run_once() -> None:
    tools = tools_of()
    first = tools.call("look", {"at": "p1"}, call_id="c1", turn=1)
    second = tools.call("look", {"at": "p1"}, call_id="c2", turn=1)
    assert second.decision.same_as == "c1"
    assert second.value == first.value
    assert second.text.startswith("seen p1\n[guard]")
    assert runs == ["look p1"]


def test_identical_calls_of_one_message_run_once_side_by_side() -> None:
    async def both() -> list[Answer]:
        tools = tools_of()
        calls = (tools.acall("look_async", {"at": "p1"}, call_id=f"c{n}", turn=1) for n in (1, 2))
        return list(await asyncio.gather(*calls))

    first, second = asyncio.run(both())
    assert first.value == second.value == "seen p1"
    assert second.decision.same_as == "c1"
    assert runs == ["look p1"]


def test_a_cancelled_call_leaves_no_one_waiting() -> None:
    @traits(Effect.READ_ONLY)
    async def slow() -> str:
        await asyncio.sleep(60)
        return "late"

    async def run() -> list[Any]:
        tools = GuardedTools(Guard(), [slow])
        first = asyncio.create_task(tools.acall("slow", call_id="c1", turn=1))
        second = asyncio.create_task(tools.acall("slow", call_id="c2", turn=1))
        await asyncio.sleep(0.01)
        first.cancel()
        return list(await asyncio.gather(first, second, return_exceptions=True))

    first, second = asyncio.run(asyncio.wait_for(run(), 5))
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, Answer)
    assert second.is_error


def test_a_wrapped_function_keeps_its_shape_and_climbs_the_ladder() -> None:
    guard = Guard()
    wrapped = guarded(guard)(look)
    assert wrapped.__name__ == "look"
    assert wrapped("p1") == "seen p1"
    assert wrapped("p1").startswith("seen p1\n[guard]")
    assert wrapped(at="p1").startswith("[guard]")
    with pytest.raises(RunHalted) as caught:
        wrapped("p1")
    assert caught.value.decision.action is GuardAction.HALT
    assert len(runs) == 2


def test_a_wrapped_async_function_raises_what_it_raised_with_a_note() -> None:
    wrapped = guarded(Guard())(look_async)

    async def run() -> list[Exception]:
        caught: list[Exception] = []
        for _ in range(2):
            try:
                await wrapped("nowhere")
            except ToolFailure as exc:
                caught.append(exc)
        return caught

    first, second = asyncio.run(run())
    assert not hasattr(first, "__notes__")
    assert second.__notes__[0].startswith("[guard]")


def test_a_row_of_errors_ends_the_wrapped_run() -> None:
    wrapped = guarded(Guard())(look)
    for contrast in (1, 2):
        with pytest.raises(ToolFailure):
            wrapped("nowhere", contrast)
    with pytest.raises(RunHalted) as caught:
        wrapped("nowhere", 3)
    assert isinstance(caught.value.__cause__, ToolFailure)
    assert caught.value.decision.escalates


def test_an_announced_wait_that_was_kept_starts_afresh() -> None:
    now = 0.0

    @traits(Effect.READ_ONLY)
    def busy() -> Outcome:
        return Outcome.failed("HTTP_429", retry_after_s=10)

    tools = GuardedTools(Guard(), [busy], clock=lambda: now)
    for _ in range(6):
        assert tools.call("busy").decision.action is GuardAction.ALLOW
        now += 11


def test_traits_stand_where_the_tool_is_defined() -> None:
    declared = traits_of(look)
    assert declared is not None
    assert (declared.effect, declared.group) == (Effect.READ_ONLY, "vision")
    assert traits_of(save) is None


def test_an_async_tool_needs_acall_and_is_not_judged_by_call() -> None:
    @traits(Effect.READ_ONLY)
    async def look(at: str) -> str:
        return "text"

    tools = GuardedTools(Guard(), [look])
    with pytest.raises(TypeError, match="look is async: await acall"):
        tools.call("look", {"at": "p1"})
    assert tools.guard.steps == 0
    assert asyncio.run(tools.acall("look", {"at": "p1"})).text == "text"


@pytest.mark.parametrize(
    ("tools", "says"),
    [([functools.partial(print)], "has no name"), ([lambda: 1, lambda: 2], "two tools are named <lambda>")],
    ids=["no name", "one name twice"],
)
def test_tools_that_cannot_be_told_apart_are_refused(tools: list[Callable[..., Any]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GuardedTools(Guard(), tools)
