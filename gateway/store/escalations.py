"""Rows of the human queue: raised once per incident, leased, fenced, decided by the first valid writer."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import UNDECIDED, EscalationLease, EscalationRecord, EscalationStatus
from gateway.ids import new_id
from gateway.store import events
from gateway.store.engine import database_now_ms
from gateway.store.items import now_ms
from gateway.store.tables import escalations

_UNDECIDED = [status.value for status in sorted(UNDECIDED)]
_CLAIMABLE = [EscalationStatus.OPEN.value, EscalationStatus.CLAIMED.value]


@dataclass(frozen=True, slots=True)
class NewEscalation:
    """What is known of a case when it is raised."""

    tenant: str
    item_id: str | None
    attempt: int
    profile: str
    reason: str
    tool: str | None
    packet: Mapping[str, Any]
    due_after_ms: int
    expires_after_ms: int
    run_id: str | None = None
    """The run of somebody else's agent that stands still; then the item, if any, only tells what it is about."""


_NO_PROGRESS = frozenset({"repeated_tool_calls", "repeated_error"})
"""A tool that gets nowhere: which detector counts to its end first depends on digits of the results."""


def group_key(*, profile: str, tool: str | None, reason: str) -> str:
    """What makes cases of several items one kind of incident."""
    kind = "no_progress" if reason in _NO_PROGRESS else reason
    return hashlib.sha256(f"{profile}\x00{tool or ''}\x00{kind}".encode()).hexdigest()[:32]


def raise_case(connection: Connection, new: NewEscalation) -> str:
    """The case for this incident: a new row, or the open one of the same (item or run, group), counted once more."""
    at_ms = now_ms(connection)
    group = group_key(profile=new.profile, tool=new.tool, reason=new.reason)
    same = (
        escalations.c.run_id.is_(None) if new.run_id is None else escalations.c.run_id == new.run_id,
        escalations.c.item_id.is_(None) if new.item_id is None else escalations.c.item_id == new.item_id,
        escalations.c.group_key == group,
    )
    row = connection.execute(
        escalations.update()
        .where(*same, escalations.c.status.in_(_UNDECIDED))
        .values(
            occurrence_count=escalations.c.occurrence_count + 1,
            reason=new.reason,
            packet=dict(new.packet),
            attempt=new.attempt,
            version=escalations.c.version + 1,
            updated_ms=at_ms,
        )
        .returning(escalations.c.id)
    ).first()
    if row is not None:
        return str(row.id)
    earlier = connection.execute(
        sa.select(escalations.c.resolution).where(*same).order_by(escalations.c.created_ms.desc()).limit(1)
    ).first()
    escalation_id = new_id("esc", now_ms=at_ms)
    connection.execute(
        escalations.insert(),
        {
            "id": escalation_id,
            "tenant": new.tenant,
            "item_id": new.item_id,
            "run_id": new.run_id,
            "attempt": new.attempt,
            "profile": new.profile,
            "reason": new.reason,
            "tool": new.tool,
            "group_key": group,
            "status": EscalationStatus.OPEN.value,
            "packet": dict(new.packet),
            "came_back_after": None if earlier is None else (earlier.resolution or {}).get("action"),
            "created_ms": at_ms,
            "updated_ms": at_ms,
            "due_ms": at_ms + new.due_after_ms,
            "expires_ms": at_ms + new.expires_after_ms,
        },
    )
    _event(connection, escalation_id, "escalation.opened")
    return escalation_id


def get(connection: Connection, escalation_id: str, *, tenant: str) -> EscalationRecord | None:
    """The case; None if there is none of that id in this tenant."""
    row = connection.execute(
        sa.select(escalations).where(escalations.c.id == escalation_id, escalations.c.tenant == tenant)
    ).first()
    return None if row is None else _record(row)


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

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """The filter in SQL."""
        found: list[sa.ColumnElement[bool]] = []
        for column, value in (
            (escalations.c.reason, self.reason),
            (escalations.c.tool, self.tool),
            (escalations.c.profile, self.profile),
            (escalations.c.group_key, self.group),
            (escalations.c.priority, self.priority),
            (escalations.c.holder, self.assignee),
            (escalations.c.item_id, self.item_id),
        ):
            if value is not None:
                found.append(column == value)
        if self.status is not None:
            found.append(escalations.c.status.in_(self.status))
        if self.unassigned:
            found.append(escalations.c.holder.is_(None))
        if self.due_before_ms is not None:
            found.append(escalations.c.due_ms < self.due_before_ms)
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
    return [_record(row) for row in connection.execute(query)]


