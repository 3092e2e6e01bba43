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
    """Up to `limit` events with a sequence number above `after`, oldest first."""
    query = sa.select(events).where(events.c.tenant == tenant, events.c.seq > after)
    if resource is not None:
        query = query.where(events.c.resource == resource)
    return list(connection.execute(query.order_by(events.c.seq).limit(limit)))
