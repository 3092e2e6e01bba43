"""The Celery worker: messages bring ids, threads work on them, and the rows decide."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial

import structlog
from celery.worker import state
from sqlalchemy.engine import Connection

from fallback.route import Route
from gateway.item import Lease
from gateway.store import items as item_store
from gateway.store import switches
from gateway.wiring import Services
from gateway.work.celery_app import celery_app
from gateway.work.dispatch import Bulkhead, bulkhead_of
from gateway.work.keeper import LeaseKeeper
from gateway.work.room import Room
from gateway.work.tasks import add_tasks

log = structlog.get_logger()


class CeleryWorker:
    """Works until `stop` is called; then hands back what it holds.

    Threads, since Celery's child processes may not have children of their own, and the decoders are such.
    """

    def __init__(self, services: Services, bulkheads: Collection[Bulkhead] = tuple(Bulkhead)) -> None:
        self._services = services
        self._bulkheads = tuple(bulkheads)
        self._stopping = threading.Event()
        self._keeper = LeaseKeeper(services)
        self._room = Room()
        self.name = self._keeper.name
        app = celery_app(services.settings)
        add_tasks(app, self._take)
        self._consumer = app.WorkController(
            pool="threads",
            concurrency=services.settings.worker_concurrency,
            queues=[bulkhead.value for bulkhead in self._bulkheads],
            hostname=self.name,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            ready_callback=self._ready,
        )

    def run(self) -> None:
        """Consume and work, blocking this thread."""
        self._keeper.start()
        self._services.warm_decoders(reads=Bulkhead.OCR in self._bulkheads)
        consuming = threading.Thread(target=self._consumer.start, name="consumer", daemon=True)
        consuming.start()
        while consuming.is_alive() and not self._stopping.wait(0.2):
            pass
        self._stopping.set()
        state.should_stop = 0
        self._keeper.end()
        log.info("worker.stopped", worker=self.name)

    def stop(self) -> None:
        """Take no new work; `run` returns once what is in hand is settled or handed back."""
        self._stopping.set()

    def _ready(self, consumer: object) -> None:
        log.info(
            "worker.started",
            worker=self.name,
            dispatch="celery",
            concurrency=self._services.settings.worker_concurrency,
            queues=[bulkhead.value for bulkhead in self._bulkheads],
        )

    def _take(self, item_id: str, bulkhead: Bulkhead) -> None:
        """Work on the item that a message names, if it waits and belongs into this queue."""
        if self._stopping.is_set():
            return
        with self._services.database.read() as connection:
            found = item_store.claimable(connection, item_id)
        if found is None:
            return
        wanted = bulkhead_of(found.route, found.reason)
        does_more = wanted is Bulkhead.EDGE and bulkhead is Bulkhead.OCR
        if wanted is not bulkhead and not does_more:
            self._services.dispatch.wake(item_id, wanted)
            return
        with self._room.alone() if found.is_suspect else self._room.together():
            is_writing = wanted is Bulkhead.AGENT and found.route != Route.HUMAN.value
            claim = partial(self._claim, item_id=item_id, is_writing=is_writing)
            lease = None if self._stopping.is_set() else self._keeper.hold(claim)
            if lease is not None:
                self._keeper.work(lease, only=bulkhead)

    def _claim(self, connection: Connection, item_id: str, *, is_writing: bool) -> Lease | None:
        paused = switches.read(connection)
        if paused.new_work.is_paused or (is_writing and paused.model_calls.is_paused):
            return None  # it waits, and is hinted at again
        return item_store.claim(connection, item_id, owner=self.name, lease_ms=self._keeper.lease_ms)
