"""What every worker process does whichever way its work arrives: keep its leases alive, sweep up after the dead, hand back."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module

import structlog
from sqlalchemy.engine import Connection

from gateway import metrics, outcome, pipeline, tracing
from gateway.item import Lease
from gateway.retention import Upkeep
from gateway.review.deciding import apply_pending
from gateway.review.tending import APPLY_S, tend
from gateway.store import items as item_store
from gateway.wiring import Services
from gateway.work.dispatch import Bulkhead, bulkhead_of
from gateway.work.sweeper import sweep, unheard

log = structlog.get_logger()

_WRITER = "gateway.agent.copywriter"
"""Loads the model libraries, about 2 s."""
DRAIN_S = 18.0
"""How long a worker that was told to stop goes on with what it has in hand."""


class LeaseKeeper:
    """The leases of one process, with its one heartbeat and its one sweeper."""

    def __init__(
        self, services: Services, *, name: str | None = None, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._services = services
        self.name = name or f"worker:{socket.gethostname()[:32]}:{os.getpid()}"
        self.lease_ms = int(services.settings.lease_s * 1000)
        self._on_change = on_change
        self._upkeep = Upkeep(services)
        self._ended = threading.Event()
        self._settled = threading.Event()
        self._held: dict[str, Lease] = {}
        self.has_seen_suspect = threading.Event()
        """Set when an item came back that has to be worked on alone: whoever saw it makes room for it."""
        self._held_lock = threading.Lock()

    def start(self) -> None:
        """Begin to renew leases and to sweep; load what the first item would else wait for."""
        settings = self._services.settings
        if settings.warm_start:
            threading.Thread(target=import_module, args=(_WRITER,), name="warm-writer", daemon=True).start()
        for name, seconds, action in (
            ("heartbeat", settings.heartbeat_s, self._beat),
            ("sweeper", settings.sweep_s, self._sweep),
            ("queue", settings.sweep_s, partial(tend, self._services)),
            ("decisions", APPLY_S, partial(apply_pending, self._services)),
        ):
            threading.Thread(target=self._every, args=(seconds, action), name=name, daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in hand."""
        return not self._held

    def hold(self, take: Callable[[Connection], Lease | None]) -> Lease | None:
        """Claim by `take` and keep the lease alive from then on; None if there was nothing to claim."""
        try:
            lease = self._services.database.transact(take)
        except Exception:
            log.exception("worker.claim_failed", worker=self.name)
            return None
        if lease is not None:
            with self._held_lock:
                self._held[lease.item_id] = lease
        return lease

    def work(self, lease: Lease, *, only: Bulkhead | None = None) -> None:
        """Work on a claimed item until it is settled, handed on or lost; never raises."""
        try:
            with (
                structlog.contextvars.bound_contextvars(item_id=lease.item_id),
                tracing.span("item", item_id=lease.item_id, fence=lease.fence, worker=self.name),
            ):
                pipeline.process(self._services, lease, only=only)
        except Exception:
            log.exception("item.crashed", item_id=lease.item_id, fence=lease.fence)
        finally:
            with self._held_lock:
                self._held.pop(lease.item_id, None)
            self._settled.set()

    def end(self) -> None:
        """Let what is in hand end, within `DRAIN_S`, and give the rest back to the queue."""
        deadline = time.monotonic() + DRAIN_S
        while self._held and time.monotonic() < deadline:
            self._settled.wait(0.2)
            self._settled.clear()
        self._ended.set()
        with self._held_lock:
            leases = list(self._held.values())
        for lease in leases:
            self._services.database.transact(partial(outcome.handed_back, lease=lease, reason="worker_stopped"))
            self._services.dispatch.wake(lease.item_id)

    def _beat(self) -> None:
        with self._held_lock:
            leases = list(self._held.values())
        if not leases:
            return
        kept = self._services.database.transact(
            lambda connection: item_store.heartbeat(connection, leases, lease_ms=self.lease_ms)
        )
        lost = [lease.item_id for lease in leases if lease.item_id not in kept]
        if lost:
            metrics.leases_lost.inc(len(lost))
            log.warning("worker.leases_lost", worker=self.name, item_ids=lost)

    def _sweep(self) -> None:
        for item_id in (*sweep(self._services), *self._upkeep.round()):
            self._services.signals.send("api", item_id)
            self._services.dispatch.wake(item_id)
            if self._is_suspect(item_id):
                self.has_seen_suspect.set()
            self._on_change()
        for row in unheard(self._services):
            self._services.dispatch.wake(row.id, bulkhead_of(row.route, row.reason))

    def _is_suspect(self, item_id: str) -> bool:
        with self._services.database.read() as connection:
            found = item_store.claimable(connection, item_id)
        return found is not None and found.is_suspect

    def _every(self, seconds: float, action: Callable[[], object]) -> None:
        while not self._ended.wait(seconds):
            try:
                action()
            except Exception:
                log.exception("worker.housekeeping_failed", worker=self.name)
