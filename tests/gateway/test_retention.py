"""What is purged when its time is over or its owner asks: the content goes, a tombstone stays, no other file is touched."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import sqlalchemy as sa

from gateway import intake, retention
from gateway.blobs import Blobs, BlobStoreUnreachable, FolderBlobs
from gateway.escalation import Change
from gateway.guarding.requests import CallRequest, EndRequest, NewRunRequest
from gateway.guarding.runs import GuardRuns
from gateway.ids import new_id
from gateway.item import FileRecord, Item, Status
from gateway.retention import Upkeep
from gateway.settings import Settings
from gateway.store import budgets, escalations, events, idempotency, items, steps
from gateway.store import escalation_log as audit
from gateway.store import retention as store
from gateway.store.engine import Database
from gateway.store.steps import StepKind
from gateway.store.tables import budget_days, guard_records, guard_runs, idempotency_keys, removed_blobs
from gateway.store.tables import escalations as case_rows
from gateway.store.tables import events as events_table
from gateway.store.tables import items as items_table
from gateway.wiring import Services
from tests import media
from tests.contracts.queue import new_item
from tests.gateway.model_stub import ModelStub, Scripted, completion, model_server
from tests.gateway.running import Service, running, settled, until

DAY_MS = 24 * 3600 * 1000


def services_of(database: Database, blobs: Blobs, **settings: Any) -> Services:
    """What retention needs of a process."""
    return cast(Services, SimpleNamespace(database=database, blobs=blobs, settings=Settings(**settings)))


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


def put(blobs: Blobs, content: bytes, tenant: str = "default") -> FileRecord:
    with blobs.writer() as writer:
        writer.write(content)
        blob = writer.finish()
        blobs.keep(tenant, blob)
    return FileRecord(
        id=new_id("fil"), part="p1", role=None, file_name="secret name.jpg", declared_type="image/jpeg", sha256=blob.sha256,
        bytes=blob.bytes, media_type="image/jpeg", verdict="accept", screening={"facts": {"secret": 1}},
    )  # fmt: skip


def add(database: Database, *files: FileRecord, status: Status = Status.SUCCEEDED, **fields: Any) -> str:
    """An item that stands where a test wants it."""
    new = new_item(files=tuple(replace(file, id=new_id("fil")) for file in files), **fields)

    def write(connection: sa.Connection) -> None:
        items.insert(connection, new, actor="test", at_ms=items.now_ms(connection))
        connection.execute(
            items_table.update().where(items_table.c.id == new.id).values(status=status.value, updated_ms=1)
        )

    database.transact(write)
    return new.id


def item_of(database: Database, item_id: str) -> Item:
    with database.read() as connection:
        found = items.get(connection, item_id)
    assert found is not None
    return found


# --- items ---


def test_expired_item_becomes_a_tombstone_with_hashes_and_without_content(
    database: Database, blobs: FolderBlobs
) -> None:
    file = put(blobs, b"a photo")
    item_id = add(database, file, retention_ms=-1, submission={"title": "a secret title"}, external_id="sku-1")

    file_id = item_of(database, item_id).files[0].id

    def write(connection: sa.Connection) -> None:
        case = escalations.NewEscalation(
            tenant="default", item_id=item_id, attempt=1, profile="product-copy", reason="rule", tool=None,
            packet={"question": "a secret question"}, due_after_ms=1, expires_after_ms=DAY_MS,
        )  # fmt: skip
        case_id = escalations.raise_case(connection, case)
        audit.write(connection, case_id, Change.NOTED, actor="person:li", before="open", note="a secret note")
        audit.write(
            connection,
            case_id,
            Change.APPLY_FAILED,
            actor="person:li",
            before="resolved",
            detail={"why": "a secret why"},
        )
        connection.execute(
            case_rows.update().where(case_rows.c.id == case_id).values(apply_problem={"detail": "a secret detail"})
        )
        events.append(
            connection, tenant="default", kind="item.info_requested", resource=item_id, version=1, at_ms=1,
            body={"status": "awaiting_submitter", "question": "a secret question"},
        )  # fmt: skip
        steps.insert(
            connection, item_id, seq=1, attempt=1, kind=StepKind.PROMPT, fence=1, intent={"text": "a secret prompt"},
            outcome={}, at_ms=1,
        )  # fmt: skip
        connection.execute(
            items_table.update()
            .where(items_table.c.id == item_id)
            .values(result={"title": "a secret copy"}, decision={
                "verdict": "accept", "ruleset": "rs_1",
                "overridden": {"by": "li", "at_ms": 1, "reason": "a secret reason", "code": "soft",
                               "problem": {"code": "soft", "file_name": "secret name.jpg"}},
            })
        )  # fmt: skip
        items.override_file(connection, file_id, {"by": "li", "at_ms": 1, "reason": "a secret reason"})

    database.transact(write)
    assert Upkeep(services_of(database, blobs)).round() == [item_id]
    tomb = item_of(database, item_id)
    assert (tomb.submission, tomb.result) == ({}, None)
    assert tomb.decision is not None
    assert (tomb.decision["verdict"], tomb.decision["ruleset"]) == ("accept", "rs_1")
    assert (tomb.decision["overridden"]["by"], tomb.decision["overridden"]["code"]) == ("li", "soft")
    assert tomb.files[0].overridden == {"by": "li", "at_ms": 1, "reason": ""}
    assert (tomb.status, tomb.external_id, tomb.purged_ms is not None) == (Status.SUCCEEDED, "sku-1", True)
    [kept] = tomb.files
    assert (kept.sha256, kept.verdict, kept.file_name, kept.screening) == (file.sha256, "accept", None, None)
    assert not blobs.holds("default", file.sha256)
    with database.read() as connection:
        everything = str([connection.execute(sa.select(table)).all() for table in items_table.metadata.sorted_tables])
        kinds = [row.type for row in events.page(connection, tenant="default", after=0, limit=20)]
    assert "secret" not in everything
    assert kinds[-1] == "item.purged"
    assert Upkeep(services_of(database, blobs)).round() == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Status.QUEUED, Status.EXPIRED),
        (Status.HALTED, Status.EXPIRED),
        (Status.AWAITING_HUMAN, Status.EXPIRED),
        (Status.AWAITING_SUBMITTER, Status.EXPIRED),
        (Status.RUNNING, Status.CANCELLING),
        (Status.INSPECTING, Status.CANCELLING),
    ],
)
def test_item_that_is_not_over_when_it_expires_is_ended_first(
    database: Database, blobs: FolderBlobs, before: Status, after: Status
) -> None:
    item_id = add(database, status=before, retention_ms=-1, submission={"title": "x"})
    upkeep = Upkeep(services_of(database, blobs))
    assert upkeep.round() == [item_id]
    assert (item_of(database, item_id).status, item_of(database, item_id).purged_ms) == (after, None)
    upkeep.round()
    assert (item_of(database, item_id).purged_ms is not None) == (after is Status.EXPIRED)


def test_halted_item_that_its_caller_left_alone_expires_and_keeps_its_content(
    database: Database, blobs: FolderBlobs
) -> None:
    item_id = add(database, status=Status.HALTED, submission={"title": "x"})
    assert Upkeep(services_of(database, blobs, halted_ttl_s=10**12)).round() == []
    assert Upkeep(services_of(database, blobs, halted_ttl_s=60)).round() == [item_id]
    item = item_of(database, item_id)
    assert (item.status, item.reason, item.title) == (Status.EXPIRED, "halted_too_long", "x")


def test_purged_item_never_blocks_the_same_content(database: Database, blobs: FolderBlobs) -> None:
    item_id = add(database, content_key="twin")
    with database.read() as connection:
        assert items.newest_with_content(connection, tenant="default", content_key="twin") is not None
    assert retention.purge(services_of(database, blobs), item_id, actor="test")
    with database.read() as connection:
        assert items.newest_with_content(connection, tenant="default", content_key="twin") is None


# --- files ---


def test_file_goes_with_the_last_item_of_its_tenant_that_names_it(database: Database, blobs: FolderBlobs) -> None:
    file, other = put(blobs, b"shared"), put(blobs, b"shared", tenant="other")
    first, second = add(database, file), add(database, file)
    services = services_of(database, blobs)
    retention.purge(services, first, actor="test")
    assert blobs.holds("default", file.sha256)
    retention.purge(services, second, actor="test")
    assert not blobs.holds("default", file.sha256)
    assert blobs.holds("other", other.sha256)


class Incoming:
    """Uploads of one content that race with the purges of its items."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self.services = services_of(database, blobs)
        self.content = b"raced for"
        self.refused = 0

    def upload(self) -> str | None:
        file = put(self.services.blobs, self.content)
        time.sleep(random.uniform(0, 0.002))
        new = new_item(files=(file,))
        screened = cast(Any, [SimpleNamespace(record=file)])

        def write(connection: sa.Connection) -> None:
            items.insert(connection, new, actor="test", at_ms=items.now_ms(connection))
            connection.execute(
                items_table.update().where(items_table.c.id == new.id).values(status=Status.SUCCEEDED.value)
            )

        try:
            intake.store_naming_files(self.services, "default", screened, write)
        except intake.FilesBeingRemoved:
            self.refused += 1
            return None
        return new.id


