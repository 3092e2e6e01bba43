"""Questions to submitters: who asked, until when, and what came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.ids import new_id
from gateway.store.engine import database_now_ms
from gateway.store.tables import inquiries

ANSWERED, TIMED_OUT, WITHDRAWN = "answered", "timed_out", "withdrawn"


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One question. `ended` is None while it waits."""

    id: str
    tenant: str
    escalation_id: str
    item_id: str
    question: str
    asked_by: str
    asked_ms: int
    until_ms: int
    ended: str | None
    ended_ms: int | None
    answer: Mapping[str, Any] | None


def insert(
    connection: Connection,
    *,
    tenant: str,
    escalation_id: str,
    item_id: str,
    question: str,
    asked_by: str,
    asked_ms: int,
    until_ms: int,
) -> str:
    """Write a question; gives its id."""
    inquiry_id = new_id("inq", now_ms=asked_ms)
    connection.execute(
        inquiries.insert(),
        {
            "id": inquiry_id,
            "tenant": tenant,
            "escalation_id": escalation_id,
            "item_id": item_id,
            "question": question,
            "asked_by": asked_by,
            "asked_ms": asked_ms,
            "until_ms": until_ms,
        },
    )
    return inquiry_id


def open_of_item(connection: Connection, item_id: str) -> Inquiry | None:
    """The question that the item's submitter has not answered yet."""
    row = connection.execute(
        sa.select(inquiries)
        .where(inquiries.c.item_id == item_id, inquiries.c.ended.is_(None))
        .order_by(inquiries.c.asked_ms.desc())
        .limit(1)
    ).first()
    return None if row is None else _inquiry(row)


def of_escalation(connection: Connection, escalation_id: str) -> list[Inquiry]:
    """All questions of a case, oldest first."""
    rows = connection.execute(
        sa.select(inquiries).where(inquiries.c.escalation_id == escalation_id).order_by(inquiries.c.asked_ms)
    )
    return [_inquiry(row) for row in rows]


def of_item(connection: Connection, item_id: str) -> list[Inquiry]:
    """All questions about an item, oldest first."""
    rows = connection.execute(sa.select(inquiries).where(inquiries.c.item_id == item_id).order_by(inquiries.c.asked_ms))
    return [_inquiry(row) for row in rows]


def overdue(connection: Connection, *, limit: int = 100) -> list[Inquiry]:
    """Questions whose time is over."""
    rows = connection.execute(
        sa.select(inquiries)
        .where(inquiries.c.ended.is_(None), inquiries.c.until_ms <= database_now_ms())
        .order_by(inquiries.c.until_ms)
        .limit(limit)
    )
    return [_inquiry(row) for row in rows]


def end(
    connection: Connection, inquiry_id: str, how: str, *, at_ms: int, answer: Mapping[str, Any] | None = None
) -> bool:
    """Close a question; False if it was closed before."""
    changed = connection.execute(
        inquiries.update()
        .where(inquiries.c.id == inquiry_id, inquiries.c.ended.is_(None))
        .values(ended=how, ended_ms=at_ms, answer=sa.null() if answer is None else dict(answer))
    )
    return changed.rowcount == 1


def _inquiry(row: sa.Row[Any]) -> Inquiry:
    return Inquiry(
        id=row.id,
        tenant=row.tenant,
        escalation_id=row.escalation_id,
        item_id=row.item_id,
        question=row.question,
        asked_by=row.asked_by,
        asked_ms=row.asked_ms,
        until_ms=row.until_ms,
        ended=row.ended,
        ended_ms=row.ended_ms,
        answer=row.answer,
    )
