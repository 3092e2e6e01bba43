"""What people are told: complete, in both languages, with the values that matter and nothing that could mislead."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
import yaml

from prefilters import RuleSet, Stage, VerdictKind, evaluate, sniff
from prefilters.facts import FactValue
from prefilters.messages import LANGUAGES, note_words, shown, title, with_words, words
from prefilters.rules.codes import NOTING_CODES, REFUSING_CODES, ROUTING_CODES
from tests.prefilters.test_rules import CASES, PHOTO, SNIFFED

LOCALES = {
    language: yaml.safe_load(
        (Path(__file__).parents[2] / "prefilters" / "locales" / f"{language}.yaml").read_text("utf-8")
    )
    for language in LANGUAGES
}
CODES = sorted(REFUSING_CODES | ROUTING_CODES | NOTING_CODES)
JPEG = sniff(b"\xff\xd8\xff\xe0" + bytes(100))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_code_and_every_case_of_a_rule_has_words(shipped_rules: RuleSet, language: str) -> None:
    assert set(CODES) | {rule.message for rule in shipped_rules.rules} == set(LOCALES[language])


def test_both_languages_use_the_same_placeholders() -> None:
    known = {"file", "what", "measured", "limit", "width", "height"}
    for key, entry in LOCALES["en"].items():
        for part in ("say", "fix"):
            used = [
                {name for _, name, _, _ in string.Formatter().parse(text) if name}
                for text in (entry[part], LOCALES["zh"][key][part])
            ]
            assert used[0] == used[1] <= known, (key, part)


def test_english_sentences_may_begin_with_this_file() -> None:
    # Without a name {file} reads "This file", so it stands at the start of a sentence or not at all.
    for key, entry in LOCALES["en"].items():
        assert entry["say"].startswith("{file}"), key
        assert "{file}" not in entry["fix"], key


@pytest.mark.parametrize("code", CODES)
def test_chinese_words_are_chinese(code: str) -> None:
    for text in (words(code, "zh").title, words(code, "zh").say, words(code, "zh").fix):
        assert re.search(r"[\u4e00-\u9fff]", text), text


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]['media.kind']} {case[1] or 'fine'}" for case in CASES])
def test_refusals_and_routes_are_told_without_gaps(
    shipped_rules: RuleSet, case: tuple[dict[str, FactValue], dict[str, FactValue], str, tuple[str, ...]]
) -> None:
    base, changes, _, notes = case
    facts = base | changes
    verdict = with_words(evaluate(facts, shipped_rules, through=Stage.TEXT), shipped_rules, facts, JPEG, "photo.jpg")
    if verdict.kind is VerdictKind.ACCEPT:
        assert verdict.user_message == {}
    else:
        assert set(verdict.user_message) == set(verdict.fix) == set(LANGUAGES)
        for text in verdict.user_message.values():
            assert "photo.jpg" in text
            assert "?" not in text
            assert "{" not in text
    told = note_words(verdict, shipped_rules, facts, JPEG, "photo.jpg")
    assert tuple(dict.fromkeys(note.code for note in told)) == notes
    for note in told:
        assert all("?" not in text and "{" not in text for text in note.text.values())


def test_measured_and_needed_are_both_named(shipped_rules: RuleSet) -> None:
    facts = PHOTO | {"image.short_side": 40, "image.width": 40, "image.height": 60}
    verdict = with_words(evaluate(facts, shipped_rules, through=Stage.HEADER), shipped_rules, facts, JPEG, "a.jpg")
    for number in ("40 × 60", "40 px", "64 px"):
        assert number in verdict.user_message["en"]
    for number in ("40 × 60", "40 像素", "64 像素"):
        assert number in verdict.user_message["zh"]


def test_file_without_a_name_is_this_file(shipped_rules: RuleSet) -> None:
    facts = SNIFFED | {"file.bytes": 0}
    verdict = with_words(evaluate(facts, shipped_rules, through=Stage.SNIFF), shipped_rules, facts, JPEG, None)
    assert verdict.user_message["en"].startswith("This file arrived")
    assert verdict.user_message["zh"].startswith("这个文件")


@pytest.mark.parametrize(
    "name", ["evil\u202egpj.exe", "two\nlines\t.jpg", "{measured}.jpg", "{0.__class__}.jpg", "x" * 5_000, "\x00", " "]
)
def test_file_name_cannot_break_or_turn_the_text(shipped_rules: RuleSet, name: str) -> None:
    facts = SNIFFED | {"file.bytes": 0}
    verdict = with_words(evaluate(facts, shipped_rules, through=Stage.SNIFF), shipped_rules, facts, JPEG, name)
    for text in verdict.user_message.values():
        assert not set(text) & set("\u202e\n\t\x00")
        assert len(text) < 250


def test_unknown_code_gets_general_words() -> None:
    assert words("of_tomorrow", "en") == words("rule", "en")
    assert title("low_resolution") == {"en": "Photo too small", "zh": "照片太小"}


@pytest.mark.parametrize(
    ("fact", "value", "english", "chinese"),
    [
        ("file.bytes", 26_214_400, "25 MB", "25 MB"),
        ("file.bytes", 13_000_000, "12.4 MB", "12.4 MB"),
        ("file.bytes", 900, "900 B", "900 B"),
        ("image.pixels", 10_000, "10,000 pixels", "10,000 像素"),
        ("image.pixels", 4_364_696_535, "4,365 million pixels", "436,470 万像素"),
        ("image.short_side", 64, "64 px", "64 像素"),
        ("image.sharpness", 0.2871, "0.29", "0.29"),
        ("audio.duration_s", 0.08, "0.08 s", "0.08 秒"),
        ("audio.duration_s", 7_200.0, "120 minutes", "120 分钟"),
        ("audio.peak_dbfs", -60.0, "-60 dBFS", "-60 dBFS"),
        ("pdf.pages", 1_200, "1,200", "1,200"),
        ("image.aspect", 100.0, "100", "100"),
    ],
)
def test_values_are_shown_as_people_write_them(fact: str, value: FactValue, english: str, chinese: str) -> None:
    assert (shown(fact, value, "en"), shown(fact, value, "zh")) == (english, chinese)
