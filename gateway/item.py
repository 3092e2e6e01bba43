"""An item: one product on its way from upload to copy, and the states that it may pass through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """Where an item stands. The arrows between them are `ARROWS`."""

    RECEIVING = "receiving"
    QUEUED = "queued"
    INSPECTING = "inspecting"
    REJECTED = "rejected"
    READY = "ready"
    RUNNING = "running"
    HALTED = "halted"
    AWAITING_HUMAN = "awaiting_human"
    AWAITING_SUBMITTER = "awaiting_submitter"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL = frozenset({Status.REJECTED, Status.READY, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED})
"""Nothing more happens by itself."""

SETTLED = TERMINAL | {Status.HALTED, Status.AWAITING_HUMAN, Status.AWAITING_SUBMITTER}
"""No worker is busy with it: a caller who waits for an outcome has one."""

_ALIVE = frozenset(Status) - TERMINAL
_CANCELLABLE = _ALIVE - {Status.CANCELLING}

ARROWS: Mapping[Status, frozenset[Status]] = {
    Status.RECEIVING: frozenset({Status.QUEUED, Status.EXPIRED}),
    Status.QUEUED: frozenset({Status.INSPECTING, Status.RUNNING, Status.AWAITING_HUMAN, Status.EXPIRED}),
    Status.INSPECTING: frozenset(
        {Status.QUEUED, Status.REJECTED, Status.READY, Status.RUNNING, Status.AWAITING_HUMAN, Status.FAILED}
    ),
    Status.RUNNING: frozenset(
        {Status.QUEUED, Status.SUCCEEDED, Status.FAILED, Status.HALTED, Status.AWAITING_HUMAN, Status.REJECTED}
    ),
    Status.HALTED: frozenset({Status.QUEUED, Status.AWAITING_HUMAN, Status.EXPIRED}),
    Status.AWAITING_HUMAN: frozenset(
        {
            Status.QUEUED,
            Status.SUCCEEDED,
            Status.REJECTED,
            Status.AWAITING_SUBMITTER,
            Status.FAILED,
            Status.EXPIRED,
        }
    ),
    Status.AWAITING_SUBMITTER: frozenset({Status.AWAITING_HUMAN, Status.EXPIRED}),
    Status.CANCELLING: frozenset({Status.CANCELLED}),
    Status.FAILED: frozenset({Status.QUEUED, Status.AWAITING_HUMAN}),
    Status.CANCELLED: frozenset({Status.QUEUED}),
    Status.EXPIRED: frozenset({Status.QUEUED}),
    Status.REJECTED: frozenset({Status.QUEUED, Status.AWAITING_HUMAN}),
    Status.READY: frozenset(),
    Status.SUCCEEDED: frozenset(),
}
"""What may follow what, beside cancelling (see `may_follow`)."""


def may_follow(before: Status, after: Status) -> bool:
    """Whether an item may go from one status to the other; cancelling is open to all that is not over yet."""
    if after in {Status.CANCELLING, Status.CANCELLED} and before in _CANCELLABLE:
        return True
    return after in ARROWS[before]


class Mode(StrEnum):
    """`generate` ends with finished copy, `prepare` with a payload for the caller's own model."""

    GENERATE = "generate"
    PREPARE = "prepare"


SUSPECT_LOST_CLAIMS = 2
"""After so many lost workers in a row an item is worked on with nothing beside it: if it kills another worker, then no item
that merely was there is held responsible with it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's right to write on an item: valid while `fence` is the item's and the time has not run out."""

    item_id: str
    fence: int
    owner: str
    is_suspect: bool = False
    """Whether it was lost so often that it has to be worked on alone; see `SUSPECT_LOST_CLAIMS`."""


class StaleLease(Exception):
    """Somebody else has the item now, or it was cancelled: what was worked out is dropped."""

    code = "stale_lease"
    retryable = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What an item has cost so far, and what was not spent thanks to the guard."""

    steps: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    blocked_calls: int = 0
    avoided_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: str = "0"
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One uploaded file of an item, as stored."""

    id: str
    part: str
    role: str | None
    file_name: str | None
    declared_type: str | None
    sha256: str
    bytes: int
    media_type: str
    verdict: str | None
    screening: Mapping[str, Any] | None
    """`Screening.to_json()` of what has been measured so far."""
    overridden: Mapping[str, Any] | None = None
    """Who used the file although a rule refuses it: `by`, `at_ms`, `reason`; None where nobody did."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One later attempt at an item: the first is the submission itself."""

    number: int
    """2 and more."""
    action: str
    """`reroute` or `retry`."""
    actor: str
    reason: str | None
    route: str | None
    budget: Mapping[str, Any] | None
    before: Mapping[str, Any]
    """Where the attempt before it had ended: `status`, `reason`, `route`, `usage_cost`."""
    started_ms: int


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that a tool of the item's agent changed."""

    seq: int
    """The step that did it."""
    tool: str
    arguments: Mapping[str, Any]
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """One row of the table of items, with its files."""

    id: str
    tenant: str
    external_id: str | None
    mode: Mode
    profile: str
    profile_version: str
    ruleset: str
    status: Status
    reason: str | None
    route: str | None
    attempt: int
    epoch: int
    claims: int
    lost_claims: int
    fence: int
    version: int
    submission: Mapping[str, Any]
    notes: tuple[str, ...]
    decision: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    failure: Mapping[str, Any] | None
    usage: Usage
    duplicate_of: str | None
    escalation_id: str | None
    created_ms: int
    updated_ms: int
    expires_ms: int | None
    files: tuple[FileRecord, ...] = field(default=())
    supersedes: str | None = None
    superseded_by: str | None = None
    purged_ms: int | None = None
    """When its content was taken out of it; what is left is a tombstone."""
    attempts: tuple[Attempt, ...] = ()
    """Those after the first; empty in lists."""
    effects: tuple[Effect, ...] = ()
    """What its tools have changed; empty in lists."""
    inquiry: Mapping[str, Any] | None = None
    """What its submitter is asked (`question`, `until_ms`); None in lists."""

    @property
    def budget(self) -> Mapping[str, Any]:
        """The caller's own budget for the current attempt; empty where the profile's stands."""
        own = self.attempts[-1].budget if self.attempts else None
        return own if own is not None else self.submission.get("budget") or {}

    @property
    def title(self) -> str | None:
        """What the submitter called it; None if they did not."""
        return self.submission.get("title")
