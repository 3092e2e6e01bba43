"""Let threads work side by side, or one of them alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Room:
    """Many may be in it together; who wants it alone waits until it is empty, and nobody enters meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting_alone = 0
        self._is_alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Be in the room beside others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._waiting_alone)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Be in the room with nobody beside."""
        with self._changed:
            self._waiting_alone += 1
            self._changed.wait_for(lambda: not self._is_alone and not self._inside)
            self._waiting_alone -= 1
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()
