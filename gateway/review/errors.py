"""Why something cannot be done at the queue: each with what won, who holds it, or how it is now.

`gateway.resolution.NotAllowed` and those like it say why a decision is not possible on a case; they pass through unchanged.
"""

from __future__ import annotations

from gateway.escalation import EscalationRecord
from gateway.store.escalation_log import LogEntry


class ReviewError(Exception):
    """Something that cannot be done at the queue. `public` may be shown."""

    code = "forbidden"
    retryable = False
    public = "This is not possible."

    def __init__(self, public: str | None = None) -> None:
        self.public = public or type(self).public
        super().__init__(self.public)


class NoSuchCase(ReviewError):
    """There is no case of this id in this tenant."""

    code = "not_found"
    public = "There is no escalation of this id. Check the id; it may also belong to another tenant."


class NoSuchGroup(ReviewError):
    """There is no group of this id in this tenant."""

    code = "not_found"
    public = "There is no escalation group of this id. Check the id; it may also belong to another tenant."


class _OfCase(ReviewError):
    def __init__(self, record: EscalationRecord, public: str | None = None) -> None:
        super().__init__(public)
        self.record = record


class AlreadyClaimed(_OfCase):
    """Somebody else holds the case; `record` says who and until when."""

    code = "already_claimed"
    retryable = True
    public = "Somebody else holds this."


class LeaseLost(_OfCase):
    """The lease ran out, was given back, taken over or never one's own; `record` is the case now, `change` what ended it."""

    code = "lease_lost"
    public = "Your lease on this escalation is over. Claim it again."

    def __init__(self, record: EscalationRecord, change: LogEntry | None) -> None:
        super().__init__(record)
        self.change = change


class AlreadyResolved(_OfCase):
    """Somebody was first, or nobody was and the time ran out; `record.resolution` is what won."""

    code = "already_resolved"
    public = "This was decided already."


class Withdrawn(_OfCase):
    """The item ended elsewhere: there is nothing left to decide."""

    code = "escalation_withdrawn"
    public = "The item was cancelled or finished elsewhere; nothing is left to decide."


class PreconditionMissing(ReviewError):
    """The version of the case that was decided on was not told."""

    code = "precondition_required"
    public = "Send `If-Match` with the ETag of the escalation that you decide on."


class StaleVersion(_OfCase):
    """The case has changed since it was read; `record` is the case now."""

    code = "conflict_version"
    retryable = True
    public = "It has changed since it was read."


class KeyReused(ReviewError):
    """The idempotency key came with another request before."""

    code = "idempotency_key_reused"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The Idempotency-Key {key[:60]!r} was sent before with different content. "
            "Use a fresh key for a new request."
        )


class StillRunning(ReviewError):
    """The first request under this key has not ended yet."""

    code = "idempotency_in_progress"
    retryable = True
    public = "The first request with this Idempotency-Key is still being carried out. Repeat this one after a second."


class Forbidden(ReviewError):
    """Only a lead may do this, or only who decided or holds the case."""

    code = "forbidden"


class NotReversible(ReviewError):
    """What was decided has gone too far to be taken up again; `item_status` is where the item stands."""

    code = "item_state_conflict"

    def __init__(self, public: str, item_status: str | None) -> None:
        super().__init__(public)
        self.item_status = item_status


class GroupChanged(ReviewError):
    """The group has not as many undecided cases as expected; `count` is how many it has."""

    code = "group_changed"
    retryable = True

    def __init__(self, expected: int, count: int) -> None:
        super().__init__(
            f"The group has {count} cases to decide now, not {expected}. Look at it again before you decide for all."
        )
        self.count = count


class GroupSplit(ReviewError):
    """These groups were split from each other, which is for good."""

    code = "group_split"
    public = "These groups were split from each other by a person; a split is for good."
