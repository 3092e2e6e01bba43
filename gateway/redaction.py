"""What must not stand in a log: values under secret names, and what looks like a secret in any text."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

REMOVED = "[removed]"

_SECRET_NAME = re.compile(
    r"(?:^|[-_])(?:authorization|cookie|credentials?|passwords?|secrets?|(?:api|access|private)[-_]?key)(?:$|[-_])",
    re.I,
)
_SECRET_TEXT = re.compile(
    r"""
      (?P<scheme> \b(?:bearer|basic)\s+ ) [\w.~+/=-]{8,}      # a header's value
    | (?P<prefix> \b(?:sk-|sgk_|whsec_) ) [\w+/=-]{8,}        # keys of model providers, of ours, of webhooks
    | (?P<user> ://[^/\s:@]{0,200}: ) [^@/\s]{1,200} (?=@)    # a password in a URL
    """,
    re.I | re.X,
)
_MOST_CHARS = 4_000
_DEEPEST = 6


def redacted(name: str, value: Any, *, depth: int = 0) -> Any:
    """`value` as it may be logged under `name`: secrets taken out, endless texts cut."""
    if _SECRET_NAME.search(name) and value is not None:
        return REMOVED
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, Mapping):
        if depth == _DEEPEST:
            return "…"
        return {str(key): redacted(str(key), part, depth=depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return "…" if depth == _DEEPEST else [redacted("", part, depth=depth + 1) for part in value]
    return value


def redact_event(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor for structlog: the last one before the line is written."""
    return {key: redacted(key, value) for key, value in event.items()}


def _clean(text: str) -> str:
    cut = text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS // 2]} … {text[-_MOST_CHARS // 2 :]}"
    return _SECRET_TEXT.sub(lambda found: f"{found['scheme'] or found['prefix'] or found['user']}{REMOVED}", cut)
