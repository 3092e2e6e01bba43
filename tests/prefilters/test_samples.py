"""The verdicts on real files, against the table that came with them."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from prefilters import DecodeLimits, DecoderPool, RuleSet, VerdictKind, screen

SAMPLES = Path(os.environ.get("SLUICEGATE_SAMPLES") or Path(__file__).parents[3] / "shared" / "samples")

ALSO_RIGHT = {"reject:too_large": {"reject:too_many_pixels"}}
"""The table calls a picture bomb too large; our vocabulary has a code of its own for it."""


def test_every_sample_gets_the_verdict_of_its_table(shared_pool: DecoderPool, shipped_rules: RuleSet) -> None:
    with open(SAMPLES / "SOURCES.tsv", encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    wrong = []
    for row in rows:
        path = SAMPLES / row["file"]
        found = screen(
            path, rules=shipped_rules, pool=shared_pool, limits=DecodeLimits(), file_name=row["file"]
        ).verdict
        got = f"reject:{found.code}" if found.kind is VerdictKind.REJECT else found.kind.value
        if got not in allowed(row["expected"]):
            wrong.append(f"{row['file']:32} expected {row['expected']:22} got {got} by {found.rule} ({row['why']})")
    assert len(rows) == 38
    assert not wrong, f"{len(rows) - len(wrong)} of {len(rows)} as expected\n" + "\n".join(wrong)


def allowed(expected: str) -> set[str]:
    if expected == "accept_or_text_only":
        return {"accept", "text_only"}
    return {expected} | ALSO_RIGHT.get(expected, set())
