"""Tickets for one event stream each, for clients that cannot send an `Authorization` header."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from gateway.store.tables import stream_tokens

PREFIX = "sgs_"
LASTS_MS = 60_000


@dataclass(frozen=True, slots=True)
class StreamTicket:
    """For whom it was made."""

    tenant: str
    actor: str
    scopes: frozenset[str]
    credential: str | None
    """By which its maker's rights can be asked for again."""


def make(connection: Connection, ticket: StreamTicket, *, at_ms: int) -> tuple[str, int]:
    """A token and when it ends. It is kept as a hash."""
    token = PREFIX + secrets.token_urlsafe(32)
    expires_ms = at_ms + LASTS_MS
    connection.execute(stream_tokens.delete().where(stream_tokens.c.expires_ms <= at_ms))
    connection.execute(
        stream_tokens.insert(),
        {
            "token_hash": _hash(token),
            "tenant": ticket.tenant,
            "actor": ticket.actor,
            "scopes": sorted(ticket.scopes),
            "credential": ticket.credential,
            "expires_ms": expires_ms,
        },
    )
    return token, expires_ms


def redeem(connection: Connection, token: str, *, at_ms: int) -> StreamTicket | None:
    """What a token stands for, the first time and within its minute; None otherwise."""
    row = connection.execute(
        stream_tokens.delete()
        .where(stream_tokens.c.token_hash == _hash(token), stream_tokens.c.expires_ms > at_ms)
        .returning(stream_tokens.c.tenant, stream_tokens.c.actor, stream_tokens.c.scopes, stream_tokens.c.credential)
    ).first()
    return None if row is None else StreamTicket(row.tenant, row.actor, frozenset(row.scopes), row.credential)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
