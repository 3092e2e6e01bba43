"""The worker process: claims items, works on several at once, keeps its leases alive, sweeps up after the dead."""

from __future__ import annotations

import importlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import structlog

from gateway import outcome, pipeline
from gateway.item import Lease
from gateway.store import items as item_store
from gateway.wiring import Services
from gateway.work.sweeper import sweep

log = structlog.get_logger()

DRAIN_S = 18.0
"""How long a worker that was told to stop goes on with what it has in hand."""
_WRITER = "gateway.agent.copywriter"
"""Loads the model libraries (about 2 s), which the first item should not wait for."""
POLL_S = 1.0
"""How often the queue is looked at without a signal."""


class Worker:
    """Works until `stop` is called; then hands back what it holds."""

    def __init__(self, services: Services, *, name: str | None = None) -> None:
        self._services = services
        self.name = name or f"worker:{socket.gethostname()[:32]}:{os.getpid()}"
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._held: dict[str, Lease] = {}
        self._held_lock = threading.Lock()

    def run(self) -> None:
        """Claim and work, blocking this thread."""
        settings = self._services.settings
        threads = [
            threading.Thread(target=self._listen, name="signals", daemon=True),
            threading.Thread(
                target=self._every, args=(settings.heartbeat_s, self._beat), name="heartbeat", daemon=True
            ),
            threading.Thread(target=self._every, args=(settings.sweep_s, self._sweep), name="sweeper", daemon=True),
        ]
        for thread in threads:
            thread.start()
        self._services.warm_decoders()
        threading.Thread(target=importlib.import_module, args=(_WRITER,), name="warm-writer", daemon=True).start()
        log.info("worker.started", worker=self.name, concurrency=settings.worker_concurrency)
        pool = ThreadPoolExecutor(settings.worker_concurrency, thread_name_prefix="item")
        self._claim_until_stopped(pool, settings.worker_concurrency)
        pool.shutdown(wait=False, cancel_futures=True)
        self._drain()
        self._hand_back()
        log.info("worker.stopped", worker=self.name)

    def stop(self) -> None:
        """Take no new work; `run` returns once what is in hand is settled or handed back."""
        self._stopping.set()
        self._wake.set()

    def _claim_until_stopped(self, pool: ThreadPoolExecutor, concurrency: int) -> None:
        free = threading.Semaphore(concurrency)

        def done(future: Future[None]) -> None:
            free.release()
            self._wake.set()

        while not self._stopping.is_set():
            if not free.acquire(timeout=POLL_S):
                continue
            lease = self._claim()
            if lease is None:
                free.release()
                self._wake.wait(POLL_S)
                self._wake.clear()
                continue
            pool.submit(self._work, lease).add_done_callback(done)

    def _claim(self) -> Lease | None:
        lease_ms = int(self._services.settings.lease_s * 1000)
        try:
            lease = self._services.database.transact(
                lambda connection: item_store.claim_next(connection, owner=self.name, lease_ms=lease_ms)
            )
        except Exception:
            log.exception("worker.claim_failed", worker=self.name)
            return None
        if lease is not None:
            with self._held_lock:
                self._held[lease.item_id] = lease
        return lease

    def _work(self, lease: Lease) -> None:
        try:
            pipeline.process(self._services, lease)
        except Exception:
            log.exception("item.crashed", item_id=lease.item_id, fence=lease.fence)
        finally:
            with self._held_lock:
                self._held.pop(lease.item_id, None)

    def _beat(self) -> None:
        with self._held_lock:
            leases = list(self._held.values())
        if not leases:
            return
        lease_ms = int(self._services.settings.lease_s * 1000)
        kept = self._services.database.transact(
            lambda connection: item_store.heartbeat(connection, leases, lease_ms=lease_ms)
        )
        lost = [lease.item_id for lease in leases if lease.item_id not in kept]
        if lost:
            log.warning("worker.leases_lost", worker=self.name, item_ids=lost)

    def _sweep(self) -> None:
        for item_id in sweep(self._services):
            self._services.signals.send("api", item_id)
            self._wake.set()

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        while not self._stopping.wait(seconds):
            try:
                action()
            except Exception:
                log.exception("worker.housekeeping_failed", worker=self.name)

    def _listen(self) -> None:
        listener = self._services.signals.listen("worker")
        try:
            while not self._stopping.is_set():
                if listener.wait(POLL_S):
                    self._wake.set()
        finally:
            listener.close()

    def _drain(self) -> None:
        """Let what is in hand end, within `DRAIN_S`; its leases are kept alive meanwhile."""
        deadline = time.monotonic() + DRAIN_S
        while self._held and time.monotonic() < deadline:
            self._wake.wait(0.2)
            self._wake.clear()
            if time.monotonic() + DRAIN_S - deadline > self._services.settings.heartbeat_s:
                self._beat()

    def _hand_back(self) -> None:
        """Leases of items that did not end in time go back to the queue at once."""
        with self._held_lock:
            leases = list(self._held.values())
        for lease in leases:
            self._services.database.transact(partial(outcome.handed_back, lease=lease, reason="worker_stopped"))