def test_upload_that_races_with_the_removal_of_its_content_keeps_its_file_or_is_refused(
    database: Database, blobs: FolderBlobs
) -> None:
    incoming = Incoming(database, blobs)
    lost: list[str] = []

    def upload_and_purge(_: int) -> None:
        for _ in range(12):
            item_id = incoming.upload()
            if item_id is None:
                continue
            digest = item_of(database, item_id).files[0].sha256
            if not blobs.holds("default", digest):
                lost.append(item_id)
            retention.purge(incoming.services, item_id, actor="test")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upload_and_purge, range(4)))
    assert lost == []
    assert incoming.refused < 48


def test_content_that_was_removed_can_be_sent_again_at_once(database: Database, blobs: FolderBlobs) -> None:
    incoming = Incoming(database, blobs)
    first = incoming.upload()
    assert first is not None
    retention.purge(incoming.services, first, actor="test")
    second = incoming.upload()
    assert second is not None
    assert blobs.holds("default", item_of(database, second).files[0].sha256)


def test_old_file_that_no_item_names_is_removed_and_a_young_or_named_one_is_not(
    database: Database, blobs: FolderBlobs
) -> None:
    orphan, young, named = (put(blobs, content) for content in (b"orphan", b"young", b"named"))
    add(database, named)
    for file in (orphan, named):
        os.utime(blobs.path("default", file.sha256), (1, 1))
    leftover = blobs.root / "incoming" / "upload-left-by-a-killed-process"
    leftover.write_bytes(b"half")

    def is_swept() -> bool:
        Upkeep(services_of(database, blobs)).round()
        return not leftover.exists()

    until(is_swept, within_s=10)
    assert [blobs.holds("default", file.sha256) for file in (orphan, young, named)] == [False, True, True]


