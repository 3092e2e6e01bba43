"""What a tool answered, and how two answers are compared."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from guard.call import canonical_args, leaf_text
from guard.large import large_text

MAX_NORMALISED_CHARS: Final = 1_000_000
"""Longer results are compared as they stand."""

EXCERPT_CHARS: Final = 120
"""Of a result that is quoted to the model."""

OWN_WORDS: Final = "[guard]"
"""How each text of the guard begins; from here to the end of the line is never part of a result."""


@dataclass(frozen=True, slots=True)
class ToolError:
    """An error as the tool protocol reports it; the message is for people and is never searched for words."""

    code: str
    message: str = ""
    retryable: bool | None = None
    """Whether the tool itself says that trying again can help; None when it does not say."""
    retry_after_s: float | None = None
    """A wait that the tool announced; keeping it makes the next try a fresh one."""


@dataclass(slots=True)
class Outcome:
    """What running a call brought. A tool that looked and found nothing answers ok and empty, not an error."""

    result: object = None
    """Text or JSON; None is the empty result."""
    error: ToolError | None = None
    result_digest: str | None = None
    """Instead of `result`, when the caller keeps the result to itself."""
    result_excerpt: str | None = None
    tokens: int = 0
    cost: float = 0.0
    ms: float | None = None

    @classmethod
    def ok(cls, result: object = None, *, tokens: int = 0, cost: float = 0.0) -> Outcome:
        """A success."""
        return cls(result, None, None, None, tokens, cost)

    @classmethod
    def failed(
        cls,
        code: str,
        message: str = "",
        *,
        result: object = None,
        retryable: bool | None = None,
        retry_after_s: float | None = None,
        tokens: int = 0,
        cost: float = 0.0,
    ) -> Outcome:
        """An error with a stable code."""
        return cls(result, ToolError(code, message, retryable, retry_after_s), tokens=tokens, cost=cost)


def digest_of(outcome: Outcome, volatile: tuple[str, ...] = ()) -> str:
    """A short digest that is equal for results that say the same.

    Status, error code and the normalised result count; a message counts only where there is no result.
    """
    error = outcome.error
    if outcome.result_digest is not None:
        text = outcome.result_digest
    elif outcome.result is None and error is not None:
        text = normalise(error.message)
    else:
        text = normalise(result_text(outcome.result, volatile))
    status = "ok" if error is None else f"error {error.code}"
    return hashlib.sha256(f"{status}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def result_text(result: object, volatile: tuple[str, ...] = ()) -> str:
    """`result` as text; JSON in canonical form, without the fields that the tool declared volatile."""
    if result is None:
        return ""
    if isinstance(result, str):
        if not volatile:
            return result
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            return str(result)
    if volatile:
        result = _without(result, frozenset(volatile), "", 0)
    try:
        return canonical_args(result)
    except ValueError:
        return large_text(result, leaf_text)


def excerpt_of(outcome: Outcome) -> str:
    """The beginning of a result on one line, for people and the model."""
    if outcome.result_excerpt is not None:
        text = outcome.result_excerpt
    elif isinstance(outcome.result, str):
        text = outcome.result[: EXCERPT_CHARS + 20]
    else:
        text = result_text(outcome.result)[: 2 * EXCERPT_CHARS]
    if not text and outcome.error is not None:
        text = outcome.error.message[: 2 * EXCERPT_CHARS]
    text = " ".join(text.split())
    if not text.isascii():
        # Lone surrogates cannot be sent on.
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…"


_DAY = (
    r"\d{4}[-/]\d\d?[-/]\d\d?"
    r"|\d\d?[-/.](?:\d\d?|[A-Z][a-z]{2})[-/.]\d{4}"
    r"|[A-Z][a-z]{2,8}\.? +\d{1,2}(?:,? \d{4})?"
    r"|\d{1,2} [A-Z][a-z]{2,8} \d{4}"
)
_TIME = r"\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?(?: ?[AaPp][Mm])?"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
_STAMP = re.compile(
    rf"(?:[A-Z][a-z]{{2}},? )?(?:{_DAY})(?:[T:]|,? +){_TIME}{_ZONE}(?: \d{{4}})?|\d{{8}}T\d{{4,6}}(?:[.,]\d+)?Z?"
)
_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9A-Za-z])")
# Starts with one digit on its own, so that the search can skip to digits; what stands before it is looked at afterwards.
_DURATION = re.compile(
    r"[0-9][0-9]*(\.[0-9]+)? ?(?:(seconds?|secs?|s|minutes?|mins?|hours?|hrs?|秒|分钟|小时)"
    r"|milliseconds?|msecs?|ms|microseconds?|µs|μs|us|nanoseconds?|ns|毫秒|微秒|纳秒)(?![A-Za-z])"
)
_CLOCK = re.compile(r"\d[:T]\d")
_DIGITS_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_LONGEST_UNIT: Final = 20
_OWN_WORDS = re.compile(r"\s*" + re.escape(OWN_WORDS) + r"[^\n]*")


def normalise(text: str) -> str:
    """`text` without what differs between two equal answers.

    That is stamps of date and time, UUIDs, and fractional or sub-second durations. A bare date, a bare time and whole
    seconds stay: they are content.
    """
    if len(text) > MAX_NORMALISED_CHARS:
        return text
    if OWN_WORDS in text:
        text = _OWN_WORDS.sub("", text)
    # Where a test is much cheaper than the pattern, and never wrong in saying no, it comes first.
    first, last = _span_of_digits(text)
    if first < 0:
        return text if text.count("-") < 4 else _UUID.sub("<uuid>", text)
    if _CLOCK.search(text, first, last + 1) is not None or text.count("-") >= 4:
        text = _UUID.sub("<uuid>", _STAMP.sub("<time>", text))
        return _DURATION.sub(_without_duration, text)
    # The sign before the first digit belongs to the pattern, and the longest unit after the last one.
    start, end = max(first - 1, 0), last + _LONGEST_UNIT
    return f"{text[:start]}{_DURATION.sub(_without_duration, text[start:end])}{text[end:]}"


def _without_duration(match: re.Match[str]) -> str:
    before = match.string[match.start() - 1 : match.start()]
    goes_on_to_the_left = before == "." or before == "_" or before.isalnum()
    is_whole = match[1] is None and match[2] is not None
    return match[0] if goes_on_to_the_left or is_whole else "<duration>"


def _span_of_digits(text: str) -> tuple[int, int]:
    """Where the first and the last ASCII digit stand, (-1, -1) without any; the whole text when it is not ASCII."""
    if not text.isascii():
        return 0, len(text)
    marked = text.encode().translate(_DIGITS_AS_ZERO)
    return marked.find(b"0"), marked.rfind(b"0")


def _without(value: object, volatile: frozenset[str], path: str, depth: int) -> object:
    if depth > 50:
        return value
    if isinstance(value, Mapping):
        kept = {}
        for key, item in value.items():
            below = f"{path}.{key}" if path else str(key)
            if key not in volatile and below not in volatile:
                kept[key] = _without(item, volatile, below, depth + 1)
        return kept
    if isinstance(value, (list, tuple)):
        return [_without(item, volatile, path, depth + 1) for item in value]
    return value
