"""The whole service on either database: races of equal requests, and what an operator sees of wrong settings."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.store import keys
from gateway.store.engine import Database
from tests import media
from tests.contracts.servers import PostgreSQL, Redis, free_port
from tests.contracts.sizes import sized
from tests.gateway.running import Service, bearer, command, running, settled, start

PHOTO = media.thumbnail(side=300)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The API alone, which answers at once."""
    folder = tmp_path_factory.mktemp("api")
    if request.param == "sqlite":
        with running("serve", folder, default_wait_s=0) as service:
            yield service
        return
    server: PostgreSQL = request.getfixturevalue("postgres")
    with (
        server.database("migrated") as url,
        running("serve", folder, default_wait_s=0, database_url=url) as service,
    ):
        yield service


def send(client: httpx.Client, key: str, photo: bytes = PHOTO, **headers: str) -> httpx.Response:
    """A photo as it is, with a key."""
    return client.post(
        "/v1/items",
        params={"title": key, "external_id": key},
        content=photo,
        headers={"Content-Type": "image/jpeg", "Idempotency-Key": key, "Prefer": "respond-async", **headers},
    )


def ids_of(client: httpx.Client, external_id: str, **headers: str) -> list[str]:
    answer = client.get("/v1/items", params={"external_id": external_id}, headers=headers)
    return [item["id"] for item in answer.json()["items"]]


@pytest.mark.case
@pytest.mark.parametrize("round_", range(sized(2, 100)))
def test_hundred_equal_requests_at_once_make_one_item(api: Service, round_: int) -> None:
    """S7. Whoever is told to wait asks again, as clients do."""
    key = f"race-{uuid.uuid4().hex}"
    barrier = threading.Barrier(100)

    def race(_: int) -> str:
        with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as client:
            barrier.wait()
            for _ in range(50):
                answer = send(client, key)
                if answer.status_code != 409:
                    assert answer.status_code in {201, 202}, answer.text
                    return str(answer.json()["id"])
                assert answer.json()["code"] == "idempotency_in_progress"
                threading.Event().wait(0.1)
        raise AssertionError("never let in")

    with ThreadPoolExecutor(100) as pool:
        ids = set(pool.map(race, range(100)))
    assert len(ids) == 1
    with api.client() as client:
        assert ids_of(client, key) == [*ids]
        changed = send(client, key, PHOTO[:-1] + b"\x00")
        assert (changed.status_code, changed.json()["code"]) == (422, "idempotency_key_reused")
        assert ids_of(client, key) == [*ids]


@pytest.mark.case
def test_key_of_another_tenant_is_another_key(api: Service, request: pytest.FixtureRequest) -> None:
    """S7: nothing of one tenant's keys is another's."""
    key = f"tenant-{uuid.uuid4().hex}"
    database = Database(_address(api))
    _, secret = database.transact(
        lambda c: keys.create(c, tenant=f"t-{key[-8:]}", name=None, scopes=keys.SCOPES, at_ms=1)
    )
    database.close()
    with api.client() as client:
        own, other = send(client, key), send(client, key, **bearer(secret))
        assert (own.status_code, other.status_code) == (202, 202)
        assert own.json()["id"] != other.json()["id"]
        assert ids_of(client, key, **bearer(secret)) == [other.json()["id"]]


def _address(api: Service) -> str:
    """The database of a running service, as its process was told."""
    words = Path(f"/proc/{api.process.pid}/environ").read_bytes().split(b"\0")
    for word in words:
        if word.startswith(b"SLUICEGATE_DATABASE_URL="):
            return word.split(b"=", 1)[1].decode()
    return f"sqlite:///{api.data_dir / 'sluicegate.db'}"


def test_killed_api_finds_the_item_of_the_request_it_did_not_answer(postgres_url: str, tmp_path: Path) -> None:
    key = f"kill-{uuid.uuid4().hex}"
    first_life = start("serve", tmp_path, default_wait_s=0, database_url=postgres_url)
    with httpx.Client(base_url=first_life.url, timeout=60, trust_env=False) as client:
        first = send(client, key)
    first_life.kill()
    with running("serve", tmp_path, database_url=postgres_url) as second_life, second_life.client() as client:
        again = send(client, key)
        assert (again.json()["id"], again.headers["idempotent-replayed"]) == (first.json()["id"], "true")
        assert ids_of(client, key) == [first.json()["id"]]


HOG = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
while True:
    database.execute("BEGIN IMMEDIATE")
    time.sleep(0.3)
    database.execute("ROLLBACK")
    time.sleep(0.7)
