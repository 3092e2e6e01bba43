"""Words, what of them counts, and the facts on them."""

from __future__ import annotations

import json
import socket

import pytest

from prefilters.facts import check_facts
from prefilters.probes import text as text_probe
from prefilters.probes.text import (
    WHOLE,
    Depth,
    RankFileInvalid,
    Script,
    Source,
    TextReading,
    Word,
    evidence_tokens,
    is_confident,
    join_words,
    main_script,
    plain_reading,
    text_facts,
    token_count,
    word_count,
)


def word(text: str, confidence: float = 0.95, line: int = 0) -> Word:
    return Word(text, confidence, WHOLE, line)


def reading(*words: Word, unread: int = 0) -> TextReading:
    return TextReading(words, unread=unread, share=0.25, engine="rapidocr", depth=Depth.GATE)


@pytest.mark.parametrize(
    ("text", "confidence", "expected"),
    [
        ("organic", 0.95, True),
        ("organic", 0.6, True),
        ("organic", 0.59, False),
        ("tea", 0.9, True),
        ("of", 1.0, False),
        ("12%", 1.0, False),
        ("125", 0.9, True),
        ("£?!", 1.0, False),
        ("чай", 0.9, True),
        ("纯牛奶", 0.7, True),
        ("茶", 0.99, True),
        ("三", 0.96, False),
        ("", 1.0, False),
    ],
)
def test_a_word_counts_when_it_is_sure_and_long_enough(text: str, confidence: float, expected: bool) -> None:
    assert is_confident(word(text, confidence)) is expected


@pytest.mark.parametrize(
    ("text", "expected"), [("organic", 1), ("纯牛奶", 3), ("A4纸", 2), ("おちゃ", 3), ("우유", 2), ("", 0)]
)
def test_chinese_japanese_and_korean_count_by_character(text: str, expected: int) -> None:
    assert word_count(text) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("green", "tea"), "green tea"),
        (("纯", "牛奶"), "纯牛奶"),
        (("净含量", "100", "克"), "净含量 100 克"),
        (("绿茶", "，", "一级"), "绿茶，一级"),
        ((), ""),
    ],
)
def test_words_are_joined_as_their_script_is_written(words: tuple[str, ...], expected: str) -> None:
    assert join_words(words) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("Crème", "Brûlée"), Script.LATIN),
        (("茉莉花茶", "tea"), Script.HAN),
        (("抹茶ラテ",), Script.KANA),
        (("우유",), Script.HANGUL),
        (("молоко",), Script.CYRILLIC),
        (("حليب",), Script.ARABIC),
        (("γάλα",), Script.OTHER),
        (("123", "%"), Script.NONE),
        ((), Script.NONE),
    ],
)
def test_main_script_is_the_one_most_letters_belong_to(texts: tuple[str, ...], expected: Script) -> None:
    assert main_script(texts) is expected


def test_facts_have_the_names_and_types_of_the_table() -> None:
    facts = text_facts(reading(word("organic"), word("tea", 0.8), word("%%", 0.3), unread=2))
    check_facts(facts)
    assert facts["text.words"] == 2
    assert facts["text.unread"] == 2
    assert facts["text.share"] == 0.25
    assert facts["text.depth"] == "gate"
    assert facts["text.source"] == "ocr"


def test_confidence_is_unknown_where_nothing_was_read() -> None:
    assert "text.confidence" not in text_facts(reading())


def test_confidence_is_weighted_by_length() -> None:
    assert text_facts(reading(word("abcdefghi", 1.0), word("x", 0.0)))["text.confidence"] == 0.9


def test_unsure_and_short_words_give_no_tokens() -> None:
    assert evidence_tokens([word("organic", 0.4), word("of"), word("口", 0.9)]) == 0


def test_chinese_gives_at_least_one_token_a_character() -> None:
    assert evidence_tokens([word("中国")]) == 2
    assert evidence_tokens([word("茉莉花茶"), word("tea")]) == 5


def test_formula_marks_are_mathematical_signs_in_sure_words() -> None:
    facts = text_facts(reading(word("a²+b²=c²"), word("∑≤±", 0.2), word("x|y")))
    assert facts["text.formula_marks"] == 2


def test_confident_text_keeps_short_words_of_sure_lines_and_drops_lines_without_a_confident_word() -> None:
    words = (
        word("12%", line=0),
        word("fett", line=0),
        word("·p", line=1),
        word("xqz", 0.3, line=2),
        word("纯牛奶", line=3),
    )
    assert reading(*words).confident_text == "12% fett\n纯牛奶"


def test_a_reading_survives_json() -> None:
    before = reading(word("organic"), word("茶", 0.99, 1), unread=3)
    assert TextReading.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_plain_text_becomes_a_certain_reading_line_by_line() -> None:
    layer = plain_reading("Linen towel\n\n50 x 70 cm", engine="pdfium", source=Source.TEXT_LAYER, pages=2)
    assert layer.confident_text == "Linen towel"
    assert [each.line for each in layer.words] == [0, 0, 1, 1, 1, 1]
    assert (layer.source, layer.depth, layer.pages) == (Source.TEXT_LAYER, Depth.READ, 2)


def test_special_tokens_are_counted_as_plain_text() -> None:
    assert token_count("<|endoftext|>") > 1


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("hello world", 2), ("a b c d", 4)])
def test_tokens_are_those_of_o200k_base(text: str, expected: int) -> None:
    assert token_count(text) == expected


def test_tokens_are_counted_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    text_probe._encoding.cache_clear()
    assert token_count("green tea") == 2


def test_a_rank_file_with_another_hash_is_refused() -> None:
    with pytest.raises(RankFileInvalid, match="o200k_base"):
        text_probe._installed_ranks("https://example.org/o200k_base.tiktoken", "00" * 32)
