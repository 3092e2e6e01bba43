"""The table of facts and the page that is made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefilters.facts import FACTS, FactValue, check_facts
from prefilters.facts_page import facts_page


def test_page_of_facts_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "facts.md"
    assert page.read_text("utf-8") == facts_page(), "run: python -m prefilters.facts_page > docs/facts.md"


def test_names_are_unique_and_dotted() -> None:
    names = [spec.name for spec in FACTS]
    assert len(set(names)) == len(names)
    assert all("." in name for name in names)


@pytest.mark.parametrize("facts", [{"image.widht": 1}, {"image.width": 1.0}, {"image.blank": 1}, {"text.tokens": True}])
def test_misspelt_or_mistyped_fact_is_told(facts: dict[str, FactValue]) -> None:
    with pytest.raises(ValueError, match="fact"):
        check_facts(facts)
