"""What was decided on a case: flipped once by the first valid writer, taken back, applied, reopened or expired."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import TIMEOUT_ACTOR, Change, EscalationLease, EscalationRecord, EscalationStatus
from gateway.store import escalation_log as audit
from gateway.store.engine import database_now_ms
from gateway.store.escalation_rows import CLAIMED, OPEN, RESOLVED, UNDECIDED_VALUES, is_held, record_of
from gateway.store.tables import escalations

_UNDECIDE: dict[str, Any] = {
    "resolution": sa.null(),
    "resolve_key": None,
    "resolve_fingerprint": None,
    "decided_by": None,
    "decided_action": None,
    "decided_ms": None,
    "apply_ms": None,
}


def _next() -> dict[str, Any]:
    return {"version": escalations.c.version + 1, "updated_ms": database_now_ms()}


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
    undo_ms: int = 0,
) -> bool:
    """Flip the case under its lease and version; the caller writes the effect in the same transaction.

    `resolved` where the effect waits: for the caller of a guard's run who fetches it, or for `undo_ms` to pass.
    """
    by = str(resolution["by"])
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == escalation_id,
            escalations.c.lease_token == token,
            is_held(),
            escalations.c.version == version,
        )
        .values(
            status=status.value,
            resolution=dict(resolution),
            resolve_key=key,
            resolve_fingerprint=fingerprint,
            decided_by=by,
            decided_action=str(resolution["action"]),
            decided_ms=database_now_ms(),
            apply_ms=database_now_ms() + undo_ms if undo_ms else None,
            apply_problem=sa.null(),
            lease_token=None,
            lease_expires_ms=None,
            **_next(),
        )
    )
    if changed.rowcount != 1:
        return False
    if status is EscalationStatus.WAITING_SUBMITTER:  # a question, which is written down as one with its effect
        return True
    detail = {"action": resolution["action"], **({"undo_ms": undo_ms} if undo_ms else {})}
    audit.write(
        connection,
        escalation_id,
        Change.RESOLVED,
        actor=by,
        before=CLAIMED,
        note=resolution.get("note"),
        detail=detail,
    )
    return True


def resolved_by(connection: Connection, escalation_id: str) -> tuple[str | None, str | None]:
    """The idempotency key and fingerprint of the decision that won."""
    row = connection.execute(
        sa.select(escalations.c.resolve_key, escalations.c.resolve_fingerprint).where(escalations.c.id == escalation_id)
    ).one()
    return row.resolve_key, row.resolve_fingerprint


def undo(
    connection: Connection, escalation_id: str, *, tenant: str, person: str, lease_ms: int
) -> EscalationLease | None:
    """Take back a decision that has not taken effect, into the hands of `person`; None if it is too late."""
    token = secrets.token_urlsafe(24)
    row = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == escalation_id,
            escalations.c.tenant == tenant,
            escalations.c.status == RESOLVED,
            escalations.c.apply_ms.is_not(None),
        )
        .values(
            **_UNDECIDE,
            status=CLAIMED,
            holder=person,
            lease_token=token,
            lease_expires_ms=database_now_ms() + lease_ms,
            fence=escalations.c.fence + 1,
            **_next(),
        )
        .returning(escalations.c.fence, escalations.c.lease_expires_ms)
    ).first()
    if row is None:
        return None
    audit.write(connection, escalation_id, Change.UNDONE, actor=person, before=RESOLVED, detail={"holder": person})
    return EscalationLease(token, row.fence, person, row.lease_expires_ms)


def due_to_apply(connection: Connection, *, limit: int = 100) -> list[EscalationRecord]:
    """Decisions whose time to be taken back is over, the longest ago first."""
    rows = connection.execute(
        sa.select(escalations)
        .where(
            escalations.c.status == RESOLVED,
            escalations.c.apply_ms.is_not(None),
            escalations.c.apply_ms <= database_now_ms(),
        )
        .order_by(escalations.c.apply_ms)
        .limit(limit)
    )
    return [record_of(row) for row in rows]


def begin_effect(connection: Connection, record: EscalationRecord, *, status: EscalationStatus) -> bool:
    """The time to take a decision back is over; False if it was taken back, withdrawn or applied meanwhile."""
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == record.id,
            escalations.c.status == RESOLVED,
            escalations.c.version == record.version,
            escalations.c.apply_ms.is_not(None),
        )
        .values(status=status.value, apply_ms=None, **_next())
    )
    if changed.rowcount == 1 and status is EscalationStatus.APPLIED:
        audit.write(connection, record.id, Change.APPLIED, actor=record.decided_by or "", before=RESOLVED)
    return changed.rowcount == 1


def mark_applied(connection: Connection, escalation_id: str) -> None:
    """The decision has taken effect."""
    row = connection.execute(
        escalations.update()
        .where(escalations.c.id == escalation_id, escalations.c.status == RESOLVED, escalations.c.apply_ms.is_(None))
        .values(status=EscalationStatus.APPLIED.value, **_next())
        .returning(escalations.c.decided_by)
    ).first()
    if row is not None:
        audit.write(connection, escalation_id, Change.APPLIED, actor=row.decided_by or "", before=RESOLVED)


def reject_effect(connection: Connection, record: EscalationRecord, *, problem: Mapping[str, Any]) -> bool:
    """The decision could not take effect: the case is open again and says why."""
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == record.id,
            escalations.c.status == RESOLVED,
            escalations.c.version == record.version,
        )
        .values(**_UNDECIDE, status=OPEN, holder=None, apply_problem=dict(problem), **_next())
    )
    if changed.rowcount == 1:
        detail = {"action": record.decided_action, "code": problem["code"], "why": problem["detail"]}
        audit.write(
            connection, record.id, Change.APPLY_FAILED, actor=record.decided_by or "", before=RESOLVED, detail=detail
        )
    return changed.rowcount == 1


def expire(connection: Connection, record: EscalationRecord, *, resolution: Mapping[str, Any]) -> bool:
    """Nobody answered in time; the caller writes what the policy wants in the same transaction."""
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == record.id,
            escalations.c.status.in_([OPEN, CLAIMED]),
            escalations.c.expires_ms <= database_now_ms(),
        )
        .values(
            status=EscalationStatus.EXPIRED.value,
            resolution=dict(resolution),
            decided_by=TIMEOUT_ACTOR,
            decided_action=str(resolution["action"]),
            decided_ms=database_now_ms(),
            lease_token=None,
            lease_expires_ms=None,
            **_next(),
        )
    )
    if changed.rowcount == 1:
        detail = {"policy": resolution["action"], "holder": record.holder}
        audit.write(
            connection, record.id, Change.EXPIRED, actor=TIMEOUT_ACTOR, before=record.status.value, detail=detail
        )
    return changed.rowcount == 1


def reopen(
    connection: Connection, record: EscalationRecord, *, actor: str, reason: str, due_ms: int, expires_ms: int
) -> bool:
    """The same case, open again, with its whole time before it; False if it has changed since it was read."""
    changed = connection.execute(
        escalations.update()
        .where(escalations.c.id == record.id, escalations.c.version == record.version)
        .values(
            **_UNDECIDE,
            status=OPEN,
            holder=None,
            lease_token=None,
            lease_expires_ms=None,
            warned_percent=0,
            due_ms=due_ms,
            expires_ms=expires_ms,
            reopen_count=escalations.c.reopen_count + 1,
            **_next(),
        )
    )
    if changed.rowcount == 1:
        detail = {"decided": record.decided_action, "decided_by": record.decided_by}
        audit.write(
            connection, record.id, Change.REOPENED, actor=actor, before=record.status.value, note=reason, detail=detail
        )
    return changed.rowcount == 1


def withdraw(
    connection: Connection, where: sa.ColumnElement[bool], *, actor: str, why: str, decided: bool = False
) -> list[str]:
    """These cases need no decision any more: those undecided, and decisions that can still be taken back.

    With `decided` also decisions that wait to be fetched by the caller of a run.
    """
    is_waiting = escalations.c.status == RESOLVED
    if not decided:
        is_waiting = sa.and_(is_waiting, escalations.c.apply_ms.is_not(None))
    where = sa.and_(where, sa.or_(escalations.c.status.in_(UNDECIDED_VALUES), is_waiting))
    query = sa.select(escalations.c.id, escalations.c.status, escalations.c.holder).where(where)
    if connection.dialect.name == "postgresql":
        query = query.with_for_update()
    rows = connection.execute(query).all()
    for row in rows:
        connection.execute(
            escalations.update()
            .where(escalations.c.id == row.id)
            .values(
                status=EscalationStatus.WITHDRAWN.value,
                lease_token=None,
                lease_expires_ms=None,
                apply_ms=None,
                **_next(),
            )
        )
        detail = {"holder": row.holder, "why": why}
        audit.write(connection, row.id, Change.WITHDRAWN, actor=actor, before=row.status, detail=detail)
    return [row.id for row in rows]
