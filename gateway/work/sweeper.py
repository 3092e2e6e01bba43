"""Find what the dead left behind: lapsed leases and cancellations that nobody acknowledged."""

from __future__ import annotations

from functools import partial

import structlog
from sqlalchemy.engine import Connection

from gateway.item import Status
from gateway.store import items as item_store
from gateway.wiring import Services

log = structlog.get_logger()

ACTOR = "system:sweeper"
MAX_LOST_CLAIMS = 3
"""After so many lost workers in a row an item goes to a person: a file that kills its worker must not loop either."""


def sweep(services: Services) -> list[str]:
    """One round. Gives the ids of the items that changed."""
    changed: list[str] = []
    with services.database.read() as connection:
        lapsed = item_store.lapsed(connection)
        overdue = item_store.overdue_cancels(connection, grace_ms=int(services.settings.cancel_grace_s * 1000))
    for row in lapsed:
        if services.database.transact(partial(_take_back, row=row)):
            log.warning("item.lease_lapsed", item_id=row.id, fence=row.fence, claims=row.claims)
            changed.append(row.id)
    for item_id in overdue:
        if services.database.transact(partial(_end_cancel, item_id=item_id)):
            changed.append(item_id)
    return changed


def _take_back(connection: Connection, row: item_store.LapsedRow) -> bool:
    """Conditional on status, fence and the lease still being lapsed: a job that has just finished is never put back."""
    if not item_store.is_lapsed(connection, row.id, fence=row.fence):
        return False
    status = Status(row.status)
    if status is Status.CANCELLING:
        return _end_cancel(connection, row.id)
    lost = row.lost_claims + 1
    to = Status.AWAITING_HUMAN if lost >= MAX_LOST_CLAIMS else Status.QUEUED
    before = item_store.transition(
        connection,
        row.id,
        expected=(Status.INSPECTING, Status.RUNNING),
        to=to,
        actor=ACTOR,
        fence=row.fence,
        reason="worker_lost",
        values={"lost_claims": lost, "available_ms": item_store.now_ms(connection)},
    )
    return before is not None


def _end_cancel(connection: Connection, item_id: str) -> bool:
    before = item_store.transition(
        connection,
        item_id,
        expected=(Status.CANCELLING,),
        to=Status.CANCELLED,
        actor=ACTOR,
        reason="cancelled",
    )
    return before is not None
