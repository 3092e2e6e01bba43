# ruff: noqa: E501 - one case a line
"""Requests that are wrong: each is told what to change, at once, and nothing of it is kept."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests import media
from tests.gateway.conftest import store_key
from tests.gateway.raw_http import head, multipart, read_answer
from tests.gateway.running import Service, bearer

BOUNDARY = "b0undary"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
JSON = {"Content-Type": "application/json"}
PIXELS = media.thumbnail(side=200)
FILE = 'name="p1"; filename="p.jpg"'
ITEM = 'name="item"'
QUICK_S = 5.0
"""Far more than the milliseconds that it takes, since other tests may keep the machine busy."""


@pytest.fixture(scope="module")
def careless(api: Service) -> dict[str, str]:
    """The key of a tenant that never gets anything right, as headers."""
    return bearer(store_key(api, "careless"))


@pytest.fixture
def client(api: Service, careless: dict[str, str]) -> Iterator[httpx.Client]:
    with api.client(headers=careless) as made:
        yield made


def assert_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """A problem document with all that the contract promises, and nothing from the inside of the service."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (problem["code"], problem["type"], problem["status"]) == (code, f"/problems/{code}", status)
    assert problem["request_id"] == answer.headers["request-id"]
    assert problem["title"]
    assert problem["detail"].endswith(".")
    assert problem["instance"].startswith("/")
    assert isinstance(problem["retryable"], bool)
    for inside in ("Traceback", "site-packages", ".py", "sqlite", "/tmp", "pydantic", "Exception", "object at 0x"):
        assert inside not in answer.text
    return problem


def assert_nothing_kept(api: Service, client: httpx.Client) -> None:
    assert client.get("/v1/items").json() == {"items": [], "next_cursor": None}
    assert api.incoming == []
    assert not (api.data_dir / "blobs" / "by-tenant" / "careless").exists()


def form(*parts: tuple[str, bytes], **options: Any) -> dict[str, Any]:
    return {"headers": FORM, "content": multipart(*parts, boundary=BOUNDARY, **options)}


def item(**fields: Any) -> tuple[str, bytes]:
    return (ITEM, json.dumps(fields).encode())


def raw_json(text: str | bytes) -> dict[str, Any]:
    return {"headers": JSON, "content": text}


def nested(depth: int) -> str:
    return '{"attributes":' + '{"a":' * depth + "1" + "}" * depth + "}"


def with_file_name(file_name: str) -> dict[str, Any]:
    return form(item(title="x"), (f'name="p1"; filename="{file_name}"', PIXELS))


