"""The guard is a fold over its trace: rebuilt from it, or from a snapshot and the rest, it is the same guard."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard import (
    Budget,
    Counting,
    Effect,
    Guard,
    GuardAction,
    GuardPolicy,
    Mode,
    Outcome,
    ToolCall,
    ToolTraits,
    Trace,
    TraceError,
)

TOOLS = {
    "look": ToolTraits(Effect.READ_ONLY, group="vision"),
    "ask": ToolTraits(Effect.READ_ONLY, ignore_args=("id",), retryable_codes=("BUSY",)),
    "poll": ToolTraits(Effect.READ_ONLY, poller=True),
    "save": ToolTraits(Effect.MUTATING, max_writes=6),
}
TEXTS = st.sampled_from(["a", "A ", "b", "./x/y", "x//y"])
NUMBERS = st.sampled_from([1, 2, 1.0, 1.25, 1.5, 7])
ARGS = st.fixed_dictionaries({"q": TEXTS}, optional={"n": NUMBERS, "m": NUMBERS, "id": st.integers(0, 3)})
OUTCOMES = st.one_of(
    st.builds(Outcome.ok, st.sampled_from(["", "same", "other", "done 12 ms", None]), cost=st.sampled_from([0.0, 0.5])),
    st.builds(
        Outcome.failed,
        st.sampled_from(["LOW", "BUSY", "HTTP_503"]),
        retry_after_s=st.sampled_from([None, None, 3.0]),
        retryable=st.sampled_from([None, None, True, False]),
    ),
)
CALLS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    kind=st.just("call"),
    tool=st.sampled_from(list(TOOLS)),
    args=ARGS | st.just("{broken"),
    outcome=st.none() | OUTCOMES | OUTCOMES | OUTCOMES,
    same_turn=st.booleans(),
    call_id=st.sampled_from([None, "fresh", "fresh", "reused"]),
    wait=st.sampled_from([0.0, 1.0, 5.0]),
)
OTHERS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict, kind=st.sampled_from(["resume", "ban", "fall_back", "charge", "pause", "late"])
)
RUNS = st.lists(st.one_of(CALLS, CALLS, CALLS, CALLS, CALLS, CALLS, OTHERS), max_size=45)
POLICIES = st.builds(
    GuardPolicy,
    counting=st.sampled_from(Counting),
    mode=st.sampled_from([Mode.ENFORCE, Mode.ENFORCE, Mode.SHADOW]),
    budget=st.sampled_from([Budget(), Budget(steps=25, cost=8.0, seconds=200.0), Budget(calls_per_tool=9)]),
    max_signatures=st.sampled_from([10_000, 5]),
)


def play(guard: Guard, run: list[dict[str, Any]], start: int = 0) -> list[Any]:
    """Feed `run` to the guard as a caller would, and return all that it answered."""
    answers: list[Any] = []
    turn, now = start, float(start)
    for number, event in enumerate(run, start):
        if event["kind"] == "call":
            turn += not event["same_turn"]
            now += event["wait"]
            call_id = f"c{number}" if event["call_id"] == "fresh" else event["call_id"]
            call = ToolCall(event["tool"], event["args"], call_id=call_id, turn=turn)
            answers.append(guard.before(call, now=now))
            if answers[-1].execute and event["outcome"] is not None:
                answers.append(guard.after(call, event["outcome"], step=answers[-1].step, now=now))
        elif event["kind"] == "late":
            answers.append(guard.after(ToolCall("look", {"q": "b"}, call_id="late"), Outcome.ok("x"), now=now))
        elif event["kind"] == "charge":
            guard.charge(tokens=5, cost=0.1, now=now)
        elif event["kind"] == "pause":
            guard.pause(now=now)
            guard.unpause(now=now + 2)
        elif event["kind"] == "fall_back":
            answers.append(guard.fall_back())
        else:
            answers.append(guard.resume(ban_tools=["ask"] if event["kind"] == "ban" else [], extra_steps=3, now=now))
    return answers


@settings(max_examples=80, deadline=None)
@given(run=RUNS, rest=RUNS, policy=POLICIES)
def test_a_rebuilt_guard_equals_an_uninterrupted_one(
    run: list[dict[str, Any]], rest: list[dict[str, Any]], policy: GuardPolicy
) -> None:
    live = Guard(policy, tools=TOOLS)
    play(live, run)
    rebuilt = Guard.from_trace(Trace.from_jsonl(live.trace.to_jsonl()), policy, tools=TOOLS)
    assert rebuilt.snapshot() == live.snapshot()
    assert play(rebuilt, rest, 1_000) == play(live, rest, 1_000)
    assert rebuilt.snapshot() == live.snapshot()


@settings(max_examples=80, deadline=None)
@given(run=RUNS, rest=RUNS, policy=POLICIES)
def test_a_snapshot_with_the_later_records_equals_the_whole_fold(
    run: list[dict[str, Any]], rest: list[dict[str, Any]], policy: GuardPolicy
) -> None:
    live = Guard(policy, tools=TOOLS)
    play(live, run)
    stored = json.loads(json.dumps(live.snapshot()))
    play(live, rest, 1_000)
    rebuilt = Guard.from_trace(live.trace, policy, tools=TOOLS, snapshot=stored)
    assert rebuilt.snapshot() == live.snapshot()
    other = Guard.from_trace(Trace(live.trace.records[: stored["records"]]), policy, tools=TOOLS)
    other.follow(live.trace.records[stored["records"] :])
    assert other.snapshot() == live.snapshot()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=40))
def test_identical_reads_are_counted_as_a_plain_reading_of_the_trace_counts_them(
    calls: list[tuple[str, str, bool]],
) -> None:
    """An independent count: walk back over the whole trace each time, as slowly as it reads."""
    tools = {"look": ToolTraits(Effect.READ_ONLY)}
    guard = Guard(GuardPolicy(off=frozenset({"run", "cycle", "stale", "folding"})), tools=tools)
    lived: list[tuple[str, str | None]] = []
    for number, (name, result, writes) in enumerate(calls):
        if guard.is_halted:
            break
        if writes:
            save = ToolCall("save", {"q": f"new {number}"})
            if guard.before(save).execute:
                guard.after(save, Outcome.ok("saved"))
                lived.append(("write", None))
        decision = guard.before(ToolCall("look", {"q": name}))
        expected = 1
        streak = None
        for earlier, brought in reversed(lived):
            if earlier == "write" or (earlier == name and brought is not None and streak not in (None, brought)):
                break
            if earlier == name:
                expected += 1
                streak = streak if brought is None else brought
        assert decision.counts.same == expected
        assert decision.action is (
            GuardAction.ALLOW if expected < 3 else [GuardAction.BLOCK, GuardAction.HALT][expected > 3]
        )
        if decision.execute:
            guard.after(ToolCall("look", {"q": name}), Outcome.ok(result))
        lived.append((name, result if decision.execute else None))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["look", "ask", "save", "poll"]), st.sampled_from([1, 1.5, 2, 2.25, "a", "A"])),
        max_size=60,
    ),
    st.sampled_from(Counting),
)
def test_calls_with_different_arguments_and_different_ok_results_are_never_refused(
    calls: list[tuple[str, object]], counting: Counting
) -> None:
    guard = Guard(GuardPolicy(counting=counting))
    for number, (tool, value) in enumerate(calls):
        call = ToolCall(tool, {"value": value, "number": number, "half": number / 2, "text": f"{value} {number}"})
        assert guard.before(call).action is GuardAction.ALLOW
        assert guard.after(call, Outcome.ok(f"result {number}")).action is GuardAction.ALLOW


def test_memory_stays_bounded_in_an_endless_run() -> None:
    guard = Guard(GuardPolicy(max_signatures=50), keep_trace=False)
    for number in range(300):
        call = ToolCall(f"tool {number}", {"n": number / 3, "q": f"Q {number}"}, call_id=f"c{number}")
        guard.before(call)
        guard.after(call, Outcome.ok(f"{number}") if number % 2 else Outcome.failed(f"E{number}"))
    size = len(json.dumps(guard.snapshot()["state"]))
    for number in range(300, 2_000):
        call = ToolCall(f"tool {number}", {"n": number / 3, "q": f"Q {number}"}, call_id=f"c{number}")
        guard.before(call)
        guard.after(call, Outcome.ok(f"{number}") if number % 2 else Outcome.failed(f"E{number}"))
    # Only the closed ids grow on, up to their own limit of 1,000.
    assert len(json.dumps(guard.snapshot()["state"])) < size + 30_000


def test_calls_that_never_come_back_do_not_pile_up() -> None:
    guard = Guard(GuardPolicy(max_signatures=50), tools=TOOLS, keep_trace=False)
    for number in range(3_000):
        guard.before(ToolCall("look", {"q": f"{number}", "long name " * 900: number / 3}, call_id="reused", turn=1))
    assert len(json.dumps(guard.snapshot()["state"])) < 1_500_000


def test_a_signature_seen_often_outlives_those_seen_once() -> None:
    guard = Guard(GuardPolicy(max_signatures=10), tools=TOOLS)
    call = ToolCall("look", {"q": "often"})
    for _ in range(2):
        guard.before(call)
        guard.after(call, Outcome.ok("same"))
    for number in range(100):
        other = ToolCall("look", {"q": f"once {number}"})
        guard.before(other)
        guard.after(other, Outcome.ok(f"{number}"))
    assert guard.before(call).action is GuardAction.BLOCK


@pytest.mark.parametrize(
    "line", ["not JSON", "[]", '{"type": "call"}', '{"type": "odd"}', '{"type": "trace", "version": 9}']
)
def test_a_broken_trace_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(TraceError, match="line 2"):
        Trace.from_jsonl('{"type": "trace", "version": 1}\n' + line)


def test_a_trace_shows_each_step_with_its_outcome() -> None:
    guard = Guard(tools=TOOLS)
    call = ToolCall("look", {"q": "x"}, call_id="c1")
    for _ in range(3):
        if guard.before(call).execute:
            guard.after(call, Outcome.ok("same"))
    steps = list(Trace.from_jsonl(guard.trace.to_jsonl()).steps())
    assert [(s.number, s.executed, s.outcome is not None) for s in steps] == [
        (1, True, True),
        (2, True, True),
        (3, False, False),
    ]
    assert steps[2].call.action is GuardAction.BLOCK
    assert steps[1].outcome is not None
    assert steps[1].outcome.action is GuardAction.WARN
