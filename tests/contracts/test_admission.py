"""How long whoever comes now would wait: by the age of the oldest, and by the pace at which the queue moves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from gateway.admission import Admission, AdmissionLimits, Admitted, Overload, Refusal
from gateway.item import Status
from gateway.store import items, migrate
from gateway.store.engine import Database
from gateway.store.tables import history
from gateway.store.tables import items as item_table
from tests.contracts.queue import add_items


def queue_of(database: Database, *, waiting: int, oldest_s: float, ended: int) -> None:
    """So many items wait, the oldest for so long, and meanwhile so many have ended at an even pace."""
    ids = add_items(database, waiting)

    def write(connection: sa.Connection) -> None:
        now = items.now_ms(connection)
        connection.execute(
            item_table.update().where(item_table.c.id == ids[0]).values(available_ms=now - int(oldest_s * 1000))
        )
        rows = [
            {
                "item_id": ids[0],
                "at_ms": now - int(oldest_s * 1000 * place / max(ended, 1)),
                "to_status": Status.READY.value,
                "version": 1,
                "fence": 1,
                "actor": "test",
            }
            for place in range(ended)
        ]
        if rows:
            connection.execute(history.insert(), rows)

    database.transact(write)


def asked(database: Database, folder: Path, *, max_wait_s: float) -> tuple[Overload | None, int | None]:
    admission = Admission(database, folder, AdmissionLimits(max_wait_s=max_wait_s, min_free_bytes=0))
    admission.look()
    answer = admission.admit("default", announced_bytes=1000)
    return (answer.reason, answer.retry_after_s) if isinstance(answer, Refusal) else (None, None)


def test_a_long_queue_that_moves_slowly_is_closed_before_its_oldest_has_waited_too_long(
    database: Database, tmp_path: Path
) -> None:
    queue_of(database, waiting=200, oldest_s=60, ended=20)  # one in three seconds: the last would wait ten minutes
    assert asked(database, tmp_path, max_wait_s=500) == (Overload.WAIT_TOO_LONG, 60)
    assert asked(database, tmp_path, max_wait_s=700) == (None, None)


def test_a_long_queue_that_moves_quickly_stays_open(database: Database, tmp_path: Path) -> None:
    queue_of(database, waiting=200, oldest_s=60, ended=600)
    assert asked(database, tmp_path, max_wait_s=100) == (None, None)


def test_nothing_is_reckoned_from_a_few_items_or_a_moment(database: Database, tmp_path: Path) -> None:
    queue_of(database, waiting=100, oldest_s=60, ended=2)
    assert asked(database, tmp_path, max_wait_s=100) == (None, None)
    assert asked(database, tmp_path, max_wait_s=50) == (Overload.WAIT_TOO_LONG, 6)


def test_an_upload_that_is_still_arriving_keeps_its_room_through_every_look(database: Database, tmp_path: Path) -> None:
    admission = Admission(database, tmp_path, AdmissionLimits(max_waiting_bytes=1000, min_free_bytes=0))
    admission.look()
    arriving = admission.admit("slow", announced_bytes=700)
    assert isinstance(arriving, Admitted)
    for _ in range(2):
        refused = admission.admit("other", announced_bytes=400)
        assert isinstance(refused, Refusal)
        assert refused.reason is Overload.QUEUE_FULL
        assert isinstance(admission.admit("other", announced_bytes=0), Admitted)
        admission.look()
    admission.settle(arriving)  # its client gave up, so that a look finds nothing of it
    assert isinstance(admission.admit("other", announced_bytes=400), Refusal)
    admission.look()
    assert isinstance(admission.admit("other", announced_bytes=400), Admitted)


def test_what_one_tenant_is_sending_takes_no_room_from_another(database: Database, tmp_path: Path) -> None:
    admission = Admission(database, tmp_path, AdmissionLimits(tenant_max_waiting=2, min_free_bytes=0))
    admission.look()
    answers = [admission.admit(tenant, announced_bytes=10) for tenant in ("a", "a", "a", "b")]
    assert [isinstance(answer, Admitted) for answer in answers] == [True, True, False, True]


def test_files_for_an_item_that_is_there_are_taken_although_no_further_item_is(
    database: Database, tmp_path: Path
) -> None:
    admission = Admission(database, tmp_path, AdmissionLimits(max_waiting=1, tenant_max_waiting=1, min_free_bytes=0))
    admission.look()
    assert isinstance(admission.admit("a", announced_bytes=10), Admitted)
    assert isinstance(admission.admit("a", announced_bytes=10), Refusal)
    more = admission.admit("a", announced_bytes=10, is_new=False)
    assert isinstance(more, Admitted)
    admission.settle(more)
    admission.look()
    assert isinstance(admission.admit("a", announced_bytes=10), Refusal)
    assert admission.admit("a", announced_bytes=10**18, is_new=False) == Refusal(Overload.DISK_LOW, 30)


@pytest.mark.parametrize("full", ["files", "rows"])
def test_uploads_end_where_either_disk_runs_low(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedded database may lie on another disk than the files."""
    folders = {name: tmp_path / name for name in ("files", "rows")}
    for folder in folders.values():
        folder.mkdir()

    def usage(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=100 if folder == folders[full] else 10_000)

    database = Database(f"sqlite:///{folders['rows'] / 'elsewhere.db'}")
    migrate.upgrade(database)
    admission = Admission(database, folders["files"], AdmissionLimits(min_free_bytes=1000))
    with monkeypatch.context() as patched:
        patched.setattr("gateway.admission.shutil.disk_usage", usage)
        admission.look()
        assert admission.admit("a", announced_bytes=10) == Refusal(Overload.DISK_LOW, 30)
    admission.look()  # there is room again
    assert isinstance(admission.admit("a", announced_bytes=10), Admitted)
    database.close()
