"""docs/facts.md, made from the table of facts: `python -m prefilters.facts_page > docs/facts.md`."""

from __future__ import annotations

import sys
from itertools import groupby

from prefilters.facts import FACTS, FactSpec, Stage

_INTRO = """\
# Facts

Made from the table in `prefilters/facts.py` by `python -m prefilters.facts_page > docs/facts.md`; a test keeps the two
alike. Rules and verdicts use these names. A fact that was not measured is unknown, never 0 or empty, and a rule that
needs it does not match.
"""
_TYPE_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_STAGE_TITLES = {
    Stage.SNIFF: "Sniff: leading bytes and file size",
    Stage.HEADER: "Header: nothing is decoded",
    Stage.PIXELS: "Pixels: a reduced decode, PDF pages, audio samples",
    Stage.TEXT: "Text: OCR, a full text layer, speech detection or a transcript",
}


def facts_page() -> str:
    """The table of facts as Markdown, cheapest stage first."""
    by_stage = groupby(sorted(FACTS, key=lambda spec: spec.stage), key=lambda spec: spec.stage)
    return "\n".join([_INTRO, *(_section(stage, list(specs)) for stage, specs in by_stage)])


def _section(stage: Stage, specs: list[FactSpec]) -> str:
    rows = (f"| `{spec.name}` | {_TYPE_NAMES[spec.type]} | {spec.unit} | {_cell(spec.meaning)} |" for spec in specs)
    head = (f"## {_STAGE_TITLES[stage]}", "", "| fact | type | unit | meaning |", "|---|---|---|---|")
    return "\n".join([*head, *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(facts_page())
