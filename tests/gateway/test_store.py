"""The database as the queue: every change is conditional, and a transaction that fails takes no other with it."""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from gateway.ids import new_id
from gateway.item import ARROWS, TERMINAL, Lease, Mode, Status, Usage, may_follow
from gateway.profiles import load_profiles
from gateway.settings import Settings
from gateway.store import events, idempotency, items, keys, migrate
from gateway.store.engine import Database
from gateway.store.tables import api_keys, metadata
from gateway.work.sweeper import MAX_LOST_CLAIMS, sweep


def add_item(database: Database, **fields: Any) -> str:
    """A waiting item."""
    new = items.NewItem(
        **{
            "id": new_id("itm"),
            "tenant": "default",
            "external_id": None,
            "mode": Mode.GENERATE,
            "profile": "product-copy",
            "profile_version": "pv_1",
            "ruleset": "rs_1",
            "submission": {},
            "notes": (),
            "content_key": "k",
            "duplicate_of": None,
            "retention_ms": 3_600_000,
            "files": (),
            **fields,
        }
    )
    return database.transact(lambda c: items.insert(c, new, actor="test", at_ms=items.now_ms(c))).id


def claim(database: Database, owner: str = "w", lease_ms: int = 60_000) -> Lease | None:
    return database.transact(lambda c: items.claim_next(c, owner=owner, lease_ms=lease_ms))


def status_of(database: Database, item_id: str) -> Status:
    with database.read() as connection:
        found = items.version_and_status(connection, item_id)
    assert found is not None
    return found[1]


# --- schema ---


