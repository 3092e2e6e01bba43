"""Find what the dead left behind: lapsed leases and cancellations that nobody acknowledged."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import structlog
from sqlalchemy.engine import Connection

from gateway.agent.journal import usage_of
from gateway.item import Status, Usage
from gateway.profiles.loader import EscalationPolicy
from gateway.resolution.asking import timed_out
from gateway.review.priority import terms_of
from gateway.store import escalations, inquiries, steps
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
        unanswered = inquiries.overdue(connection)
        overdue = item_store.overdue_cancels(connection, grace_ms=int(services.settings.cancel_grace_s * 1000))
    for row in lapsed:
        if services.database.transact(partial(_take_back, services=services, row=row)):
            log.warning("item.lease_lapsed", item_id=row.id, fence=row.fence, claims=row.claims)
            changed.append(row.id)
    for inquiry in unanswered:
        if services.database.transact(partial(timed_out, inquiry=inquiry)):
            changed.append(inquiry.item_id)
    for item_id in overdue:
        if services.database.transact(partial(_end_cancel, item_id=item_id)):
            changed.append(item_id)
    return changed


def unheard(services: Services) -> list[item_store.WaitingRow]:
    """Items that wait although workers were told of them a while ago: the hint was lost, or there is much to do."""
    if not services.dispatch.must_repeat:
        return []
    patience_ms = int(services.settings.hint_again_s * 1000)
    return services.database.transact(lambda connection: item_store.take_unheard(connection, patience_ms=patience_ms))


def _take_back(connection: Connection, services: Services, row: item_store.LapsedRow) -> bool:
    """Conditional on status, fence and the lease still being lapsed: a job that has just finished is never put back."""
    if not item_store.is_lapsed(connection, row.id, fence=row.fence):
        return False
    status = Status(row.status)
    if status is Status.CANCELLING:
        return _end_cancel(connection, row.id)
    lost = row.lost_claims + 1
    values: dict[str, Any] = {"lost_claims": lost, "available_ms": item_store.now_ms(connection)}
    to = Status.QUEUED
    if lost >= MAX_LOST_CLAIMS:
        to = Status.AWAITING_HUMAN
        usage = usage_of(steps.all_of(connection, row.id))
        values["usage"] = asdict(usage)
        values["escalation_id"] = _raise_case(connection, services, row, lost, usage)
    before = item_store.transition(
        connection,
        row.id,
        expected=(Status.INSPECTING, Status.RUNNING),
        to=to,
        actor=ACTOR,
        fence=row.fence,
        reason="worker_lost",
        values=values,
    )
    return before is not None


def _raise_case(connection: Connection, services: Services, row: item_store.LapsedRow, lost: int, usage: Usage) -> str:
    """A file that kills its worker goes to a person, who may reject it or write the copy."""
    item = item_store.get(connection, row.id)
    assert item is not None
    policy = services.profiles[item.profile].escalation if item.profile in services.profiles else EscalationPolicy()
    sentence = f"{lost} workers in a row were lost while working on this item, and none got any further."
    packet = {
        "question": f"{sentence} How should it go on?",
        "why": sentence,
        "evidence": [],
        "cost": {"spent": usage.cost, "currency": usage.currency},
        "usage": asdict(usage),
    }
    return escalations.raise_case(
        connection,
        escalations.NewEscalation(
            tenant=item.tenant,
            item_id=item.id,
            attempt=item.attempt,
            profile=item.profile,
            reason="worker_lost",
            tool=None,
            packet=packet,
            **terms_of(policy, packet),
        ),
    )


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
