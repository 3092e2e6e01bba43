"""The last decisions on each kind of incident, with what became of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.review.suggestion import LOOKS_BACK, Past
from gateway.store import decisions as decided
from gateway.store.tables import decisions, escalations


def of_groups(connection: Connection, group_ids: Collection[str]) -> dict[str, list[Past]]:
    """Per group the last five decisions of people, the newest first; questions to submitters decide nothing."""
    rank = (
        sa.func.row_number()
        .over(partition_by=escalations.c.group_id, order_by=(decisions.c.at_ms.desc(), decisions.c.id.desc()))
        .label("place")
    )
    ranked = (
        sa.select(decisions, escalations.c.group_id, rank)
        .join(escalations, escalations.c.id == decisions.c.escalation_id)
        .where(escalations.c.group_id.in_(list(group_ids)), decisions.c.action != "ask_submitter")
        .subquery()
    )
    rows = connection.execute(
        sa.select(ranked).where(ranked.c.place <= LOOKS_BACK).order_by(ranked.c.group_id, ranked.c.place)
    ).all()
    records = [decided.record_of(row) for row in rows]
    found: dict[str, list[Past]] = defaultdict(list)
    for row, record, outcome in zip(rows, records, decided.outcomes_of(connection, records), strict=True):
        past = Past(
            case_id=record.escalation_id or "",
            action=record.action,
            route=record.body.get("route"),
            by=record.actor,
            at_ms=record.at_ms,
            status=outcome.status,
            came_back=outcome.came_back,
        )
        found[row.group_id].append(past)
    return found
