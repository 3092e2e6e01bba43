"""Delivery as a thread of a process: beside a worker, or by itself."""

from __future__ import annotations

import threading
from typing import Protocol

from gateway.webhooks.outbox import POLL_S
from gateway.work.signals import Signals

_EAR = "api-webhooks"
"""What happens to items is told to all whose name begins with `api`; so it is heard here as well."""
_END_S = 8.0


class Part(Protocol):
    """What delivers (`Dispatcher`), or tells those who do (`Relay`)."""

    def run(self) -> None:
        """Work until `stop` is called."""

    def stop(self) -> None:
        """Begin nothing more."""

    def wake(self) -> None:
        """Something happened: look now."""


class DeliveryThread:
    """Such a part in a thread of its own, woken when something happens to an item on this machine."""

    def __init__(self, part: Part, signals: Signals) -> None:
        self._part = part
        self._signals = signals
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=part.run, name="webhooks", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()
        threading.Thread(target=self._listen, name="webhook-signals", daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more; returns at once."""
        self._stopping.set()
        self._part.stop()

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
                    self._part.wake()
        finally:
            listener.close()
