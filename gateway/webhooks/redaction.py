"""What of a receiver's answer may stand in the delivery log."""

from __future__ import annotations

import re

from guard.redact import redacted_text

MOST_BYTES = 1024
_OURS = re.compile(r"\b(?:whsec|sgk)_[A-Za-z0-9+/_=-]{8,}")


def shown_response(raw: bytes) -> str:
    """At most a kilobyte of text, without secrets and control characters."""
    text = redacted_text(_OURS.sub("‹hidden›", raw[:MOST_BYTES].decode("utf-8", "replace")))
    printable = "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)
    return printable.encode("utf-8")[:MOST_BYTES].decode("utf-8", "ignore")
