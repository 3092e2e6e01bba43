"""Take up again what was decided: the same case while that can be reversed, else a new one that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from gateway.escalation import UNDECIDED, EscalationRecord, EscalationStatus
from gateway.item import Item, Status
from gateway.profiles.loader import EscalationPolicy
from gateway.review.deciding import check_may_take_back, tell
from gateway.review.desk import Desk
from gateway.review.errors import NotReversible, StaleVersion, Withdrawn
from gateway.review.priority import terms_of
from gateway.review.queue import case_in
from gateway.store import escalation_decisions as decisions
from gateway.store import escalations as cases
from gateway.store import guard_runs as run_store
from gateway.store import items as item_store
from gateway.store.guard_runs import RunStatus
from gateway.wiring import Services

_TAKEN_BACK = (Status.QUEUED, Status.INSPECTING, Status.RUNNING, Status.HALTED, Status.FAILED)
"""What a decision may have led to without an outcome that was delivered: the item comes back before a person."""


def reopen(services: Services, desk: Desk, case_id: str, *, reason: str) -> EscalationRecord:
    """The case open again, or a new one that `reopens` it; the item waits for a person again.

    The same case: a decision that has not taken effect or that no run has fetched, an item that waits still (its case
    expired on hold), or that was rejected by this case. A new case: the item is being worked on again, or failed since.
    Raises `NoSuchCase`, `Withdrawn`, `StaleVersion`, `Forbidden` where a colleague's decision can still be taken back by them
    (and by a lead), and `NotReversible` where the outcome was delivered.
    """
    record = services.database.transact(lambda connection: _reopen(connection, services, desk, case_id, reason))
    tell(services, record)
    return record


def _reopen(connection: Connection, services: Services, desk: Desk, case_id: str, reason: str) -> EscalationRecord:
    record = case_in(connection, desk, case_id)
    if record.status is EscalationStatus.WITHDRAWN:
        raise Withdrawn(record)
    if record.status in UNDECIDED:
        raise NotReversible("This case is not decided yet: claim it, or take it over.", None)
    check_may_take_back(record, desk)
    if record.is_pending or _is_run_waiting(connection, record):
        return _same_case(connection, services, desk, record, reason)
    if record.run_id is not None or record.item_id is None:
        raise NotReversible("The run has gone on with this decision; it stops again by itself where it must.", None)
    item = item_store.get(connection, record.item_id)
    if item is None:
        raise NotReversible("The item is gone.", None)
    if item.escalation_id == record.id and item.status in {Status.AWAITING_HUMAN, Status.REJECTED}:
        _put_back(connection, item, desk, reason=record.reason, case_id=record.id)
        return _same_case(connection, services, desk, record, reason)
    if item.status not in _TAKEN_BACK:
        raise NotReversible(_why_not(item), item.status.value)
    linked = _raise_linked(connection, services, desk, record, item)
    _put_back(connection, item, desk, reason=record.reason, case_id=linked)
    return case_in(connection, desk, linked)


def _is_run_waiting(connection: Connection, record: EscalationRecord) -> bool:
    """Whether the run still stands where the case left it: nobody has fetched the decision."""
    if record.run_id is None or record.status not in {EscalationStatus.RESOLVED, EscalationStatus.EXPIRED}:
        return False
    run = run_store.lock(connection, record.run_id, tenant=record.tenant)
    return run is not None and run.status is RunStatus.AWAITING_HUMAN and run.escalation_id == record.id


def _same_case(
    connection: Connection, services: Services, desk: Desk, record: EscalationRecord, reason: str
) -> EscalationRecord:
    at_ms, policy = item_store.now_ms(connection), _policy_of(services, record)
    is_reopened = decisions.reopen(
        connection,
        record,
        actor=desk.person,
        reason=reason,
        due_ms=at_ms + int(policy.due_s * 1000),
        expires_ms=at_ms + int(policy.expires_s * 1000),
    )
    if not is_reopened:
        raise StaleVersion(case_in(connection, desk, record.id))
    return case_in(connection, desk, record.id)


def _raise_linked(connection: Connection, services: Services, desk: Desk, record: EscalationRecord, item: Item) -> str:
    packet: Mapping[str, Any] = {**record.packet, "open_calls": []}
    if item.attempt != record.attempt:  # the run that the case was about is over
        packet = {**packet, "resume_point": None}
    return cases.raise_case(
        connection,
        cases.NewEscalation(
            tenant=record.tenant,
            item_id=item.id,
            attempt=item.attempt,
            profile=record.profile,
            reason=record.reason,
            tool=record.tool,
            packet=packet,
            reopens=record.id,
            actor=desk.person,
            **terms_of(_policy_of(services, record), packet),
        ),
    )


def _put_back(connection: Connection, item: Item, desk: Desk, *, reason: str, case_id: str) -> None:
    """The item waits for a person; a worker that has it in hand finds its lease gone, and what it does is dropped."""
    values: dict[str, Any] = {"escalation_id": case_id, "failure": None}
    if item.status is Status.REJECTED and item.decision is not None:
        values["decision"] = {**item.decision, "verdict": "human", "problem": None, "reason": None}
    if item.status is Status.AWAITING_HUMAN:
        return
    before = item_store.transition(
        connection,
        item.id,
        expected=(item.status,),
        to=Status.AWAITING_HUMAN,
        actor=desk.person,
        fence=item.fence,
        reason=reason,
        values=values,
        event_body={"escalation": case_id, "reopened": True},
    )
    if before is None:
        raise NotReversible("The item has just moved on; look at it again.", None)


def _why_not(item: Item) -> str:
    if item.status in {Status.AWAITING_HUMAN, Status.AWAITING_SUBMITTER}:
        return f"The item waits for a decision already, on {item.escalation_id or 'another case'}."
    return (
        f"The item is {item.status.value} and its outcome was delivered, so this decision cannot be taken up again. "
        "Send a new item that supersedes it."
    )


def _policy_of(services: Services, record: EscalationRecord) -> EscalationPolicy:
    profile = None if record.run_id is not None else services.profiles.get(record.profile)
    return EscalationPolicy() if profile is None else profile.escalation
