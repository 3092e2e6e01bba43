"""What a caller sees when too much waits, the disk runs low, a body trickles, or the process is about to end."""

from __future__ import annotations

import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests import media
from tests.gateway.raw_http import RawAnswer, head, read_answer
from tests.gateway.running import Service, running, until

JPEG = {"Content-Type": "image/jpeg"}
PHOTO = b"\xff\xd8\xff\xe0" + b"0" * 2000


def submit(client: httpx.Client, number: int, **headers: str) -> httpx.Response:
    return client.post(
        "/v1/items",
        data={"title": f"item {number}"},
        headers={"Prefer": "respond-async", **headers},
        files={"p1": ("note.pdf", b"%PDF-1.4 " + str(number).encode() * 50, "application/pdf")},
    )


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An API without a worker, where five items may wait, and three of one tenant; impatient with slow bodies."""
    slow = {"body_idle_s": 0.5, "body_grace_s": 0.5, "body_least_rate": 4000}
    folder = tmp_path_factory.mktemp("crowded")
    with running("serve", folder, max_waiting_items=5, tenant_max_waiting_items=3, **slow) as service:
        yield service


def refused(client: httpx.Client, status: int, **headers: str) -> httpx.Response:
    """Submit until the door closes; a look at the queue is good for a second, so a few may still slip in."""
    numbers = iter(range(10_000))

    def attempt() -> httpx.Response | None:
        answer = submit(client, next(numbers), **headers)
        assert answer.status_code in {202, status}, answer.text
        return answer if answer.status_code == status else None

    return until(attempt)


@pytest.mark.parametrize("kind", ["stands still", "trickles"])
def test_a_slow_body_is_cut_off_with_408(kind: str, crowded: Service) -> None:
    with crowded.connect() as connection:
        lines = ("Content-Type: image/jpeg", "Content-Length: 100000", "Prefer: respond-async")
        connection.sendall(head("POST", "/v1/items", *lines, host=f"127.0.0.1:{crowded.port}"))
        connection.sendall(PHOTO)
        stop = threading.Event()

        def trickle() -> None:
            while not stop.wait(0.1):
                try:
                    connection.sendall(b"1")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        if kind == "trickles":
            thread.start()
        answer = read_answer(connection)
        stop.set()
        if kind == "trickles":
            thread.join()
    assert answer.status == 408
    assert answer.json()["code"] == "request_timeout"
    assert crowded.incoming == []


def test_a_request_head_that_does_not_come_is_not_waited_for(crowded: Service) -> None:
    begun = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with crowded.connect() as silent, crowded.connect() as standing, crowded.connect() as trickling:
        standing.sendall(begun)
        trickling.sendall(begun)
        assert silent.recv(1) == b""
        answer = until(lambda: _answered_while_sending(trickling, b"X-More: 1\r\n"))
        for late in (answer, read_answer(standing)):
            assert late.status == 408
            assert late.json()["code"] == "request_timeout"
            assert late.headers["connection"] == "close"
        assert standing.recv(1) == b""


def test_a_request_head_without_end_is_431_and_fills_no_memory(crowded: Service) -> None:
    with crowded.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        answer = until(lambda: _answered_while_sending(connection, b"X-More: %s\r\n" % (b"a" * 30_000)))
    assert answer.status == 431
    assert answer.json()["code"] == "head_too_large"


def test_a_connection_serves_on_after_a_rest_but_not_a_body_that_nobody_reads(crowded: Service) -> None:
    asked = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with crowded.connect() as connection:
        for rest_s in (0.0, 1.0):  # twice as long as a head may take
            time.sleep(rest_s)
            connection.sendall(asked + b"\r\n")
            assert read_answer(connection).status == 200
        connection.sendall(asked + b"Content-Length: 1000000\r\n\r\n")
        assert read_answer(connection).status == 200
        assert until(lambda: _is_closed_while_sending(connection, b"1"))


def _answered_while_sending(connection: socket.socket, piece: bytes) -> RawAnswer | None:
    """The answer, if one has begun to come; otherwise sends one more piece."""
    if select.select([connection], [], [], 0.05)[0]:
        return read_answer(connection)
    connection.sendall(piece)
    return None


def _is_closed_while_sending(connection: socket.socket, piece: bytes) -> bool:
    """Whether the other side has closed the connection; otherwise sends one more piece."""
    if select.select([connection], [], [], 0.05)[0]:
        return connection.recv(1) == b""
    connection.sendall(piece)
    return False


def test_a_tenant_with_too_much_waiting_gets_429_with_retry_after_while_reads_go_on(crowded: Service) -> None:
    client = crowded.client()
    answer = refused(client, 429)
    assert answer.json()["code"] == "quota_exceeded"
    assert int(answer.headers["retry-after"]) >= 1
    assert client.get("/v1/items").status_code == 200
    waiting = len(client.get("/v1/items", params={"status": "queued"}).json()["items"])
    assert waiting == 3


def test_a_refusal_is_quick_and_stores_nothing(crowded: Service) -> None:
    client = crowded.client()
    refused(client, 429)
    before = crowded.blobs
    started = time.perf_counter()
    answers = [submit(client, 50_000 + number) for number in range(10)]
    assert (time.perf_counter() - started) / 10 < 1.0
    assert {answer.status_code for answer in answers} == {429}
    assert crowded.blobs == before
    assert crowded.incoming == []


def test_a_full_queue_gets_503_for_everybody(tmp_path: Path) -> None:
    with running("serve", tmp_path, max_waiting_items=2) as service:
        answer = refused(service.client(), 503)
        assert answer.json()["code"] == "queue_full"
        assert answer.json()["retryable"] is True


def test_uploads_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    with running("serve", tmp_path, min_free_bytes=10**18) as service:
        answer = submit(service.client(), 1)
        assert answer.status_code == 507
        assert answer.json()["code"] == "storage_full"
        assert "retry-after" in answer.headers
        assert service.client().get("/v1/items").json()["items"] == []
        late = service.client().post("/v1/items/itm_none/info", files={"p1": ("p.jpg", PHOTO, "image/jpeg")})
        assert (late.status_code, late.json()["code"]) == (507, "storage_full")
        assert service.incoming == []


def test_reads_go_on_and_uploads_are_taken_while_the_decoders_stand_still(tmp_path: Path) -> None:
    """More uploads than there are threads, and none of them can be measured for as long as the test takes."""
    photo = media.label_photo(long_side=600)
    uploads = 80

    def upload(number: int) -> int:
        query = {"title": f"photo {number}", "on_duplicate": "new"}
        return uploader.post("/v1/items", params=query, content=photo, headers=JPEG).status_code

    def stored() -> int:
        return len(reader.get("/v1/items", params={"limit": 200}).json()["items"])

    with running("serve", tmp_path, decoder_workers=1, edge_wall_s=60, default_wait_s=0) as service:
        reader, uploader = service.client(), service.client(limits=httpx.Limits(max_connections=uploads))
        assert upload(0) == 202  # measured here, so the decoder runs
        with ThreadPoolExecutor(uploads) as pool, service.helpers_stopped():
            answers = [pool.submit(upload, number) for number in range(1, uploads + 1)]
            until(lambda: stored() == uploads + 1)
            taken = until(lambda: [one for one in answers if one.done()][uploads // 2 :])
            assert {one.result() for one in taken} == {202}
            assert reader.get("/console/items").status_code == 200
        assert {one.result() for one in answers} == {202}


def test_who_waits_for_an_item_gets_it_as_it_stands_when_the_process_is_told_to_end(tmp_path: Path) -> None:
    with running("serve", tmp_path) as service:
        client = service.client()
        item = submit(client, 1).json()
        answers: list[httpx.Response] = []
        waiter = threading.Thread(
            target=lambda: answers.append(client.get(f"/v1/items/{item['id']}", headers={"Prefer": "wait=30"}))
        )
        waiter.start()
        until(lambda: len(list(service.client().get("/v1/events").json()["events"])) >= 1)
        started = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        waiter.join(20)
        assert time.monotonic() - started < 15
        assert answers
        assert answers[0].status_code == 200
        assert answers[0].json()["status"] == "queued"


def test_an_upload_that_is_not_over_when_the_process_has_to_end_is_told_to_come_again(tmp_path: Path) -> None:
    with running("serve", tmp_path) as service:
        with service.connect() as connection:
            lines = ("Content-Type: image/jpeg", "Content-Length: 100000")
            connection.sendall(head("POST", "/v1/items", *lines, host=f"127.0.0.1:{service.port}") + PHOTO)
            until(lambda: service.incoming)
            service.process.send_signal(signal.SIGTERM)
            answer = read_answer(connection)
        assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")
        assert (answer.json()["code"], answer.headers["connection"]) == ("dependency_unavailable", "close")
        assert service.process.wait(20) == 0
        assert service.incoming == []
        assert "Traceback" not in service.complaints()