def claim(
    connection: Connection, escalation_id: str, *, tenant: str, holder: str, lease_ms: int
) -> EscalationLease | None:
    """Take one case, or renew one's own lease on it; None while somebody else holds it or it is decided."""
    is_mine = escalations.c.holder == holder
    row = connection.execute(
        sa.select(escalations.c.lease_token).where(
            escalations.c.id == escalation_id,
            escalations.c.status == EscalationStatus.CLAIMED.value,
            is_mine,
            escalations.c.lease_expires_ms > database_now_ms(),
        )
    ).first()
    if row is not None:
        return _renew(connection, escalation_id, tenant=tenant, token=row.lease_token, lease_ms=lease_ms)
    return _claim_where(connection, escalations.c.id == escalation_id, tenant=tenant, holder=holder, lease_ms=lease_ms)


def claim_next(
    connection: Connection, *, tenant: str, where: CaseFilter, holder: str, lease_ms: int
) -> tuple[str, EscalationLease] | None:
    """Take the soonest due case that nobody holds; None when there is none for this filter."""
    first = (
        sa.select(escalations.c.id)
        .where(escalations.c.tenant == tenant, _is_free(), *where.conditions())
        .order_by(escalations.c.due_ms, escalations.c.priority.desc(), escalations.c.id)
        .limit(1)
    )
    if connection.dialect.name == "postgresql":
        first = first.with_for_update(skip_locked=True)
    row = connection.execute(first).first()
    if row is None:
        return None
    lease = _claim_where(connection, escalations.c.id == row.id, tenant=tenant, holder=holder, lease_ms=lease_ms)
    return None if lease is None else (row.id, lease)


def _is_free() -> sa.ColumnElement[bool]:
    return sa.or_(
        escalations.c.status == EscalationStatus.OPEN.value,
        sa.and_(
            escalations.c.status == EscalationStatus.CLAIMED.value,
            escalations.c.lease_expires_ms <= database_now_ms(),
        ),
    )


def _claim_where(
    connection: Connection, where: sa.ColumnElement[bool], *, tenant: str, holder: str, lease_ms: int
) -> EscalationLease | None:
    token = secrets.token_urlsafe(24)
    row = connection.execute(
        escalations.update()
        .where(where, escalations.c.tenant == tenant, _is_free())
        .values(
            status=EscalationStatus.CLAIMED.value,
            holder=holder,
            lease_token=token,
            lease_expires_ms=database_now_ms() + lease_ms,
            fence=escalations.c.fence + 1,
            version=escalations.c.version + 1,
            updated_ms=database_now_ms(),
        )
        .returning(escalations.c.id, escalations.c.fence, escalations.c.lease_expires_ms)
    ).first()
    if row is None:
        return None
    _event(connection, row.id, "escalation.claimed")
    return EscalationLease(token, row.fence, holder, row.lease_expires_ms)


def _renew(
    connection: Connection, escalation_id: str, *, tenant: str, token: str, lease_ms: int
) -> EscalationLease | None:
    row = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == escalation_id,
            escalations.c.tenant == tenant,
            escalations.c.status == EscalationStatus.CLAIMED.value,
            escalations.c.lease_token == token,
            escalations.c.lease_expires_ms > database_now_ms(),
        )
        .values(lease_expires_ms=database_now_ms() + lease_ms)
        .returning(escalations.c.fence, escalations.c.holder, escalations.c.lease_expires_ms)
    ).first()
    return None if row is None else EscalationLease(token, row.fence, row.holder, row.lease_expires_ms)


def heartbeat(
    connection: Connection, escalation_id: str, *, tenant: str, token: str, lease_ms: int
) -> EscalationLease | None:
    """Renew a lease by its token; None if it was lost."""
    return _renew(connection, escalation_id, tenant=tenant, token=token, lease_ms=lease_ms)


def release(connection: Connection, escalation_id: str, *, tenant: str, token: str) -> bool:
    """Give a case back; False if the lease was lost before."""
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == escalation_id,
            escalations.c.tenant == tenant,
            escalations.c.status == EscalationStatus.CLAIMED.value,
            escalations.c.lease_token == token,
        )
        .values(
            status=EscalationStatus.OPEN.value,
            holder=None,
            lease_token=None,
            lease_expires_ms=None,
            version=escalations.c.version + 1,
            updated_ms=database_now_ms(),
        )
    )
    if changed.rowcount == 1:
        _event(connection, escalation_id, "escalation.released")
    return changed.rowcount == 1


def holds(connection: Connection, escalation_id: str, *, token: str) -> bool:
    """Whether this token is a live lease on the case."""
    return (
        connection.execute(
            sa.select(escalations.c.id).where(
                escalations.c.id == escalation_id,
                escalations.c.status == EscalationStatus.CLAIMED.value,
                escalations.c.lease_token == token,
                escalations.c.lease_expires_ms > database_now_ms(),
            )
        ).first()
        is not None
    )


