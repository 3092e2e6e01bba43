"""Refused before its body is read, and in a way that the client can see (SVC-09)."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import requests

from tests.gateway.raw_http import RawAnswer, chunk, head, read_answer
from tests.gateway.running import Service, bearer

MIB = 1024 * 1024
LIMIT = 4 * MIB
"""Of the service under test."""
BAD_KEY = "Authorization: Bearer sgk_not_one_of_ours"
JPEG = "Content-Type: image/jpeg"
AT_ONCE_S = 3.0
"""Half a second on a machine of its own; other tests may keep this one busy."""


@contextlib.contextmanager
def asked(api: Service, *headers: str, path: str = "/v1/items") -> Iterator[socket.socket]:
    """A connection on which only headers were sent."""
    with api.connect() as connection:
        connection.sendall(head("POST", path, *headers))
        yield connection


def answered(api: Service, *headers: str, path: str = "/v1/items") -> RawAnswer:
    started = time.monotonic()
    with asked(api, *headers, path=path) as connection:
        answer = read_answer(connection)
    assert time.monotonic() - started < AT_ONCE_S
    assert answer.headers["content-type"] == "application/problem+json"
    return answer


HUGE = f"Content-Length: {64 * MIB}"
REFUSED = [
    pytest.param((BAD_KEY, JPEG, HUGE), 401, "unauthenticated", id="bad-key"),
    pytest.param(("Authorization: Basic dTpw", JPEG, HUGE), 401, "unauthenticated", id="another-scheme"),
    pytest.param((JPEG, HUGE), 413, "payload_too_large", id="declared-too-long"),
    pytest.param(
        ("Content-Type: text/html", "Content-Length: 1000000"), 415, "unsupported_media_type", id="content-type"
    ),
    pytest.param(
        (JPEG, 'Idempotency-Key: ""', "Content-Length: 1000000"), 400, "idempotency_key_invalid", id="empty-key"
    ),
    pytest.param(
        ("Origin: https://evil.example", JPEG, "Content-Length: 1000000"), 403, "forbidden", id="foreign-page"
    ),
]


@pytest.mark.parametrize(("headers", "status", "code"), REFUSED)
def test_headers_alone_are_enough_for_a_refusal(api: Service, headers: tuple[str, ...], status: int, code: str) -> None:
    answer = answered(api, *headers)
    assert (answer.status, answer.json()["code"]) == (status, code)
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
    if status == 413:
        assert answer.json()["limit_bytes"] == LIMIT
        assert f"{LIMIT:,}" in answer.json()["detail"]


@pytest.mark.parametrize(("headers", "status", "code"), REFUSED)
def test_refused_request_is_never_told_to_continue(
    api: Service, headers: tuple[str, ...], status: int, code: str
) -> None:
    answer = answered(api, *headers, "Expect: 100-continue")
    assert (answer.status, answer.json()["code"]) == (status, code)


def test_request_without_fault_is_told_to_continue(api: Service) -> None:
    body = b'{"title":"continued"}'
    with asked(
        api, "Content-Type: application/json", f"Content-Length: {len(body)}", "Expect: 100-continue"
    ) as connection:
        assert read_answer(connection).status == 100
        connection.sendall(body)
        assert read_answer(connection).status in {200, 202}


def test_body_of_unknown_length_ends_at_the_limit_without_filling_the_memory(api: Service) -> None:
    before = api.resident_bytes()
    piece = chunk(os.urandom(MIB))
    with asked(api, JPEG, "Transfer-Encoding: chunked") as connection:
        sent = 0
        answer: list[RawAnswer] = []
        reader = threading.Thread(target=lambda: answer.append(read_answer(connection)))
        reader.start()
        with contextlib.suppress(ConnectionError):
            while reader.is_alive() and sent < 64:
                connection.sendall(piece)
                sent += 1
        reader.join(20)
    assert answer[0].status == 413
    assert answer[0].json()["code"] == "payload_too_large"
    assert sent >= LIMIT // MIB
    assert api.resident_bytes() - before < 20 * MIB
    assert api.incoming == []


def test_body_at_the_limit_is_taken(api_client: httpx.Client) -> None:
    answer = api_client.post(
        "/v1/items", content=b"\xff\xd8\xff" + bytes(LIMIT - 3), headers={"Content-Type": "image/jpeg"}
    )
    assert answer.status_code in {200, 201, 202}


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "photo.jpg"
    with path.open("wb") as file:
        file.truncate(64 * MIB)
    return path


def by_httpx(url: str, file: Path, headers: dict[str, str]) -> int:
    with file.open("rb") as stream, httpx.Client(trust_env=False, timeout=60) as client:
        return client.post(url, files={"p1": ("photo.jpg", stream, "image/jpeg")}, headers=headers).status_code


def by_requests(url: str, file: Path, headers: dict[str, str]) -> int:
    with file.open("rb") as stream, requests.Session() as session:
        session.trust_env = False
        return session.post(url, data=stream, headers={**headers, "Content-Type": "image/jpeg"}, timeout=60).status_code


def by_curl(url: str, file: Path, headers: dict[str, str]) -> int:
    flags = [flag for name, value in headers.items() for flag in ("-H", f"{name}: {value}")]
    called = subprocess.run(
        ["curl", "-s", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "-F", f"p1=@{file}", *flags, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert called.returncode == 0, called.stderr
    return int(called.stdout)


Send = Callable[[str, Path, dict[str, str]], int]


@pytest.mark.parametrize("send", [by_httpx, by_requests, by_curl])
def test_common_clients_see_why_a_large_upload_is_refused(
    api: Service, alpha: str, large_file: Path, send: Send
) -> None:
    before = api.resident_bytes()
    assert send(f"{api.url}/v1/items", large_file, bearer("sgk_wrong")) == 401
    for headers in ({}, bearer(alpha)):
        assert send(f"{api.url}/v1/items", large_file, headers) == 413
    assert api.resident_bytes() - before < 20 * MIB
    assert api.incoming == []
