"""A question to the submitter: the case waits with its clock stopped, until they answer or the time is over."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import TIMEOUT_ACTOR, Change, EscalationRecord, EscalationStatus
from gateway.item import Item, Status
from gateway.resolution.decisions import AskSubmitter
from gateway.resolution.moves import Reviewer, move
from gateway.resolution.refusals import ItemMoved, wrong_field
from gateway.store import escalation_log as audit
from gateway.store import events, inquiries
from gateway.store import items as item_store
from gateway.store.inquiries import Inquiry
from gateway.store.tables import escalations

MOST_DAYS = 90
_DAY_MS = 24 * 3600 * 1000


def ask_submitter(
    connection: Connection, item: Item, reviewer: Reviewer, record: EscalationRecord, decision: AskSubmitter
) -> None:
    """The item waits for its submitter, and the case with it; due and expiry move by as long as that takes."""
    at_ms = item_store.now_ms(connection)
    until_ms = int(decision.until.timestamp() * 1000)
    if not at_ms < until_ms <= at_ms + MOST_DAYS * _DAY_MS:
        raise wrong_field("/until", "range", f"It must lie ahead, by {MOST_DAYS} days at most.")
    inquiries.insert(
        connection,
        tenant=item.tenant,
        escalation_id=record.id,
        item_id=item.id,
        question=decision.question,
        asked_by=reviewer.name,
        asked_ms=at_ms,
        until_ms=until_ms,
    )
    move(connection, item, reviewer, Status.AWAITING_SUBMITTER, reason="info_requested", values={})
    wait_ms = until_ms - at_ms
    connection.execute(
        escalations.update()
        .where(escalations.c.id == record.id)
        .values(
            status=EscalationStatus.WAITING_SUBMITTER.value,
            lease_token=None,
            lease_expires_ms=None,
            packet=_with_questions(connection, record.id),
            due_ms=escalations.c.due_ms + wait_ms,
            expires_ms=escalations.c.expires_ms + wait_ms,
            version=escalations.c.version + 1,
            updated_ms=at_ms,
        )
    )
    detail = {"until": _rfc3339(until_ms)}
    audit.write(
        connection,
        record.id,
        Change.ASKED,
        actor=reviewer.name,
        before=EscalationStatus.CLAIMED.value,
        note=decision.question,
        detail=detail,
    )
    _tell(connection, item, "item.info_requested", at_ms, {"question": decision.question, **detail})


def informed(connection: Connection, item: Item, inquiry: Inquiry, *, actor: str, answer: Mapping[str, Any]) -> None:
    """The submitter has answered: the case is open again, first of all for whoever asked. Raises `ItemMoved`."""
    at_ms = item_store.now_ms(connection)
    if not inquiries.end(connection, inquiry.id, inquiries.ANSWERED, at_ms=at_ms, answer=answer):
        raise ItemMoved
    _wait_no_more(connection, item, inquiry, Reviewer(actor), at_ms=at_ms, reason="info_received")
    audit.write(
        connection,
        inquiry.escalation_id,
        Change.INFORMED,
        actor=actor,
        before=EscalationStatus.WAITING_SUBMITTER.value,
        detail={"answered": True},
    )


def timed_out(connection: Connection, inquiry: Inquiry) -> bool:
    """Nobody answered in time: the case is open again and says so; False if it was answered meanwhile."""
    at_ms = item_store.now_ms(connection)
    item = item_store.get(connection, inquiry.item_id)
    is_waiting = item is not None and item.status is Status.AWAITING_SUBMITTER
    how = inquiries.TIMED_OUT if is_waiting else inquiries.WITHDRAWN  # the item ended elsewhere
    if not inquiries.end(connection, inquiry.id, how, at_ms=at_ms) or item is None or not is_waiting:
        return False
    _wait_no_more(connection, item, inquiry, Reviewer(TIMEOUT_ACTOR), at_ms=at_ms, reason="info_timeout")
    audit.write(
        connection,
        inquiry.escalation_id,
        Change.INFORMED,
        actor=TIMEOUT_ACTOR,
        before=EscalationStatus.WAITING_SUBMITTER.value,
        note="The submitter did not answer in time.",
        detail={"answered": False},
    )
    return True


def _wait_no_more(
    connection: Connection, item: Item, inquiry: Inquiry, reviewer: Reviewer, *, at_ms: int, reason: str
) -> None:
    move(
        connection,
        item,
        reviewer,
        Status.AWAITING_HUMAN,
        reason=reason,
        values={},
        expected=Status.AWAITING_SUBMITTER,
    )
    unused_ms = max(inquiry.until_ms - at_ms, 0)
    changed = connection.execute(
        escalations.update()
        .where(
            escalations.c.id == inquiry.escalation_id,
            escalations.c.status == EscalationStatus.WAITING_SUBMITTER.value,
        )
        .values(
            status=EscalationStatus.OPEN.value,
            holder=None,
            lease_token=None,
            lease_expires_ms=None,
            resolution=sa.null(),
            resolve_key=None,
            resolve_fingerprint=None,
            decided_by=None,
            decided_action=None,
            decided_ms=None,
            packet=_with_questions(connection, inquiry.escalation_id),
            due_ms=escalations.c.due_ms - unused_ms,
            expires_ms=escalations.c.expires_ms - unused_ms,
            version=escalations.c.version + 1,
            updated_ms=at_ms,
        )
    )
    if changed.rowcount != 1:
        raise ItemMoved


def _with_questions(connection: Connection, escalation_id: str) -> dict[str, Any]:
    """The case's packet with its questions to the submitter, and who asked last: they get it back first."""
    row = connection.execute(sa.select(escalations.c.packet).where(escalations.c.id == escalation_id)).one()
    asked = inquiries.of_escalation(connection, escalation_id)
    return {**row.packet, "inquiries": [_told(inquiry) for inquiry in asked], "preferred": asked[-1].asked_by}


def _told(inquiry: Inquiry) -> dict[str, Any]:
    return {
        "question": inquiry.question,
        "by": inquiry.asked_by,
        "at": _rfc3339(inquiry.asked_ms),
        "until": _rfc3339(inquiry.until_ms),
        "ended": inquiry.ended,
        "answered": inquiry.ended == inquiries.ANSWERED,
        "answer": inquiry.answer,
    }


def _tell(connection: Connection, item: Item, kind: str, at_ms: int, body: Mapping[str, Any]) -> None:
    latest = item_store.version_and_status(connection, item.id)
    events.append(
        connection,
        tenant=item.tenant,
        kind=kind,
        resource=item.id,
        version=item.version if latest is None else latest[0],
        at_ms=at_ms,
        body={"status": Status.AWAITING_SUBMITTER.value, "external_id": item.external_id, **body},
    )


def _rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
