"""The audit of all cases of a tenant as one list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.store.tables import escalation_log, escalations, items


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One line: who did what to which case."""

    id: int
    at_ms: int
    what: str
    actor: str
    case_id: str
    item_id: str | None
    title: str | None
    from_status: str | None
    to_status: str
    note: str | None
    detail: Mapping[str, Any] | None


def entries(connection: Connection, *, tenant: str, before: int | None, limit: int) -> list[AuditRow]:
    """The newest lines of a tenant, or those before one of them."""
    log, cases = escalation_log.c, escalations.c
    query = (
        sa.select(
            log.id, log.at_ms, log.what, log.actor, log.escalation_id, cases.item_id,
            items.c.submission["title"].as_string(), log.from_status, log.to_status, log.note, log.detail,
        )
        .select_from(escalation_log.join(escalations).outerjoin(items, items.c.id == cases.item_id))
        .where(cases.tenant == tenant)
    )  # fmt: skip
    if before is not None:
        query = query.where(log.id < before)
    return [AuditRow(*row) for row in connection.execute(query.order_by(log.id.desc()).limit(limit))]