def test_migrations_make_exactly_the_tables(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_database_of_another_release_is_refused_with_what_to_do(empty_url: str) -> None:
    database = Database(empty_url)
    with pytest.raises(migrate.SchemaMismatch) as none_yet:
        migrate.check(database)
    assert "sluicegate migrate" in none_yet.value.public
    migrate.upgrade(database)
    migrate.check(database)
    with database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for refused in (migrate.check, migrate.upgrade):
        with pytest.raises(migrate.SchemaMismatch, match="9999"):
            refused(database)
    database.close()


def test_processes_that_start_together_migrate_once(empty_url: str) -> None:
    databases = [Database(empty_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate.upgrade, databases))
    for database in databases:
        migrate.check(database)
        database.close()


# --- transactions ---


def test_failure_in_a_group_takes_no_other_with_it(database: Database) -> None:
    barrier = threading.Barrier(24)

    def write(number: int) -> str | None:
        def work(connection: sa.Connection) -> str:
            record, _ = keys.create(connection, tenant=f"t{number}", name=None, scopes=("guard",), at_ms=number)
            if number % 3 == 0:
                raise LookupError(f"number {number}")
            if number % 3 == 1:
                connection.execute(api_keys.insert(), {"id": record.id})  # breaks NOT NULL and the primary key
            return record.id

        barrier.wait()
        raised = {0: LookupError, 1: sa.exc.IntegrityError}.get(number % 3)
        if raised is None:
            return database.transact(work)
        with pytest.raises(raised, match=f"number {number}$" if raised is LookupError else None):
            database.transact(work)
        return None

    with ThreadPoolExecutor(24) as pool:
        made = list(pool.map(write, range(24)))
    with database.read() as connection:
        stored = {record.id for record in keys.page(connection)}
    assert [made_id is not None for made_id in made] == [number % 3 == 2 for number in range(24)]
    assert stored == {made_id for made_id in made if made_id}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared-commit", "own-commit"])
def test_nothing_counts_as_written_when_sqlite_gives_up_the_whole_transaction(
    database: Database, is_shared: bool
) -> None:
    """With no room left SQLite may roll back more than the statement: those before it in the same commit must hear of it."""

    def limit_growth(raw: sqlite3.Connection, *_: object) -> None:
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count={pages + 2}")

    sa.event.listen(database.engine, "connect", limit_growth)
    database.close()  # connections of before have no limit
    begun, is_queued = threading.Event(), threading.Event()

    def hold(connection: sa.Connection) -> None:
        begun.set()
        assert is_queued.wait(20)

    def write(number: int) -> str:
        detail = "x" * 100_000 if number == 1 else "x"
        return database.transact(
            lambda c: keys.create(c, tenant=detail, name=None, scopes=("guard",), at_ms=number)[0].id
        )

    with ThreadPoolExecutor(5) as pool:
        holding = pool.submit(database.transact, hold)
        assert begun.wait(20)
        asked = []
        for number in range(4) if is_shared else [1]:
            asked.append(pool.submit(write, number))
            deadline = time.monotonic() + 20
            while len(database._waiting) < len(asked) and time.monotonic() < deadline:
                time.sleep(0.005)
        is_queued.set()
        holding.result()
        errors = [error for one in asked if (error := one.exception()) is not None]
        made = [one.result() for one in asked if one.exception() is None]
    assert errors
    assert all("full" in str(error) for error in errors)  # the reason, and not that a savepoint is missing
    with database.read() as connection:
        assert {record.id for record in keys.page(connection)} == set(made)
    database.transact(lambda c: keys.create(c, tenant="after", name=None, scopes=("guard",), at_ms=9))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_writer_waits_for_the_lock_of_another_process(database: Database, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "sluicegate.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.4, lambda: other.execute("COMMIT"))
    release.start()
    started = time.monotonic()
    add_item(database)
    assert time.monotonic() - started >= 0.3
    release.join()
    other.close()


def test_taken_key_raises_and_the_item_beside_it_is_not_stored(database: Database) -> None:
    first = add_item(database)
    found = idempotency.StoredKey("m", "f", first)

    def store(connection: sa.Connection) -> None:
        idempotency.store(connection, tenant="t", scope="s", key="k", found=found, at_ms=10, not_before_ms=0)
        events.append(connection, tenant="t", kind="x", resource=first, version=1, at_ms=1, body={})

    database.transact(store)
    with pytest.raises(sa.exc.IntegrityError):
        database.transact(store)
    with database.read() as connection:
        assert len(events.page(connection, tenant="t", after=0, limit=10)) == 1
        assert idempotency.find(connection, tenant="t", scope="s", key="k", not_before_ms=10) == found
        assert idempotency.find(connection, tenant="t", scope="s", key="k", not_before_ms=11) is None
        assert idempotency.find(connection, tenant="u", scope="s", key="k", not_before_ms=0) is None


# --- the queue ---


def test_eight_workers_take_each_item_once(database: Database) -> None:
    waiting = {add_item(database) for _ in range(40)}

    def take(worker: int) -> list[Lease]:
        taken = []
        while lease := claim(database, owner=f"w{worker}"):
            taken.append(lease)
        return taken

    with ThreadPoolExecutor(8) as pool:
        leases = [lease for taken in pool.map(take, range(8)) for lease in taken]
    assert sorted(lease.item_id for lease in leases) == sorted(waiting)
    assert {lease.fence for lease in leases} == {1}


def test_oldest_waiting_item_comes_first(database: Database) -> None:
    added = [add_item(database, id=f"itm_{number}") for number in (3, 1, 2)]
    with database.engine.begin() as connection:
        for place, item_id in enumerate(added):
            connection.execute(
                sa.text("UPDATE items SET available_ms = :at WHERE id = :id"), {"at": place, "id": item_id}
            )
    assert [lease.item_id for _ in added if (lease := claim(database))] == added
    assert claim(database) is None


def test_every_claim_raises_the_fence_and_an_older_lease_writes_nothing(database: Database) -> None:
    item_id = add_item(database)
    first = claim(database, lease_ms=-1)
    assert first is not None
    assert sweep(swept(database)) == [item_id]
    second = claim(database)
    assert second is not None
    assert (first.fence, second.fence) == (1, 2)

    def finish(lease: Lease) -> Status | None:
        return database.transact(
            lambda c: items.transition(
                c, item_id, expected=(Status.INSPECTING,), to=Status.READY, actor="w", fence=lease.fence
            )
        )

    with database.read() as connection:
        before = items.get(connection, item_id)
    assert finish(first) is None
    with database.read() as connection:
        assert items.get(connection, item_id) == before
    assert finish(second) is Status.INSPECTING
    assert status_of(database, item_id) is Status.READY


def test_heartbeat_keeps_a_lease_and_tells_of_a_lost_one(database: Database) -> None:
    add_item(database)
    add_item(database)
    kept, lost = claim(database, lease_ms=-1), claim(database, lease_ms=-1)
    assert kept is not None
    assert lost is not None
    database.transact(lambda c: items.heartbeat(c, [kept], lease_ms=60_000))
    assert sweep(swept(database)) == [lost.item_id]
    answered = database.transact(lambda c: items.heartbeat(c, [kept, lost], lease_ms=60_000))
    assert set(answered) == {kept.item_id}


# --- the sweeper ---


def swept(database: Database) -> Any:
    """What the sweeper needs of a process."""
    return SimpleNamespace(database=database, settings=Settings(cancel_grace_s=0), profiles=load_profiles())


def test_item_that_kills_its_workers_goes_to_a_person(database: Database) -> None:
    item_id = add_item(database)
    ends = []
    for _ in range(MAX_LOST_CLAIMS):
        assert claim(database, lease_ms=-1) is not None
        sweep(swept(database))
        ends.append(status_of(database, item_id))
    assert ends == [Status.QUEUED] * (MAX_LOST_CLAIMS - 1) + [Status.AWAITING_HUMAN]
    with database.read() as connection:
        item = items.get(connection, item_id)
    assert item is not None
    assert (item.reason, item.claims, item.lost_claims) == ("worker_lost", MAX_LOST_CLAIMS, MAX_LOST_CLAIMS)
    assert claim(database) is None


def test_sweeper_never_puts_back_what_has_just_finished(database: Database) -> None:
    """Rows are read, the job ends, then the rescue comes: it must find nothing to do."""
    finished = [add_item(database) for _ in range(20)]
    leases = [claim(database, lease_ms=-1) for _ in finished]
    stop = threading.Event()

    def rescue() -> None:
        while not stop.is_set():
            sweep(swept(database))

    rescuers = [threading.Thread(target=rescue) for _ in range(2)]
    for thread in rescuers:
        thread.start()
    for lease in leases:
        assert lease is not None
        database.transact(
            lambda c, lease=lease: items.transition(
                c, lease.item_id, expected=(Status.INSPECTING,), to=Status.READY, actor="w", fence=lease.fence
            )
        )
    stop.set()
    for thread in rescuers:
        thread.join()
    for item_id in finished:
        with database.read() as connection:
            ways = [Status(row.to_status) for row in items.history_of(connection, item_id)]
        assert not TERMINAL & set(ways[:-1])
        assert ways.count(Status.READY) <= 1
        assert status_of(database, item_id) in {Status.READY, Status.QUEUED}


def test_cancellation_that_nobody_acknowledges_ends_with_the_grace(database: Database) -> None:
    item_id = add_item(database)
    claim(database)
    database.transact(
        lambda c: items.transition(
            c,
            item_id,
            expected=(Status.INSPECTING,),
            to=Status.CANCELLING,
            actor="a",
            release=False,
            values={"cancel_requested_ms": items.now_ms(c) - 1000},
        )
    )
    assert sweep(swept(database)) == [item_id]
    assert status_of(database, item_id) is Status.CANCELLED
    assert sweep(swept(database)) == []


# --- states ---


@pytest.mark.parametrize("before", list(Status))
def test_transition_without_an_arrow_is_a_fault_and_writes_nothing(database: Database, before: Status) -> None:
    item_id = add_item(database)
    with database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE items SET status = :s WHERE id = :id"), {"s": before.value, "id": item_id})
    for after in Status:
        if after is before or may_follow(before, after):
            continue
        with pytest.raises(ValueError, match="never goes"):
            database.transact(
                lambda c, after=after: items.transition(c, item_id, expected=(before,), to=after, actor="t")
            )
    assert status_of(database, item_id) is before
    with database.read() as connection:
        assert len(items.history_of(connection, item_id)) == 1
        assert len(events.page(connection, tenant="default", after=0, limit=10)) == 1


def test_nothing_leads_out_of_what_has_succeeded_or_is_ready() -> None:
    assert ARROWS[Status.SUCCEEDED] == ARROWS[Status.READY] == frozenset()
    assert all(not may_follow(status, Status.CANCELLING) for status in TERMINAL)
    assert all(may_follow(status, Status.CANCELLING) for status in set(Status) - TERMINAL - {Status.CANCELLING})


def test_ids_sort_by_the_time_of_their_making() -> None:
    made = [new_id("itm", now_ms=at) for at in (0, 1, 31, 32, 2**40, 2**48 - 1)]
    assert made == sorted(made)
    assert len({new_id("itm", now_ms=5) for _ in range(1000)}) == 1000


def test_usage_of_a_new_item_is_nothing(database: Database) -> None:
    with database.read() as connection:
        item = items.get(connection, add_item(database))
    assert item is not None
    assert item.usage == Usage()
