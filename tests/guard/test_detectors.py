"""Each detector with the case that it alone catches: switched off, the case is missed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle, islice

import pytest

from guard import Budget, Detector, Effect, Guard, GuardAction, GuardPolicy, Outcome, ToolCall, ToolTraits

BLOCK, HALT = GuardAction.BLOCK, GuardAction.HALT
TOOLS = {name: ToolTraits(Effect.READ_ONLY) for name in ("look", "ocr", "ask", "poll")}
Played = tuple[ToolCall, Outcome]


def _spellings() -> list[Played]:
    texts = ["Blue kettle", "blue  kettle", "BLUE KETTLE", "blue kettle!", " Blue Kettle"]
    return [(ToolCall("ask", {"q": text}), Outcome.ok("[]")) for text in texts]


def _tuned(results: list[Outcome]) -> list[Played]:
    contrasts = [1.0, 1.15, 1.3, 1.1, 1.45, 1.2, 1.25, 1.4, 1.35, 1.05, 1.5, 1.55]
    pairs = zip(contrasts, cycle(results), strict=False)
    return [(ToolCall("ocr", {"file": "p1", "contrast": contrast}), result) for contrast, result in pairs]


@dataclass(frozen=True)
class Case:
    detector: Detector
    played: list[Played]
    block_at: int | None
    halt_at: int
    policy: GuardPolicy = field(default_factory=GuardPolicy)


CASES = [
    Case(Detector.REPEAT, [(ToolCall("look", {"at": "p1"}), Outcome.ok("same"))] * 5, 3, 4),
    Case(Detector.RUN, [(ToolCall("look", {}), Outcome.ok(f"second {n}")) for n in range(30)], None, 21),
    Case(Detector.CYCLE, [(ToolCall("look", {}), Outcome.ok(r)) for r in islice(cycle("xy"), 8)], 5, 7),
    Case(Detector.FOLDING, _spellings(), 4, 5),
    Case(Detector.JITTER, _tuned([Outcome.ok("unreadable")]), 4, 5),
    Case(Detector.TUNING, _tuned([Outcome.ok(""), Outcome.failed("LOW_CONFIDENCE")]), 8, 10),
    Case(Detector.STALE, [(ToolCall("look", {}), Outcome.ok(r)) for r in "xyzxzyxyzy"], 8, 10),
    Case(Detector.ERROR_CODES, [(ToolCall("ask", {"q": "a" * n}), Outcome.failed("QUOTA")) for n in range(6)], None, 4),
    Case(
        Detector.BUDGET,
        [(ToolCall("ask", {"q": "a" * n}), Outcome.ok("b" * n)) for n in range(30)],
        None,
        21,
        GuardPolicy(budget=Budget(steps=20)),
    ),
]


def _play(case: Case, off: frozenset[str]) -> tuple[int | None, int | None]:
    """The calls at which the run was first refused, and halted."""
    policy = GuardPolicy(budget=case.policy.budget, off=off)
    guard = Guard(policy, tools=TOOLS)
    blocked = None
    for number, (call, outcome) in enumerate(case.played, 1):
        decision = guard.before(call)
        if decision.execute:
            decision = guard.after(call, outcome)
        if decision.action.refuses and blocked is None:
            blocked = number
        if decision.action is HALT:
            return blocked, number
    return blocked, None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.detector.value)
def test_case_is_stopped_in_time(case: Case) -> None:
    blocked, halted = _play(case, frozenset())
    assert halted is not None
    assert halted <= case.halt_at
    assert case.block_at is None or (blocked is not None and blocked <= case.block_at)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.detector.value)
def test_without_the_detector_the_case_is_missed(case: Case) -> None:
    _, halted = _play(case, frozenset({case.detector.value}))
    assert halted is None or halted > case.halt_at


def _actions(played: list[Played]) -> list[GuardAction]:
    guard, actions = Guard(tools=TOOLS), []
    for call, outcome in played:
        before = guard.before(call)
        after = guard.after(call, outcome) if before.execute else before
        actions.append(max(before.action, after.action, key=lambda action: action.severity))
    return actions


def test_whole_numbers_that_move_alone_are_work() -> None:
    played = [(ToolCall("ask", {"day": day}), Outcome.ok("[]")) for day in range(12)]
    assert set(_actions(played)) == {GuardAction.ALLOW}


def test_digits_in_strings_are_never_knobs() -> None:
    played = [(ToolCall("ask", {"day": f"1.{day}"}), Outcome.ok("[]")) for day in range(12)]
    assert set(_actions(played)) == {GuardAction.ALLOW}


def test_whole_numbers_that_move_with_a_knob_count_as_tuning_too() -> None:
    played = [
        (ToolCall("ocr", {"contrast": 1 + n / 7, "rotate": 90 * n}), Outcome.ok("unreadable")) for n in range(1, 6)
    ]
    assert _actions(played)[-2:] == [BLOCK, HALT]


def test_declared_knobs_are_masked_even_where_all_values_are_whole() -> None:
    tools = {"ocr": ToolTraits(Effect.READ_ONLY, number_args=("contrast",))}
    guard = Guard(tools=tools)
    actions = []
    for contrast in range(1, 6):
        call = ToolCall("ocr", {"contrast": contrast})
        decision = guard.before(call)
        actions.append((guard.after(call, Outcome.ok("no")) if decision.execute else decision).action)
    assert actions[2:] == [GuardAction.WARN, BLOCK, HALT]


@pytest.mark.parametrize(
    ("one", "other"), [("C++", "C#"), ("=>", "->"), ("?", "!"), ("a.md", "b.md"), ("/etc/a", "etc/a")]
)
def test_spellings_that_mean_different_things_stay_apart(one: str, other: str) -> None:
    played = [(ToolCall("ask", {"q": text}), Outcome.ok("[]")) for text in (one, other)]
    guard = Guard(tools=TOOLS)
    for call, outcome in played:
        assert guard.before(call).counts.similar == 1
        assert guard.after(call, outcome).counts.similar == 1


def test_a_ring_with_new_results_is_warned_in_lap_eleven_and_halted_in_lap_twenty_one() -> None:
    ring = zip(range(60), cycle(["look", "ask"]), strict=False)
    played = [(ToolCall(tool, {}), Outcome.ok(f"{number}")) for number, tool in ring]
    actions = _actions(played)
    assert actions.index(GuardAction.WARN) == 20
    assert actions.index(HALT) == 40


def test_stale_never_refuses_a_call_that_was_not_made_since_the_last_progress() -> None:
    played = [(ToolCall("look", {}), Outcome.ok(r)) for r in "xyzxzyx"]
    guard = Guard(tools=TOOLS)
    for call, outcome in played:
        guard.before(call)
        guard.after(call, outcome)
    assert guard.before(ToolCall("ask", {"q": "something else"})).execute


def test_cycle_is_broken_by_a_poller() -> None:
    tools = {**TOOLS, "poll": ToolTraits(Effect.READ_ONLY, poller=True)}
    guard = Guard(tools=tools)
    for number in range(40):
        for call, result in ((ToolCall("look", {}), f"new {number}"), (ToolCall("poll", {}), f"{number} %")):
            assert guard.before(call).action is GuardAction.ALLOW
            assert guard.after(call, Outcome.ok(result)).action is GuardAction.ALLOW
