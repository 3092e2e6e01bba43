"""The embedded worker: claims waiting items by itself and works on several at once."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from sqlalchemy.engine import Connection

from gateway.item import Lease
from gateway.store import items as item_store
from gateway.store import switches
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
        self._services.warm_decoders(reads=True)
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
            if self._keeper.has_seen_suspect.is_set() and not self._keeper.is_idle:
                self._rest()  # until there is room for an item that has to be worked on alone
                continue
            if not free.acquire(timeout=POLL_S):
                continue
            is_alone = self._keeper.is_idle
            lease = self._keeper.hold(lambda connection, is_alone=is_alone: self._take_next(connection, is_alone))  # type: ignore[misc]
            if is_alone:
                self._keeper.has_seen_suspect.clear()
            if lease is None:
                free.release()
                self._rest()
                continue
            future = pool.submit(self._keeper.work, lease)
            future.add_done_callback(done)
            while lease.is_suspect and not future.done() and not self._stopping.is_set():
                self._rest()

    def _rest(self) -> None:
        """Until something happens, or it is time to look."""
        self._wake.wait(POLL_S)
        self._wake.clear()

    def _take_next(self, connection: Connection, is_alone: bool) -> Lease | None:
        paused = switches.read(connection)
        if paused.new_work.is_paused:
            return None
        return item_store.claim_next(
            connection,
            owner=self.name,
            lease_ms=self._keeper.lease_ms,
            is_alone=is_alone,
            may_write=not paused.model_calls.is_paused,
        )

    def _listen(self) -> None:
        listener = self._services.signals.listen("worker")
        try:
            while not self._stopping.is_set():
                if listener.wait(POLL_S):
                    self._wake.set()
        finally:
            listener.close()
