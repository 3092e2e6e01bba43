"""Copies on this machine of files that are kept elsewhere: how many bytes of them there are, and which may go.

Several processes may share the folder. A copy that was handed out a while ago is removed under a lock by which whoever hands it
out again notices, so that nobody is given the path of a file that is just being removed. Who has it open reads on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

IN_USE_S = 600
"""A copy that was handed out within this time is not removed: a decoder may be about to open it."""
_FRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy. Times are Unix seconds."""

    path: Path
    bytes: int
    written_at: float
    used_at: float
    """When it was last handed out."""

    @property
    def tenant(self) -> str:
        """Whose file it is."""
        return self.path.parent.name

    @property
    def sha256(self) -> str:
        """Of its content."""
        return self.path.name


class Copies:
    """`<folder>/<tenant>/<sha256>`, the ones that were used longest ago removed when there are too many bytes of them."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._count_lock = threading.Lock()
        self._removing = folder.parent / "copies.lock"
        self._bytes = sum(copy.bytes for copy in self.all())

    def add(self, path: Path) -> Path:
        """Count a new copy, and make room if that is too much. The same copy counted twice is put right at the next look."""
        with self._count_lock:
            self._bytes += path.stat().st_size
            if self._bytes > self._most_bytes:
                self._make_room()
        return path

    def touch(self, path: Path, *, is_written: bool = False) -> Path:
        """This copy is about to be used: it stays for `IN_USE_S`. Raises `FileNotFoundError` where it was just removed.

        With `is_written` it counts as written now, also where it was there before.
        """
        now = time.time()
        with self._locked(fcntl.LOCK_SH):
            written_at = path.stat().st_mtime
            is_old = is_written and now - written_at > _FRESH_S  # else its digest would be taken once more
            os.utime(path, (now, now if is_old else written_at))
        return path

    def all(self) -> Iterator[Copy]:
        """All copies, in no order, found piece by piece."""
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                yield Copy(path, status.st_size, status.st_mtime, status.st_atime)

    def drop(self, copy: Copy) -> bool:
        """Remove a copy, unless it was handed out a short while ago, or after it was looked at."""
        with self._locked(fcntl.LOCK_EX):
            try:
                used_at = copy.path.stat().st_atime
            except FileNotFoundError:
                return False
            if used_at > min(copy.used_at, time.time() - IN_USE_S):
                return False
            copy.path.unlink()
        return True

    def discount(self, dropped_bytes: int) -> None:
        """So many bytes fewer are there."""
        with self._count_lock:
            self._bytes = max(0, self._bytes - dropped_bytes)

    def _make_room(self) -> None:
        """Down to nine tenths, so that not every new copy has to look through the folder."""
        copies = sorted(self.all(), key=lambda copy: copy.used_at)
        self._bytes = sum(copy.bytes for copy in copies)
        used_before = time.time() - IN_USE_S
        for copy in copies:
            if self._bytes <= self._most_bytes * 0.9 or copy.used_at > used_before:
                return
            self.drop(copy)
            self._bytes -= copy.bytes

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        descriptor = os.open(self._removing, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield
        finally:
            os.close(descriptor)
