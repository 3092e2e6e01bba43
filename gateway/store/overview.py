"""The state of the queue and of the service at a glance: counts, facets, what was avoided, how long decisions take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import EscalationStatus
from gateway.store.engine import database_now_ms
from gateway.store.tables import escalations

_WAITING_FOR_US = (EscalationStatus.OPEN.value, EscalationStatus.CLAIMED.value)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many cases wait, and how."""

    open: int = 0
    """Free, or under a lease: somebody has to decide them."""
    held: int = 0
    """Of them, under a live lease."""
    mine: int = 0
    overdue: int = 0
    waiting: int = 0
    """For the submitter."""
    next_expiry_ms: int | None = None

    @property
    def free(self) -> int:
        """Those that can be taken."""
        return self.open - self.held


def counts(connection: Connection, *, tenant: str, holder: str) -> Counts:
    """The queue of a tenant, counted for one reviewer."""
    columns = escalations.c
    is_open = columns.status.in_(_WAITING_FOR_US)
    is_held = sa.and_(
        columns.status == EscalationStatus.CLAIMED.value, columns.lease_expires_ms > database_now_ms()
    )
    row = connection.execute(
        sa.select(
            _count(is_open),
            _count(is_held),
            _count(sa.and_(is_held, columns.holder == holder)),
            _count(sa.and_(is_open, columns.due_ms < database_now_ms())),
            _count(columns.status == EscalationStatus.WAITING_SUBMITTER.value),
            sa.func.min(sa.case((is_held, columns.lease_expires_ms))),
        ).where(columns.tenant == tenant, columns.status.in_([*_WAITING_FOR_US, EscalationStatus.WAITING_SUBMITTER.value]))
    ).one()
    return Counts(*(int(value or 0) for value in row[:5]), row[5])


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


@dataclass(frozen=True, slots=True)
class Facet:
    """One value by which the queue can be narrowed, with how many open cases have it."""

    value: str
    count: int


def facets(connection: Connection, *, tenant: str, most: int = 8) -> Mapping[str, Sequence[Facet]]:
    """The commonest values among the open cases, by column."""
    found = {}
    for name in ("tool", "reason", "profile"):
        column = escalations.c[name]
        rows = connection.execute(
            sa.select(column, sa.func.count())
            .where(escalations.c.tenant == tenant, escalations.c.status.in_(_WAITING_FOR_US), column.is_not(None))
            .group_by(column)
            .order_by(sa.func.count().desc(), column)
            .limit(most)
        )
        found[name] = [Facet(str(value), int(count)) for value, count in rows]
    return found


def group_sizes(connection: Connection, *, tenant: str, groups: Sequence[str]) -> Mapping[str, int]:
    """How many open cases each of these groups has."""
    if not groups:
        return {}
    rows = connection.execute(
        sa.select(escalations.c.group_id, sa.func.count())
        .where(
            escalations.c.tenant == tenant,
            escalations.c.status.in_(_WAITING_FOR_US),
            escalations.c.group_id.in_(groups),
        )
        .group_by(escalations.c.group_id)
    )
    return {str(key): int(count) for key, count in rows}
