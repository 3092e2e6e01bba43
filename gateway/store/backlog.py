"""How much waits, per tenant: bounded work, since what waits is bounded itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.item import Status
from gateway.store.items import now_ms
from gateway.store.tables import items


@dataclass(frozen=True, slots=True)
class Waiting:
    """Items in the queue, their uploaded bytes, and for how many seconds the oldest has waited."""

    items: int
    bytes: int
    oldest_s: float


NOTHING = Waiting(0, 0, 0.0)

_BY_TENANT = (
    sa.select(
        items.c.tenant,
        sa.func.count().label("waiting"),
        sa.func.coalesce(sa.func.sum(items.c.upload_bytes), 0).label("bytes"),
        sa.func.min(items.c.available_ms).label("oldest_ms"),
    )
    .where(items.c.status == Status.QUEUED.value)
    .group_by(items.c.tenant)
)


def waiting_by_tenant(connection: Connection) -> dict[str, Waiting]:
    """What waits for a worker, by tenant."""
    now = now_ms(connection)
    return {
        row.tenant: Waiting(int(row.waiting), int(row.bytes), max(now - int(row.oldest_ms), 0) / 1000)
        for row in connection.execute(_BY_TENANT)
    }


def total(tenants: Iterable[Waiting]) -> Waiting:
    """All tenants together."""
    known = list(tenants)
    return Waiting(
        sum(one.items for one in known),
        sum(one.bytes for one in known),
        max((one.oldest_s for one in known), default=0.0),
    )
