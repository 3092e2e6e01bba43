from __future__ import annotations

import pytest

from tests.guard.ladder_table import LADDER_CASES, LadderCase, climb, library_judge


@pytest.mark.parametrize("case", LADDER_CASES, ids=lambda case: case.name)
def test_ladder_of_the_library(case: LadderCase) -> None:
    assert climb(case, library_judge(case)) == case.expected
