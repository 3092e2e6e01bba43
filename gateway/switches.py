"""What is paused, as one process knows it: a look at the database is good for a second."""

from __future__ import annotations

import threading
import time

from gateway.store import switches
from gateway.store.engine import Database
from gateway.store.switches import Switches

_LOOK_S = 1.0


class ModelCallsPaused(Exception):
    """An operator paused all requests to the model: the item waits, and nothing is wrong with it."""

    code = "model_calls_paused"
    retryable = True


class SwitchBoard:
    """Both switches, for many threads of one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._found = Switches()

    @property
    def is_fresh(self) -> bool:
        """Whether `latest` is no older than a second."""
        return time.monotonic() - self._looked_at < _LOOK_S

    @property
    def latest(self) -> Switches:
        """As of the last look."""
        return self._found

    def look(self) -> Switches:
        """As of now, or of less than a second ago. Blocks for as long as one small query takes."""
        if not self.is_fresh:
            with self._lock:
                if not self.is_fresh:
                    with self._database.read() as connection:
                        self._found = switches.read(connection)
                    self._looked_at = time.monotonic()
        return self._found

    def forget(self) -> None:
        """Look again at the next question: this process has just changed one."""
        self._looked_at = float("-inf")
