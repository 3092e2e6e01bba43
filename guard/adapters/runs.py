"""The guards of the runs of one agent, by the name of the run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from guard.adapters.ledger import Clock, Ledger
from guard.guard import Guard

MAX_ENDED: Final = 1_000
"""Runs that are over and whose guards can still be asked for; the oldest are forgotten first."""

MAX_RUNNING: Final = 10_000
"""Runs that began and were not seen to end; beyond it the one that was judged longest ago is taken to have died."""


class Runs:
    """Ledgers of runs: of all that go on, and of the latest that ended. Safe to use from several threads."""

    def __init__(self, make: Callable[[], Guard], clock: Clock | None = None) -> None:
        self._make = make
        self._clock = clock
        self._running: OrderedDict[str, Ledger] = OrderedDict()
        self._ended: OrderedDict[str, Ledger] = OrderedDict()
        self._lock = threading.Lock()

    def going_on(self, name: str) -> Ledger:
        """The ledger of a run that goes on; a new one for a run that has just begun, or that another process began."""
        with self._lock:
            ledger = self._running.get(name) or self._ended.pop(name, None) or Ledger(self._make(), clock=self._clock)
            self._running[name] = ledger
            self._running.move_to_end(name)
            if len(self._running) > MAX_RUNNING:
                self._end(*self._running.popitem(last=False))
            return ledger

    def finish(self, name: str) -> None:
        """The run is over; its guard is kept for a while."""
        with self._lock:
            ledger = self._running.pop(name, None)
            if ledger is not None:
                self._end(name, ledger)

    def find(self, name: str) -> Ledger:
        """The ledger of a run. Raises LookupError when it is not kept any more, or was another process's."""
        with self._lock:
            ledger = self._running.get(name) or self._ended.get(name)
        if ledger is None:
            raise LookupError(
                f"The guard of this run is not kept here: it was another process's, or one of more than {MAX_ENDED:,} runs "
                "ago. Ask for it as soon as the run is over."
            )
        return ledger

    def _end(self, name: str, ledger: Ledger) -> None:
        self._ended[name] = ledger
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
