"""The event log as outbox: deliveries are made of what is new in it, and of those that are due workers are told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from gateway.store import events
from gateway.store import items as item_store
from gateway.store import webhook_deliveries as deliveries
from gateway.store import webhooks as endpoints
from gateway.store.engine import Database

POLL_S = 0.5
"""How often it is looked at without a signal: attempts that come due make none."""
PAGE = 200
_FORGET_EVERY_S = 60.0
_MS_PER_DAY = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Clock:
    """The two clocks: the database's, by which things are due, and this machine's, by which attempts are signed."""

    database_ms: Callable[[Connection], int] = item_store.now_ms
    wall_s: Callable[[], float] = time.time


class Outbox:
    """Any number of processes may look after it at once: each change is conditional."""

    def __init__(self, database: Database, *, keep_days: int = 30, clock: Clock | None = None) -> None:
        self._database = database
        self._keep_days = keep_days
        self._clock = clock or Clock()
        self._forgot_at = float("-inf")

    def fan_out(self) -> bool:
        """Make deliveries of what is new in the log; whether some endpoint has more than one page of it."""
        with self._database.read() as connection:
            found = [
                (endpoint, rows)
                for endpoint in endpoints.all_of(connection)
                if (rows := events.page(connection, tenant=endpoint.tenant, after=endpoint.cursor_seq, limit=PAGE))
            ]
        for endpoint, rows in found:
            self._database.transact(
                lambda connection, endpoint=endpoint, rows=rows: deliveries.fan_out(  # type: ignore[misc]
                    connection, endpoint, rows, at_ms=self._clock.database_ms(connection)
                )
            )
        return any(len(rows) == PAGE for _, rows in found)

    def take_untold(self, *, patience_ms: int) -> list[str]:
        """Ids of due deliveries of which somebody has to be told now; they count as told.

        So of several processes that look at the same time one tells, and of each delivery once in `patience_ms` at most.
        """
        with self._database.read() as connection:
            at_ms = self._clock.database_ms(connection)
            found = deliveries.untold(connection, at_ms=at_ms, patience_ms=patience_ms)
        if not found:
            return []
        return self._database.transact(
            lambda connection: deliveries.note_told(connection, found, at_ms=self._clock.database_ms(connection))
        )

    def forget(self) -> None:
        """Remove deliveries that ended long ago, some at a time; looks once a minute, however often it is called."""
        if time.monotonic() - self._forgot_at < _FORGET_EVERY_S:
            return
        self._forgot_at = time.monotonic()
        self._database.transact(self._forget)

    def _forget(self, connection: Connection) -> int:
        before_ms = self._clock.database_ms(connection) - self._keep_days * _MS_PER_DAY
        return deliveries.forget(connection, before_ms=before_ms)
