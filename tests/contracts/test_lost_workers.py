"""Workers are killed and frozen in the middle of an item, with each way of dispatch: S2 and S3."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from gateway.item import Status
from gateway.store import items
from gateway.store.tables import items as items_table
from tests import media
from tests.contracts.ground import QUICK, SOON_S, Ground, add
from tests.contracts.queue import ways
from tests.contracts.sizes import IS_FULL, sized
from tests.gateway.running import Service, freeze_between_writes, running, start, until

PHOTO = media.label_photo(long_side=900)


def holder_of(ground: Ground, item_id: str) -> int | None:
    """The process that has the item in hand."""
    with ground.database.read() as connection:
        row = connection.execute(
            sa.select(items_table.c.lease_owner).where(
                items_table.c.id == item_id, items_table.c.lease_expires_ms.is_not(None)
            )
        ).first()
    return None if row is None else int(row.lease_owner.rsplit(":", 1)[1])


def status_of(ground: Ground, item_id: str) -> Status:
    with ground.database.read() as connection:
        found = items.version_and_status(connection, item_id)
    assert found is not None
    return found[1]


@pytest.mark.case
def test_item_of_a_worker_killed_in_the_middle_of_reading_is_ended_by_another(ground: Ground) -> None:
    """S1: nobody helps, and no message tells of it."""
    with running("worker", ground.folder, **ground.shared, warm_start=True) as other:
        doomed = start("worker", ground.folder, **ground.shared)
        freeze_between_writes(other.process.pid, ground.database)  # so that it is the doomed one that takes it
        try:
            (item_id,) = add(ground, 1, PHOTO)
            assert until(lambda: holder_of(ground, item_id), within_s=SOON_S, every_s=0.005) == doomed.process.pid
            doomed.kill()
            killed_at = time.monotonic()
        finally:
            os.kill(other.process.pid, signal.SIGCONT)
        until(lambda: status_of(ground, item_id) is Status.SUCCEEDED, within_s=SOON_S)
        assert time.monotonic() - killed_at <= float(str(QUICK["lease_s"])) + 10
    with ground.database.read() as connection:
        item = items.get(connection, item_id)
    assert item is not None
    assert item.claims == 2
    assert ways(ground.database, [item_id])[item_id].count(Status.SUCCEEDED) == 1


@pytest.mark.case
def test_frozen_worker_that_wakes_up_writes_nothing_over_its_successor(ground: Ground) -> None:
    """S2: it writes nothing, says so, and nobody else hears of it."""
    with running("worker", ground.folder, **ground.shared) as first:
        (item_id,) = add(ground, 1, PHOTO)
        frozen = until(lambda: holder_of(ground, item_id), within_s=SOON_S, every_s=0.005)
        assert frozen == first.process.pid
        freeze_between_writes(frozen, ground.database)
        try:
            with running("worker", ground.folder, **ground.shared):
                until(lambda: status_of(ground, item_id) is Status.SUCCEEDED, within_s=SOON_S)
                before = ways(ground.database, [item_id])[item_id]
                os.kill(frozen, signal.SIGCONT)
                until(lambda: "item.stale_lease" in first.log.read_text("utf-8"), within_s=SOON_S)
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert "Traceback" not in first.log.read_text("utf-8")
    assert ways(ground.database, [item_id])[item_id] == before
    assert before.count(Status.SUCCEEDED) == 1


@pytest.mark.case
def test_item_that_kills_its_workers_goes_to_a_person_and_others_flow(ground: Ground) -> None:
    """S3: after exactly three workers, without a storm of restarts, and without much delay for the others.

    How long those take is only asked where they are as large as the one that kills: small ones wait for a restart at most.
    """
    crew = Crew(ground)
    try:
        crew.work_until(lambda: len(crew.workers) == 2)
        calm = add(ground, 50, GOOD) if IS_FULL else []
        crew.work_until(lambda: _all_over(ground, calm))
        good = add(ground, 25, GOOD)
        (poison,) = add(ground, 1, PHOTO)
        good += add(ground, 25, GOOD)
        crew.poison = poison
        crew.work_until(lambda: status_of(ground, poison) is Status.AWAITING_HUMAN and _all_over(ground, good))
    finally:
        crew.stop()
    assert len(crew.killed) == 3
    assert crew.starts <= 2 + 4
    with ground.database.read() as connection:
        item = items.get(connection, poison)
    assert item is not None
    assert (item.claims, item.reason) == (3, "worker_lost")
    found = ways(ground.database, good)
    assert all(found[item_id].count(Status.SUCCEEDED) == 1 for item_id in good)
    if IS_FULL:
        assert _late(ground, good) < 3 * _late(ground, calm)


GOOD = PHOTO if IS_FULL else None


class Crew:
    """Two workers, started again when one is lost, and a killer of whoever takes the poison."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.workers: list[Service] = []
        self.starts = 0
        self.killed: list[int] = []
        self.poison: str | None = None
        self._done = threading.Event()
        self._killer = threading.Thread(target=self._kill)
        self._killer.start()

    def work_until(self, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + sized(2, 10) * SOON_S
        while not look():
            assert time.monotonic() < deadline
            self.workers = [worker for worker in self.workers if worker.process.poll() is None]
            if len(self.workers) < 2:
                self.workers.append(start("worker", self.ground.folder, **self.ground.shared))
                self.starts += 1
            time.sleep(0.05)

    def stop(self) -> None:
        self._done.set()
        self._killer.join()
        for worker in self.workers:
            worker.stop()

    def _kill(self) -> None:
        while not self._done.is_set():
            pid = None if self.poison is None else holder_of(self.ground, self.poison)
            if pid is not None and pid not in self.killed:
                self.killed.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)


def _late(ground: Ground, item_ids: list[str]) -> float:
    """Seconds from upload to end: the 95th of a hundred."""
    with ground.database.read() as connection:
        found = [item for item_id in item_ids if (item := items.get(connection, item_id))]
    waits = sorted(item.updated_ms - item.created_ms for item in found)
    return waits[int(len(waits) * 0.95)] / 1000


def _all_over(ground: Ground, item_ids: list[str]) -> bool:
    found = ways(ground.database, item_ids)
    return all(found[item_id][-1] is Status.SUCCEEDED for item_id in item_ids)
