"""Rows of the human queue as records: one case, a page of cases, and what a list is narrowed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import UNDECIDED, EscalationRecord, EscalationStatus
from gateway.store.engine import database_now_ms
from gateway.store.tables import escalations

UNDECIDED_VALUES = [status.value for status in sorted(UNDECIDED)]
OPEN, CLAIMED = EscalationStatus.OPEN.value, EscalationStatus.CLAIMED.value
RESOLVED = EscalationStatus.RESOLVED.value


def is_free() -> sa.ColumnElement[bool]:
    """Whether nobody holds a case that waits for a reviewer, in SQL."""
    columns = escalations.c
    is_lapsed = sa.and_(columns.status == CLAIMED, columns.lease_expires_ms <= database_now_ms())
    return sa.or_(columns.status == OPEN, is_lapsed)


def is_held() -> sa.ColumnElement[bool]:
    """Whether somebody's lease on a case is alive, in SQL."""
    return sa.and_(escalations.c.status == CLAIMED, escalations.c.lease_expires_ms > database_now_ms())


def get(connection: Connection, escalation_id: str, *, tenant: str) -> EscalationRecord | None:
    """The case; None if there is none of that id in this tenant."""
    row = connection.execute(
        sa.select(escalations).where(escalations.c.id == escalation_id, escalations.c.tenant == tenant)
    ).first()
    return None if row is None else record_of(row)


@dataclass(frozen=True, slots=True)
class CaseFilter:
    """What a list or a claim is narrowed by; None means any."""

    status: tuple[str, ...] | None = None
    reason: str | None = None
    tool: str | None = None
    profile: str | None = None
    group: str | None = None
    priority: int | None = None
    assignee: str | None = None
    unassigned: bool = False
    due_before_ms: int | None = None
    item_id: str | None = None
    is_overdue: bool = False
    resolved_by: str | None = None
    least_priority: int | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """The filter in SQL."""
        columns = escalations.c
        found: list[sa.ColumnElement[bool]] = []
        for column, value in (
            (columns.reason, self.reason),
            (columns.tool, self.tool),
            (columns.profile, self.profile),
            (columns.group_id, self.group),
            (columns.priority, self.priority),
            (columns.holder, self.assignee),
            (columns.item_id, self.item_id),
            (columns.decided_by, self.resolved_by),
        ):
            if value is not None:
                found.append(column == value)
        if self.status is not None:
            found.append(columns.status.in_(self.status))
        if self.unassigned:
            found.append(columns.holder.is_(None))
        if self.due_before_ms is not None:
            found.append(columns.due_ms < self.due_before_ms)
        if self.is_overdue:
            found.append(sa.and_(columns.status.in_(UNDECIDED_VALUES), columns.due_ms < database_now_ms()))
        if self.least_priority is not None:
            found.append(columns.priority >= self.least_priority)
        return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page of the queue ended."""

    due_ms: int
    priority: int
    id: str

    def condition(self) -> sa.ColumnElement[bool]:
        """What comes after it, in SQL: later due, or due at the same time with less priority, or else by id."""
        columns = escalations.c
        is_next = sa.and_(columns.priority == self.priority, columns.id > self.id)
        is_less = sa.or_(columns.priority < self.priority, is_next)
        return sa.or_(columns.due_ms > self.due_ms, sa.and_(columns.due_ms == self.due_ms, is_less))


def page(
    connection: Connection, *, tenant: str, where: CaseFilter, after: Place | None, limit: int
) -> list[EscalationRecord]:
    """Up to `limit` cases, the soonest due first, then by priority."""
    query = sa.select(escalations).where(escalations.c.tenant == tenant, *where.conditions())
    if after is not None:
        query = query.where(after.condition())
    query = query.order_by(escalations.c.due_ms, escalations.c.priority.desc(), escalations.c.id).limit(limit)
    return [record_of(row) for row in connection.execute(query)]


def record_of(row: sa.Row[Any]) -> EscalationRecord:
    """A whole row as a record."""
    return EscalationRecord(
        id=row.id,
        tenant=row.tenant,
        item_id=row.item_id,
        run_id=row.run_id,
        attempt=row.attempt,
        profile=row.profile,
        reason=row.reason,
        tool=row.tool,
        group_key=row.group_key,
        status=EscalationStatus(row.status),
        packet=row.packet,
        occurrence_count=row.occurrence_count,
        came_back_after=row.came_back_after,
        priority=row.priority,
        holder=row.holder,
        lease_expires_ms=row.lease_expires_ms,
        fence=row.fence,
        version=row.version,
        resolution=row.resolution,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        due_ms=row.due_ms,
        expires_ms=row.expires_ms,
        group_id=row.group_id,
        fingerprint=row.fingerprint,
        on_expire=row.on_expire,
        profile_priority=row.profile_priority,
        burnt_percent=row.burnt_percent,
        claimed_ms=row.claimed_ms,
        decided_by=row.decided_by,
        decided_action=row.decided_action,
        decided_ms=row.decided_ms,
        apply_ms=row.apply_ms,
        apply_problem=row.apply_problem,
        reopen_count=row.reopen_count,
        reopens=row.reopens,
    )
