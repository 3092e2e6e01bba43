"""Delivery as a thread of a process: beside a worker, or by itself."""

from __future__ import annotations

import threading

from gateway.webhooks.dispatcher import POLL_S, Dispatcher
from gateway.work.signals import Signals

_EAR = "api-webhooks"
"""What happens to items is told to all whose name begins with `api`; so it is heard here as well."""
_END_S = 8.0


class DeliveryThread:
    """A dispatcher in a thread of its own, woken when something happens to an item on this machine."""

    def __init__(self, dispatcher: Dispatcher, signals: Signals) -> None:
        self._dispatcher = dispatcher
        self._signals = signals
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=dispatcher.run, name="webhooks", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()
        threading.Thread(target=self._listen, name="webhook-signals", daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more; returns at once."""
        self._stopping.set()
        self._dispatcher.stop()

    def join(self) -> None:
        """Until the attempts that are under way have ended, or were given back after a few seconds."""
        self._thread.join(_END_S)

    @property
    def is_alive(self) -> bool:
        """Whether it delivers."""
        return self._thread.is_alive()

    def _listen(self) -> None:
        listener = self._signals.listen(_EAR)
        try:
            while not self._stopping.is_set():
                if listener.wait(POLL_S):
                    self._dispatcher.wake()
        finally:
            listener.close()
