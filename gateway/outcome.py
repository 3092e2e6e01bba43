"""Write down what became of an item: each a fenced transition in the caller's transaction; False means the lease is stale."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy.engine import Connection

from gateway.decision import Decision, ScreenedFile
from gateway.item import Lease, Status, Usage
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


def ready(connection: Connection, lease: Lease, decision: Decision) -> bool:
    """Prepare mode: the payload can be fetched."""
    return _move(connection, lease, Status.READY, reason=None, values=_decided(decision))


def running(connection: Connection, lease: Lease, decision: Decision) -> bool:
    """The writing begins; the lease goes on."""
    return _move(connection, lease, Status.RUNNING, reason=None, values=_decided(decision), release=False)


def awaiting_human(connection: Connection, lease: Lease, *, reason: str, values: Mapping[str, Any]) -> bool:
    """A person has to decide."""
    return _move(connection, lease, Status.AWAITING_HUMAN, reason=reason, values=values)


def succeeded(connection: Connection, lease: Lease, result: Mapping[str, Any], usage: Usage) -> bool:
    """The copy is there."""
    return _move(
        connection, lease, Status.SUCCEEDED, reason=None, values={"result": dict(result), "usage": asdict(usage)}
    )


def failed(connection: Connection, lease: Lease, *, code: str, detail: str, retryable: bool, usage: Usage) -> bool:
    """No copy could be written; `detail` is safe to show."""
    failure = {"code": code, "detail": detail, "retryable": retryable}
    return _move(connection, lease, Status.FAILED, reason=code, values={"failure": failure, "usage": asdict(usage)})


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
