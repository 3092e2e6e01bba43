"""Webhooks where everything is a process of its own: PostgreSQL, Celery over Redis, and a process that only delivers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.contracts.fixtures import redis
from tests.contracts.servers import Redis
from tests.gateway.receiver import receiving
from tests.gateway.running import READY_S, environment, running, until

__all__ = ["redis"]


@pytest.mark.parametrize("alone", [["deliver"], ["worker", "--queue", "deliver"]], ids=" ".join)
def test_celery_workers_may_leave_delivery_to_a_process_of_its_own(
    postgres_url: str, redis: Redis, tmp_path: Path, name: str, alone: list[str]
) -> None:
    settings = {
        "database_url": postgres_url, "dispatch": "celery", "broker_url": redis.url(),
        "decoder_workers": 1, "ocr_workers": 1, "webhook_delivery": False,
        "webhook_private_networks": "127.0.0.0/8", "webhook_ports": "any",
    }  # fmt: skip
    with (
        receiving() as receiver,
        running("serve", tmp_path, **settings) as api,
        running("worker", tmp_path, **settings) as worker,
        api.client() as client,
    ):
        for path in ("/v1/webhook-endpoints/%00", "/v1/items/%00", "/v1/webhook-deliveries/a%00b"):
            assert client.get(path).status_code == 404, "PostgreSQL takes no NUL in a text"
        made = client.post("/v1/webhook-endpoints", json={"url": receiver.url, "allow_insecure": True})
        made.raise_for_status()
        item = client.post("/v1/items", json={"title": f"{name} candle"}, headers={"Prefer": "wait=20"}).json()
        until(lambda: client.get(f"/v1/items/{item['id']}").json()["status"] == "succeeded", within_s=READY_S)
        assert receiver.received == []
        assert "webhooks.started" not in worker.log.read_text()
        assert client.get("/v1/webhook-deliveries").json()["webhook_deliveries"] == []
        with (tmp_path / "deliver.log").open("wb") as log:
            delivering = subprocess.Popen(
                [sys.executable, "-m", "gateway", *alone], env=environment(tmp_path, settings), stderr=log
            )
        try:
            until(lambda: receiver.of_type("item.succeeded"), within_s=READY_S)
            until(lambda: statuses(client) == {"succeeded"})
            client.post(f"/v1/webhook-endpoints/{made.json()['id']}/test").raise_for_status()
            until(lambda: receiver.of_type("webhook.test"), within_s=READY_S)
        finally:
            delivering.send_signal(signal.SIGTERM)
            status = delivering.wait(20)
    assert status == 0, (tmp_path / "deliver.log").read_text()[-2000:]
    ids = [request.headers["webhook-id"] for request in receiver.received]
    assert sorted(ids) == sorted(set(ids)), "each once"


def statuses(client: httpx.Client) -> set[str]:
    found = client.get("/v1/webhook-deliveries").json()["webhook_deliveries"]
    return {delivery["status"] for delivery in found}
