"""Hostile files over HTTP: never a 5xx, never a hang, and the process that answers stays as small as it was."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests import hostile
from tests.gateway.running import Service
from tests.hostile import Hostile

MOST_GROWTH_BYTES = 50 * 1024 * 1024


def sent(service: Service, files: list[Hostile]) -> list[tuple[str, int, float]]:
    """Each as an item of its own, four at a time: name, status, seconds."""
    with service.client(limits=httpx.Limits(max_connections=4)) as client:

        def send(file: Hostile) -> tuple[str, int, float]:
            started = time.monotonic()
            body = {"p1": ("upload.jpg", file.data, "image/jpeg")}
            answer = client.post("/v1/items", data={"title": file.name[:100]}, files=body)
            return file.name, answer.status_code, time.monotonic() - started

        with ThreadPoolExecutor(4) as senders:
            return list(senders.map(send, files))


def test_hostile_uploads_are_answered_and_leave_no_mark(api: Service) -> None:
    bombs = [file for file in hostile.bombs() if len(file.data) < 3_000_000]
    damaged = list(hostile.by_rule(most_of_each=1, seed=7))
    sent(api, damaged[:8])
    before = api.resident_bytes()
    answers = sent(api, bombs + damaged)
    assert len(answers) > 120
    assert [(name, status) for name, status, _ in answers if status not in {200, 201, 202, 400, 413, 422}] == []
    assert [(name, seconds) for name, _, seconds in answers if seconds > 15.0] == []
    assert api.resident_bytes() - before < MOST_GROWTH_BYTES
    with api.client() as client:
        assert client.get("/readyz").status_code == 200
