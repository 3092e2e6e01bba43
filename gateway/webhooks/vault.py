"""Signing secrets at rest: encrypted where a setting gives a key, as they are where none does."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

_PLAIN, _SEALED = "plain:", "fernet:"


class SecretUnreadable(Exception):
    """A stored secret was encrypted with a key that is not configured any more."""


class Vault:
    """Seals with the first key and opens with any of them, so that keys can be changed one after the other."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._fernet = None
        if keys:
            from cryptography.fernet import Fernet, MultiFernet  # only here is it needed

            self._fernet = MultiFernet([Fernet(_fernet_key(key)) for key in keys])

    def seal(self, secret: str) -> str:
        """As it is stored."""
        if self._fernet is None:
            return _PLAIN + secret
        return _SEALED + self._fernet.encrypt(secret.encode()).decode()

    def open(self, stored: str) -> str:
        """The secret. Raises `SecretUnreadable`."""
        if stored.startswith(_PLAIN):
            return stored.removeprefix(_PLAIN)
        if self._fernet is None:
            raise SecretUnreadable("SLUICEGATE_WEBHOOK_SECRET_KEY is not set")
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet.decrypt(stored.removeprefix(_SEALED)).decode()
        except InvalidToken:
            raise SecretUnreadable("no key of SLUICEGATE_WEBHOOK_SECRET_KEY opens it") from None


def _fernet_key(key: str) -> bytes:
    """Fernet's 32 bytes from a long random text; no slow derivation is needed, as nobody remembers such a key."""
    return base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest())
