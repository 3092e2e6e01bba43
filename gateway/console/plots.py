"""Numbers as small pictures of our own: bars in SVG, placed by attributes alone, so that no style needs to be allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.console.words import Say
from gateway.store.overview import Day

_HEIGHT, _TOP, _FLOOR = 150, 12, 122
_WIDTH = 640


@dataclass(frozen=True, slots=True)
class Bar:
    """One column: where it stands, how tall its parts are."""

    x: float
    width: float
    y: float
    height: float
    poor_y: float
    poor_height: float
    label: str
    """Below the column; empty where there is no room for one."""
    title: str


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns over a common floor."""

    width: int
    height: int
    floor: int
    bars: Sequence[Bar]
    top: int
    """The value of the line at the top."""
    top_y: int
    summary: str
    """The same for those who do not see it."""


def of_days(days: Sequence[Day], say: Say) -> Columns:
    """Items by day, the refused ones set off."""
    top = max([day.accepted + day.refused for day in days] + [1])
    labels = [_day(day.at_ms) for day in days]
    titles = [
        say("{day}: {n} accepted, {m} refused", day=label, n=day.accepted, m=day.refused)
        for label, day in zip(labels, days, strict=True)
    ]
    parts = [(day.accepted, day.refused) for day in days]
    return _columns(parts, labels, titles, top, "; ".join(titles))


_AGES = (
    (10 * 60_000, "< 10 min"),
    (3_600_000, "< 1 h"),
    (4 * 3_600_000, "< 4 h"),
    (24 * 3_600_000, "< 1 d"),
    (72 * 3_600_000, "< 3 d"),
    (None, "≥ 3 d"),
)


def of_ages(ages: Sequence[int], say: Say) -> Columns:
    """Waiting cases by how long they have waited; more than a day is set off."""
    counts = [0] * len(_AGES)
    for age in ages:
        counts[next(at for at, (limit, _) in enumerate(_AGES) if limit is None or age < limit)] += 1
    labels = [label for _, label in _AGES]
    titles = [say("{age}: {n} cases", age=label, n=count) for label, count in zip(labels, counts, strict=True)]
    parts = [(0, count) if at >= 4 else (count, 0) for at, count in enumerate(counts)]
    return _columns(parts, labels, titles, max([*counts, 1]), "; ".join(titles))


def _columns(
    parts: Sequence[tuple[int, int]], labels: Sequence[str], titles: Sequence[str], top: int, summary: str
) -> Columns:
    step = _WIDTH / max(len(parts), 1)
    every = max(1, len(parts) // 8)
    bars = []
    for at, (good, poor) in enumerate(parts):
        good_height = (_FLOOR - _TOP) * good / top
        poor_height = (_FLOOR - _TOP) * poor / top
        bars.append(
            Bar(
                x=round(at * step + step * 0.14, 1),
                width=round(min(step * 0.72, 60), 1),
                y=round(_FLOOR - good_height, 1),
                height=round(good_height, 1),
                poor_y=round(_FLOOR - good_height - poor_height, 1),
                poor_height=round(poor_height, 1),
                label=labels[at] if at % every == 0 else "",
                title=titles[at],
            )
        )
    return Columns(_WIDTH, _HEIGHT, _FLOOR, bars, top, _TOP, summary)


def middle(values: Sequence[int], share: float = 0.5) -> int | None:
    """The value below which that share of them lies; None without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else None


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%d %b").lstrip("0")
