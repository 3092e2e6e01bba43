"""Who calls: an API key, or nobody in particular on this machine's own loopback."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from gateway.api.problems import ApiProblem
from gateway.store import keys
from gateway.store.engine import Database

DEFAULT_TENANT = "default"
_CACHE_S = 5.0
_CACHE_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request. Every row it touches carries its tenant."""

    tenant: str
    actor: str
    """`key:<id>`, or `local` without a key."""
    scopes: frozenset[str]

    def require(self, scope: str) -> None:
        """Raise a 403 unless the caller may do this."""
        if scope not in self.scopes:
            raise ApiProblem(
                "scope_missing",
                f"This key lacks the scope `{scope}`. Ask the operator for one that has it.",
                extra={"scope": scope},
            )


LOCAL = Principal(DEFAULT_TENANT, "local", frozenset(keys.SCOPES))


class Authenticator:
    """Finds the caller behind an `Authorization` header. Answers are remembered for 5 s, so a revoked key ends within that."""

    def __init__(self, database: Database, *, keyless: bool) -> None:
        self._database = database
        self._keyless = keyless
        self._known: OrderedDict[str, tuple[float, Principal | None]] = OrderedDict()

    def known(self, header: str | None) -> Principal | None:
        """The caller, as far as no look at the database is needed; raises a 401 for what is no key at all."""
        if header is None:
            if self._keyless:
                return LOCAL
            raise _unauthenticated("No API key was sent. Send it as `Authorization: Bearer <key>`.")
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip() or len(secret) > 512:
            raise _unauthenticated("The Authorization header must be `Bearer <key>`.")
        entry = self._known.get(keys.secret_hash(secret.strip()))
        if entry is None or time.monotonic() - entry[0] > _CACHE_S:
            return None
        return _present(entry[1])

    def look_up(self, header: str) -> Principal:
        """The caller by the database. Blocks. Raises a 401 for a key that is not, or no longer, valid."""
        secret = header.partition(" ")[2].strip()
        with self._database.read() as connection:
            record = keys.find(connection, secret)
        principal = None
        if record is not None:
            principal = Principal(record.tenant, f"key:{record.id}", frozenset(record.scopes))
        self._known[keys.secret_hash(secret)] = (time.monotonic(), principal)
        while len(self._known) > _CACHE_SIZE:
            self._known.popitem(last=False)
        return _present(principal)


def _present(principal: Principal | None) -> Principal:
    if principal is None:
        raise _unauthenticated("The API key is not valid: it is unknown or was revoked.")
    return principal


def _unauthenticated(detail: str) -> ApiProblem:
    return ApiProblem("unauthenticated", detail, headers={"WWW-Authenticate": "Bearer"})
