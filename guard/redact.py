"""Arguments as people may see them: short, and without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from guard.call import ToolCall

MAX_BYTES: Final = 2_048
_MAX_DEPTH: Final = 8
_MAX_ITEMS: Final = 50
_HIDDEN: Final = "‹hidden›"
_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase)|secret|token|api[_-]?key|authorization|credential|cookie|private[_-]?key|session[_-]?id",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(?:[spr]k[-_]|ghp|gho|xox[abprs]|AKIA)[-_A-Za-z0-9]{12,}|\bBearer +[-._~+/A-Za-z0-9]{8,}=*"
    r"|\beyJ[-_A-Za-z0-9]{8,}\.[-_A-Za-z0-9]{8,}\.[-_A-Za-z0-9]*|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
_SECRET_PAIR = re.compile(
    r"(\"?[\w-]{0,40}(?:pass(?:word|wd|phrase)|secret|token|api[_-]?key|authorization)[\w-]{0,40}\"?\s*[:=]\s*)"
    r"(\"[^\"]*\"?|[^\s,}\"]+)",
    re.IGNORECASE,
)


_SECRET_MARKS: Final = ("Bearer", "eyJ", "://", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp", "gho", "xox", "AKIA")
"""Every secret value holds one of these: a test that is cheaper than the pattern and never wrong in saying no."""

_SUSPICIOUS: Final = (
    *("pass", "secret", "token", "api", "auth", "credential", "cookie", "private", "session"),
    *("\\u", "bearer", "eyj", "://", "k-", "k_", "ghp", "gho", "xox", "akia"),
)

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


def redacted_args(call: ToolCall, canonical: str | None = None) -> str:
    """The arguments of `call` as text of at most 2 KB, with what is or looks like a secret hidden. Never raises.

    `canonical`, their canonical text, serves as it is when it is short and plainly holds no secret.
    """
    if canonical is not None and len(canonical) <= MAX_BYTES and _is_plain(canonical):
        return canonical
    raw = call.args_raw if call.args_raw is not None else call.args if isinstance(call.args, str) else None
    if raw is not None:
        head = raw[: MAX_BYTES + 256]
        text = redacted_text(head)
    else:
        text = _encode(_redacted({} if call.args is None else call.args, 0))
    return _cut(text)


def redacted_text(text: str) -> str:
    """Free text with what is or looks like a secret hidden."""
    return _SECRET_PAIR.sub(rf"\1{_HIDDEN}", _SECRET_VALUE.sub(_HIDDEN, text))  # else `Bearer` alone is a pair's value


def _redacted(value: object, depth: int) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value if not isinstance(value, int) or value.bit_length() < 2_000 else "a huge number"
    if isinstance(value, str):
        return _without_secrets(value[: MAX_BYTES + 256])
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        kept: dict[str, object] = {}
        for name in list(value)[:_MAX_ITEMS]:
            label = name if isinstance(name, str) else type(name).__name__
            kept[label] = _HIDDEN if _is_secret_name(label) else _redacted(value[name], depth + 1)
        return kept
    if isinstance(value, (list, tuple)):
        return [_redacted(item, depth + 1) for item in value[:_MAX_ITEMS]]
    return f"a {type(value).__qualname__}"


def _is_plain(canonical: str) -> bool:
    """Whether nothing in an ASCII text is escaped, or may be a secret."""
    lowered = canonical.lower()
    for mark in _SUSPICIOUS:  # noqa: SIM110 - a generator would double the cost of every call
        if mark in lowered:
            return False
    return True


def _without_secrets(text: str) -> str:
    if len(text) < 12 or not any(mark in text for mark in _SECRET_MARKS):
        return text
    return _SECRET_VALUE.sub(_HIDDEN, text)


@lru_cache(maxsize=1_024)
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name[:256]) is not None


def _cut(text: str) -> str:
    if len(text) <= MAX_BYTES // 4 and text.isascii():
        return text
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= MAX_BYTES:
        return encoded.decode("utf-8")
    return encoded[: MAX_BYTES - 3].decode("utf-8", "ignore") + "…"
