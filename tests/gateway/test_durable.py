"""Processes die, disks fill up, clients leave: nothing is lost, done twice or left lying about."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.blobs import FolderBlobs
from gateway.item import TERMINAL, Item, Status, may_follow
from gateway.store import items as item_store
from gateway.store.engine import Database
from tests import media
from tests.contracts.sizes import sized
from tests.gateway.model_stub import ModelStub, Scripted, completion, model_server
from tests.gateway.raw_http import head, multipart
from tests.gateway.running import (
    Service,
    bearer,
    environment,
    freeze_between_writes,
    make_key,
    running,
    settled,
    start,
    until,
)

BOUNDARY = "b0undary"
QUICK = {
    "lease_s": 2,
    "heartbeat_s": 0.4,
    "sweep_s": 0.4,
    "cancel_grace_s": 1,
    "model_attempts": 1,
    "model_timeout_s": 60,
}
SLOW_ANSWER = Scripted(completion().status, completion().body, delay_s=60)


@pytest.fixture(scope="module")
def stub() -> Iterator[ModelStub]:
    with model_server() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, stub: ModelStub) -> Iterator[Service]:
    """API and worker with short leases and a model that can be made slow."""
    with running("up", tmp_path_factory.mktemp("durable"), model_url=stub.url, **QUICK) as started:
        yield started


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made


def submit(client: httpx.Client, **item: Any) -> str:
    answer = client.post("/v1/items", json=item, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def reaches(client: httpx.Client, item_id: str, status: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        item: dict[str, Any] = client.get(f"/v1/items/{item_id}").json()
        return item if item["status"] == status else None

    return until(look, within_s=40)


def history_of(client: httpx.Client, item_id: str) -> list[dict[str, Any]]:
    """All transitions; each of them one that there is an arrow for, and only the last one an end."""
    found: list[dict[str, Any]] = client.get(f"/v1/items/{item_id}/explanation").json()["history"]
    for step in found[1:]:
        assert may_follow(Status(step["from"]), Status(step["to"]))
    assert not TERMINAL & {Status(step["to"]) for step in found[:-1]}
    return found


def test_item_of_a_killed_worker_is_finished_by_the_next_one(
    service: Service, client: httpx.Client, stub: ModelStub, name: str
) -> None:
    stub.script(SLOW_ANSWER)
    item_id = submit(client, title=name)
    reaches(client, item_id, "running")
    until(lambda: stub.requests)
    (worker,) = service.children("worker")
    os.kill(worker, signal.SIGKILL)
    item = settled(client, item_id)
    assert (item["status"], item["claims"], item["attempt"]) == ("succeeded", 2, 1)
    ways = [step["to"] for step in history_of(client, item_id)]
    assert ways == ["queued", "inspecting", "running", "queued", "inspecting", "running", "succeeded"]
    assert [step["reason"] for step in history_of(client, item_id)].count("worker_lost") == 1
    events = [event["type"] for event in client.get(f"/v1/items/{item_id}/events").json()["events"]]
    assert events.count("item.succeeded") == 1
    assert service.children("worker") != [worker]


def test_killed_api_is_started_again_at_its_address(service: Service, name: str) -> None:
    with service.client() as before:
        item_id = submit(before, title=name)
    (api,) = service.children("serve")
    os.kill(api, signal.SIGKILL)

    def answers() -> bool:
        try:
            return httpx.get(f"{service.url}/readyz", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    until(answers, within_s=60)
    assert service.children("serve") != [api]
    with service.client() as after:
        assert settled(after, item_id)["status"] == "succeeded"


def test_worker_that_was_frozen_writes_nothing_over_its_successor(
    service: Service, client: httpx.Client, stub: ModelStub, name: str
) -> None:
    stub.script(Scripted(200, completion().body, delay_s=6))
    item_id = submit(client, title=name)
    reaches(client, item_id, "running")
    until(lambda: stub.requests)
    (frozen,) = service.children("worker")
    freeze_between_writes(frozen, Database(f"sqlite:///{service.data_dir / 'sluicegate.db'}"))
    try:
        with running("worker", service.data_dir, model_url=stub.url, **QUICK):
            item = settled(client, item_id)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert (item["status"], item["claims"]) == ("succeeded", 2)
    until(lambda: _stale(service, item_id), within_s=30)
    assert client.get(f"/v1/items/{item_id}").json()["version"] == item["version"]
    assert [step["to"] for step in history_of(client, item_id)].count("succeeded") == 1


def _stale(service: Service, item_id: str) -> bool:
    lines = [json.loads(line) for line in service.log.read_text("utf-8").splitlines() if item_id in line]
    return any(line["event"] == "item.stale_lease" for line in lines)


def test_item_in_work_is_cancelled_when_its_worker_notices(client: httpx.Client, stub: ModelStub, name: str) -> None:
    stub.script(Scripted(200, completion().body, delay_s=0.6))
    item_id = submit(client, title=name)
    reaches(client, item_id, "running")
    first = client.post(f"/v1/items/{item_id}/cancel", json={"reason": "sold out"})
    again = client.post(f"/v1/items/{item_id}/cancel")
    assert (first.status_code, first.json()["status"]) == (202, "cancelling")
    assert (again.status_code, again.json()["version"]) == (202, first.json()["version"])
    item = settled(client, item_id)
    assert (item["status"], item["result"]) == ("cancelled", None)
    history_of(client, item_id)


def test_item_whose_worker_does_not_notice_is_cancelled_after_the_grace(
    client: httpx.Client, stub: ModelStub, name: str
) -> None:
    stub.script(Scripted(200, completion().body, delay_s=5))
    item_id = submit(client, title=name)
    reaches(client, item_id, "running")
    client.post(f"/v1/items/{item_id}/cancel")
    item = settled(client, item_id, within_s=20)
    assert item["status"] == "cancelled"
    assert history_of(client, item_id)[-1]["actor"] == "system:sweeper"


def test_items_accepted_while_no_worker_ran_are_worked_on_later(tmp_path: Path, name: str) -> None:
    api = start("serve", tmp_path, default_wait_s=0)
    with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as client:
        accepted = [submit(client, title=f"{name} {number}") for number in range(3)]
        api.kill()
    database = Database(f"sqlite:///{tmp_path / 'sluicegate.db'}")

    def all_done() -> list[Item] | None:
        with database.read() as connection:
            items = [item for item_id in accepted if (item := item_store.get(connection, item_id))]
        return items if all(item.status in TERMINAL for item in items) else None

    with running("worker", tmp_path):
        items = until(all_done, within_s=60)
    database.close()
    assert [(item.status, item.claims) for item in items] == [(Status.SUCCEEDED, 1)] * 3


# --- leftovers ---


def _cut_upload(api: Service, keep: int) -> socket.socket:
    body = multipart(('name="item"', b'{"title":"cut"}'), ('name="p1"; filename="p.jpg"', os.urandom(300_000)))
    connection = api.connect()
    headers = (f"Content-Type: multipart/form-data; boundary={BOUNDARY}", f"Content-Length: {len(body)}")
    connection.sendall(head("POST", "/v1/items", *headers) + body[:keep])
    return connection


@pytest.mark.case
def test_uploads_that_end_badly_leave_nothing_behind(api: Service) -> None:
    """S8: neither files nor descriptors, whether cut, too long or refused."""
    random_place = random.Random(8)
    photo = {"Content-Type": "image/jpeg"}
    with api.client() as client:
        blobs, items = api.blobs, client.get("/v1/items").json()
        before = api.open_files()
        for _ in range(sized(12, 100)):
            _cut_upload(api, random_place.randrange(1, 300_000)).close()
            declared = client.post("/v1/items", content=bytes(4 * 1024 * 1024 + 1), headers=photo)
            counted = client.post("/v1/items", content=iter([bytes(1_000_000)] * 5), headers=photo)
            of_a_type = client.post("/v1/items", content=bytes(100_000), headers={"Content-Type": "text/html"})
            assert [declared.status_code, counted.status_code, of_a_type.status_code] == [413, 413, 415]
        until(lambda: not api.incoming)
        until(lambda: api.open_files() <= before + 2)
        assert client.get("/v1/items").json() == items
        assert api.blobs == blobs
        kept = client.post("/v1/items", content=media.thumbnail(), headers=photo).json()
        assert api.blobs == blobs | {kept["files"][0]["sha256"]}


@pytest.mark.case
def test_leftovers_of_a_killed_service_are_removed_at_its_next_start(tmp_path: Path) -> None:
    """S8: killed in the middle of several uploads."""
    cut = sized(5, 20)
    api = start("serve", tmp_path, default_wait_s=0)
    connections = [_cut_upload(api, 200_000) for _ in range(cut)]
    until(lambda: len(api.incoming) == cut)
    api.kill()
    assert len(api.incoming) == cut
    for connection in connections:
        connection.close()
    with running("serve", tmp_path, default_wait_s=0) as again:
        assert again.incoming == []
        with _cut_upload(again, 200_000):
            until(lambda: len(again.incoming) == 1)
            assert FolderBlobs(tmp_path / "blobs").remove_leftovers() == 0  # it belongs to a process that lives
            assert len(again.incoming) == 1
        with again.client() as client:
            assert client.get("/v1/items").json()["items"] == []
            until(lambda: not again.incoming)


# --- no room ---


def _as_json(name: str) -> dict[str, Any]:
    return {"content": b'{"title":"%s"}' % name.encode(), "headers": {"Content-Type": "application/json"}}


def _as_photo(size: int) -> dict[str, Any]:
    return {"content": b"\xff\xd8\xff" + os.urandom(size - 3), "headers": {"Content-Type": "image/jpeg"}}


@contextlib.contextmanager
def _file_limit(api: Service, limit: int) -> Iterator[None]:
    """No file of the service may grow past this."""
    _, most = resource.prlimit(api.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(api.process.pid, resource.RLIMIT_FSIZE, (limit, most))
    yield
    resource.prlimit(api.process.pid, resource.RLIMIT_FSIZE, (most, most))


def _assert_storage_full(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (507, "storage_full", True)
    assert answer.headers["retry-after"] == "30"
    assert answer.headers["content-type"] == "application/problem+json"
    assert "/" not in answer.json()["detail"]


@pytest.mark.parametrize(
    ("limit", "request_of"),
    [
        pytest.param(600_000, lambda name: _as_photo(2_000_000), id="no-room-for-the-file"),
        pytest.param(1, _as_json, id="no-room-for-the-row"),
        pytest.param(1, lambda name: _as_photo(2_000_000), id="no-room-at-all"),
    ],
)
def test_upload_that_cannot_be_written_is_507_and_may_be_sent_again(
    api: Service, name: str, limit: int, request_of: Callable[[str], dict[str, Any]]
) -> None:
    request = request_of(name)
    request["headers"]["Idempotency-Key"] = name
    with api.client() as client:
        before = client.get("/v1/items").json()["items"]
        with _file_limit(api, limit):
            _assert_storage_full(client.post("/v1/items", **request))
            assert client.get("/v1/items").json()["items"] == before
            assert api.incoming == []
        again = client.post("/v1/items", **request)
        assert again.status_code in {201, 202}, again.text
        assert "idempotent-replayed" not in again.headers


def test_every_change_that_the_database_has_no_room_for_is_507_and_goes_through_afterwards(
    api: Service, name: str
) -> None:
    with api.client() as client:
        item_id = client.post("/v1/items", **_as_json(name)).json()["id"]
        changes: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", f"/v1/items/{item_id}/cancel", {}),
            ("PUT", "/v1/switches", {"model_calls": {"is_paused": True, "reason": name}}),
        ]
        with _file_limit(api, 1):
            for method, path, body in changes:
                _assert_storage_full(client.request(method, path, json=body))
            assert client.get(f"/v1/items/{item_id}").json()["status"] == "queued"
        for method, path, body in changes:
            assert client.request(method, path, json=body).status_code == 200
        assert client.get(f"/v1/items/{item_id}").json()["status"] == "cancelled"
        client.put("/v1/switches", json={"model_calls": {"is_paused": False}})


def test_whoever_only_reads_does_not_notice_that_the_database_has_no_room(tmp_path: Path) -> None:
    """Neither the first use of a key nor the first look at the console after a restart has to be written to go on."""
    with running("serve", tmp_path) as api, api.client() as client:
        assert client.get("/console/items").status_code == 200
    key = make_key(tmp_path, "default", "items:read")
    with running("serve", tmp_path) as api, api.client() as client, _file_limit(api, 1):
        assert client.get("/v1/items", headers=bearer(key)).status_code == 200
        assert client.get("/console/items").status_code == 200
        _assert_storage_full(client.post("/v1/items", **_as_json("mug")))


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """A disk of 512 KiB, where we are allowed to make one; else the folder stays as it is."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "none", folder], capture_output=True, check=False
    )
    try:
        yield
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)


def _remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def test_full_or_read_only_disk_is_507_until_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    with _small_disk(folder), running("serve", tmp_path, default_wait_s=0) as api, api.client() as client:
        if not folder.is_mount():
            with _file_limit(api, 600_000):
                _assert_storage_full(client.post("/v1/items", **_as_photo(1_000_000)))
            return
        _assert_storage_full(client.post("/v1/items", **_as_photo(1_000_000)))
        _remount(folder, "ro")
        _assert_storage_full(client.post("/v1/items", **_as_photo(1_000)))
        assert client.get("/readyz").status_code == 503
        assert client.get("/v1/items").json()["items"] == []
        assert api.incoming == []
        _remount(folder, "rw,size=8m")
        assert client.post("/v1/items", **_as_photo(1_000_000)).status_code == 201
        assert client.get("/readyz").status_code == 200


_ENDS_BY_ITSELF = """
from gateway.cli import processes
from gateway.settings import Settings

class Ends:
    run = stop = lambda self: None

processes._worker = lambda *_: Ends()
processes.run_worker(Settings(), [])
"""


def test_worker_that_ends_without_being_told_to_says_so_by_its_exit_status(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS_BY_ITSELF],
        env=environment(tmp_path, {"webhook_delivery": False}),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
