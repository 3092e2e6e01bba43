"""Whatever bytes come, the service answers that the caller is wrong, or does what was asked; it never fails itself."""

from __future__ import annotations

import json
import socket
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import media
from tests.gateway.raw_http import multipart
from tests.gateway.running import Service

BUDGET = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
BOUNDARY = "b0undary"
GOOD = multipart(
    (
        'name="item"',
        json.dumps({"title": "x", "attributes": {"a": 1}, "files": [{"part": "p1", "role": "photo"}]}).encode(),
    ),
    ('name="p1"; filename="p.jpg"', media.thumbnail(side=80)),
    boundary=BOUNDARY,
)
SPLICES = [
    b"",
    b"\r\n",
    b"--",
    b"\r\n--b0undary\r\n",
    b"\r\n--b0undary--",
    b'"',
    b";",
    b"\x00",
    b"\xff\xfe",
    b"{",
    b"NaN",
    b"%00",
]


def status_of(api: Service, sent: bytes, *, half_close: bool = False) -> int | None:
    """The status of the answer to these bytes; None where the server hung up on what is no HTTP."""
    with api.connect(timeout_s=20) as connection:
        connection.sendall(sent)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while b"\r\n" not in answer:
            received = connection.recv(4096)
            if not received:
                break
            answer += received
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else None


def request(method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: 127.0.0.1", b"Connection: close"]
    lines += [name + b": " + value for name, value in headers]
    lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def post(body: bytes, content_type: bytes, *headers: tuple[bytes, bytes]) -> bytes:
    return request(b"POST", b"/v1/items", [(b"Content-Type", content_type), *headers], body)


FORM = b"multipart/form-data; boundary=" + BOUNDARY.encode()
LINE = st.binary(max_size=60).map(lambda raw: raw.replace(b"\r", b" ").replace(b"\n", b" "))
NAMES = st.sampled_from(
    [b"Authorization", b"Content-Type", b"Idempotency-Key", b"Prefer", b"If-None-Match", b"Accept-Language", b"Expect",
     b"Origin", b"Repr-Digest", b"Content-Digest", b"Content-Encoding", b"Range", b"X-Forwarded-For"]
)  # fmt: skip
VALUES = st.one_of(
    LINE,
    st.sampled_from(
        [FORM, b"application/json", b"image/jpeg", b"Bearer x", b'"k"', b"wait=1, respond-async", b"handling=strict",
         b'W/"1"', b"zh;q=x", b"sha-256=:AAAA:", b"sha-256=::", b"multipart/form-data; boundary=", b"wait=" + b"9" * 30]
    ),
)  # fmt: skip
TARGETS = st.one_of(
    st.sampled_from(
        [b"/", b"/v1/items", b"/v1/items/", b"/v1/items?limit=1&limit=2", b"/v1/items/itm_0", b"/v1/items/itm_0/cancel",
         b"/v1/items/itm_0/llm-payload?max_px=x", b"/v1/profiles/product-copy", b"/v1/meta", b"/problems/corrupt",
         b"/openapi.json", b"//v1/items", b"/v1/../v1/items", b"/v1/items/%00", b"/v1/items/%ff/events?after=%31",
         b"/v1/items?created_after=9999-12-31T23:59:59-23:59", b"/v1/items?cursor=LTF8", b"*"]
    ),
    st.text("abv1/%?=&.0f-", max_size=40).map(lambda text: b"/" + text.encode()),
    st.binary(max_size=30).map(lambda raw: b"/v1/items/" + b"".join(b"%%%02x" % byte for byte in raw)),
)  # fmt: skip
METHODS = st.sampled_from([b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE"])


@BUDGET
@given(
    method=METHODS, target=TARGETS, headers=st.lists(st.tuples(NAMES, VALUES), max_size=5), body=st.binary(max_size=300)
)
def test_random_requests_never_make_the_service_fail(
    api: Service, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    status = status_of(api, request(method, target, headers, body))
    assert status is not None
    assert status < 500


@BUDGET
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 40), st.sampled_from(SPLICES) | st.binary(max_size=8)),
        max_size=4,
    )
)
def test_damaged_forms_never_make_the_service_fail(api: Service, edits: list[tuple[int, int, bytes]]) -> None:
    body = GOOD
    for at, length, splice in edits:
        body = body[:at] + splice + body[at + length :]
    status = status_of(api, post(body, FORM))
    assert status in {200, 201, 202, 400, 422}


WORDS = st.text(max_size=12) | st.sampled_from(["product-copy", "generate", "en", "p1"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS)
KEYS = st.sampled_from(
    ["title", "text", "attributes", "files", "budget", "mode", "profile", "language", "metadata", "on_duplicate", "external_id",
     "retention_days", "max_seconds", "max_cost", "part", "sha256", "callback_url"]
) | st.text(max_size=6)  # fmt: skip
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)


@BUDGET
@given(document=st.dictionaries(KEYS, DOCUMENTS, max_size=6))
def test_random_documents_never_make_the_service_fail(api: Service, document: dict[str, Any]) -> None:
    status = status_of(api, post(json.dumps(document).encode(), b"application/json"))
    assert status in {200, 201, 202, 400, 422}


@BUDGET
@given(
    raw=st.binary(max_size=400),
    kind=st.sampled_from([b"image/jpeg", b"audio/wav", b"application/pdf", b"application/json", FORM]),
)
def test_random_bytes_never_make_the_service_fail(api: Service, raw: bytes, kind: bytes) -> None:
    status = status_of(api, post(raw, kind))
    assert status in {200, 201, 202, 400}


@BUDGET
@given(raw=st.binary(min_size=1, max_size=300))
def test_what_is_no_http_is_hung_up_on(api: Service, raw: bytes) -> None:
    status = status_of(api, raw, half_close=True)
    assert status is None or 400 <= status < 500
