"""Recorded runs of real agents: loops are stopped in time, honest work is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from guard import Counting, GuardAction, GuardPolicy
from tests.guard.replay import load_cases, misses, replay, traits_of

CASES = load_cases("loops.jsonl", "recorded.jsonl")

# Each write has a new text, succeeds, and answers with a new version number: by result and arguments it is progress.
HARD = [case for case in CASES if case.get("stretch")]


@pytest.mark.parametrize("case", [case for case in CASES if case not in HARD], ids=lambda case: str(case["id"]))
def test_case_is_met(case: dict[str, Any]) -> None:
    assert list(misses(case, replay(case))) == []


def test_new_texts_without_end_are_stopped_where_the_tool_declares_how_often_it_writes() -> None:
    (case,) = HARD
    assert list(misses(case, replay(case))) != []
    declared = {name: replace(traits, max_writes=3) for name, traits in traits_of(case).items()}
    assert list(misses(case, replay(case, tools=declared))) == []


def test_the_plain_ladder_disturbs_honest_work_that_the_default_leaves_alone() -> None:
    honest = [case for case in CASES if case["kind"] == "legit"]
    strict = GuardPolicy(counting=Counting.STRICT)
    disturbed = [case["id"] for case in honest if list(misses(case, replay(case, strict)))]
    assert "dev-ok-poll-changing" in disturbed
    assert "dev-ok-edit-test-cycle" in disturbed


def test_the_incident_costs_at_most_four_executed_calls() -> None:
    case = next(case for case in CASES if case["id"] == "dev-ocr-contrast-jitter")
    replayed = replay(case)
    assert replayed.executed <= 4
    assert replayed.highest is GuardAction.HALT
    assert replayed.escalated_at == len(replayed.levels)
