"""The embedded worker: claims waiting items by itself and works on several at once."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from sqlalchemy.engine import Connection

from gateway.item import Lease
from gateway.store import items as item_store
from gateway.wiring import Services
from gateway.work.keeper import LeaseKeeper

log = structlog.get_logger()

POLL_S = 1.0
"""How often the queue is looked at without a signal."""


class Worker:
    """Works until `stop` is called; then hands back what it holds."""

    def __init__(self, services: Services, *, name: str | None = None) -> None:
        self._services = services
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._keeper = LeaseKeeper(services, name=name, on_change=self._wake.set)
        self.name = self._keeper.name

    def run(self) -> None:
        """Claim and work, blocking this thread."""
        concurrency = self._services.settings.worker_concurrency
        threading.Thread(target=self._listen, name="signals", daemon=True).start()
        self._keeper.start()
        self._services.warm_decoders()
        log.info("worker.started", worker=self.name, dispatch="embedded", concurrency=concurrency)
        pool = ThreadPoolExecutor(concurrency, thread_name_prefix="item")
        self._claim_until_stopped(pool, concurrency)
        pool.shutdown(wait=False, cancel_futures=True)
        self._keeper.end()
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
            lease = self._keeper.hold(self._take_next)
            if lease is None:
                free.release()
                self._wake.wait(POLL_S)
                self._wake.clear()
                continue
            pool.submit(self._keeper.work, lease).add_done_callback(done)

    def _take_next(self, connection: Connection) -> Lease | None:
        return item_store.claim_next(connection, owner=self.name, lease_ms=self._keeper.lease_ms)

    def _listen(self) -> None:
        listener = self._services.signals.listen("worker")
        try:
            while not self._stopping.is_set():
                if listener.wait(POLL_S):
                    self._wake.set()
        finally:
            listener.close()
