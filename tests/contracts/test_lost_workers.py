"""Workers are killed and frozen in the middle of an item, with each way of dispatch: S2 and S3."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
import sqlalchemy as sa

from gateway.item import Status
from gateway.store import items
from gateway.store.tables import items as items_table
from tests import media
from tests.contracts.ground import QUICK, SOON_S, Ground, add
from tests.contracts.queue import ways
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
    with running("worker", ground.folder, **ground.shared) as other:
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
    """S3: after exactly three workers, without a storm of restarts."""
    good = add(ground, 25)
    (poison,) = add(ground, 1, PHOTO)
    good += add(ground, 25)
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while not done.is_set():
            pid = holder_of(ground, poison)
            if pid is not None and pid not in killed:
                killed.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    workers: list[Service] = []
    starts = 0
    try:
        deadline = time.monotonic() + 2 * SOON_S
        while status_of(ground, poison) is not Status.AWAITING_HUMAN or not _all_over(ground, good):
            assert time.monotonic() < deadline, ways(ground.database, [poison])[poison]
            workers = [worker for worker in workers if worker.process.poll() is None]
            if len(workers) < 2:
                workers.append(start("worker", ground.folder, **ground.shared))
                starts += 1
            time.sleep(0.05)
    finally:
        done.set()
        killer.join()
        for worker in workers:
            worker.stop()
    assert len(killed) == 3
    assert starts <= 2 + 4
    with ground.database.read() as connection:
        item = items.get(connection, poison)
    assert item is not None
    assert (item.claims, item.reason) == (3, "worker_lost")
    found = ways(ground.database, good)
    assert all(found[item_id].count(Status.SUCCEEDED) == 1 for item_id in good)


def _all_over(ground: Ground, item_ids: list[str]) -> bool:
    found = ways(ground.database, item_ids)
    return all(found[item_id][-1] is Status.SUCCEEDED for item_id in item_ids)
