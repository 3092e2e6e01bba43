"""Cases of the human queue as others see them: raised once per incident, read, applied, withdrawn.

The rest of their life is in the modules beside this one: leases, decisions, groups, audit and figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import Change, EscalationStatus
from gateway.ids import new_id
from gateway.store import escalation_groups as groups
from gateway.store import escalation_log as audit
from gateway.store.escalation_decisions import mark_applied, withdraw
from gateway.store.escalation_groups import group_key
from gateway.store.escalation_leases import SYSTEM
from gateway.store.escalation_rows import UNDECIDED_VALUES, CaseFilter, Place, get, page
from gateway.store.items import now_ms
from gateway.store.tables import escalations

__all__ = [
    "CaseFilter",
    "NewEscalation",
    "Place",
    "escalations",
    "get",
    "group_key",
    "mark_applied",
    "page",
    "raise_case",
    "withdraw_of_item",
    "withdraw_of_run",
]


@dataclass(frozen=True, slots=True)
class NewEscalation:
    """What is known of a case when it is raised."""

    tenant: str
    item_id: str | None
    attempt: int
    profile: str
    reason: str
    tool: str | None
    packet: Mapping[str, Any]
    due_after_ms: int
    expires_after_ms: int
    run_id: str | None = None
    """The run of somebody else's agent that stands still; then the item, if any, only tells what it is about."""
    on_expire: str = "reroute_text_only"
    profile_priority: int = 1
    burnt_percent: int = 0
    priority: int = 0
    """By the time of the next sweep it is what `gateway.review.priority` makes of the case."""
    reopens: str | None = None
    actor: str = SYSTEM


def raise_case(connection: Connection, new: NewEscalation) -> str:
    """The case for this incident: a new row, or the open one of the same (item or run, group), counted once more."""
    at_ms = now_ms(connection)
    coarse = group_key(profile=new.profile, tool=new.tool, reason=new.reason)
    same = (
        escalations.c.run_id.is_(None) if new.run_id is None else escalations.c.run_id == new.run_id,
        escalations.c.item_id.is_(None) if new.item_id is None else escalations.c.item_id == new.item_id,
        escalations.c.group_key == coarse,
    )
    row = connection.execute(
        escalations.update()
        .where(*same, escalations.c.status.in_(UNDECIDED_VALUES))
        .values(
            occurrence_count=escalations.c.occurrence_count + 1,
            reason=new.reason,
            packet=dict(new.packet),
            attempt=new.attempt,
            version=escalations.c.version + 1,
            updated_ms=at_ms,
        )
        .returning(escalations.c.id, escalations.c.status)
    ).first()
    if row is not None:
        audit.write(connection, row.id, Change.REPEATED, actor=new.actor, before=row.status)
        return str(row.id)
    earlier = connection.execute(
        sa.select(escalations.c.resolution, escalations.c.fingerprint)
        .where(*same)
        .order_by(escalations.c.created_ms.desc(), escalations.c.id.desc())
        .limit(1)
    ).first()
    fine = groups.fingerprint(coarse, reason=new.reason, packet=new.packet)
    if earlier is not None and groups.is_split(connection, tenant=new.tenant, key=str(earlier.fingerprint)):
        fine = earlier.fingerprint  # split for good: this item's cases never rejoin
    group = groups.place(
        connection,
        tenant=new.tenant,
        profile=new.profile,
        tool=new.tool,
        reason=new.reason,
        coarse=coarse,
        fine=fine,
    )
    escalation_id = new_id("esc", now_ms=at_ms)
    connection.execute(
        escalations.insert(),
        {
            "id": escalation_id,
            "tenant": new.tenant,
            "item_id": new.item_id,
            "run_id": new.run_id,
            "attempt": new.attempt,
            "profile": new.profile,
            "reason": new.reason,
            "tool": new.tool,
            "group_key": coarse,
            "group_id": group,
            "fingerprint": fine,
            "status": EscalationStatus.OPEN.value,
            "packet": dict(new.packet),
            "came_back_after": None
            if earlier is None or new.reopens is not None
            else (earlier.resolution or {}).get("action"),
            "priority": new.priority,
            "profile_priority": new.profile_priority,
            "burnt_percent": new.burnt_percent,
            "on_expire": new.on_expire,
            "reopens": new.reopens,
            "created_ms": at_ms,
            "updated_ms": at_ms,
            "due_ms": at_ms + new.due_after_ms,
            "expires_ms": at_ms + new.expires_after_ms,
        },
    )
    audit.write(connection, escalation_id, Change.OPENED, actor=new.actor, before=None)
    return escalation_id


def withdraw_of_item(
    connection: Connection, item_id: str, *, actor: str = SYSTEM, why: str = "the item ended elsewhere"
) -> None:
    """The item ended elsewhere: its cases need no decision any more, and decisions that wait are not applied."""
    withdraw(connection, escalations.c.item_id == item_id, actor=actor, why=why)


def withdraw_of_run(connection: Connection, run_id: str, *, actor: str = SYSTEM) -> None:
    """The run ended: its cases need no decision any more, nor a decision that nobody fetched."""
    withdraw(connection, escalations.c.run_id == run_id, actor=actor, why="the run ended", decided=True)
