"""Hold an answer until an item is what the caller waits for, or the caller's patience ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from gateway.api.changes import Changes
from gateway.item import Item, Status
from gateway.store import items as item_store
from gateway.store.engine import Database


class Waiting:
    """Waits on items of one database."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def until(
        self,
        item_id: str,
        is_wanted: Callable[[int, Status], bool],
        *,
        timeout_s: float,
        tenant: str | None = None,
    ) -> Item | None:
        """The item once `is_wanted(version, status)` holds, or as it stands after `timeout_s`; None if there is none."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        with self._changes.subscribe(item_id) as subscription:
            while True:
                item = await run_in_threadpool(self._read, item_id, tenant)
                left_s = deadline - asyncio.get_running_loop().time()
                if item is None or left_s <= 0 or self._changes.is_closing or is_wanted(item.version, item.status):
                    return item
                await subscription.wait(left_s)

    def _read(self, item_id: str, tenant: str | None) -> Item | None:
        with self._database.read() as connection:
            return item_store.get(connection, item_id, tenant=tenant)
