"""Who works on a case: one holder at a time, by a lease with a number that only grows."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import Change, EscalationLease
from gateway.store import escalation_log as audit
from gateway.store.engine import database_now_ms
from gateway.store.escalation_rows import CLAIMED, OPEN, CaseFilter, is_free, is_held
from gateway.store.tables import escalations, inquiries

_BY_DUE = (escalations.c.due_ms, escalations.c.priority.desc(), escalations.c.id)
_FREED: dict[str, Any] = {"status": OPEN, "holder": None, "lease_token": None, "lease_expires_ms": None}
SYSTEM = "system:queue"


def claim(
    connection: Connection, escalation_id: str, *, tenant: str, holder: str, lease_ms: int
) -> EscalationLease | None:
    """Take one case, or renew one's own lease on it; None while somebody else holds it or it is decided."""
    row = connection.execute(
        sa.select(escalations.c.lease_token).where(
            escalations.c.id == escalation_id, escalations.c.holder == holder, is_held()
        )
    ).first()
    if row is not None:
        return heartbeat(
            connection, escalation_id, tenant=tenant, token=row.lease_token, holder=holder, lease_ms=lease_ms
        )
    return _take(connection, escalation_id, tenant=tenant, holder=holder, lease_ms=lease_ms)


def claim_next(
    connection: Connection, *, tenant: str, where: CaseFilter, holder: str, lease_ms: int, waits: bool = False
) -> tuple[str, EscalationLease] | None:
    """Take the soonest due case that nobody holds; None when there is none for this filter.

    One whose submitter `holder` had asked something comes first: they know it already. A case on which somebody is
    writing just now is passed over; with `waits` it is waited for, so that None means none.
    """
    asked = sa.select(inquiries.c.escalation_id).where(
        inquiries.c.tenant == tenant, inquiries.c.asked_by == holder, inquiries.c.ended.is_not(None)
    )
    row = None
    for own in ((escalations.c.id.in_(asked),), ()):
        first = (
            sa.select(escalations.c.id)
            .where(escalations.c.tenant == tenant, is_free(), *where.conditions(), *own)
            .order_by(*_BY_DUE)
            .limit(1)
        )
        if connection.dialect.name == "postgresql":
            first = first.with_for_update(skip_locked=not waits)
        row = connection.execute(first).first()
        if row is not None:
            break
    if row is None:
        return None
    lease = _take(connection, row.id, tenant=tenant, holder=holder, lease_ms=lease_ms)
    return None if lease is None else (row.id, lease)


def _take(
    connection: Connection, escalation_id: str, *, tenant: str, holder: str, lease_ms: int
) -> EscalationLease | None:
    before = _status_and_holder(connection, escalation_id)
    token = secrets.token_urlsafe(24)
    row = connection.execute(
        escalations.update()
        .where(escalations.c.id == escalation_id, escalations.c.tenant == tenant, is_free())
        .values(
            **_held_by(holder, token, lease_ms),
            claimed_ms=sa.func.coalesce(escalations.c.claimed_ms, database_now_ms()),
        )
        .returning(escalations.c.fence, escalations.c.lease_expires_ms)
    ).first()
    if row is None or before is None:
        return None
    detail = {"holder": holder} if before.holder is None else {"holder": holder, "previous_holder": before.holder}
    audit.write(connection, escalation_id, Change.CLAIMED, actor=holder, before=before.status, detail=detail)
    return EscalationLease(token, row.fence, holder, row.lease_expires_ms)


def _held_by(holder: str, token: str, lease_ms: int) -> dict[str, Any]:
    return {
        "status": CLAIMED,
        "holder": holder,
        "lease_token": token,
        "lease_expires_ms": database_now_ms() + lease_ms,
        "fence": escalations.c.fence + 1,
        "version": escalations.c.version + 1,
        "updated_ms": database_now_ms(),
    }


def heartbeat(
    connection: Connection, escalation_id: str, *, tenant: str, token: str, holder: str, lease_ms: int
) -> EscalationLease | None:
    """Renew one's own lease by its token; None if it was lost, or is another's."""
    row = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == escalation_id,
            escalations.c.tenant == tenant,
            escalations.c.lease_token == token,
            escalations.c.holder == holder,
            is_held(),
        )
        .values(lease_expires_ms=database_now_ms() + lease_ms)
        .returning(escalations.c.fence, escalations.c.holder, escalations.c.lease_expires_ms)
    ).first()
    return None if row is None else EscalationLease(token, row.fence, row.holder, row.lease_expires_ms)


