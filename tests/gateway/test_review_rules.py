"""The queue's pure rules: how urgent a case is, what is suggested, how durations are summed up."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gateway.escalation import Action
from gateway.review.priority import burnt_percent, priority_of
from gateway.review.suggestion import Basis, Past, suggest
from gateway.store.escalation_figures import times_of

ALL = tuple(Action)


@pytest.mark.parametrize(
    ("profile", "burnt", "group", "age", "expected"),
    [
        (0, 0, 1, 0, 0), (1, 0, 1, 0, 10), (3, 0, 1, 0, 30), (0, 100, 1, 0, 30), (0, 50, 1, 0, 15), (0, 0, 2, 0, 4),
        (0, 0, 8, 0, 12), (0, 0, 32, 0, 20), (0, 0, 5000, 0, 20), (0, 0, 0, 0, 0), (0, 0, 1, 50, 10), (0, 0, 1, 100, 20),
        (0, 0, 1, 900, 20), (3, 100, 32, 100, 100), (9, 900, 900, 900, 100), (0, 0, 1, -50, 0),
    ],
)  # fmt: skip
def test_urgency_is_the_documented_sum(profile: int, burnt: int, group: int, age: int, expected: int) -> None:
    found = priority_of(profile=profile, burnt_percent=burnt, group_size=group, age_ms=age, due_after_ms=100)
    assert found == expected


@pytest.mark.parametrize(
    ("packet", "max_cost", "expected"),
    [
        ({}, None, 0),
        ({"steps": {"taken": 5, "of": 20}}, None, 25),
        ({"steps": {"taken": 5, "of": 20}, "cost": {"spent": "0.09"}}, Decimal("0.15"), 60),
        ({"steps": {"taken": 30, "of": 20}}, None, 100),
        ({"steps": {"taken": 5, "of": 0}, "cost": {"spent": None}}, Decimal("0.15"), 0),
        ({"steps": {"taken": 5, "of": None}, "cost": None}, Decimal(0), 0),
        ({"cost": {"spent": "1e400"}}, Decimal("1e-400"), 0),
    ],
)
def test_burnt_share_is_the_larger_of_steps_and_money_and_0_where_unknown(
    packet: dict[str, object], max_cost: Decimal | None, expected: int
) -> None:
    assert burnt_percent(packet, max_cost=max_cost) == expected


def past(action: str, *, status: str | None = "succeeded", came_back: bool = False, route: str | None = None) -> Past:
    return Past("esc_1", action, route, "person:ann", 1, status, came_back)


TEXT = past("reroute", route="text_only")
ANSWER = past("answer_item")
RESUME_BACK = past("resume", status="awaiting_human", came_back=True)


@pytest.mark.parametrize(
    ("last", "reason", "back_after", "expected"),
    [
        ([TEXT, TEXT, TEXT, TEXT, ANSWER], "rule", None, (Action.REROUTE, "text_only", Basis.HISTORY)),
        ([ANSWER, ANSWER, TEXT], "repeated_error", None, (Action.ANSWER_ITEM, None, Basis.HISTORY)),
        ([ANSWER], "repeated_error", None, (Action.REROUTE, "text_only", Basis.REASON)),
        ([], "repeated_tool_calls", None, (Action.REROUTE, "text_only", Basis.REASON)),
        ([], "worker_lost", None, (Action.REROUTE, "text_only", Basis.REASON)),
        ([], "rule", None, None),
        ([RESUME_BACK, RESUME_BACK, RESUME_BACK], "rule", None, None),
        ([past("resume"), past("resume"), RESUME_BACK], "rule", None, None),
        ([TEXT, TEXT], "repeated_error", "reroute", None),
        ([past("resume", status=None)] * 5, "rule", None, None),
        ([past("resume", status="failed")] * 5, "rule", None, None),
        ([ANSWER, TEXT, RESUME_BACK, RESUME_BACK, RESUME_BACK, ANSWER, ANSWER], "rule", None, None),
    ],
)
def test_suggestion_follows_what_worked_and_never_what_came_back(
    last: list[Past], reason: str, back_after: str | None, expected: tuple[Action, str | None, Basis] | None
) -> None:
    found = suggest(last, allowed=ALL, reason=reason, came_back_after=back_after)
    assert (None if found is None else (found.action, found.route, found.basis)) == expected
    assert found is None or (found.reason["en"] and found.reason["zh"])


def test_nothing_is_suggested_that_is_not_possible() -> None:
    assert suggest([ANSWER] * 5, allowed=(Action.CLOSE,), reason="repeated_error") is None


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([], (0, None, None, None)),
        ([1500], (1, 1.5, 1.5, 1.5)),
        (list(range(1000, 101_000, 1000)), (100, 50.0, 90.0, 99.0)),
        ([3000, 1000, 2000], (3, 2.0, 3.0, 3.0)),
    ],
)
def test_percentiles_are_those_of_the_nearest_rank(durations: list[int], expected: tuple[object, ...]) -> None:
    found = times_of(durations)
    assert (found.count, found.p50_s, found.p90_s, found.p99_s) == expected
