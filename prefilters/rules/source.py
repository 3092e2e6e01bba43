"""The rule set in force, read again when its file changes."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from prefilters.errors import RuleSetInvalid
from prefilters.rules.loader import load_rules
from prefilters.rules.model import RuleSet

_log = logging.getLogger(__name__)

_UNSETTLED_S = 2.0
"""A file changed less long ago may change again without a new time stamp, so it is compared by content."""
_MOST_HASHED_BYTES = 1 << 20

_Stamp = tuple[int, int, int]


class RuleSource:
    """Gives the current rule set of a file. A broken file never replaces a good one.

    `current()` costs one `stat` while nothing changes; no thread, no watcher. Safe to share between threads: readers
    keep the set they were given, a new one is swapped in whole.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Loads the file. Raises `RuleSetInvalid` or `OSError` where there is no good set to begin with."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp: _Stamp | None = self._read_stamp()
        self._seen = self._in_force = self._read_digest()
        self._rules = load_rules(path)
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the file as it stands now is not in force; None when it is."""
        return self._problem

    def current(self) -> RuleSet:
        """The rule set in force: the file's, or the last good one while the file is broken or gone."""
        with self._lock:
            try:
                self._refresh()
            except OSError as exc:
                self._stamp = None
                self._keep_old(str(exc))
            except RuleSetInvalid as exc:
                self._keep_old(str(exc))
            return self._rules

    def _refresh(self) -> None:
        stamp = self._read_stamp()
        is_settled = self._clock() - stamp[0] / 1e9 > _UNSETTLED_S
        if stamp == self._stamp and is_settled:
            return
        digest = self._read_digest()
        is_new = digest != self._seen
        # Remembered before the load, so that a broken file is told once and not parsed again at each call.
        self._stamp, self._seen = stamp, digest
        if digest == self._in_force:
            self._problem = None
        elif is_new:
            self._rules = load_rules(self._path)
            self._in_force = digest
            self._problem = None
            _log.info("rules.loaded", extra={"ruleset": self._rules.version})

    def _keep_old(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("rules.kept_old", extra={"ruleset": self._rules.version, "problem": problem})
        self._problem = problem

    def _read_stamp(self) -> _Stamp:
        status = os.stat(self._path)
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read_digest(self) -> bytes:
        with open(self._path, "rb") as file:
            return hashlib.sha256(file.read(_MOST_HASHED_BYTES)).digest()
