"""What time does to undecided cases: warnings before they are due, expiry, priorities that grow, and cases left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import Change, EscalationRecord
from gateway.item import Status
from gateway.store import escalation_log as audit
from gateway.store.engine import database_now_ms
from gateway.store.escalation_decisions import withdraw
from gateway.store.escalation_leases import SYSTEM
from gateway.store.escalation_rows import CLAIMED, OPEN, RESOLVED, UNDECIDED_VALUES, record_of
from gateway.store.tables import escalations, items

_RUNNING = (OPEN, CLAIMED)
"""Whose clock runs; that of a case which waits for its submitter stands still."""
_AWAITING = (Status.AWAITING_HUMAN.value, Status.AWAITING_SUBMITTER.value)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An undecided case, as far as the clock is concerned."""

    id: str
    profile: str
    is_of_run: bool
    group_id: str | None
    status: str
    due_ms: int
    priority: int
    profile_priority: int
    burnt_percent: int
    warned_percent: int


def waiting(connection: Connection, *, limit: int = 2000) -> list[Waiting]:
    """Undecided cases whose clock runs, the soonest to expire first."""
    columns = escalations.c
    rows = connection.execute(
        sa.select(
            columns.id, columns.profile, columns.run_id, columns.group_id, columns.status, columns.due_ms, columns.priority,
            columns.profile_priority, columns.burnt_percent, columns.warned_percent,
        )
        .where(columns.status.in_(_RUNNING))
        .order_by(columns.expires_ms)
        .limit(limit)
    )  # fmt: skip
    return [
        Waiting(
            id=row.id,
            profile=row.profile,
            is_of_run=row.run_id is not None,
            group_id=row.group_id,
            status=row.status,
            due_ms=row.due_ms,
            priority=row.priority,
            profile_priority=row.profile_priority,
            burnt_percent=row.burnt_percent,
            warned_percent=row.warned_percent,
        )
        for row in rows
    ]


def warn(connection: Connection, case: Waiting, *, percent: int) -> bool:
    """Say once that so much of the time to the due time has passed; False if it was said or the case decided meanwhile.

    The version stays: who is about to decide has seen the case as it is.
    """
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == case.id,
            escalations.c.status.in_(_RUNNING),
            escalations.c.warned_percent < percent,
        )
        .values(warned_percent=percent)
        .returning(escalations.c.status, escalations.c.holder)
    ).first()
    if changed is not None:
        detail = {"percent": percent, "due_ms": case.due_ms, "holder": changed.holder}
        audit.write(connection, case.id, Change.DUE_SOON, actor=SYSTEM, before=changed.status, detail=detail)
    return changed is not None


def set_priorities(connection: Connection, priorities: Mapping[str, int]) -> None:
    """Write how urgent cases are; no version is raised."""
    if priorities:
        connection.execute(
            escalations.update()
            .where(escalations.c.id == sa.bindparam("case"))
            .values(priority=sa.bindparam("urgency")),
            [{"case": case, "urgency": priority} for case, priority in priorities.items()],
        )


def expired(connection: Connection, *, limit: int = 100) -> list[EscalationRecord]:
    """Undecided cases whose time is over, the longest ago first."""
    rows = connection.execute(
        sa.select(escalations)
        .where(escalations.c.status.in_(_RUNNING), escalations.c.expires_ms <= database_now_ms())
        .order_by(escalations.c.expires_ms)
        .limit(limit)
    )
    return [record_of(row) for row in rows]


def left_behind(connection: Connection, *, limit: int = 100) -> list[str]:
    """Cases on items that no longer wait for a decision: they ended, or went on, elsewhere."""
    columns = escalations.c
    rows = connection.execute(
        sa.select(columns.id)
        .join(items, items.c.id == columns.item_id)
        .where(columns.run_id.is_(None), _is_undecided(), items.c.status.not_in(_AWAITING))
        .limit(limit)
    )
    return [row.id for row in rows]


def withdraw_left_behind(connection: Connection, case_id: str) -> list[str]:
    """Withdraw such a case, if it still is one; gives its id."""
    is_elsewhere = sa.exists().where(
        items.c.id == escalations.c.item_id, items.c.status.not_in(_AWAITING), escalations.c.run_id.is_(None)
    )
    where = sa.and_(escalations.c.id == case_id, is_elsewhere)
    return withdraw(connection, where, actor=SYSTEM, why="the item went on or ended elsewhere")


def _is_undecided() -> sa.ColumnElement[Any]:
    pending = sa.and_(escalations.c.status == RESOLVED, escalations.c.apply_ms.is_not(None))
    return sa.or_(escalations.c.status.in_(UNDECIDED_VALUES), pending)
