"""Storing an item and telling workers of it are two steps: a gateway killed between them loses nothing, makes up nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.item import Status
from tests.contracts.ground import QUICK, Ground
from tests.contracts.queue import ways
from tests.gateway.running import Service, environment, running, until

pytestmark = pytest.mark.case
SWEEP_S = float(str(QUICK["sweep_s"]))


@contextlib.contextmanager
def doomed(ground: Ground, moment: str) -> Iterator[str]:
    """The address of a gateway that ends itself at this moment of its first submission."""
    command = [sys.executable, "-m", "tests.contracts.hooked", moment]
    with subprocess.Popen(
        command, env=environment(ground.folder, ground.shared), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rsplit(" ", 1)[1].strip()
            assert process.wait(30) == -9
        finally:
            process.kill()


@pytest.fixture
def key() -> str:
    return f"two-steps-{uuid.uuid4().hex}"


def send(url: str, key: str) -> httpx.Response:
    item = {"title": f"Oak table {key}", "external_id": key}
    headers = {"Idempotency-Key": key, "Prefer": "respond-async"}
    return httpx.post(f"{url}/v1/items", json=item, headers=headers, trust_env=False, timeout=30)


def items_of(api: Service, key: str) -> list[str]:
    with api.client() as client:
        return [item["id"] for item in client.get("/v1/items", params={"external_id": key}).json()["items"]]


def errors_in(log: Path) -> list[str]:
    entries = [json.loads(line) for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
    return [entry["event"] for entry in entries if entry["level"] in {"error", "critical"}]


@pytest.fixture(scope="module")
def worker(ground: Ground) -> Iterator[Service]:
    with running("worker", ground.folder, **ground.shared) as started:
        yield started


@pytest.fixture(scope="module")
def api(ground: Ground) -> Iterator[Service]:
    """The gateway that goes on, or is there again, when the doomed one has ended."""
    with running("serve", ground.folder, **ground.shared) as started:
        yield started


def test_item_of_which_no_worker_was_told_is_worked_on_all_the_same(
    ground: Ground, worker: Service, api: Service, key: str
) -> None:
    """S4, first run: killed after the commit and before the message. S7: the same request again finds the one item."""
    with doomed(ground, "after_commit") as url, pytest.raises(httpx.TransportError):
        send(url, key)
    killed_at = time.monotonic()
    [item_id] = items_of(api, key)
    until(lambda: ways(ground.database, [item_id])[item_id][-1] is Status.SUCCEEDED, within_s=60)
    assert time.monotonic() - killed_at <= SWEEP_S + 5
    assert ways(ground.database, [item_id])[item_id].count(Status.SUCCEEDED) == 1
    again = send(api.url, key)
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (item_id, "true")
    assert items_of(api, key) == [item_id]


def test_message_about_an_item_that_was_never_stored_does_nothing(
    ground: Ground, worker: Service, api: Service, key: str
) -> None:
    """S4, second run: killed after the message and before the commit."""
    with doomed(ground, "before_commit") as url, pytest.raises(httpx.TransportError):
        send(url, key)
    assert items_of(api, key) == []
    told = send(api.url, key)
    assert (told.status_code, "idempotent-replayed" in told.headers) == (202, False)
    item_id = told.json()["id"]
    until(lambda: ways(ground.database, [item_id])[item_id][-1] is Status.SUCCEEDED, within_s=60)
    assert items_of(api, key) == [item_id]
    assert errors_in(worker.log) == []