def release(
    connection: Connection, escalation_id: str, *, tenant: str, token: str, holder: str, note: str | None = None
) -> bool:
    """Give a case back; False if the lease was lost before, or is another's."""
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == escalation_id,
            escalations.c.tenant == tenant,
            escalations.c.status == CLAIMED,
            escalations.c.lease_token == token,
            escalations.c.holder == holder,
        )
        .values(**_FREED, version=escalations.c.version + 1, updated_ms=database_now_ms())
    )
    if changed.rowcount == 1:
        audit.write(connection, escalation_id, Change.RELEASED, actor=holder, before=CLAIMED, note=note)
    return changed.rowcount == 1


def assign(
    connection: Connection, escalation_id: str, *, tenant: str, to: str, actor: str, lease_ms: int, note: str | None
) -> EscalationLease | None:
    """Give a case that waits for a reviewer to a person, whoever holds it; None if it waits for none any more."""
    before = _status_and_holder(connection, escalation_id)
    token = secrets.token_urlsafe(24)
    row = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == escalation_id,
            escalations.c.tenant == tenant,
            escalations.c.status.in_([OPEN, CLAIMED]),
        )
        .values(
            **_held_by(to, token, lease_ms),
            claimed_ms=sa.func.coalesce(escalations.c.claimed_ms, database_now_ms()),
        )
        .returning(escalations.c.fence, escalations.c.lease_expires_ms)
    ).first()
    if row is None or before is None:
        return None
    detail = {"holder": to, "previous_holder": before.holder}
    audit.write(connection, escalation_id, Change.ASSIGNED, actor=actor, before=before.status, note=note, detail=detail)
    return EscalationLease(token, row.fence, to, row.lease_expires_ms)


def holds(connection: Connection, escalation_id: str, *, token: str, holder: str) -> bool:
    """Whether this token is the holder's live lease on the case."""
    query = sa.select(escalations.c.id).where(
        escalations.c.id == escalation_id,
        escalations.c.lease_token == token,
        escalations.c.holder == holder,
        is_held(),
    )
    return connection.execute(query).first() is not None


def free_all_of(connection: Connection, *, tenant: str, holder: str, actor: str, why: str) -> list[str]:
    """Give back all that a person holds, such as when their role ends; gives the ids of the cases."""
    where = sa.and_(escalations.c.tenant == tenant, escalations.c.holder == holder)
    return _free(connection, where, Change.RELEASED, actor=actor, detail={"previous_holder": holder, "why": why})


def lapsed(connection: Connection, *, limit: int = 200) -> list[str]:
    """Cases whose lease has run out."""
    rows = connection.execute(
        sa.select(escalations.c.id)
        .where(escalations.c.status == CLAIMED, escalations.c.lease_expires_ms <= database_now_ms())
        .limit(limit)
    )
    return [row.id for row in rows]


def free_lapsed(connection: Connection, case_id: str) -> list[str]:
    """Give such a case back, with a line in its audit; gives its id, or nothing if it was taken meanwhile."""
    before = _status_and_holder(connection, case_id)
    where = sa.and_(escalations.c.id == case_id, escalations.c.lease_expires_ms <= database_now_ms())
    detail = {"previous_holder": None if before is None else before.holder}
    return _free(connection, where, Change.LEASE_EXPIRED, actor=SYSTEM, detail=detail)


def _free(
    connection: Connection, where: sa.ColumnElement[bool], what: Change, *, actor: str, detail: dict[str, Any]
) -> list[str]:
    rows = connection.execute(
        escalations.update()
        .where(where, escalations.c.status == CLAIMED)
        .values(**_FREED, version=escalations.c.version + 1, updated_ms=database_now_ms())
        .returning(escalations.c.id)
    ).all()
    for row in rows:
        audit.write(connection, row.id, what, actor=actor, before=CLAIMED, detail=detail)
    return [row.id for row in rows]


@dataclass(frozen=True, slots=True)
class QueueState:
    """Why nothing was handed out."""

    open: int
    claimed: int
    matching: int
    next_expiry_ms: int | None


def queue_state(connection: Connection, *, tenant: str, where: CaseFilter) -> QueueState:
    """How many cases are free, held, and free but hidden by the filter: in one statement, so that they fit together."""
    count = sa.func.count
    row = connection.execute(
        sa.select(
            count().filter(is_free()).label("free"),
            count().filter(is_held()).label("held"),
            count().filter(sa.and_(is_free(), *where.conditions())).label("matching"),
            sa.func.min(escalations.c.lease_expires_ms).filter(is_held()).label("next_expiry_ms"),
        ).where(escalations.c.tenant == tenant, escalations.c.status.in_([OPEN, CLAIMED]))
    ).one()
    return QueueState(int(row.free), int(row.held), int(row.matching), row.next_expiry_ms)


def _status_and_holder(connection: Connection, escalation_id: str) -> sa.Row[str, str | None] | None:
    query = sa.select(escalations.c.status, escalations.c.holder).where(escalations.c.id == escalation_id)
    if connection.dialect.name == "postgresql":
        query = query.with_for_update()
    return connection.execute(query).first()
