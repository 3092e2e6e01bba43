"""Back-pressure: what waits is bounded by count, bytes and time, and the disk keeps a reserve; past that, uploads are refused.

A refusal costs next to nothing, and what was accepted keeps its place: overload shows at the door, not in the queue.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sqlalchemy.engine import Connection

from gateway.store import backlog
from gateway.store.engine import Database

_LOOK_S = 1.0
"""How long one look at the queue and the disk is good for, at least."""
_CLOSE_LOOK_S = 0.1
"""The same while uploads are refused: room is given out as it comes, not a second's worth of it at once."""
_LOOK_SHARE = 0.02
"""Of one process's time that looks may take: where the queue may be so long that a look takes long, it is made more rarely."""
_LEAST_RETRY_S, _MOST_RETRY_S = 1, 300
_LEAST_BUSY_S, _MOST_BUSY_S = 20.0, 300.0
_LEAST_ENDED = 10


class Overload(StrEnum):
    """Why an upload is refused."""

    TENANT_FULL = "tenant_full"
    QUEUE_FULL = "queue_full"
    WAIT_TOO_LONG = "wait_too_long"
    DISK_LOW = "disk_low"


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much may wait."""

    max_waiting: int = 20_000
    """Items of all tenants."""
    max_waiting_bytes: int = 50 * 1024**3
    max_wait_s: float = 3600.0
    """How long the oldest has waited, and how long whoever comes now would wait by the pace of the last minutes."""
    tenant_max_waiting: int = 10_000
    tenant_max_waiting_bytes: int = 25 * 1024**3
    min_free_bytes: int = 512 * 1024**2
    """Free space on the data folder's disk, and on that of an embedded database elsewhere, which must go on writing."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why, and when to come again."""

    reason: Overload
    retry_after_s: int


@dataclass(slots=True)
class Admitted:
    """An upload that was let in; it must be settled once it is stored or given up."""

    tenant: str
    announced_bytes: int
    items: int = 1
    """0 where it brings files to an item that is there already."""
    is_settled: bool = False


class _Coming:
    """Uploads that the last look cannot have seen: how many and how many bytes, of a tenant and of all."""

    def __init__(self) -> None:
        self.items: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.all_items = 0
        self.all_bytes = 0

    def count(self, upload: Admitted, by: int = 1) -> None:
        self.items[upload.tenant] += by * upload.items
        self.bytes[upload.tenant] += by * upload.announced_bytes
        self.all_items += by * upload.items
        self.all_bytes += by * upload.announced_bytes
        if not self.items[upload.tenant] and not self.bytes[upload.tenant]:
            del self.items[upload.tenant], self.bytes[upload.tenant]


