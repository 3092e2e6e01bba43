"""Passwords: what one must have, and how it is kept."""

from __future__ import annotations

import threading
import unicodedata
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

LEAST, MOST = 10, 256
"""Characters of a password."""

_HASHER = PasswordHasher(time_cost=3, memory_cost=64 * 1024, parallelism=1)
"""RFC 9106's second choice, with one lane: about 0.1 s and 64 MiB each, on one core."""
_AT_ONCE = threading.BoundedSemaphore(2)
"""So that many who log in at once take neither all memory nor all cores."""


def problem_of(password: str, *, login: str) -> str | None:
    """What is wrong with a new password, or None. Length is asked for, kinds of characters are not."""
    if not LEAST <= len(password) <= MOST:
        return f"A password has {LEAST} to {MOST} characters."
    if len(set(password)) < 4:
        return "This password repeats too few characters."
    if password.casefold() == login.casefold():
        return "The password must differ from the name."
    return None


def hashed(password: str) -> str:
    """The password as it is stored: Argon2id with a salt of its own."""
    with _AT_ONCE:
        return _HASHER.hash(_normal(password))


def matches(stored: str | None, password: str) -> bool:
    """Whether this is the password. It takes as long where there is none stored (None), and is then False."""
    with _AT_ONCE:
        try:
            return _HASHER.verify(stored or _decoy(), _normal(password[:MOST])) and stored is not None
        except (VerificationError, InvalidHashError):
            return False


@cache
def _decoy() -> str:
    return _HASHER.hash("what nobody types")


def _normal(password: str) -> str:
    """One spelling for what looks the same on every keyboard (RFC 8265, section 4.2)."""
    return unicodedata.normalize("NFC", password)
