"""The Celery worker: messages bring ids, threads work on them, and the rows decide."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

import structlog
from celery.worker import WorkController, state
from sqlalchemy.engine import Connection

from fallback.route import Route
from gateway.item import Lease
from gateway.store import items as item_store
from gateway.store import switches
from gateway.webhooks.parts import open_dispatcher
from gateway.wiring import Services
from gateway.work.celery_app import celery_app
from gateway.work.dispatch import Bulkhead, bulkhead_of
from gateway.work.keeper import LeaseKeeper
from gateway.work.room import Room
from gateway.work.tasks import add_tasks

log = structlog.get_logger()


_END_S = 8.0
"""How long attempts that are under way are waited for; those that take longer were given back by then."""
_HINTS_AT_ONCE = 64
"""Messages of webhooks that are taken from the broker at once: to note one takes a millisecond, and a loop without Celery's event
loop may look for more only every two seconds once it has all that it may have."""


class CeleryWorker:
    """Works until `stop` is called; then hands back what it holds.

    Threads, since Celery's child processes may not have children of their own, and the decoders are such. Webhooks have a
    consumer of their own, so that none waits for a thread that writes copy. A worker for webhooks alone neither loads what items
    need nor sweeps up.
    """

    def __init__(self, services: Services, bulkheads: Collection[Bulkhead] = tuple(Bulkhead)) -> None:
        self._services = services
        self._bulkheads = tuple(bulkheads)
        self._for_items = [bulkhead for bulkhead in self._bulkheads if bulkhead is not Bulkhead.DELIVER]
        self._stopping = threading.Event()
        self._keeper = LeaseKeeper(services)
        self._room = Room()
        self.name = self._keeper.name
        self._dispatcher = open_dispatcher(services, is_hinted=True) if Bulkhead.DELIVER in self._bulkheads else None
        self._ready: set[str] = set()
        self._consumers: list[WorkController] = []
        if self._for_items:
            self._add_consumer(self.name, self._for_items, self._take, threads=services.settings.worker_concurrency)
        if self._dispatcher is not None:
            self._add_consumer(
                f"{self.name}:webhooks", [Bulkhead.DELIVER], self._take_delivery, prefetched=_HINTS_AT_ONCE
            )

    def _add_consumer(
        self,
        name: str,
        queues: Sequence[Bulkhead],
        take: Callable[[str, Bulkhead], None],
        *,
        threads: int = 1,
        prefetched: int = 1,
    ) -> None:
        """An application of its own, since the choice of queues belongs to that, and only one may have Celery's event loop."""
        app = celery_app(self._services.settings)
        add_tasks(app, take, queues)
        consumer = app.WorkController(
            pool="threads",
            concurrency=threads,
            prefetch_multiplier=prefetched,
            queues=[bulkhead.value for bulkhead in queues],
            hostname=name,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            use_eventloop=False if self._consumers else None,
            ready_callback=partial(self._note_ready, name),
        )
        self._consumers.append(consumer)

    def run(self) -> None:
        """Consume and work, blocking this thread."""
        if self._for_items:
            self._keeper.start()
            self._services.warm_decoders(reads=Bulkhead.OCR in self._bulkheads)
        delivering = self._start_delivering()
        consuming = [
            threading.Thread(target=consumer.start, name="consumer", daemon=True) for consumer in self._consumers
        ]
        for thread in consuming:
            thread.start()
        while all(thread.is_alive() for thread in consuming) and not self._stopping.wait(0.2):
            pass
        self._stopping.set()
        state.should_stop = 0
        if self._dispatcher is not None:
            self._dispatcher.stop()
        self._keeper.end()
        if delivering is not None:
            delivering.join(_END_S)
        log.info("worker.stopped", worker=self.name)

    def _start_delivering(self) -> threading.Thread | None:
        if self._dispatcher is None:
            return None
        thread = threading.Thread(target=self._dispatcher.run, name="webhooks", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Take no new work; `run` returns once what is in hand is settled or handed back."""
        self._stopping.set()

    def _note_ready(self, name: str, consumer: object) -> None:
        self._ready.add(name)
        if len(self._ready) < len(self._consumers):
            return
        log.info(
            "worker.started",
            worker=self.name,
            dispatch="celery",
            concurrency=self._services.settings.worker_concurrency,
            queues=[bulkhead.value for bulkhead in self._bulkheads],
        )

    def _take_delivery(self, delivery_id: str, bulkhead: Bulkhead) -> None:
        """Have the delivery sent that a message names, if it is due."""
        if self._dispatcher is not None and not self._stopping.is_set():
            self._dispatcher.hint(delivery_id)

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
