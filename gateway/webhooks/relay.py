"""Tell workers by a broker of deliveries that are due: a message is an id, and a hint."""

from __future__ import annotations

import threading

import structlog

from gateway.webhooks.outbox import POLL_S, Outbox
from gateway.work.dispatch import Bulkhead, Dispatch

log = structlog.get_logger()


class Relay:
    """Makes deliveries of what happens and tells of them until `stop` is called; sends nothing to their addresses itself.

    A message may be lost: who waits is told of again after `patience_s`.
    """

    def __init__(self, outbox: Outbox, dispatch: Dispatch, *, patience_s: float) -> None:
        self._outbox = outbox
        self._dispatch = dispatch
        self._patience_ms = int(patience_s * 1000)
        self._stopping = threading.Event()
        self._awake = threading.Event()

    def run(self) -> None:
        """Look and tell, blocking this thread."""
        while not self._stopping.is_set():
            has_more = False
            try:
                has_more = self.step()
            except Exception:
                log.exception("webhooks.relay_failed")
            if not has_more:
                self._awake.wait(POLL_S)
                self._awake.clear()

    def stop(self) -> None:
        """`run` returns after the round it is in."""
        self._stopping.set()
        self._awake.set()

    def wake(self) -> None:
        """Something happened: look now. From any thread."""
        self._awake.set()

    def step(self) -> bool:
        """One round. Whether there is more to do at once."""
        has_more = self._outbox.fan_out()
        for delivery_id in self._outbox.take_untold(patience_ms=self._patience_ms):
            self._dispatch.wake(delivery_id, Bulkhead.DELIVER)
        self._outbox.forget()
        return has_more
