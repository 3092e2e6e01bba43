"""How much waits, per tenant, counted up to a bound; and how much there is of everything else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import UNDECIDED
from gateway.item import Status
from gateway.store.items import now_ms
from gateway.store.tables import escalations, history, items


@dataclass(frozen=True, slots=True)
class Waiting:
    """Items in the queue, their uploaded bytes, and for how many seconds the oldest has waited."""

    items: int
    bytes: int
    oldest_s: float


NOTHING = Waiting(0, 0, 0.0)

# Written out rather than bound: a plan for any value of a parameter cannot use the index of what waits.
_OLDEST_WAITING = (
    sa.select(items.c.tenant, items.c.upload_bytes, items.c.available_ms)
    .where(items.c.status == sa.literal_column(f"'{Status.QUEUED.value}'"))
    .order_by(items.c.available_ms, items.c.id)
)


def waiting_by_tenant(connection: Connection, *, most: int | None = None) -> dict[str, Waiting]:
    """What waits for a worker, by tenant: of the `most` items that have waited longest, or of all."""
    rows = _OLDEST_WAITING if most is None else _OLDEST_WAITING.limit(most)
    oldest = rows.subquery()
    by_tenant = sa.select(
        oldest.c.tenant,
        sa.func.count().label("waiting"),
        sa.func.coalesce(sa.func.sum(oldest.c.upload_bytes), 0).label("bytes"),
        sa.func.min(oldest.c.available_ms).label("oldest_ms"),
    ).group_by(oldest.c.tenant)
    now = now_ms(connection)
    return {
        row.tenant: Waiting(int(row.waiting), int(row.bytes), max(now - int(row.oldest_ms), 0) / 1000)
        for row in connection.execute(by_tenant)
    }


_ENDINGS = [
    status.value
    for status in (
        Status.READY,
        Status.SUCCEEDED,
        Status.FAILED,
        Status.HALTED,
        Status.AWAITING_HUMAN,
        Status.AWAITING_SUBMITTER,
    )
]
_MOST_HISTORY = 5_000


def pace(connection: Connection, *, within_ms: int) -> tuple[int, float]:
    """How many items left the queue for good within the last `within_ms`, and over how many seconds that was counted.

    It reads the newest `_MOST_HISTORY` changes, so on a busy service the time is shorter. Items that the request itself
    refuses never wait, so they do not count.
    """
    now = now_ms(connection)
    newest = (
        sa.select(history.c.at_ms, history.c.to_status).order_by(history.c.id.desc()).limit(_MOST_HISTORY).subquery()
    )
    row = connection.execute(
        sa.select(
            sa.func.count().filter(newest.c.to_status.in_(_ENDINGS)).label("ended"),
            sa.func.min(newest.c.at_ms).label("first_ms"),
            sa.func.count().label("changes"),
        ).where(newest.c.at_ms >= now - within_ms)
    ).one()
    span_ms = now - row.first_ms if row.changes == _MOST_HISTORY else within_ms
    return int(row.ended), max(span_ms, 1) / 1000


def total(tenants: Iterable[Waiting]) -> Waiting:
    """All tenants together."""
    known = list(tenants)
    return Waiting(
        sum(one.items for one in known),
        sum(one.bytes for one in known),
        max((one.oldest_s for one in known), default=0.0),
    )


def items_by_status(connection: Connection) -> dict[tuple[str, str | None], int]:
    """How many items there are, by status and reason."""
    rows = connection.execute(
        sa.select(items.c.status, items.c.reason, sa.func.count()).group_by(items.c.status, items.c.reason)
    )
    found: dict[tuple[str, str | None], int] = {}
    for status, reason, count in rows:
        key = (status, _code(reason))
        found[key] = found.get(key, 0) + int(count)
    return found


def _code(reason: str | None) -> str | None:
    """A reason that is a code; what a caller or reviewer wrote in words is left out."""
    return reason if reason is not None and reason.replace("_", "").isalnum() and reason.islower() else None


def cases_by_status(connection: Connection) -> dict[str, int]:
    """How many cases for a person there are, by status."""
    rows = connection.execute(sa.select(escalations.c.status, sa.func.count()).group_by(escalations.c.status))
    return {status: int(count) for status, count in rows}


def overdue_cases(connection: Connection) -> int:
    """Undecided cases past their due time."""
    undecided = [status.value for status in UNDECIDED]
    query = (
        sa.select(sa.func.count())
        .select_from(escalations)
        .where(escalations.c.status.in_(undecided), escalations.c.due_ms < now_ms(connection))
    )
    return int(connection.execute(query).scalar_one())
