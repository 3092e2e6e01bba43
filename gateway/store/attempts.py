"""Rows of an item's later attempts: who began each, why, on which route, and what became of the one before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.item import Item
from gateway.store.tables import attempts


def insert(
    connection: Connection,
    item: Item,
    *,
    action: str,
    actor: str,
    reason: str | None,
    route: str | None,
    budget: Mapping[str, Any] | None,
    at_ms: int,
) -> None:
    """Write that attempt `item.attempt` + 1 begins; `item` is as it was left by the attempt before."""
    before = {"status": item.status.value, "reason": item.reason, "route": item.route, "usage_cost": item.usage.cost}
    connection.execute(
        attempts.insert(),
        {
            "item_id": item.id,
            "number": item.attempt + 1,
            "action": action,
            "actor": actor,
            "reason": reason,
            "route": route,
            "budget": sa.null() if budget is None else dict(budget),
            "before": before,
            "started_ms": at_ms,
        },
    )