"""


@pytest.mark.case
def test_lock_storm_reaches_no_client(tmp_path: Path) -> None:
    """S6: while another process sits on the write lock for 300 ms of every second, no answer is a 5xx, no lock is logged.

    How long a submit takes without it is measured first, since the machine may be busy with other things.
    """
    with running("up", tmp_path, default_wait_s=0, decoder_workers=1, ocr_workers=1) as service:
        calm, _ = _storm(service, seconds=sized(2.0, 10.0))
        hog = subprocess.Popen([sys.executable, "-c", HOG, str(tmp_path / "sluicegate.db")])
        try:
            stormy, statuses = _storm(service, seconds=sized(4.0, 60.0))
        finally:
            hog.kill()
            hog.wait()
        log = service.log.read_text("utf-8")
    assert statuses <= {200, 202}
    assert len(stormy) > 30
    assert _late(stormy) < max(1.0, 4 * _late(calm))
    assert "locked" not in log
    assert "Traceback" not in log


def _late(waits: list[float]) -> float:
    """The 99th of a hundred."""
    return sorted(waits)[int(len(waits) * 0.99)]


def _storm(service: Service, seconds: float) -> tuple[list[float], set[int]]:
    """Eight clients that submit and list; gives how long their submits took, and all statuses."""
    ends_at = time.monotonic() + seconds

    def call(number: int) -> tuple[list[float], set[int]]:
        waits, statuses = [], set()
        with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as client:
            while time.monotonic() < ends_at:
                title, began = f"Oak table {uuid.uuid4().hex}", time.monotonic()
                answers = [client.post("/v1/items", json={"title": title}, headers={"Idempotency-Key": title})]
                waits.append(time.monotonic() - began)
                answers.append(client.get("/v1/items", params={"limit": 20}))
                answers.append(client.get(f"/v1/items/{answers[0].json()['id']}"))
                statuses |= {answer.status_code for answer in answers}
                threading.Event().wait(0.1)
        return waits, statuses

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, range(8)))
    return [wait for waits, _ in found for wait in waits], {status for _, some in found for status in some}


def test_everything_at_once_by_settings_alone(postgres_url: str, redis: Redis, s3: str, tmp_path: Path) -> None:
    """PostgreSQL, Celery and a bucket: the same request, the same answer."""
    from tests.contracts.test_blobs import bucket, s3_settings

    settings = {
        "database_url": postgres_url,
        "dispatch": "celery",
        "broker_url": redis.url(),
        **s3_settings(s3, bucket(s3)),
    }
    with running("up", tmp_path, **settings) as service, service.client() as client:
        answer = client.post(
            "/v1/items", params={"title": "Oak table"}, content=PHOTO, headers={"Content-Type": "image/jpeg"}
        )
        item = settled(client, answer.json()["id"])
        assert item["status"] == "succeeded", item
        queue = client.get("/readyz").json()["checks"]["queue"]
        assert (queue["status"], queue["dispatch"]) == ("ok", "celery")
        assert client.get("/v1/events").json()["events"][-1]["type"] == "item.succeeded"


# --- what an operator sees ---


def test_database_without_the_schema_is_refused_until_it_is_migrated(postgres: PostgreSQL, tmp_path: Path) -> None:
    with postgres.database() as url:
        refused = command("serve", data_dir=tmp_path, database_url=url)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert "sluicegate migrate" in refused.stderr
        migrated = command("migrate", data_dir=tmp_path, database_url=url)
        assert migrated.returncode == 0, migrated.stderr
        with running("serve", tmp_path, database_url=url) as api, api.client() as client:
            assert client.get("/readyz").status_code == 200


def test_broker_that_is_away_is_named_and_makes_nobody_unready(tmp_path: Path) -> None:
    broker = f"redis://:hidden@127.0.0.1:{free_port()}/0"
    with running("serve", tmp_path, dispatch="celery", broker_url=broker) as api, api.client() as client:
        ready = client.get("/readyz")
    queue = ready.json()["checks"]["queue"]
    assert (ready.status_code, queue["status"], queue["required"]) == (200, "missing", False)
    assert "cannot be reached" in queue["problem"]
    assert "hidden" not in ready.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"database_url": "postgresql+psycopg://postgres@127.0.0.1:{port}/none"}, "the database cannot be used"),
        ({"database_url": "nonsense"}, "SLUICEGATE_DATABASE_URL"),
        ({"dispatch": "celery"}, "SLUICEGATE_BROKER_URL"),
        ({"dispatch": "celery", "broker_url": "sqla+sqlite:///x"}, "SLUICEGATE_BROKER_URL"),
        ({"dispatch": "pigeon"}, "SLUICEGATE_DISPATCH"),
        ({"blob_url": "ftp://x"}, "SLUICEGATE_BLOB_URL"),
        ({"blob_url": "s3://"}, "SLUICEGATE_BLOB_URL"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else None,
)
def test_setting_that_cannot_be_used_is_named_in_one_line(
    settings: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {name: value.replace("{port}", str(free_port())) for name, value in settings.items()}
    monkeypatch.setenv("SLUICEGATE_DATA_DIR", str(tmp_path))
    for name, value in chosen.items():
        monkeypatch.setenv(f"SLUICEGATE_{name.upper()}", value)
    ran = CliRunner().invoke(app, ["worker"])
    assert ran.exit_code in {1, 2}
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert said in ran.stderr