def test_orphans_are_looked_for_piece_by_piece(
    database: Database, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BLOBS_A_ROUND", 3)
    monkeypatch.setattr(retention, "_SLOW_S", 0.0)
    files = [put(blobs, f"orphan {number}".encode()) for number in range(7)]
    for file in files:
        os.utime(blobs.path("default", file.sha256), (1, 1))
    upkeep = Upkeep(services_of(database, blobs))
    left = []
    for _ in range(4):
        upkeep.round()
        left.append(sum(blobs.holds("default", file.sha256) for file in files))
    assert left[0] == 4
    assert left[-1] == 0


class DeafBlobs(FolderBlobs):
    """A store that does not answer for a while."""

    is_deaf = True

    def remove(self, tenant: str, sha256: str) -> None:
        if self.is_deaf:
            raise BlobStoreUnreachable("Timeout")
        super().remove(tenant, sha256)


def test_removal_that_a_store_did_not_answer_is_taken_up_again(database: Database, tmp_path: Path) -> None:
    blobs = DeafBlobs(tmp_path / "deaf")
    file = put(blobs, b"hard to lose")
    item_id = add(database, file)
    services = services_of(database, blobs)
    assert retention.purge(services, item_id, actor="test")
    assert blobs.holds("default", file.sha256)
    blobs.is_deaf = False
    database.transact(lambda c: c.execute(removed_blobs.update().values(at_ms=1)))
    Upkeep(services).round()
    assert not blobs.holds("default", file.sha256)


# --- rows ---


def test_old_keys_events_and_runs_go_and_younger_ones_stay(database: Database, blobs: FolderBlobs) -> None:
    item_id = add(database)
    found = idempotency.StoredKey("m", "f", item_id)
    runs = GuardRuns(database)

    def run(name: str) -> str:
        tools = [{"name": "look", "effect": "read"}]
        row, _ = runs.open("t", NewRunRequest.model_validate({"agent": "a", "external_run_id": name, "tools": tools}))
        runs.before("t", row.id, [CallRequest(call_id="c", tool="look", args={})])
        return row.id

    ended, left_open, fresh = run("ended"), run("left open"), run("fresh")
    runs.end("t", ended, EndRequest())
    old_id = new_id("run", now_ms=1)

    def age(connection: sa.Connection) -> None:
        now = items.now_ms(connection)
        for key, at_ms in (("old", now - DAY_MS - 1000), ("young", now - 1000)):
            idempotency.store(connection, tenant="t", scope="s", key=key, found=found, at_ms=at_ms, not_before_ms=0)
        connection.execute(events_table.update().where(events_table.c.resource == item_id).values(at_ms=1))
        events.append(connection, tenant="default", kind="x", resource="r", version=1, at_ms=now, body={})
        connection.execute(guard_runs.update().where(guard_runs.c.id == ended).values(ended_ms=1, updated_ms=1))
        connection.execute(guard_records.delete().where(guard_records.c.run_id == left_open))
        connection.execute(sa.text("DELETE FROM guard_decisions WHERE run_id = :id"), {"id": left_open})
        connection.execute(
            guard_runs.update().where(guard_runs.c.id == left_open).values(id=old_id, created_ms=1, updated_ms=1)
        )

    database.transact(age)
    Upkeep(services_of(database, blobs)).round()
    with database.read() as connection:
        assert list(connection.execute(sa.select(idempotency_keys.c.key)).scalars()) == ["young"]
        assert [row.type for row in events.page(connection, tenant="default", after=0, limit=10)] == ["x"]
        assert list(connection.execute(sa.select(guard_runs.c.id)).scalars()) == [fresh]
        assert set(connection.execute(sa.select(guard_records.c.run_id)).scalars()) <= {fresh}


def test_days_of_budgets_go_after_a_month_and_what_is_spent_today_stays(database: Database, blobs: FolderBlobs) -> None:
    unlimited = {"t": budgets.NO_LIMITS, budgets.ALL: budgets.NO_LIMITS}
    today = database.transact(lambda c: budgets.reserve(c, "t", 7, unlimited))
    ages = (1, budgets.DAYS_KEPT, budgets.DAYS_KEPT + 1, 400)

    def spend_before(connection: sa.Connection) -> None:
        rows = [{"tenant": name, "day": today - age, "spent_micros": 5} for age in ages for name in ("t", budgets.ALL)]
        connection.execute(budget_days.insert(), rows)

    database.transact(spend_before)
    Upkeep(services_of(database, blobs)).round()
    with database.read() as connection:
        kept = connection.execute(sa.select(budget_days.c.tenant, budget_days.c.day)).all()
        assert sorted(kept) == sorted(
            (name, today - age) for age in (0, 1, budgets.DAYS_KEPT) for name in ("t", budgets.ALL)
        )
        assert budgets.day_use(connection, "t", today).reserved_micros == 7
    settle = partial(
        budgets.settle, tenant="t", reserved=7, spent=3, limits={name: budgets.Limits(9) for name in unlimited}
    )
    database.transact(lambda c: settle(c, day=today - 400))  # of a day that is not kept any more
    database.transact(lambda c: settle(c, day=today))
    with database.read() as connection:
        use = budgets.day_use(connection, "t", today)
        assert (use.reserved_micros, use.spent_micros) == (0, 3)


def test_one_part_that_fails_holds_up_no_other(
    database: Database, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    item_id = add(database, status=Status.HALTED)
    upkeep = Upkeep(services_of(database, blobs, halted_ttl_s=60))

    def fails(*_: object, **__: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(store, "due", fails)
    monkeypatch.setattr(store, "drop_old_keys", fails)
    assert upkeep.round() == [item_id]


# --- the service ---


@pytest.fixture(scope="module")
def stub() -> Iterator[ModelStub]:
    with model_server() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, stub: ModelStub) -> Iterator[Service]:
    settings = {"model_url": stub.url, "model_attempts": 1, "sweep_s": 0.3, "cancel_grace_s": 1, "heartbeat_s": 0.4}
    with running("up", tmp_path_factory.mktemp("retention"), **settings) as started:
        yield started


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made


def submit(client: httpx.Client, title: str) -> httpx.Response:
    return client.post(
        "/v1/items",
        data={"title": title, "retention_days": "3"},
        files={"p1": (f"{title}.pdf", media.pdf_text(), "application/pdf")},
        headers={"Idempotency-Key": title},
    )


def gone(client: httpx.Client, item_id: str) -> dict[str, Any] | None:
    answer = client.get(f"/v1/items/{item_id}")
    found: dict[str, Any] = answer.json()
    return found if answer.status_code == 410 else None


def test_deleted_item_is_gone_with_its_content_and_shows_its_tombstone(
    client: httpx.Client, stub: ModelStub, service: Service, name: str
) -> None:
    stub.script()
    item = settled(client, submit(client, name).json()["id"])
    digest = item["files"][0]["sha256"]
    assert digest in service.blobs
    deleted = client.delete(f"/v1/items/{item['id']}")
    assert (deleted.status_code, deleted.json()["status"]) == (202, "succeeded")
    answer = client.get(f"/v1/items/{item['id']}")
    assert (answer.status_code, answer.json()["code"]) == (410, "gone")
    tombstone = answer.json()["tombstone"]
    assert (tombstone["files"][0]["sha256"], tombstone["decision"]["verdict"]) == (digest, "accept")
    assert name not in answer.text
    for path in ("explanation", "llm-payload", "artifacts"):
        assert client.get(f"/v1/items/{item['id']}/{path}").status_code == 410
    assert digest not in service.blobs
    listed = client.get("/v1/items", params={"limit": "200"}).json()["items"]
    assert next(one for one in listed if one["id"] == item["id"])["purged_at"] is not None
    assert client.delete(f"/v1/items/{item['id']}").status_code == 202
    replay = submit(client, name)
    assert (replay.headers["idempotent-replayed"], replay.json()["title"]) == ("true", None)


def test_item_that_a_worker_has_in_hand_is_cancelled_first_and_purged_then(
    client: httpx.Client, stub: ModelStub, name: str
) -> None:
    stub.script(Scripted(completion().status, completion().body, delay_s=30))
    item_id = client.post("/v1/items", json={"title": name}, headers={"Prefer": "respond-async"}).json()["id"]
    until(lambda: client.get(f"/v1/items/{item_id}").json()["status"] == "running")
    deleted = client.delete(f"/v1/items/{item_id}")
    assert (deleted.status_code, deleted.json()["status"], deleted.json()["purged_at"]) == (202, "cancelling", None)
    problem = until(lambda: gone(client, item_id), within_s=20)
    assert problem["tombstone"]["status"] == "cancelled"
    stub.closing.set()  # the worker need not wait for the answer any more when it ends
    stub.closing.clear()


def test_item_of_another_tenant_cannot_be_deleted(client: httpx.Client, name: str) -> None:
    assert client.delete("/v1/items/itm_00000000000000000000000000").status_code == 404


def test_item_expires_when_its_own_days_are_over(
    client: httpx.Client, stub: ModelStub, service: Service, name: str
) -> None:
    stub.script()
    item = settled(client, submit(client, name).json()["id"])
    created, expires = (datetime.fromisoformat(item[moment]) for moment in ("created_at", "expires_at"))
    assert (expires - created).days == 3
    database = Database(f"sqlite:///{service.data_dir / 'sluicegate.db'}")
    database.transact(
        lambda c: c.execute(items_table.update().where(items_table.c.id == item["id"]).values(expires_ms=1))
    )
    database.close()
    assert until(partial(gone, client, item["id"]), within_s=15)["tombstone"]["status"] == "succeeded"
