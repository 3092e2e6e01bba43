"""A new item in an old one's place: both name the other, and what was open at the old one ends."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from gateway.item import TERMINAL, Item, Status
from gateway.store import escalations
from gateway.store import items as item_store
from gateway.verbs.allowed import SUPERSEDABLE, StateConflict


class NoSuchItem(Exception):
    """The item that is to be replaced is not there, or is somebody else's."""

    code = "invalid_request"
    retryable = False


def check_supersedable(connection: Connection, item_id: str, *, tenant: str) -> Item:
    """The item, if it may be replaced. Raises `NoSuchItem`, `StateConflict`."""
    item = item_store.get(connection, item_id, tenant=tenant)
    if item is None:
        raise NoSuchItem(item_id)
    if item.superseded_by is not None:
        raise StateConflict(f"The item was replaced by {item.superseded_by} already; replace that one.", item)
    if item.status not in SUPERSEDABLE:
        raise StateConflict(
            f"The item is {item.status.value}; only one that was refused, failed, ended or waits can be replaced.", item
        )
    return item


def supersede(connection: Connection, old: Item, new_id: str, *, actor: str) -> None:
    """Link both, and end the old one where it still waits for somebody. Raises `StateConflict`."""
    if old.status not in TERMINAL:
        before = item_store.transition(
            connection,
            old.id,
            expected=(old.status,),
            to=Status.CANCELLED,
            actor=actor,
            fence=old.fence,
            reason="superseded",
            values={"superseded_by": new_id},
            event_body={"superseded_by": new_id},
        )
        if before is None:
            raise StateConflict("The item that is to be replaced changed at the same moment. Read it again.", old)
    elif not item_store.link_superseding(connection, old, new_id, actor=actor):
        raise StateConflict("The item that is to be replaced changed at the same moment. Read it again.", old)
    escalations.withdraw_of_item(connection, old.id, actor=actor, why=f"superseded by {new_id}")
