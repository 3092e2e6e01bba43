"""The append-only event log: a row in the transaction of each change, from which every view of it is made."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
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
    connection: Connection,
    *,
    tenant: str,
    after: int,
    limit: int,
    resource: str | None = None,
    families: Collection[str] | None = None,
) -> list[sa.Row[Any]]:
    """Up to `limit` events with a sequence number above `after`, oldest first; of some families (`item` of `item.ready`) alone.

    Whoever goes on after the last one misses none: an event is not shown before all with lower numbers are there.
    """
    query = sa.select(events).where(events.c.tenant == tenant, events.c.seq > after)
    if families is not None:
        query = query.where(sa.or_(sa.false(), *(events.c.type.like(f"{family}.%") for family in sorted(families))))
    if resource is not None:  # whose events are written one after the other anyway, under its row's lock
        query = query.where(events.c.resource == resource)
    elif connection.dialect.name == "postgresql":
        query = query.where(events.c.seq <= _complete_up_to(connection))
    return list(connection.execute(query.order_by(events.c.seq).limit(limit)))


def newest(connection: Connection) -> int:
    """The highest number after which a reader who starts here misses no event that is still to come; 0 without events."""
    query = sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0))
    if connection.dialect.name == "postgresql":
        query = query.where(events.c.seq <= _complete_up_to(connection))
    return int(connection.execute(query).scalar_one())


def since(connection: Connection, *, after: int, limit: int) -> list[sa.Row[Any]]:
    """Up to `limit` events of all tenants above `after`, oldest first: what one reader hands on to all streams."""
    query = sa.select(events).where(events.c.seq > after)
    if connection.dialect.name == "postgresql":
        query = query.where(events.c.seq <= _complete_up_to(connection))
    return list(connection.execute(query.order_by(events.c.seq).limit(limit)))


@dataclass(frozen=True, slots=True)
class Extent:
    """Which part of the log is there."""

    forgotten: int
    """Events up to this number are not kept any more; 0 while none was removed."""
    last: int
    """Up to this number all are there that will ever be."""


def extent(connection: Connection) -> Extent:
    """Where the log begins and ends now."""
    last = _last_complete(connection) if connection.dialect.name == "postgresql" else _last_on_sqlite(connection)
    first = connection.execute(sa.select(events.c.seq).order_by(events.c.seq).limit(1)).scalar()
    return Extent(last if first is None else int(first) - 1, max(last, int(first or 0)))


def forget_before(connection: Connection, *, at_ms: int, most: int = 1000) -> int:
    """Remove up to `most` of the oldest events that are older than `at_ms`; gives how many. Newer ones stay in one piece."""
    oldest = connection.execute(sa.select(events.c.seq, events.c.at_ms).order_by(events.c.seq).limit(most))
    old = list(itertools.takewhile(lambda row: row.at_ms < at_ms, oldest))
    if old:
        connection.execute(events.delete().where(events.c.seq <= old[-1].seq))
    return len(old)


def _last_complete(connection: Connection) -> int:
    """As `_complete_up_to`, but 0 where no number was given out yet: a fresh sequence says 1 all the same."""
    is_fresh = not connection.execute(_IS_BEGUN).scalar_one()
    return 0 if is_fresh else _complete_up_to(connection)


_IS_BEGUN = sa.text("SELECT is_called FROM events_seq_seq")


def _last_on_sqlite(connection: Connection) -> int:
    """The last number given out, which outlives the events themselves."""
    return int(connection.execute(_LAST_ON_SQLITE).scalar() or 0)


_LAST_ON_SQLITE = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'events'")


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
