"""What a person is told: in their words, with the measured value and the limit, and what to do next."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import yaml

from prefilters.facts import FACT_BY_NAME, Facts, FactValue
from prefilters.media import Media
from prefilters.rules.model import RuleSet
from prefilters.verdict import CheckOutcome, Verdict

LANGUAGES = ("en", "zh")

_MOST_NAME_CHARS = 80
_FALLBACK = "rule"
"""Key of the words for a code that has none of its own."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words for one code in one language. `say` and `fix` may hold placeholders."""

    title: str
    say: str
    fix: str


@dataclass(frozen=True, slots=True)
class NoteWords:
    """A note as a person reads it."""

    code: str
    rule: str
    text: Mapping[str, str]
    fix: Mapping[str, str]


def with_words(verdict: Verdict, rules: RuleSet, facts: Facts, media: Media, file_name: str | None) -> Verdict:
    """`verdict` with `user_message` and `fix` in every language; unchanged where it accepts."""
    if verdict.rule is None:
        return verdict
    case = _Case(rules.rule(verdict.rule).message, facts, media, file_name, verdict.measured, verdict.limit)
    return replace(verdict, user_message=case.say(), fix=case.fix())


def note_words(
    verdict: Verdict, rules: RuleSet, facts: Facts, media: Media, file_name: str | None
) -> tuple[NoteWords, ...]:
    """The notes of `verdict` in words, in rule order."""
    found = []
    for check in verdict.checks:
        if check.outcome is CheckOutcome.WARN:
            measured = {check.fact: check.value} if check.fact and check.value is not None else {}
            limit = {check.fact: check.limit} if check.fact and check.limit is not None else {}
            case = _Case(rules.rule(check.rule).message, facts, media, file_name, measured, limit)
            found.append(NoteWords(check.code, check.rule, case.say(), case.fix()))
    return tuple(found)


def told(verdict: Verdict) -> dict[str, str]:
    """What is wrong and what to do, as one text in every language; empty where the file is accepted."""
    fix = verdict.fix
    return {
        language: f"{say}{'' if language == 'zh' else ' '}{fix[language]}" if fix.get(language) else say
        for language, say in verdict.user_message.items()
    }


def title(code: str) -> dict[str, str]:
    """A short title of a verdict code in every language."""
    return {language: words(code, language).title for language in LANGUAGES}


def codes() -> frozenset[str]:
    """The keys that have words of their own: verdict codes, and cases of them."""
    return frozenset(_catalogue(LANGUAGES[0]))


def words(key: str, language: str) -> Words:
    """The words for a code, or for one case of it. An unknown key gets the general ones."""
    catalogue = _catalogue(language)
    return catalogue.get(key) or catalogue[_FALLBACK]


@cache
def _catalogue(language: str) -> Mapping[str, Words]:
    raw = (resources.files("prefilters") / "locales" / f"{language}.yaml").read_text("utf-8")
    entries: dict[str, dict[str, str]] = yaml.safe_load(raw)
    return {
        key: Words(**{part: " ".join(text.split()) for part, text in entry.items()}) for key, entry in entries.items()
    }


@dataclass(frozen=True, slots=True)
class _Case:
    """One file and what was found with it."""

    key: str
    facts: Facts
    media: Media
    file_name: str | None
    measured: Facts
    limit: Facts

    def say(self) -> dict[str, str]:
        return {language: self._fill(words(self.key, language).say, language) for language in LANGUAGES}

    def fix(self) -> dict[str, str]:
        return {language: self._fill(words(self.key, language).fix, language) for language in LANGUAGES}

    def _fill(self, template: str, language: str) -> str:
        return template.format(
            file=_named(self.file_name, language),
            what=self.media.description_zh if language == "zh" else self.media.description_en,
            measured=_shown_first(self.measured, language),
            limit=_shown_first(self.limit, language),
            width=self.facts.get("image.width", "?"),
            height=self.facts.get("image.height", "?"),
        )


def _shown_first(values: Facts, language: str) -> str:
    return next((shown(fact, value, language) for fact, value in values.items()), "?")


def _named(file_name: str | None, language: str) -> str:
    """The file's name in quotes, without what could break a line or turn the text around."""
    kept = "".join(char for char in file_name or "" if not unicodedata.category(char).startswith("C")).strip()
    if not kept:
        return "这个文件" if language == "zh" else "This file"
    if len(kept) > _MOST_NAME_CHARS:
        kept = f"{kept[: _MOST_NAME_CHARS // 2]}…{kept[-_MOST_NAME_CHARS // 2 :]}"
    return f"“{kept}”"


def shown(fact: str, value: FactValue, language: str) -> str:
    """A value as a person writes it, with its unit: `40 px`, `12.4 MB`, `4,365 million pixels`."""
    if isinstance(value, bool | str):
        return str(value)
    spec = FACT_BY_NAME[fact]
    is_chinese = language == "zh"
    if spec.unit == "bytes":
        return _bytes(value)
    if fact == "image.pixels":
        return _pixels(int(value), is_chinese=is_chinese)
    if spec.unit == "s":
        return _seconds(float(value), is_chinese=is_chinese)
    if spec.unit == "px":
        return f"{value:,} {'像素' if is_chinese else 'px'}"
    if spec.unit in ("dBFS", "pt"):
        return f"{value:.0f} {spec.unit}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}".rstrip("0").rstrip(".")


def _bytes(value: float) -> str:
    for unit, size in (("MB", 1024 * 1024), ("KB", 1024)):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:.0f} B"


def _pixels(value: int, *, is_chinese: bool) -> str:
    if value < 1_000_000:
        return f"{value:,} {'像素' if is_chinese else 'pixels'}"
    if is_chinese:
        return f"{value / 10_000:,.0f} 万像素"
    return f"{value / 1_000_000:,.0f} million pixels"


def _seconds(value: float, *, is_chinese: bool) -> str:
    if value >= 120:
        return f"{value / 60:.0f} {'分钟' if is_chinese else 'minutes'}"
    rounded = f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{rounded} {'秒' if is_chinese else 's'}"
