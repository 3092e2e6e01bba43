"""Replays of recorded runs: what each call was answered, and where the run stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guard import Effect, Guard, GuardAction, GuardPolicy, Outcome, ToolCall, ToolTraits, Trace

CASES = Path(__file__).parent.parent / "cases"


def load_cases(*names: str) -> list[dict[str, Any]]:
    return [json.loads(line) for name in names for line in (CASES / name).read_text("utf-8").splitlines()]


def traits_of(case: Mapping[str, Any]) -> dict[str, ToolTraits]:
    hints = case.get("tool_hints", {})
    return {
        call["tool"]: ToolTraits(
            Effect.MUTATING if call["effect"] == "write" else Effect.READ_ONLY,
            poller=hints.get(call["tool"], {}).get("poll", False),
            ignore_args=tuple(hints.get(call["tool"], {}).get("ignore_args", ())),
        )
        for call in case["calls"]
    }


def tool_call(number: int, call: Mapping[str, Any]) -> ToolCall:
    return ToolCall(call["tool"], call.get("args"), call.get("args_raw"), f"c{number}", call.get("turn"))


def outcome_of(call: Mapping[str, Any]) -> Outcome:
    if call["outcome"] == "error":
        return Outcome.failed(call["error_code"], result=call.get("result"))
    return Outcome.ok(call.get("result"))


@dataclass
class Replayed:
    levels: list[GuardAction] = field(default_factory=list)
    executed: int = 0
    escalated_at: int | None = None

    def first(self, action: GuardAction) -> int | None:
        return next((n for n, level in enumerate(self.levels, 1) if level.severity >= action.severity), None)

    @property
    def highest(self) -> GuardAction:
        return max(self.levels, key=lambda level: level.severity)


def replay(
    case: Mapping[str, Any], policy: GuardPolicy | None = None, *, tools: Mapping[str, ToolTraits] | None = None
) -> Replayed:
    tools = traits_of(case) if tools is None else tools
    guard = Guard(policy, tools=tools)
    replayed = Replayed()
    for number, recorded in enumerate(case["calls"], 1):
        if recorded.get("resume_before"):
            guard = Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl()), policy, tools=tools)
        call = tool_call(number, recorded)
        decisions = [guard.before(call)]
        if decisions[0].execute:
            replayed.executed += 1
            decisions.append(guard.after(call, outcome_of(recorded)))
        level = max((d.action for d in decisions), key=lambda action: action.severity)
        replayed.levels.append(level)
        if any(d.escalates for d in decisions):
            replayed.escalated_at = number
        if level is GuardAction.HALT:
            break
    return replayed


def misses(case: Mapping[str, Any], replayed: Replayed) -> Iterator[str]:
    """Each expectation of the case that the replay did not meet."""
    expect = case["expect"]
    levels = {
        "first_warn_at_most": GuardAction.WARN,
        "block_at_most": GuardAction.BLOCK,
        "halt_at_most": GuardAction.HALT,
    }
    for name, action in levels.items():
        at = replayed.first(action)
        if name in expect and (at is None or at > expect[name]):
            yield f"{name} {expect[name]}, was {at}"
    if expect.get("escalate") and replayed.escalated_at is None:
        yield "no escalation"
    if "never_above" in expect and replayed.highest.severity > GuardAction(expect["never_above"]).severity:
        yield f"never_above {expect['never_above']}, was {replayed.highest.value} at {replayed.first(replayed.highest)}"
