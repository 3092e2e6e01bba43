"""What cannot be done at the human queue, as problem documents."""

from __future__ import annotations

from typing import Any

from gateway.api.escalation_json import resolution_json
from gateway.api.problems import ApiProblem, FieldError
from gateway.api.render import timestamp
from gateway.escalation import TIMEOUT_ACTOR, EscalationRecord, EscalationStatus
from gateway.resolution import NotAllowed
from gateway.review.errors import (
    AlreadyClaimed,
    AlreadyResolved,
    GroupChanged,
    LeaseLost,
    NotReversible,
    ReviewError,
    StaleVersion,
)


def problem_of(error: ReviewError | NotAllowed) -> ApiProblem:
    """The answer to one of the errors of the domain."""
    match error:
        case AlreadyClaimed(record=record):
            until = timestamp(record.lease_expires_ms)
            return ApiProblem(
                error.code,
                _who_has(record, until),
                extra={"holder": _holder_now(record), "expires_at": until},
                retry_after_s=5 if until else None,
            )
        case LeaseLost():
            return ApiProblem(error.code, _what_ended(error), extra=_now(error))
        case AlreadyResolved(record=record):
            return ApiProblem(error.code, _what_won(record), extra={"resolution": resolution_json(record)})
        case StaleVersion(record=record):
            return ApiProblem(
                error.code,
                f"The escalation has version {record.version} now. Read it again before you decide.",
                extra={"version": record.version},
            )
        case GroupChanged(count=count):
            return ApiProblem(error.code, error.public, extra={"count": count})
        case NotReversible(item_status=status):
            return ApiProblem(error.code, error.public, extra={"item_status": status, "allowed": []})
        case NotAllowed(allowed=allowed, fields=fields):
            return ApiProblem(
                error.code,
                error.public,
                errors=[FieldError(field.pointer, field.code, field.detail) for field in fields],
                extra={"allowed_actions": [action.value for action in allowed]},
            )
        case _:
            return ApiProblem(error.code, error.public, retry_after_s=1 if error.retryable else None)


def _holder_now(record: EscalationRecord) -> str | None:
    """A decided case remembers who held it, and so does one that waits for its submitter: nobody holds those."""
    return None if record.lease_expires_ms is None else record.holder


def _who_has(record: EscalationRecord, until: str | None) -> str:
    if record.status is EscalationStatus.WAITING_SUBMITTER:
        return "This waits for the submitter's answer."
    return f"{record.holder} holds this until {until}." if until else "This is open: nothing is decided here yet."


def _what_ended(error: LeaseLost) -> str:
    change, record = error.change, error.record
    holder = _holder_now(record)
    if record.status not in {EscalationStatus.OPEN, EscalationStatus.CLAIMED}:
        now = f" It is {record.status.value} now."
    else:
        now = f" {holder} holds it now." if holder else " Nobody holds it now."
    if change is None:
        return f"{error.public}{now}"
    how = f"{change.what.value.replace('_', ' ')} by {change.actor} at {timestamp(change.at_ms)}"
    return f"You hold no lease on this escalation any more: {how}.{now}"


def _now(error: LeaseLost) -> dict[str, Any]:
    change = error.change
    return {
        "holder": _holder_now(error.record),
        "expires_at": timestamp(error.record.lease_expires_ms),
        "escalation_status": error.record.status.value,
        "changed": None
        if change is None
        else {"what": change.what.value, "by": change.actor, "at": timestamp(change.at_ms), "note": change.note},
    }


def _what_won(record: EscalationRecord) -> str:
    stored = resolution_json(record)
    if record.decided_by == TIMEOUT_ACTOR:
        return f"Nobody answered in time: {stored.get('action')} at {stored.get('at')}, by the profile's policy."
    return f"This was decided already: {stored.get('action')} by {stored.get('by')} at {stored.get('at')}."
