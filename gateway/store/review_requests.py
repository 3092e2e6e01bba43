"""Requests on many cases at once: begun, answered, and answered the same when they come again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.store.items import now_ms
from gateway.store.tables import review_requests as requests

KEPT_MS = 24 * 3600 * 1000
_ABANDONED_MS = 60_000
"""A request without an answer for so long ended with its process; it may be carried out again."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A request that came before under the same key."""

    fingerprint: str
    answer: Mapping[str, Any] | None
    """None while it is being carried out."""


def begin(connection: Connection, *, tenant: str, key: str, fingerprint: str) -> Earlier | None:
    """Announce a request; None if it is the first under its key (or the first ended without an answer)."""
    at_ms = now_ms(connection)
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    values = {"tenant": tenant, "key": key, "fingerprint": fingerprint, "created_ms": at_ms}
    added = connection.execute(make(requests).values(values).on_conflict_do_nothing().returning(requests.c.key)).first()
    if added is not None:
        return None
    is_it = sa.and_(requests.c.tenant == tenant, requests.c.key == key)
    taken_over = connection.execute(
        requests.update()
        .where(
            is_it,
            requests.c.fingerprint == fingerprint,
            requests.c.answer.is_(None),
            requests.c.created_ms < at_ms - _ABANDONED_MS,
        )
        .values(created_ms=at_ms)
        .returning(requests.c.key)
    ).first()
    if taken_over is not None:
        return None
    row = connection.execute(sa.select(requests.c.fingerprint, requests.c.answer).where(is_it)).one()
    return Earlier(row.fingerprint, row.answer)


def finish(connection: Connection, *, tenant: str, key: str, answer: Mapping[str, Any]) -> None:
    """Keep the answer."""
    connection.execute(
        requests.update().where(requests.c.tenant == tenant, requests.c.key == key).values(answer=dict(answer))
    )


def forget(connection: Connection, *, tenant: str, key: str) -> None:
    """It was refused as a whole: the key stays free."""
    connection.execute(requests.delete().where(requests.c.tenant == tenant, requests.c.key == key))


def has_old(connection: Connection) -> bool:
    """Whether there is something to forget."""
    query = sa.select(requests.c.key).where(requests.c.created_ms < now_ms(connection) - KEPT_MS).limit(1)
    return connection.execute(query).first() is not None


def drop_old(connection: Connection) -> None:
    """Forget what is older than a day."""
    connection.execute(requests.delete().where(requests.c.created_ms < now_ms(connection) - KEPT_MS))
