"""Hostile files over HTTP: never a 5xx, never a hang, and the process that answers stays as small as it was."""

from __future__ import annotations

import itertools
import json
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests import hostile, media
from tests.contracts.sizes import sized
from tests.gateway.running import Service, settled
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


HOSTILE_PDFS = {
    "cyclic page tree": hostile.pdf_cyclic_pages,
    "nested forms": hostile.pdf_nested_forms,
    "recursive form": media.pdf_recursive_form,
    "bomb": hostile.pdf_flate_bomb,
    "bomb in a bomb": hostile.pdf_flate_twice,
    "cut": media.pdf_truncated,
    "no pages": media.pdf_zero_pages,
    "huge page": media.pdf_huge_page,
}
THREE_PAGES = [
    ("Linen bath towel Fjord", "Made in Portugal"),
    ("Wash at 60 degrees", "Dry flat"),
    ("500 grams per metre",),
]


@pytest.mark.case
def test_good_documents_read_the_same_among_hostile_ones_and_no_process_is_lost(service: Service) -> None:
    """S9: each document is read in a process of its own, whose death is a result and nobody else's."""
    good, bad = sized((16, 8), (64, 16))
    sheet = media.pdf_lines(*THREE_PAGES)
    wanted = [("good", sheet)] * good
    wanted += [(name, make()) for name, make in itertools.islice(itertools.cycle(HOSTILE_PDFS.items()), bad)]
    before = {role: service.children(role) for role in ("serve", "worker")}
    with service.client() as client:

        def send(numbered: tuple[int, tuple[str, bytes]]) -> tuple[str, dict[str, Any]]:
            number, (name, data) = numbered
            item = {"title": f"{name} {number} {uuid.uuid4().hex}", "mode": "prepare"}
            files = {"item": (None, json.dumps(item), "application/json"), "p1": ("p1.pdf", data, "application/pdf")}
            answer = client.post("/v1/items", files=files, headers={"Prefer": "respond-async"})
            assert answer.status_code in {201, 202}, answer.text
            return name, settled(client, answer.json()["id"], within_s=240)

        with ThreadPoolExecutor(good + bad) as senders:
            items = list(senders.map(send, enumerate(wanted)))
        texts = {_text_of(client, item) for name, item in items if name == "good"}
    [text] = texts
    assert all(word in text for lines in THREE_PAGES for line in lines for word in line.split())
    ends = {name: (item["status"], item["reason"]) for name, item in items if name != "good"}
    assert [(name, end) for name, end in ends.items() if end[0] != "rejected" or not end[1]] == []
    assert {role: service.children(role) for role in ("serve", "worker")} == before


def _text_of(client: httpx.Client, item: dict[str, Any]) -> str:
    """What was read from its file, as the model would be given it."""
    assert item["status"] == "ready", (item["status"], item["reason"])
    payload = client.get(f"/v1/items/{item['id']}/llm-payload", params={"format": "neutral"}).json()
    text = json.dumps(payload["content"]).replace(item["title"], "")
    return re.sub(r"data-[0-9a-f]{12}", "data", text)  # each payload has marks of its own around what was uploaded
