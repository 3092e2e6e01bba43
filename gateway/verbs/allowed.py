"""Which verbs an item's state allows, so that whoever cannot do one thing learns what they can."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.item import TERMINAL, Item, Status

RETRYABLE = frozenset({Status.FAILED, Status.HALTED, Status.CANCELLED, Status.EXPIRED, Status.REJECTED})
SUPERSEDABLE = (TERMINAL - {Status.READY, Status.SUCCEEDED}) | {
    Status.HALTED,
    Status.AWAITING_HUMAN,
    Status.AWAITING_SUBMITTER,
}
_CANCELLABLE = frozenset(Status) - TERMINAL - {Status.CANCELLING}
_BY_VERB: Mapping[str, frozenset[Status]] = {
    "cancel": _CANCELLABLE,
    "resume": frozenset({Status.HALTED}),
    "retry": RETRYABLE,
    "info": frozenset({Status.AWAITING_SUBMITTER}),
    "resolve": frozenset({Status.AWAITING_HUMAN}),
    "supersede": SUPERSEDABLE,
}


class StateConflict(Exception):
    """The item's state does not allow this; `public` says why, `allowed` names the verbs that it does."""

    code = "item_state_conflict"
    retryable = False

    def __init__(self, public: str, item: Item) -> None:
        super().__init__(public)
        self.public = public
        self.status = item.status
        self.allowed = allowed_verbs(item)


def allowed_verbs(item: Item) -> tuple[str, ...]:
    """The verbs that the item takes now; `resolve` is that of its escalation."""
    if item.purged_ms is not None:
        return ()
    return tuple(
        verb
        for verb, statuses in _BY_VERB.items()
        if item.status in statuses and not (verb in {"retry", "supersede"} and item.superseded_by is not None)
    )
