"""The append-only event log: a row in the transaction of each change, from which every view of it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.ids import new_id
from gateway.store.tables import events

_INSERT = events.insert()


def append(
    connection: Connection,
    *,
    tenant: str,
    kind: str,
    resource: str,
    version: int,
    at_ms: int,
    body: Mapping[str, Any],
) -> None:
    """Add one event; its sequence number is given by the database."""
    if connection.dialect.name == "postgresql":
        connection.execute(_ANNOUNCE)
    connection.execute(
        _INSERT,
        {
            "id": new_id("evt", now_ms=at_ms),
            "tenant": tenant,
            "type": kind,
            "resource": resource,
            "resource_version": version,
            "at_ms": at_ms,
            "data": dict(body),
        },
    )


def page(
    connection: Connection, *, tenant: str, after: int, limit: int, resource: str | None = None
) -> list[sa.Row[Any]]:
    """Up to `limit` events with a sequence number above `after`, oldest first.

    Whoever goes on after the last one misses none: an event is not shown before all with lower numbers are there.
    """
    query = sa.select(events).where(events.c.tenant == tenant, events.c.seq > after)
    if resource is not None:  # whose events are written one after the other anyway, under its row's lock
        query = query.where(events.c.resource == resource)
    elif connection.dialect.name == "postgresql":
        query = query.where(events.c.seq <= _complete_up_to(connection))
    return list(connection.execute(query.order_by(events.c.seq).limit(limit)))


# PostgreSQL gives out numbers before the transaction ends, so a higher number may be there before a lower one. Each writer
# therefore holds, until its transaction has ended, a shared lock on the last number given out before its own; readers stop
# at the lowest number that is so held. Nobody waits for anybody.
_NUMBER_BITS = 44
_LOCK_SPACE = 0x51C8
_LAST_NUMBER = sa.text("SELECT last_value FROM events_seq_seq")
_ANNOUNCE = sa.text(
    "SELECT pg_advisory_xact_lock_shared((CAST(:space AS bigint) << :bits) + last_value) FROM events_seq_seq"
).bindparams(space=_LOCK_SPACE, bits=_NUMBER_BITS)
_LOWEST_HELD = sa.text(
    """
    SELECT min(key - (CAST(:space AS bigint) << :bits)) FROM (
        SELECT (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) AS held WHERE key >> :bits = :space
    """
).bindparams(space=_LOCK_SPACE, bits=_NUMBER_BITS)


def _complete_up_to(connection: Connection) -> int:
    """The number up to which no event is still to come. The order of the two questions matters: see above."""
    last = connection.execute(_LAST_NUMBER).scalar_one()
    held = connection.execute(_LOWEST_HELD).scalar_one()
    return int(last if held is None else min(last, held))
