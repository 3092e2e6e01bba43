"""Recorded runs of real agents: loops are stopped in time, honest work is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from guard import Counting, GuardAction, GuardPolicy
from tests.guard.replay import load_cases, misses, replay

CASES = load_cases("loops.jsonl", "recorded.jsonl")

UNMET = {
    # Each write has a new text, succeeds, and answers with a new version number: by result and arguments it is progress.
    # Only a declared number of writes a task, or a comparison of texts, would stop it.
    "rec-s31",
}


def _param(case: dict[str, Any]) -> Any:
    marks = [pytest.mark.xfail(strict=True, reason="known to be hard")] if case["id"] in UNMET else []
    return pytest.param(case, id=case["id"], marks=marks)


@pytest.mark.parametrize("case", [_param(case) for case in CASES])
def test_case_is_met(case: dict[str, Any]) -> None:
    assert list(misses(case, replay(case))) == []


def test_only_the_case_that_is_known_to_be_hard_is_unmet() -> None:
    assert {case["id"] for case in CASES if case.get("stretch")} == UNMET


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
