"""Recorded runs as files: the case files of the tests, and traces, in a form that any guard can be replayed over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from guard.call import ToolCall
from guard.guard import Guard
from guard.policy import Effect, GuardPolicy, ToolTraits
from guard.results import Outcome
from guard.trace import Trace, TraceError, lines_of, why


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call as it was made, and what came of it."""

    call: ToolCall
    outcome: Outcome
    resume_before: bool = False
    """The process ended before this call, and the guard is rebuilt from its trace."""


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded run of one task."""

    id: str
    calls: tuple[RecordedCall, ...]
    tools: Mapping[str, ToolTraits] = field(default_factory=dict)
    kind: str = "unknown"
    """`loop`, `legit` (honest work), or `unknown`."""
    expect: Mapping[str, Any] = field(default_factory=dict)
    stretch: bool = False
    """Known to be hard."""


def read_runs(text: str) -> list[Case] | Trace:
    """The cases of a case file, or the trace that the file holds; by what stands in its first line.

    Raises TraceError that names the line.
    """
    lines = lines_of(text)
    number, first = next(((n, line) for n, line in enumerate(lines, 1) if line.strip()), (1, ""))
    if not first:
        raise TraceError("the file is empty")
    try:
        stored = json.loads(first)
    except (ValueError, RecursionError) as exc:
        raise TraceError(f"line {number}: {why(exc)}") from exc
    if not isinstance(stored, dict):
        raise TraceError(f"line {number}: not a JSON object")
    return list(_read_cases(lines)) if "calls" in stored else Trace.from_jsonl(text)


def case_of(trace: Trace, case_id: str) -> Case:
    """A trace as a case: with the arguments as far as it shows them, and digests for results."""
    calls, tools = [], {}
    for step in trace.steps():
        view, outcome = step.call.view, step.outcome
        tools[view.tool] = ToolTraits(view.effect, view.group, view.poller)
        call = ToolCall(view.tool, None, step.call.args, view.call_id, view.turn)
        if outcome is None:
            # Withheld then, so nobody knows what it would have brought; the guard's own words are no result.
            continue
        code = outcome.code
        brought = Outcome(outcome.excerpt, result_digest=outcome.digest)
        calls.append(RecordedCall(call, brought if code is None else Outcome.failed(code, result=outcome.excerpt)))
    return Case(case_id, tuple(calls), tools)


def replay(case: Case, policy: GuardPolicy | None = None) -> Guard:
    """The guard after the run, judged call by call until it halts; its trace tells the whole story."""
    guard = Guard(policy, tools=case.tools)
    for recorded in case.calls:
        if recorded.resume_before:
            guard = Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl()), policy, tools=case.tools)
        if guard.before(recorded.call).execute:
            guard.after(recorded.call, recorded.outcome)
        if guard.is_halted:
            break
    return guard


def _read_cases(lines: Iterable[str]) -> Iterable[Case]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _read_case(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise TraceError(f"line {number}: not a case: {why(exc)}") from exc


def _name_of(tool: object) -> str:
    if not isinstance(tool, str):
        raise ValueError("`tool` is no text")  # noqa: TRY004 - one kind of complaint for all that a line may say
    return tool


def _effect_of(name: object) -> Effect:
    return ToolTraits.from_mapping({"effect": name}).effect


def _read_case(stored: Mapping[str, Any]) -> Case:
    hints = stored.get("tool_hints", {})
    tools = {
        _name_of(call["tool"]): ToolTraits(
            _effect_of(call["effect"]),
            poller=bool(hints.get(call["tool"], {}).get("poll", False)),
            ignore_args=tuple(hints.get(call["tool"], {}).get("ignore_args", ())),
        )
        for call in stored["calls"]
    }
    calls = tuple(
        RecordedCall(
            ToolCall(call["tool"], call.get("args"), call.get("args_raw"), f"c{number}", call.get("turn")),
            Outcome.failed(call["error_code"], result=call.get("result"))
            if call["outcome"] == "error"
            else Outcome.ok(call.get("result")),
            bool(call.get("resume_before")),
        )
        for number, call in enumerate(stored["calls"], 1)
    )
    return Case(
        str(stored["id"]),
        calls,
        tools,
        stored.get("kind", "unknown"),
        stored.get("expect", {}),
        bool(stored.get("stretch")),
    )