def resolve(
    connection: Connection,
    escalation_id: str,
    *,
    token: str,
    version: int,
    resolution: Mapping[str, Any],
    key: str | None,
    fingerprint: str,
    status: EscalationStatus = EscalationStatus.APPLIED,
) -> bool:
    """Flip the case to `applied` under its lease and version; the caller writes the effect in the same transaction.

    `resolved` where the effect waits for somebody else: the caller of a guard's run fetches it.
    """
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == escalation_id,
            escalations.c.status == EscalationStatus.CLAIMED.value,
            escalations.c.lease_token == token,
            escalations.c.lease_expires_ms > database_now_ms(),
            escalations.c.version == version,
        )
        .values(
            status=status.value,
            resolution=dict(resolution),
            resolve_key=key,
            resolve_fingerprint=fingerprint,
            lease_token=None,
            lease_expires_ms=None,
            version=escalations.c.version + 1,
            updated_ms=database_now_ms(),
        )
    )
    if changed.rowcount == 1:
        _event(connection, escalation_id, "escalation.resolved")
    return changed.rowcount == 1


def resolved_by(connection: Connection, escalation_id: str) -> tuple[str | None, str | None]:
    """The idempotency key and fingerprint of the decision that won."""
    row = connection.execute(
        sa.select(escalations.c.resolve_key, escalations.c.resolve_fingerprint).where(escalations.c.id == escalation_id)
    ).one()
    return row.resolve_key, row.resolve_fingerprint


def mark_applied(connection: Connection, escalation_id: str) -> None:
    """The decision has taken effect."""
    changed = connection.execute(
        escalations.update()
        .where(escalations.c.id == escalation_id, escalations.c.status == EscalationStatus.RESOLVED.value)
        .values(status=EscalationStatus.APPLIED.value, version=escalations.c.version + 1, updated_ms=database_now_ms())
    )
    if changed.rowcount == 1:
        _event(connection, escalation_id, "escalation.applied")


def withdraw_of_item(connection: Connection, item_id: str) -> None:
    """The item ended elsewhere: its open cases need no decision any more."""
    _withdraw(connection, escalations.c.item_id == item_id)


def withdraw_of_run(connection: Connection, run_id: str) -> None:
    """The run ended: its open cases need no decision any more."""
    _withdraw(connection, escalations.c.run_id == run_id)


def _withdraw(connection: Connection, where: sa.ColumnElement[bool]) -> None:
    rows = connection.execute(
        escalations.update()
        .where(where, escalations.c.status.in_(_UNDECIDED))
        .values(
            status=EscalationStatus.WITHDRAWN.value,
            lease_token=None,
            lease_expires_ms=None,
            version=escalations.c.version + 1,
            updated_ms=database_now_ms(),
        )
        .returning(escalations.c.id)
    ).all()
    for row in rows:
        _event(connection, row.id, "escalation.withdrawn")


@dataclass(frozen=True, slots=True)
class QueueState:
    """Why nothing was handed out."""

    open: int
    claimed: int
    matching: int
    next_expiry_ms: int | None


def queue_state(connection: Connection, *, tenant: str, where: CaseFilter) -> QueueState:
    """How many cases are free, held, and free but hidden by the filter."""
    free = connection.execute(
        sa.select(sa.func.count()).select_from(escalations).where(escalations.c.tenant == tenant, _is_free())
    ).scalar_one()
    matching = connection.execute(
        sa.select(sa.func.count())
        .select_from(escalations)
        .where(escalations.c.tenant == tenant, _is_free(), *where.conditions())
    ).scalar_one()
    held = connection.execute(
        sa.select(sa.func.count(), sa.func.min(escalations.c.lease_expires_ms)).where(
            escalations.c.tenant == tenant,
            escalations.c.status == EscalationStatus.CLAIMED.value,
            escalations.c.lease_expires_ms > database_now_ms(),
        )
    ).one()
    return QueueState(int(free), int(held[0]), int(matching), held[1])


def _event(connection: Connection, escalation_id: str, kind: str) -> None:
    row = connection.execute(
        sa.select(
            escalations.c.tenant,
            escalations.c.version,
            escalations.c.item_id,
            escalations.c.run_id,
            escalations.c.reason,
            escalations.c.tool,
            escalations.c.status,
        ).where(escalations.c.id == escalation_id)
    ).one()
    events.append(
        connection,
        tenant=row.tenant,
        kind=kind,
        resource=escalation_id,
        version=row.version,
        at_ms=now_ms(connection),
        body={
            "item": row.item_id,
            "run": row.run_id,
            "reason": row.reason,
            "tool": row.tool,
            "status": row.status,
        },
    )


def _record(row: sa.Row[Any]) -> EscalationRecord:
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
    )
