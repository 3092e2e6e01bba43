"""Callers that wait for an item to change, woken by this process or by a worker's signal."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator

from gateway.work.signals import Listener

RECHECK_S = 0.5
"""How often a waiting caller looks by itself, in case a signal was lost."""


class Changes:
    """Who waits for which item, in one event loop."""

    def __init__(self) -> None:
        self.is_closing = False
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._watching: set[asyncio.Event] = set()

    def notify(self, item_id: str) -> None:
        """Wake all that wait for this item."""
        for event in self._waiting.get(item_id, ()):
            event.set()
        for event in self._watching:
            event.set()

    def close(self) -> None:
        """The process is about to end: nobody waits any longer, each gets its item as it stands."""
        self.is_closing = True
        for events in (*self._waiting.values(), self._watching):
            for event in events:
                event.set()

    @contextlib.contextmanager
    def watch(self) -> Iterator[asyncio.Event]:
        """Set whenever anything happened to any item, or the process is about to end; whoever waits clears it."""
        event = asyncio.Event()
        self._watching.add(event)
        try:
            yield event
        finally:
            self._watching.discard(event)

    def attach(self, listener: Listener) -> None:
        """Take signals from other processes in the running event loop."""
        loop = asyncio.get_running_loop()

        def take() -> None:
            for item_id in listener.drain():
                self.notify(item_id)

        listener.socket.setblocking(False)
        loop.add_reader(listener.socket.fileno(), take)

    def detach(self, listener: Listener) -> None:
        """Stop taking them."""
        asyncio.get_running_loop().remove_reader(listener.socket.fileno())

    def subscribe(self, item_id: str) -> Subscription:
        """Start waiting before reading, so that no change falls between."""
        return Subscription(self._waiting, item_id)


class Subscription:
    """One caller's interest in one item, as a context."""

    def __init__(self, waiting: dict[str, set[asyncio.Event]], item_id: str) -> None:
        self._waiting = waiting
        self._item_id = item_id
        self._event = asyncio.Event()

    def __enter__(self) -> Subscription:
        self._waiting[self._item_id].add(self._event)
        return self

    def __exit__(self, *exc_info: object) -> None:
        events = self._waiting[self._item_id]
        events.discard(self._event)
        if not events:
            del self._waiting[self._item_id]

    async def wait(self, timeout_s: float) -> None:
        """Until something happened to the item, or it is time to look again."""
        try:
            await asyncio.wait_for(self._event.wait(), min(timeout_s, RECHECK_S))
        except TimeoutError:
            return
        self._event.clear()
