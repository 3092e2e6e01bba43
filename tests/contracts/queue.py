"""Items in a database, without a service around them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa

from gateway.ids import new_id
from gateway.item import TERMINAL, Lease, Mode, Status
from gateway.store import items
from gateway.store.engine import Database
from gateway.store.tables import history


def new_item(**fields: Any) -> items.NewItem:
    """An item without files, ready to be stored."""
    return items.NewItem(
        **{
            "id": new_id("itm"),
            "tenant": "default",
            "external_id": None,
            "mode": Mode.GENERATE,
            "profile": "product-copy",
            "profile_version": "pv_1",
            "ruleset": "rs_1",
            "submission": {},
            "notes": (),
            "content_key": new_id("key"),
            "duplicate_of": None,
            "retention_ms": 3_600_000,
            "files": (),
            **fields,
        }
    )


def add_items(database: Database, count: int) -> list[str]:
    """So many waiting items."""
    new = [new_item() for _ in range(count)]

    def write(connection: sa.Connection) -> None:
        for item in new:
            items.insert(connection, item, actor="test", at_ms=items.now_ms(connection))

    database.transact(write)
    return [item.id for item in new]


def claim(database: Database, owner: str, lease_ms: int = 60_000) -> Lease | None:
    return database.transact(lambda connection: items.claim_next(connection, owner=owner, lease_ms=lease_ms))


def finish(database: Database, lease: Lease) -> bool:
    """Settle as the lease's holder; False if it was lost."""
    before = database.transact(
        lambda connection: items.transition(
            connection,
            lease.item_id,
            expected=(Status.INSPECTING,),
            to=Status.READY,
            actor=lease.owner,
            fence=lease.fence,
        )
    )
    return before is not None


def ways(database: Database, item_ids: list[str]) -> dict[str, list[Status]]:
    """All statuses that each item went through, in order."""
    found: dict[str, list[Status]] = {item_id: [] for item_id in item_ids}
    with database.read() as connection:
        for row in connection.execute(sa.select(history.c.item_id, history.c.to_status).order_by(history.c.id)):
            found.setdefault(row.item_id, []).append(Status(row.to_status))
    return found


def assert_each_ended_once(database: Database, item_ids: list[str]) -> None:
    """Every item has one end, and nothing after it."""
    ends = Counter()
    for item_id, statuses in ways(database, item_ids).items():
        assert statuses[-1] in TERMINAL, (item_id, statuses)
        assert not TERMINAL & set(statuses[:-1]), (item_id, statuses)
        ends[statuses[-1]] += 1
    assert sum(ends.values()) == len(item_ids)
