"""Identifiers: prefixed, time-sortable, opaque."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in lower case."""


def new_id(prefix: str, *, now_ms: int | None = None) -> str:
    """`itm_01jx…`: 48 bits of Unix milliseconds, then 80 random bits, in base 32, so that ids sort by time."""
    stamp = int(time.time() * 1000) if now_ms is None else now_ms
    return _id(prefix, stamp, int.from_bytes(os.urandom(10)))


def first_id(prefix: str, at_ms: int) -> str:
    """The lowest id of this moment: lower than any that is made then or later."""
    return _id(prefix, at_ms, 0)


def _id(prefix: str, stamp: int, random: int) -> str:
    number = (stamp & (2**48 - 1)) << 80 | random
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return f"{prefix}_{''.join(reversed(digits))}"
