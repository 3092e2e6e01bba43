"""Who calls: an API key, a person with a session, or nobody in particular on this machine's own loopback."""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa
import structlog
from sqlalchemy.engine import Connection

from gateway.api.problems import ApiProblem
from gateway.person import SCOPES_BY_ROLE, Person, Role
from gateway.store import items, keys, logins, people, stream_tokens
from gateway.store.engine import Database, TransactionLost
from gateway.store.people import SessionEnd, SessionLimits

log = structlog.get_logger()

DEFAULT_TENANT = "default"
_CACHE_S = 5.0
_CACHE_SIZE = 1024
_KEYLESS_SECRET = "keyless-csrf"  # noqa: S105 - the name under which it is kept


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request. Every row it touches carries its tenant."""

    tenant: str
    actor: str
    """`key:<id>`, `person:<name>`, or `local` without either."""
    scopes: frozenset[str]
    role: Role | None = None
    """Of a person; None for a key. Without a key or a login whoever is at this machine is an admin."""
    credential: str | None = None
    """By which it can be asked later whether the caller's rights still hold: `key:<id>` or `session:<hash>`."""

    def require(self, scope: str) -> None:
        """Raise a 403 unless the caller may do this."""
        if scope in self.scopes:
            return
        if self.role is not None:
            detail = f"The role {self.role.value} does not include this (`{scope}`). Ask an admin for another role."
        else:
            detail = f"This key lacks the scope `{scope}`. Ask the operator for one that has it."
        raise ApiProblem("scope_missing", detail, extra={"scope": scope})

    @property
    def is_operator(self) -> bool:
        """Whether the caller may look after all tenants: an admin of the tenant `default`."""
        return self.tenant == DEFAULT_TENANT and "admin" in self.scopes

    def require_operator(self) -> None:
        """Raise a 403 for admins of one tenant where all are concerned."""
        if not self.is_operator:
            raise ApiProblem(
                "forbidden",
                f"This concerns all tenants; it takes the scope `admin` in the tenant `{DEFAULT_TENANT}`.",
                extra={"reason": "operator"},
            )

    def may_grant(self, scope: str) -> bool:
        """Whether the caller may give this to a key: what it has itself; an admin, everything."""
        return scope in self.scopes or self.role is Role.ADMIN


