"""The record of a decision: who, what, on which stop, from which its outcome and the rules' precision are read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from sqlalchemy.engine import Connection

from gateway.escalation import EscalationRecord
from gateway.resolution.moves import Reviewer
from gateway.store import decisions
from gateway.store import items as item_store


def resolution_of(decision: BaseModel, reviewer: Reviewer, at_ms: int) -> dict[str, Any]:
    """The decision as it is stored and shown to those who came too late."""
    body = decision.model_dump(mode="json", exclude={"lease_token"})
    return {**body, "by": reviewer.name, "at_ms": at_ms}


def record_decision(connection: Connection, record: EscalationRecord, decision: BaseModel, reviewer: Reviewer) -> None:
    """Write what was decided on a case, once it has taken effect."""
    body = decision.model_dump(mode="json", exclude={"lease_token"})
    action = str(body.pop("action"))
    packet = record.packet
    rule = packet.get("rule")
    decisions.insert(
        connection,
        tenant=record.tenant,
        escalation_id=record.id,
        item_id=record.item_id,
        run_id=record.run_id,
        action=action,
        actor=reviewer.name,
        at_ms=item_store.now_ms(connection),
        item_version=decisions.item_version(connection, record.item_id),
        reason=record.reason,
        detector=packet.get("detector"),
        rule=None if rule is None else str(rule)[:128],
        tool=record.tool,
        body=body,
    )


def record_verb(
    connection: Connection, *, tenant: str, item_id: str, action: str, actor: str, body: dict[str, Any]
) -> None:
    """Write what a person did to an item without a case."""
    decisions.insert(
        connection,
        tenant=tenant,
        escalation_id=None,
        item_id=item_id,
        run_id=None,
        action=action,
        actor=actor,
        at_ms=item_store.now_ms(connection),
        item_version=decisions.item_version(connection, item_id),
        reason=None,
        detector=None,
        rule=None,
        tool=None,
        body=body,
    )
