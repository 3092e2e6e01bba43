"""How values read on a page: money, times, sizes, names. What is missing says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path

import yaml

_LOCALES = Path(__file__).with_name("locales")
DASH = "–"

Say = Callable[..., str]
"""Gives a sentence in the reader's language; what stands in braces is filled in."""


@cache
def _catalogue(language: str) -> Mapping[str, str]:
    path = _LOCALES / f"{language}.yaml"
    return yaml.safe_load(path.read_text("utf-8")) if path.is_file() else {}


def speaker(language: str) -> Say:
    """The translator of a language. English sentences are their own keys; one without a translation stays English."""
    known = _catalogue(language)

    def say(sentence: str, **values: object) -> str:
        text = known.get(sentence, sentence)
        return text.format(**values) if values else text

    return say


def money(value: object, currency: str = "USD") -> str:
    """An amount with as many digits as it needs to be told from nothing."""
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return DASH
    sign = {"USD": "$", "EUR": "€", "CNY": "¥", "GBP": "£"}.get(currency, f"{currency} ")
    if amount == 0:
        return f"{sign}0"
    places = (
        2 if abs(amount) >= 1 else 3 if abs(amount) >= Decimal("0.1") else 4 if abs(amount) >= Decimal("0.001") else 5
    )
    digits = f"{amount:,.{places}f}"
    whole, _, rest = digits.partition(".")
    return f"{sign}{whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def span(ms: int, say: Say) -> str:
    """A length of time in its two largest parts at most."""
    seconds = max(0, ms) // 1000
    if seconds < 60:
        return say("{n} s", n=seconds)
    minutes = seconds // 60
    if minutes < 60:
        return say("{n} min", n=minutes)
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return say("{n} h {m} min", n=hours, m=minutes) if minutes and hours < 10 else say("{n} h", n=hours)
    return say("{n} d {m} h", n=hours // 24, m=hours % 24) if hours % 24 else say("{n} d", n=hours // 24)


def clock(ms: int | None) -> str:
    """The time of day, UTC; with the date where it was another day than today."""
    if ms is None:
        return DASH
    at, today = datetime.fromtimestamp(ms / 1000, UTC), datetime.now(UTC).date()
    return at.strftime("%H:%M") if at.date() == today else at.strftime("%d %b %H:%M")


def iso(ms: int | None) -> str:
    """For machines."""
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def size(count: int) -> str:
    """Bytes in a unit that people read."""
    if count < 1000:
        return f"{count} B"
    if count < 1_000_000:
        return f"{count / 1000:.0f} kB"
    return f"{count / 1_000_000:.1f} MB"


def who(actor: str | None, say: Say) -> str:
    """A person's name, or what acted instead of one."""
    if not actor:
        return DASH
    kind, _, name = actor.partition(":")
    if kind == "person":
        return name
    if kind == "key":
        return say("API key …{tail}", tail=name[-6:])
    if kind == "system":
        return say("nobody (time ran out)") if name == "timeout" else say("the service")
    if actor == "local":
        return say("this machine")
    return say("a worker") if kind.startswith(("worker", "api")) else actor


def short(identifier: str) -> str:
    """An id's kind and its end, which tells it from its neighbours."""
    kind, _, rest = identifier.partition("_")
    return f"{kind}_…{rest[-5:]}" if len(rest) > 7 else identifier


def cut(text: str, most: int) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def plain(text: object) -> str:
    """Text without the signs that could reorder or hide what stands around it; line breaks and tabs stay."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "�" for sign in str(text))