M, I = "malformed_multipart", "invalid_request"  # noqa: E741
CASES: dict[str, tuple[dict[str, Any], int, str, str]] = {
    # --- bodies ---
    "empty multipart body": (form(end=False), 400, M, "empty"),
    "multipart without any part": (form(), 400, I, "neither files nor a title"),
    "empty raw body": ({"headers": {"Content-Type": "image/jpeg"}, "content": b""}, 400, I, "empty"),
    "empty JSON body": (raw_json(""), 400, I, "empty"),
    "no boundary": ({"headers": {"Content-Type": "multipart/form-data"}, "content": b"x"}, 400, M, "boundary"),
    "empty boundary": ({"headers": {"Content-Type": "multipart/form-data; boundary="}, "content": b"x"}, 400, M, "boundary"),
    "another boundary": ({"headers": {"Content-Type": "multipart/form-data; boundary=other"}, "content": multipart(item(title="x"))}, 400, M, "boundary"),
    "cut inside a file": ({"headers": FORM, "content": multipart(item(title="x"), (FILE, PIXELS))[:-40]}, 400, M, "ends too early"),
    "cut inside the item part": ({"headers": FORM, "content": multipart(item(title="x"))[:70]}, 400, M, "ends too early"),
    "not multipart at all": ({"headers": FORM, "content": b"\x00" * 2000}, 400, M, "boundary"),
    # --- parts ---
    "two files in one field": (form(item(title="x"), (FILE, PIXELS), (FILE, PIXELS)), 400, M, "`p1` comes twice"),
    "item part twice": (form(item(title="x"), item(title="y")), 400, M, "`item` comes twice"),
    "item part after a file": (form((FILE, PIXELS), item(title="x")), 400, M, "Send it first"),
    "form field after a file": (form((FILE, PIXELS), ('name="title"', b"x")), 400, M, "`title` comes after a file"),
    "item part beside form fields": (form(('name="title"', b"x"), item(title="x")), 400, I, "Use one of the two"),
    "named part is missing": (form(item(title="x", files=[{"part": "p2"}]), (FILE, PIXELS)), 400, "missing_part", "`p2`"),
    "part is named twice": (form(item(files=[{"part": "p1"}, {"part": "p1"}]), (FILE, PIXELS)), 400, I, "names a part twice"),
    "21 files": (form(item(title="x"), *[(f'name="p{n}"; filename="{n}.jpg"', PIXELS) for n in range(21)]), 400, "too_many_parts", "at most 20"),
    "21 announced files": (form(item(files=[{"part": f"p{n}"} for n in range(21)])), 400, I, "20"),
    "200 form fields": (form(*[(f'name="f{n}"', b"") for n in range(200)]), 400, "too_many_parts", "parts"),
    "part without a name": (form(('filename="p.jpg"', PIXELS)), 400, M, "no name"),
    "part name of 65 characters": (form((f'name="{"p" * 65}"; filename="p.jpg"', PIXELS)), 400, M, "longer than 64"),
    "part with a header of 9,000 bytes": (form((f'name="p1"; filename="{"p" * 9000}"', PIXELS)), 400, M, "header"),
    "text part over 1 MiB": (form((ITEM, b'{"title":"' + b"x" * 1024 * 1024 + b'"}')), 400, "part_too_large", "1,048,576"),
    "JSON body over 1 MiB": (raw_json('{"title":"' + "x" * 1024 * 1024 + '"}'), 400, "part_too_large", "1,048,576"),
    "JSON body that names files": (raw_json('{"files":[{"part":"p1"}]}'), 400, "missing_part", "multipart"),
    # --- file names ---
    "file name with a folder": (with_file_name("../../etc/passwd"), 400, I, "contains a folder"),
    "file name with a Windows folder": (with_file_name("C:\\Users\\me\\p.jpg"), 400, I, "contains a folder"),
    "file name with backslashes": (with_file_name("..\\\\p.jpg"), 400, I, "contains a folder"),
    "file name that is a folder": (with_file_name(".."), 400, I, "contains a folder"),
    "file name with a control character": (with_file_name("p\x07.jpg"), 400, I, "control characters"),
    "file name with NUL": (with_file_name("p\x00.jpg"), 400, I, "control characters"),
    "file name with a line separator": (with_file_name("p\u2028.jpg"), 400, I, "control characters"),
    "file name of 256 characters": (with_file_name("p" * 256), 400, I, "255"),
    "file name that is not UTF-8": ({"headers": FORM, "content": multipart((FILE, PIXELS)).replace(b"p.jpg", b"\xff\xfe.jpg")}, 400, M, "broken"),
    # --- JSON as such ---
    "JSON nested 60 deep": (raw_json(nested(60)), 400, I, "at most 32 levels"),
    "JSON nested 100,000 deep": (raw_json("[" * 100_000), 400, I, "nested too deeply"),
    "JSON that is broken": (raw_json('{"title": "x",}'), 400, I, "line 1"),
    "JSON that is a list": (raw_json("[1]"), 400, I, "must be a JSON object"),
    "NaN": (raw_json('{"attributes":{"a":NaN}}'), 400, I, "NaN"),
    "Infinity": (raw_json('{"attributes":{"a":-Infinity}}'), 400, I, "Infinity"),
    "1e999": (raw_json('{"attributes":{"a":1e999}}'), 400, I, "1e999"),
    "integer of 5,000 digits": (raw_json('{"attributes":{"a":' + "9" * 5000 + "}}"), 400, I, "too large"),
    "integer past 64 bits": (raw_json('{"attributes":{"a":9223372036854775809}}'), 400, I, "64 bits"),
    "lone surrogate in a value": (raw_json('{"title":"\\ud83d"}'), 400, I, "surrogate"),
    "lone surrogate in a key": (raw_json('{"attributes":{"\\udc00":1}}'), 400, I, "surrogate"),
    "NUL in a value": (raw_json('{"title":"a\\u0000b"}'), 400, I, "NUL"),
    "key twice": (raw_json('{"title":"a","title":"b"}'), 400, I, "'title' appears twice"),
    "JSON that is not UTF-8": (raw_json(b'{"title":"\xff"}'), 400, I, "not UTF-8"),
    "JSON in UTF-16": (raw_json('{"title":"x"}'.encode("utf-16")), 400, I, "UTF-8"),
    "item part that is broken": (form((ITEM, b"{")), 400, I, "`item`"),
    "item part that is not UTF-8": (form((ITEM, b'{"title":"\xff"}')), 400, I, "not UTF-8"),
    "form field that is not UTF-8": (form(('name="title"', b"\xff")), 400, I, "`title` is not UTF-8"),
    "form field with NUL": (form(('name="title"', b"a\x00b")), 400, I, "NUL"),
    "form field that must be JSON": (form(('name="attributes"', b"brand=x")), 400, I, "`attributes` must be JSON"),
    # --- types and limits of fields ---
    "title is a number": (raw_json('{"title":1}'), 400, I, "/title"),
    "title is an object": (raw_json('{"title":{}}'), 400, I, "/title"),
    "attributes are a list": (raw_json('{"attributes":[]}'), 400, I, "/attributes"),
    "attribute is an object": (raw_json('{"attributes":{"a":{"b":1}}}'), 400, I, "/attributes/a"),
    "metadata value is a list": (raw_json('{"title":"x","metadata":{"a":[1]}}'), 400, I, "/metadata/a"),
    "mode is unknown": (raw_json('{"title":"x","mode":"both"}'), 400, I, "/mode"),
    "on_duplicate is unknown": (raw_json('{"title":"x","on_duplicate":"merge"}'), 400, I, "/on_duplicate"),
    "profile is unknown": (raw_json('{"title":"x","profile":"haiku"}'), 400, I, "product-copy"),
    "language is no tag": (raw_json('{"title":"x","language":"in English please"}'), 400, I, "/language"),
    "language is not offered": (raw_json('{"title":"x","language":"tlh"}'), 400, I, "tlh"),
    "budget is negative": (raw_json('{"title":"x","budget":{"max_steps":-1}}'), 400, I, "/budget/max_steps"),
    "budget is not a number": (raw_json('{"title":"x","budget":{"max_seconds":"nan"}}'), 400, I, "/budget/max_seconds"),
    "retention is zero": (raw_json('{"title":"x","retention_days":0}'), 400, I, "/retention_days"),
    "external id is empty": (raw_json('{"title":"x","external_id":""}'), 400, I, "/external_id"),
    "external id of 256 characters": (raw_json(json.dumps({"title": "x", "external_id": "x" * 256})), 400, I, "/external_id"),
    "title longer than allowed": (raw_json(json.dumps({"title": "x" * 301})), 400, I, "Has 301 characters; the profile takes at most 300"),
    "text longer than allowed": (raw_json(json.dumps({"text": "字" * 20_001})), 400, I, "Has 20,001 characters; the profile takes at most 20,000"),
    "10,000 attributes": (raw_json(json.dumps({"attributes": {f"a{n}": n for n in range(10_000)}})), 400, I, "Has 10,000 attributes; the profile takes at most 100"),
    "attribute with 10,000 values": (raw_json(json.dumps({"attributes": {"a": list(range(10_000))}})), 400, I, "Has 10,000 values"),
    "attribute value longer than allowed": (raw_json(json.dumps({"attributes": {"a": "x" * 2001}})), 400, I, "2,000"),
    "51 metadata entries": (raw_json(json.dumps({"title": "x", "metadata": {f"m{n}": 1 for n in range(51)}})), 400, I, "/metadata"),
    "nothing to write about": (raw_json('{"external_id":"x"}'), 400, I, "nothing to write about"),
    "title of spaces alone": (raw_json('{"title":"  "}'), 400, I, "nothing to write about"),
    "callback that nobody allowed": (raw_json('{"title":"x","callback_url":"https://example.com/"}'), 422, "url_not_allowed", "callback_url"),
    # --- digests ---
    "sha256 of other bytes": (form(item(files=[{"part": "p1", "sha256": "0" * 64}]), (FILE, PIXELS)), 400, "digest_mismatch", "`p1`"),
    "sha256 that is none": (form(item(files=[{"part": "p1", "sha256": "abc"}]), (FILE, PIXELS)), 400, I, "/files/0/sha256"),
    "Repr-Digest of other bytes": ({"headers": {"Content-Type": "image/jpeg", "Repr-Digest": f"sha-256=:{base64.b64encode(b'0' * 32).decode()}:"}, "content": PIXELS}, 400, "digest_mismatch", hashlib.sha256(PIXELS).hexdigest()),
    "Content-Digest of another form": ({**form(item(title="x")), "headers": {**FORM, "Content-Digest": f"sha-256=:{base64.b64encode(b'0' * 32).decode()}:"}}, 400, "digest_mismatch", "other bytes"),
    # --- headers and query ---
    "wrong content type": ({"headers": {"Content-Type": "text/html"}, "content": b"<p>"}, 415, "unsupported_media_type", "text/html"),
    "no content type": ({"content": b"x"}, 415, "unsupported_media_type", "multipart/form-data"),
    "urlencoded form": ({"data": {"title": "x"}}, 415, "unsupported_media_type", "multipart/form-data"),
    "Idempotency-Key of 256 characters": ({**raw_json('{"title":"x"}'), "headers": {**JSON, "Idempotency-Key": "k" * 256}}, 400, "idempotency_key_invalid", "255"),
    "empty Idempotency-Key": ({**raw_json('{"title":"x"}'), "headers": {**JSON, "Idempotency-Key": '""'}}, 400, "idempotency_key_invalid", "1 to 255"),
    "unknown parameter of a raw body": ({"headers": {"Content-Type": "image/jpeg"}, "params": {"titel": "x"}, "content": PIXELS}, 400, I, "`titel`"),
    "unknown parameter of a form": ({**form(item(title="x")), "params": {"profile": "x"}}, 400, I, "`profile`"),
    "unknown parameter of a JSON body": ({**raw_json('{"title":"x"}'), "params": {"dry_run": "1"}}, 400, I, "`dry_run`"),
    "parameter twice": ({"headers": {"Content-Type": "image/jpeg"}, "params": [("title", "x"), ("title", "y")], "content": PIXELS}, 400, I, "twice"),
    "parameter with NUL": ({"headers": {"Content-Type": "image/jpeg"}, "params": {"title": "\x00"}, "content": PIXELS}, 400, I, "NUL"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_wrong_upload_is_told_what_to_change_and_leaves_nothing(api: Service, client: httpx.Client, case: str) -> None:
    request, status, code, named = CASES[case]
    started = time.monotonic()
    answer = client.post("/v1/items", **request)
    assert time.monotonic() - started < QUICK_S
    problem = assert_problem(answer, status, code)
    assert named in problem["detail"] + json.dumps(problem.get("errors", []), ensure_ascii=False)
    assert_nothing_kept(api, client)


def test_unsupported_content_type_lists_what_is_accepted(client: httpx.Client) -> None:
    answer = client.post("/v1/items", content=b"x", headers={"Content-Type": "text/plain"})
    accepted = assert_problem(answer, 415, "unsupported_media_type")["accepted"]
    assert {"multipart/form-data", "application/json", "image/*", "application/pdf"} <= set(accepted)
    assert answer.headers["accept-post"] == ", ".join(accepted)


def test_every_wrong_field_is_named_at_once(client: httpx.Client) -> None:
    answer = client.post(
        "/v1/items", json={"title": 1, "mode": "x", "attributes": {"a/b": {}}, "budget": {"max_steps": 0}}
    )
    errors = assert_problem(answer, 400, "invalid_request")["errors"]
    assert {error["pointer"] for error in errors} == {"/title", "/mode", "/attributes/a~1b", "/budget/max_steps"}
    assert all(error["code"] and error["detail"] for error in errors)


WRONG_CALLS: list[tuple[str, str, str, int, str]] = [
    ("unknown path", "GET", "/v1/products", 404, "not_found"),
    ("unknown path outside of the version", "GET", "/favicon.ico", 404, "not_found"),
    ("unknown item", "GET", "/v1/items/itm_0", 404, "not_found"),
    ("item id with NUL", "GET", "/v1/items/itm_%00", 404, "not_found"),
    ("item id that is not UTF-8", "GET", "/v1/items/%ff%fe", 404, "not_found"),
    ("events of an unknown item", "GET", "/v1/items/itm_0/events", 404, "not_found"),
    ("explanation of an unknown item", "GET", "/v1/items/itm_0/explanation", 404, "not_found"),
    ("payload of an unknown item", "GET", "/v1/items/itm_0/llm-payload", 404, "not_found"),
    ("cancel of an unknown item", "POST", "/v1/items/itm_0/cancel", 404, "not_found"),
    ("unknown profile", "GET", "/v1/profiles/haiku", 404, "not_found"),
    ("unknown problem", "GET", "/problems/nothing", 404, "not_found"),
    ("unknown method", "DELETE", "/v1/items", 405, "method_not_allowed"),
    ("unknown method of an item", "PUT", "/v1/items/itm_0", 405, "method_not_allowed"),
    ("method that no path takes", "PATCH", "/v1/items", 405, "method_not_allowed"),
    ("bad cursor", "GET", "/v1/items?cursor=!!", 400, "invalid_request"),
    ("cursor that is not ours", "GET", "/v1/items?cursor=aGVsbG8", 400, "invalid_request"),
    ("cursor beyond ASCII", "GET", "/v1/items?cursor=%C3%A4", 400, "invalid_request"),
    ("limit too large", "GET", "/v1/items?limit=201", 400, "invalid_request"),
    ("limit zero", "GET", "/v1/items?limit=0", 400, "invalid_request"),
    ("limit that is no number", "GET", "/v1/items?limit=%D9%A3", 400, "invalid_request"),
    ("status that there is not", "GET", "/v1/items?status=done", 400, "invalid_request"),
    ("time that is none", "GET", "/v1/items?created_after=yesterday", 400, "invalid_request"),
    ("time at the edge of the calendar", "GET", "/v1/items?created_after=0001-01-01T00:00:00%2B23:59", 200, ""),
    ("typo in a filter", "GET", "/v1/items?statsu=queued", 400, "invalid_request"),
    ("filter twice", "GET", "/v1/items?status=queued&status=ready", 400, "invalid_request"),
    ("filter with NUL", "GET", "/v1/items?external_id=%00", 400, "invalid_request"),
    ("typo for an item", "GET", "/v1/items/itm_0?wait=3", 400, "invalid_request"),
    ("unknown parameter of meta", "GET", "/v1/meta?x=1", 400, "invalid_request"),
    ("events after nothing", "GET", "/v1/items/itm_0/events?after=-1", 400, "invalid_request"),
    ("unknown format", "GET", "/v1/items/itm_0/llm-payload?format=xml", 400, "invalid_request"),
    ("picture of 10,000 px", "GET", "/v1/items/itm_0/llm-payload?max_px=10000", 400, "invalid_request"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "status", "code"), [pytest.param(*c[1:], id=c[0]) for c in WRONG_CALLS])
def test_wrong_call_gets_a_problem_document(
    client: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = client.request(method, path)
    if status == 200:
        assert answer.status_code == 200, answer.text
        return
    problem = assert_problem(answer, status, code)
    if code == "method_not_allowed":
        assert answer.headers["allow"]
        assert problem["allowed"]


@pytest.mark.parametrize("header", ['"x"', "*", "W/", '"' + "9" * 400 + '"', "", "\xb2"])
def test_strange_if_none_match_is_no_match(client: httpx.Client, header: str) -> None:
    assert client.get("/v1/items/itm_0", headers={"If-None-Match": header.encode("latin-1")}).status_code == 404


@pytest.mark.parametrize("body", ["[]", "{", '{"reason":1}', '{"reason":"' + "x" * 256 + '"}', '{"reason":NaN}'])
def test_wrong_reason_for_cancelling_is_refused(client: httpx.Client, body: str) -> None:
    assert_problem(client.post("/v1/items/itm_0/cancel", content=body, headers=JSON), 400, "invalid_request")


@pytest.mark.parametrize("depth", [31, 32, 33])
def test_depth_of_json_is_counted_exactly(client: httpx.Client, depth: int) -> None:
    answer = client.post("/v1/items", content=nested(depth - 2).encode(), headers=JSON)
    assert ("nested too deeply" in answer.json()["detail"]) == (depth > 32)


def test_problem_of_a_broken_file_says_who_acts(api: Service) -> None:
    another = bearer(store_key(api, "unlucky"))  # what is refused for its content is kept, as an item
    answer = api.client(headers=another).post(
        "/v1/items",
        content=multipart(item(title="x"), (FILE, media.truncated())),
        headers={**FORM, "Prefer": "handling=strict"},
    )
    problem = assert_problem(answer, 422, "corrupt")
    assert problem["next"] == "fix_input"


def test_connection_is_usable_after_a_refusal(api: Service) -> None:
    body = b'{"title":1}'
    request = head("POST", "/v1/items", "Content-Type: application/json", f"Content-Length: {len(body)}") + body
    with api.connect() as connection:
        for _ in range(3):
            connection.sendall(request)
            assert read_answer(connection).status == 400


REPEATS: list[Callable[[], dict[str, Any]]] = [
    lambda: form(item(title="x"), (FILE, PIXELS), (FILE, PIXELS)),
    lambda: form(item(files=[{"part": "p1", "sha256": "0" * 64}]), (FILE, PIXELS)),
]


def test_refused_uploads_leave_no_file_and_no_descriptor(api: Service, client: httpx.Client) -> None:
    for make in REPEATS:
        client.post("/v1/items", **make())
    before = api.open_files()
    for _ in range(30):
        for make in REPEATS:
            assert client.post("/v1/items", **make()).status_code == 400
    assert api.open_files() <= before + 2
    assert api.incoming == []
