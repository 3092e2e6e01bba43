"""What a reviewer sees beside a case: its neighbours in the queue, and the others of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import EscalationRecord
from gateway.store.escalation_rows import UNDECIDED_VALUES, is_free, record_of
from gateway.store.tables import escalations


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The cases before and after one, of those that can be taken, in the order of the queue."""

    previous: str | None
    next: str | None


def neighbours(connection: Connection, record: EscalationRecord) -> Neighbours:
    """Around a case; after the last one comes the first."""
    columns = escalations.c
    here = (record.due_ms, -record.priority, record.id)
    rows = connection.execute(
        sa.select(columns.id, columns.due_ms, columns.priority)
        .where(columns.tenant == record.tenant, is_free(), columns.id != record.id)
        .order_by(columns.due_ms, columns.priority.desc(), columns.id)
        .limit(500)
    ).all()
    before = [row.id for row in rows if (row.due_ms, -row.priority, row.id) < here]
    after = [row.id for row in rows if (row.due_ms, -row.priority, row.id) > here]
    return Neighbours(
        previous=before[-1] if before else None,
        next=after[0] if after else before[0] if before else None,
    )


def open_in_group(connection: Connection, *, tenant: str, group: str, most: int = 200) -> Sequence[EscalationRecord]:
    """The undecided cases of a group, the soonest due first."""
    rows = connection.execute(
        sa.select(escalations)
        .where(
            escalations.c.tenant == tenant,
            escalations.c.group_id == group,
            escalations.c.status.in_(UNDECIDED_VALUES),
        )
        .order_by(escalations.c.due_ms, escalations.c.id)
        .limit(most)
    )
    return [record_of(row) for row in rows]
