"""What people and programs did in a tenant: to cases, which is kept, and to all but items and cases, as long as events are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.store.tables import api_keys, escalation_log, escalations, events, items, people


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


@dataclass(frozen=True, slots=True)
class AdminRow:
    """One event of what only admins read: keys, people, webhooks, budgets, switches."""

    seq: int
    at_ms: int
    kind: str
    resource: str
    name: str | None
    """Of the key or the person."""
    told: Mapping[str, Any]


def admin_entries(connection: Connection, *, tenant: str, before: int | None, limit: int) -> list[AdminRow]:
    """The newest events of a tenant that are about neither items nor cases, or those before one of them."""
    log = events.c
    query = (
        sa.select(
            log.seq, log.at_ms, log.type, log.resource, sa.func.coalesce(api_keys.c.name, people.c.name), log.data
        )
        .select_from(
            events.outerjoin(api_keys, api_keys.c.id == log.resource).outerjoin(people, people.c.id == log.resource)
        )
        .where(log.tenant == tenant, log.type.not_like("item.%"), log.type.not_like("escalation.%"))
    )
    if before is not None:
        query = query.where(log.seq < before)
    return [AdminRow(*row) for row in connection.execute(query.order_by(log.seq.desc()).limit(limit))]