LOCAL = Principal(DEFAULT_TENANT, "local", frozenset(keys.SCOPES), Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Session:
    """A person who is logged in."""

    principal: Principal
    person: Person


class Authenticator:
    """Finds the caller. What keys stand for is remembered for 5 s, so a revoked key ends within that; sessions are not."""

    def __init__(self, database: Database, *, keyless: bool, limits: SessionLimits) -> None:
        self._database = database
        self._keyless = keyless
        self._limits = limits
        self._known: OrderedDict[str, tuple[float, Principal | None]] = OrderedDict()

    def known(self, header: str | None) -> Principal | None:
        """The caller, as far as no look at the database is needed; raises a 401 for what is no key at all."""
        if header is None:
            if self._keyless:
                return LOCAL
            raise unauthenticated("No API key was sent. Send it as `Authorization: Bearer <key>`.")
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip() or len(secret) > 512:
            raise unauthenticated("The Authorization header must be `Bearer <key>`.")
        entry = self._known.get(keys.secret_hash(secret.strip()))
        if entry is None or time.monotonic() - entry[0] > _CACHE_S:
            return None
        return _present(entry[1])

    def look_up(self, header: str) -> Principal:
        """The caller by the database. Blocks. Raises a 401 for a key that is not, or no longer, valid."""
        secret = header.partition(" ")[2].strip()
        with self._database.read() as connection:
            at_ms = items.now_ms(connection)
            record = keys.find(connection, secret, at_ms=at_ms)
        principal = None
        if record is not None:
            principal = Principal(
                record.tenant, f"key:{record.id}", frozenset(record.scopes), credential=f"key:{record.id}"
            )
            if record.is_unseen(at_ms):
                self._note(lambda connection: keys.mark_used(connection, record.id, at_ms=at_ms))
        self._known[keys.secret_hash(secret)] = (time.monotonic(), principal)
        while len(self._known) > _CACHE_SIZE:
            self._known.popitem(last=False)
        return _present(principal)

    def session(self, token: str) -> Session | None:
        """Who logged in with this cookie; None where the session is over. Blocks.

        Raises a 403 `permission_revoked` where the person's rights were changed under it.
        """
        hashed = people.token_hash(token)
        with self._database.read() as connection:
            at_ms = items.now_ms(connection)
            found = people.session(connection, hashed, at_ms=at_ms, limits=self._limits)
            is_unseen = found is not None and people.is_unseen(connection, hashed, at_ms=at_ms)
        if found is None:
            return None
        if found.ended is not None:
            raise ApiProblem("permission_revoked", _ENDED[found.ended], extra={"reason": found.ended.value})
        if is_unseen:
            self._note(lambda connection: people.mark_seen(connection, hashed, at_ms=at_ms))
        record = found.person
        principal = Principal(
            record.tenant, record.actor, SCOPES_BY_ROLE[record.role], record.role, f"session:{hashed}"
        )
        return Session(principal, Person(record.name, record.role, record.tenant, csrf_of(token)))

    def ticket(self, token: str) -> Principal:
        """Whose stream this token opens. Blocks, and uses the token up. Raises a 401 for one that is used or over."""
        ticket = self._database.transact(
            lambda connection: stream_tokens.redeem(connection, token, at_ms=items.now_ms(connection))
        )
        if ticket is None or (ticket.credential and not self.still_valid(frozenset({ticket.credential}))):
            raise unauthenticated("The stream token is not valid: it opens one stream, within 60 seconds.")
        return Principal(ticket.tenant, ticket.actor, ticket.scopes, credential=ticket.credential)

    def keyless(self) -> Session:
        """Whoever sits at this machine, where no key is asked for. Blocks at the first call. Raises a 401 where one is."""
        if not self._keyless:
            raise unauthenticated("Nobody is logged in. Send an API key, or log in at /console/login.")
        return Session(LOCAL, Person("local", Role.ADMIN, DEFAULT_TENANT, self._keyless_csrf, is_keyless=True))

    @functools.cached_property
    def _keyless_csrf(self) -> str:
        # Kept in the database: a page that is open while the service starts again can still be sent.
        with self._database.read() as connection:
            kept = logins.kept_secret(connection, _KEYLESS_SECRET)
        if kept is None:
            kept = self._database.transact(lambda connection: logins.service_secret(connection, _KEYLESS_SECRET))
        return csrf_of(kept)

    def _note(self, use: Callable[[Connection], object]) -> None:
        """Write down that a credential was used, if that can be written just now: who only reads must not need it."""
        try:
            self._database.transact(use)
        except (sa.exc.DBAPIError, sa.exc.TimeoutError, TransactionLost) as error:
            log.warning("auth.use_not_noted", error=type(error).__name__)

    def still_valid(self, credentials: frozenset[str]) -> frozenset[str]:
        """Those of the credentials whose rights still hold. Blocks; one look for all."""
        alive = set()
        with self._database.read() as connection:
            at_ms = items.now_ms(connection)
            for credential in credentials:
                kind, _, value = credential.partition(":")
                if kind == "key":
                    is_alive = keys.is_live(connection, value, at_ms=at_ms)
                else:
                    found = people.session(connection, value, at_ms=at_ms, limits=self._limits)
                    is_alive = found is not None and found.ended is None
                if is_alive:
                    alive.add(credential)
        return frozenset(alive)


_ENDED = {
    SessionEnd.LOGGED_OUT: "You logged out.",
    SessionEnd.PASSWORD_CHANGED: "Your password was changed. Log in with the new one.",
    SessionEnd.ROLE_CHANGED: "Your role was changed. Log in again to go on with what it allows now.",
    SessionEnd.DISABLED: "Your account was disabled. Ask an admin.",
}


def csrf_of(token: str) -> str:
    """The token that goes with every change: follows from the session's, so it need not be kept."""
    digest = hashlib.sha256(b"sluicegate csrf " + token.encode("utf-8", "replace")).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _present(principal: Principal | None) -> Principal:
    if principal is None:
        raise unauthenticated("The API key is not valid: it is unknown, has expired or was revoked.")
    return principal


def unauthenticated(detail: str) -> ApiProblem:
    """A 401 that says how to authenticate."""
    return ApiProblem("unauthenticated", detail, headers={"WWW-Authenticate": "Bearer"})