class Admission:
    """Decides at the door of one process; safe to ask from many threads."""

    def __init__(self, database: Database, data_dir: Path, limits: AdmissionLimits) -> None:
        self._database = database
        self._data_dir = data_dir
        self._database_dir = _folder_of(database) or data_dir
        self._limits = limits
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._good_for_s = 0.0
        self._waiting: Mapping[str, backlog.Waiting] = {}
        self._total = backlog.Waiting(0, 0, 0.0)
        self._wait_s = 0.0
        self._free_bytes = 0
        self._database_free_bytes = 0
        self._has_refused = False
        self._counting = threading.Lock()
        self._coming = _Coming()
        self._arrived: list[Admitted] = []

    @property
    def is_usable(self) -> bool:
        """Whether `admit` can answer without a look at the database."""
        return self._age_s < max(_LOOK_S, self._good_for_s)

    @property
    def is_fresh(self) -> bool:
        """Whether a look would be no use yet. Where uploads are refused, one is worth while before it must be made."""
        return self._age_s < max(_CLOSE_LOOK_S if self._has_refused else _LOOK_S, self._good_for_s)

    @property
    def _age_s(self) -> float:
        return time.monotonic() - self._looked_at

    def look(self) -> None:
        """Look at queue and disk. Blocks for as long as one small query takes; others go on with the last look, if any."""
        is_first = self._looked_at == float("-inf")
        if not self._lock.acquire(blocking=is_first):
            return
        try:
            if is_first and self.is_usable:  # somebody else looked while we waited
                return
            began = time.monotonic()
            seen = len(self._arrived)  # who arrives while we look may not be among what we see
            with self._database.read() as connection:  # past the bound all are refused, however many there are
                waiting = backlog.waiting_by_tenant(connection, most=self._limits.max_waiting)
                total = backlog.total(waiting.values())
                wait_s = _wait_s(connection, total)
            free_bytes = shutil.disk_usage(self._data_dir).free
            database_free_bytes = shutil.disk_usage(self._database_dir).free
            with self._counting:
                self._waiting, self._total, self._wait_s = waiting, total, wait_s
                self._free_bytes, self._database_free_bytes = free_bytes, database_free_bytes
                for upload in self._arrived[:seen]:
                    self._coming.count(upload, -1)
                del self._arrived[:seen]
                self._has_refused = False
            self._looked_at = time.monotonic()
            self._good_for_s = (self._looked_at - began) / _LOOK_SHARE
        finally:
            self._lock.release()

    def admit(self, tenant: str, *, announced_bytes: int, is_new: bool = True) -> Admitted | Refusal:
        """Let an upload of this size in, or say why it may not come in now.

        One that is let in counts until it is settled, and after that until a look has seen what became of it. What belongs to
        an item that is there already (not `is_new`) is asked for its room on the disk alone.
        """
        upload = Admitted(tenant, announced_bytes, items=int(is_new))
        with self._counting:
            reason = self._reason(upload)
            if reason is None:
                self._coming.count(upload)
                return upload
            self._has_refused = True
        return Refusal(reason, self._retry_after_s(reason))

    def settle(self, upload: Admitted) -> None:
        """The upload is stored, or will not be. Once is enough."""
        with self._counting:
            if not upload.is_settled:
                upload.is_settled = True
                self._arrived.append(upload)

    def _reason(self, upload: Admitted) -> Overload | None:
        limits = self._limits
        coming, tenant = self._coming, upload.tenant
        waiting, own = self._total, self._waiting.get(tenant, backlog.NOTHING)
        if self._free_bytes - coming.all_bytes - upload.announced_bytes < limits.min_free_bytes:
            return Overload.DISK_LOW
        if self._database_free_bytes < limits.min_free_bytes:
            return Overload.DISK_LOW
        if not upload.items:
            return None
        if (
            waiting.items + coming.all_items >= limits.max_waiting
            or waiting.bytes + coming.all_bytes + upload.announced_bytes > limits.max_waiting_bytes
        ):
            return Overload.QUEUE_FULL
        if self._wait_s > limits.max_wait_s:
            return Overload.WAIT_TOO_LONG
        if (
            own.items + coming.items[tenant] >= limits.tenant_max_waiting
            or own.bytes + coming.bytes[tenant] + upload.announced_bytes > limits.tenant_max_waiting_bytes
        ):
            return Overload.TENANT_FULL
        return None

    def _retry_after_s(self, reason: Overload) -> int:
        """A tenth of the wait: by then about a tenth of the queue is done."""
        if reason is Overload.DISK_LOW:
            return 30
        return min(max(int(self._wait_s / 10), _LEAST_RETRY_S), _MOST_RETRY_S)


def _folder_of(database: Database) -> Path | None:
    """Where an embedded database lies; None for a server's, whose disk is not ours to look at."""
    name = database.engine.url.database
    return Path(name).parent if database.is_sqlite and name else None


def _wait_s(connection: Connection, waiting: backlog.Waiting) -> float:
    """Seconds that an item which comes now would wait: at least as long as the oldest has, and by Little's law the items
    before it divided by the pace.

    The pace is that of the time in which the oldest waited, when the workers had no pause; below `_LEAST_BUSY_S` or
    `_LEAST_ENDED` items it says nothing.
    """
    if waiting.oldest_s < _LEAST_BUSY_S:
        return waiting.oldest_s
    ended, seconds = backlog.pace(connection, within_ms=int(min(waiting.oldest_s, _MOST_BUSY_S) * 1000))
    if ended < _LEAST_ENDED:
        return waiting.oldest_s
    return max(waiting.oldest_s, waiting.items * seconds / ended)
