"""The ladder as a table: the same rows hold for the library, around frameworks and over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from guard import Effect, Guard, GuardAction, Outcome, ToolCall, ToolTraits

ALLOW, WARN, BLOCK, HALT = GuardAction.ALLOW, GuardAction.WARN, GuardAction.BLOCK, GuardAction.HALT


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a scripted model, with what its tool would answer."""

    tool: str
    args: dict[str, Any]
    outcome: Outcome
    turn: str | int | None = None


@dataclass(frozen=True, slots=True)
class LadderCase:
    """Calls in order, and the hardest action about each."""

    name: str
    calls: tuple[Asked, ...]
    expected: tuple[GuardAction, ...]
    tools: dict[str, ToolTraits] = field(default_factory=dict)


Judge = Callable[[Asked, ToolCall], GuardAction]
"""Asks before the call, reports its outcome if it may run, and gives the hardest action of both."""

_READ = {"look": ToolTraits(Effect.READ_ONLY)}
_SEARCH = {"search": ToolTraits(Effect.READ_ONLY, retryable_codes=("MINE",))}
_SAVED, _SAME = Outcome.ok("saved"), Outcome.ok("same")


def _again(tool: str, args: dict[str, Any], *outcomes: Outcome) -> tuple[Asked, ...]:
    return tuple(Asked(tool, args, outcome) for outcome in outcomes)


def _failing(outcome: Outcome, times: int) -> tuple[Asked, ...]:
    return tuple(Asked("search", {"q": f"query {'x' * n}"}, outcome) for n in range(times))


LADDER_CASES = (
    LadderCase(
        "identical reads climb warn, block, halt",
        _again("look", {"at": "p1"}, *[_SAME] * 4),
        (ALLOW, WARN, BLOCK, HALT),
        _READ,
    ),
    LadderCase(
        "a new result starts the count again",
        _again("look", {"at": "p1"}, *map(Outcome.ok, "aabbb")),
        (ALLOW, WARN, BLOCK, HALT, HALT),
        _READ,
    ),
    LadderCase(
        "results that are always new", _again("look", {"at": "p1"}, *map(Outcome.ok, "abc")), (ALLOW,) * 3, _READ
    ),
    LadderCase(
        "a write that succeeded is blocked at once", _again("save", {"title": "x"}, *[_SAVED] * 3), (ALLOW, BLOCK, HALT)
    ),
    LadderCase(
        "a write that failed may be tried again",
        _again("save", {"title": "x"}, *[Outcome.failed("LOCKED_ROW")] * 4),
        (ALLOW, WARN, BLOCK, HALT),
    ),
    LadderCase(
        "another successful write between restarts a write",
        tuple(Asked("save", {"n": n}, _SAVED) for n in (1, 2, 1, 2, 1, 2)),
        (ALLOW, ALLOW, ALLOW, WARN, BLOCK, HALT),
    ),
    LadderCase(
        "progress restarts other calls from the next message on",
        (
            Asked("look", {"at": "p1"}, _SAME, 1),
            Asked("save", {"n": 1}, _SAVED, 2),
            Asked("look", {"at": "p1"}, _SAME, 2),
            Asked("look", {"at": "p1"}, _SAME, 3),
        ),
        (ALLOW, ALLOW, WARN, ALLOW),
        _READ,
    ),
    LadderCase(
        "a transient error moves the read ladder one step",
        _again("look", {"at": "p1"}, *[Outcome.failed("HTTP_503")] * 5),
        (ALLOW, ALLOW, WARN, BLOCK, HALT),
        _READ,
    ),
    LadderCase(
        "a poller may wait eight steps longer",
        _again("wait", {"job": 1}, *[Outcome.ok("running")] * 12),
        (*[ALLOW] * 9, WARN, BLOCK, HALT),
        {"wait": ToolTraits(Effect.READ_ONLY, poller=True)},
    ),
    LadderCase("permanent errors", _failing(Outcome.failed("GONE", retryable=False), 3), (ALLOW, WARN, HALT), _SEARCH),
    LadderCase(
        "errors of unknown kind", _failing(Outcome.failed("LOW_CONFIDENCE"), 4), (ALLOW, WARN, WARN, HALT), _SEARCH
    ),
    *(
        LadderCase(name, _failing(outcome, 5), (ALLOW, ALLOW, WARN, WARN, HALT), _SEARCH)
        for name, outcome in (
            ("errors that are transient by their word", Outcome.failed("ODD", retryable=True)),
            ("errors that are transient by the table", Outcome.failed("HTTP_502")),
            ("errors that are transient by the tool", Outcome.failed("MINE")),
        )
    ),
    LadderCase(
        "another code neither counts nor resets",
        tuple(Asked("search", {"q": "y" * n}, Outcome.failed(code)) for n, code in enumerate("AABAA")),
        (ALLOW, WARN, ALLOW, WARN, HALT),
        _SEARCH,
    ),
    LadderCase(
        "spelling alone makes no new call",
        tuple(Asked("look", {"q": text}, _SAME) for text in ("Tea", "tea", "TEA", "tea.", "tEA")),
        (ALLOW, ALLOW, WARN, BLOCK, HALT),
        _READ,
    ),
    LadderCase(
        "tuned numbers alone make no new call",
        tuple(Asked("look", {"contrast": 1 + n / 8}, _SAME) for n in range(5)),
        (ALLOW, ALLOW, WARN, BLOCK, HALT),
        _READ,
    ),
    LadderCase(
        "a cycle of two",
        tuple(Asked("look", {"at": f"p{n % 2}"}, Outcome.ok(f"same {n % 2}")) for n in range(8)),
        (ALLOW, ALLOW, WARN, WARN, BLOCK, BLOCK, HALT, HALT),
        _READ,
    ),
)


def library_judge(case: LadderCase) -> Judge:
    """Asks a guard in this process."""
    guard = Guard(tools=case.tools)

    def judge(asked: Asked, call: ToolCall) -> GuardAction:
        decision = guard.before(call)
        if not decision.execute:
            return decision.action
        return max(decision.action, guard.after(call, asked.outcome).action, key=lambda action: action.severity)

    return judge


def climb(case: LadderCase, judge: Judge) -> tuple[GuardAction, ...]:
    """The hardest action about each call of the case; a halted run is asked on."""
    return tuple(
        judge(asked, ToolCall(asked.tool, asked.args, call_id=f"c{number}", turn=asked.turn))
        for number, asked in enumerate(case.calls, 1)
    )
