"""What happened to each case: one row and one event in the transaction of every change, never altered afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import Change
from gateway.store import events
from gateway.store.items import now_ms
from gateway.store.tables import escalation_log, escalations

_SILENT = frozenset({Change.REPEATED, Change.REGROUPED})
"""Changes that the audit tells and the event log does not."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of a case's audit."""

    at_ms: int
    what: Change
    actor: str
    from_status: str | None
    to_status: str
    version: int
    fence: int
    note: str | None
    detail: Mapping[str, Any] | None


def write(
    connection: Connection,
    escalation_id: str,
    what: Change,
    *,
    actor: str,
    before: str | None,
    note: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add one line, as the case is now; `before` is the status that it had."""
    columns = escalations.c
    row = connection.execute(
        sa.select(
            columns.tenant, columns.version, columns.fence, columns.item_id, columns.run_id, columns.reason, columns.tool,
            columns.status, columns.holder, columns.group_id,
        ).where(columns.id == escalation_id)
    ).one()  # fmt: skip
    at_ms = now_ms(connection)
    connection.execute(
        escalation_log.insert(),
        {
            "escalation_id": escalation_id,
            "at_ms": at_ms,
            "what": what.value,
            "actor": actor,
            "from_status": before,
            "to_status": row.status,
            "version": row.version,
            "fence": row.fence,
            "note": note,
            "detail": sa.null() if detail is None else dict(detail),
        },
    )
    if what in _SILENT:
        return
    events.append(
        connection,
        tenant=row.tenant,
        kind=f"escalation.{what.value}",
        resource=escalation_id,
        version=row.version,
        at_ms=at_ms,
        body={
            "item": row.item_id,
            "run": row.run_id,
            "reason": row.reason,
            "tool": row.tool,
            "status": row.status,
            "group": row.group_id,
            "actor": actor,
            **(detail or {}),
        },
    )


def all_of(connection: Connection, escalation_id: str) -> list[LogEntry]:
    """The audit of a case, oldest first."""
    rows = connection.execute(
        sa.select(escalation_log).where(escalation_log.c.escalation_id == escalation_id).order_by(escalation_log.c.id)
    )
    return [_entry(row) for row in rows]


def latest(connection: Connection, escalation_id: str, *, of: tuple[Change, ...]) -> LogEntry | None:
    """The newest line of one of these kinds."""
    row = connection.execute(
        sa.select(escalation_log)
        .where(
            escalation_log.c.escalation_id == escalation_id,
            escalation_log.c.what.in_([change.value for change in of]),
        )
        .order_by(escalation_log.c.id.desc())
        .limit(1)
    ).first()
    return None if row is None else _entry(row)


def _entry(row: sa.Row[Any]) -> LogEntry:
    return LogEntry(
        at_ms=row.at_ms,
        what=Change(row.what),
        actor=row.actor,
        from_status=row.from_status,
        to_status=row.to_status,
        version=row.version,
        fence=row.fence,
        note=row.note,
        detail=row.detail,
    )
