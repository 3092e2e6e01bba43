"""Write down what became of an item: each a fenced transition in the caller's transaction; False means the lease is stale."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy.engine import Connection

from gateway.agent.outcome import Escalated, Failed, Halted, Written
from gateway.decision import Decision, ScreenedFile
from gateway.item import Item, Lease, Status
from gateway.profiles import Profile
from gateway.review.priority import terms_of
from gateway.store import escalations as escalation_store
from gateway.store import items as item_store

_AT_WORK = (Status.INSPECTING, Status.RUNNING)


def keep_screenings(connection: Connection, lease: Lease, files: Sequence[ScreenedFile]) -> bool:
    """Store what was measured of each file."""
    return all(
        item_store.set_screening(
            connection, lease, file.record.id, verdict=file.verdict.kind.value, screening=file.screening.to_json()
        )
        for file in files
    )


def rejected(connection: Connection, lease: Lease, decision: Decision) -> bool:
    """The edge rules refuse the item."""
    return _move(
        connection, lease, Status.REJECTED, reason=decision.code, values={"decision": dict(decision.document)},
        event_body={"code": decision.code},
    )  # fmt: skip


def handed_back(connection: Connection, lease: Lease, *, reason: str) -> bool:
    """Still to be worked on, by whoever takes it next."""
    return _move(connection, lease, Status.QUEUED, reason=reason)


def put_off(connection: Connection, lease: Lease, *, reason: str, delay_ms: int) -> bool:
    """Back to the queue, not to be taken before the delay is over."""
    available_ms = item_store.now_ms(connection) + delay_ms
    return _move(connection, lease, Status.QUEUED, reason=reason, values={"available_ms": available_ms})


def handed_on(connection: Connection, lease: Lease, decision: Decision) -> bool:
    """Judged and not rejected; the writing is for whoever takes it next."""
    return _move(connection, lease, Status.QUEUED, reason=item_store.HANDED_ON, values=_decided(decision))


def ready(connection: Connection, lease: Lease, decision: Decision) -> bool:
    """Prepare mode: the payload can be fetched."""
    return _move(connection, lease, Status.READY, reason=None, values=_decided(decision))


def ready_again(connection: Connection, lease: Lease) -> bool:
    """Prepare mode, and the route was decided before: the payload can be fetched."""
    return _move(connection, lease, Status.READY, reason=None)


def running(connection: Connection, lease: Lease, decision: Decision) -> bool:
    """The writing begins; the lease goes on."""
    return _move(connection, lease, Status.RUNNING, reason=None, values=_decided(decision), release=False)


def running_again(connection: Connection, lease: Lease) -> bool:
    """The writing goes on where it was; the lease goes on too."""
    return _move(connection, lease, Status.RUNNING, reason=None, release=False)


def escalated(connection: Connection, lease: Lease, item: Item, profile: Profile, raised: Escalated) -> bool:
    """A person has to decide: the case and the item's new status in one transaction."""
    if not item_store.holds(connection, lease):
        return False
    escalation_id = escalation_store.raise_case(
        connection,
        escalation_store.NewEscalation(
            tenant=item.tenant,
            item_id=item.id,
            attempt=item.attempt,
            profile=item.profile,
            reason=raised.reason,
            tool=raised.tool,
            packet=raised.packet,
            **terms_of(profile.escalation, raised.packet, max_cost=profile.budget.max_cost),
        ),
    )
    return _move(
        connection,
        lease,
        Status.AWAITING_HUMAN,
        reason=raised.reason,
        values={"escalation_id": escalation_id, "usage": asdict(raised.usage)},
        event_body={"escalation": escalation_id},
    )


def halted(connection: Connection, lease: Lease, halted: Halted) -> bool:
    """The run stands still and the caller decides."""
    failure = {"code": halted.reason, "detail": halted.packet.get("question"), "retryable": True, "halt": halted.packet}
    return _move(
        connection,
        lease,
        Status.HALTED,
        reason=halted.reason,
        values={"failure": failure, "usage": asdict(halted.usage)},
    )


def succeeded(connection: Connection, lease: Lease, written: Written) -> bool:
    """The copy is there."""
    return _move(
        connection,
        lease,
        Status.SUCCEEDED,
        reason=None,
        values={"result": dict(written.result), "usage": asdict(written.usage), "failure": None},
    )


def failed(connection: Connection, lease: Lease, failed: Failed) -> bool:
    """No copy could be written."""
    failure = {"code": failed.code, "detail": failed.detail, "retryable": failed.retryable}
    return _move(
        connection,
        lease,
        Status.FAILED,
        reason=failed.code,
        values={"failure": failure, "usage": asdict(failed.usage)},
    )


def cancelled(connection: Connection, lease: Lease) -> bool:
    """The caller no longer wants it, and the worker has stopped."""
    return _move(connection, lease, Status.CANCELLED, reason="cancelled", values={}, expected=(Status.CANCELLING,))


def _decided(decision: Decision) -> dict[str, Any]:
    route = decision.route.route
    return {"decision": dict(decision.document), "route": None if route is None else route.value}


def _move(
    connection: Connection,
    lease: Lease,
    to: Status,
    *,
    reason: str | None,
    values: Mapping[str, Any] | None = None,
    event_body: Mapping[str, Any] | None = None,
    release: bool = True,
    expected: Collection[Status] = _AT_WORK,
) -> bool:
    before = item_store.transition(
        connection,
        lease.item_id,
        expected=expected,
        to=to,
        actor=lease.owner,
        fence=lease.fence,
        reason=reason,
        values=values,
        release=release,
        event_body=event_body,
    )
    return before is not None
