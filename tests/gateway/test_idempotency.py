"""A request that is sent again is the same request: one item, whatever happened to the first answer."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import media
from tests.gateway.raw_http import RawAnswer, head, multipart, read_answer
from tests.gateway.running import Service, bearer, running, start, until

PHOTO = media.thumbnail(side=300)
OTHER_PHOTO = PHOTO[:-1] + b"\x00"
BOUNDARY = "b0undary"


def post(
    client: httpx.Client, item: dict[str, Any], files: dict[str, bytes] | None = None, **headers: str
) -> httpx.Response:
    parts: dict[str, Any] = {"item": (None, json.dumps(item), "application/json")}
    parts.update({part: (f"{part}.jpg", content, "image/jpeg") for part, content in (files or {}).items()})
    return client.post(
        "/v1/items", files=parts, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def items_of(client: httpx.Client, external_id: str, **headers: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/items", params={"external_id": external_id}, headers=headers).json()[
        "items"
    ]
    return found


def test_retry_finds_its_item_as_it_stands_now(api_client: httpx.Client, name: str) -> None:
    item = {"title": name, "external_id": name}
    first = post(api_client, item, {"p1": PHOTO}, Idempotency_Key=name)
    assert first.status_code == 202
    assert "idempotent-replayed" not in first.headers
    api_client.post(f"/v1/items/{first.json()['id']}/cancel")
    again = post(api_client, item, {"p1": PHOTO}, Idempotency_Key=name)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
    assert (again.json()["id"], again.json()["status"]) == (first.json()["id"], "cancelled")
    assert again.headers["location"] == first.headers["location"]
    assert len(items_of(api_client, name)) == 1


@pytest.mark.parametrize("spelt", ["{}", '"{}"'])
def test_key_may_be_bare_or_quoted(api_client: httpx.Client, name: str, spelt: str) -> None:
    first = post(api_client, {"title": name}, Idempotency_Key=name)
    again = post(api_client, {"title": name}, Idempotency_Key=spelt.format(name))
    assert again.json()["id"] == first.json()["id"]


ITEM = 'name="item"'
P1 = ('name="p1"; filename="p.jpg"', PHOTO)
P2 = ('name="p2"; filename="q.jpg"', OTHER_PHOTO)
RENAMED = (('name="p1"; filename="x.png"', PHOTO), ('name="p2"; filename="y.png"', OTHER_PHOTO))
REORDERED = b'{"attributes": {"b": 2, "a": 1.0},  "title": "%s"}'
BACK = [{"part": "p1", "role": "back"}]

SAME: dict[str, Callable[[str], bytes]] = {
    "another boundary": lambda name: multipart((ITEM, _json(name)), P1, P2, boundary="another"),
    "files in another order": lambda name: multipart((ITEM, _json(name)), P2, P1),
    "other file names": lambda name: multipart((ITEM, _json(name)), *RENAMED),
    "other case of headers": lambda name: multipart((ITEM, _json(name)), P1, P2).replace(b"Content-D", b"CONTENT-d"),
    "keys in another order and 1.0 for 1": lambda name: multipart((ITEM, REORDERED % name.encode()), P1, P2),
}
DIFFERENT: dict[str, Callable[[str], bytes]] = {
    "one byte of a file": lambda name: multipart((ITEM, _json(name)), P1, (P2[0], PHOTO)),
    "a file less": lambda name: multipart((ITEM, _json(name)), P1),
    "another title": lambda name: multipart((ITEM, _json(f"{name}!")), P1, P2),
    "another number": lambda name: multipart((ITEM, _json(name).replace(b'"a": 1', b'"a": 1.5')), P1, P2),
    "another mode": lambda name: multipart((ITEM, _json(name, mode="prepare")), P1, P2),
    "another role": lambda name: multipart((ITEM, _json(name, files=BACK)), P1, P2),
}


def _json(title: str, **more: Any) -> bytes:
    return json.dumps({"title": title, "attributes": {"a": 1, "b": 2}, **more}).encode()


def _send(client: httpx.Client, body: bytes, key: str) -> httpx.Response:
    boundary = body[2 : body.index(b"\r\n")].decode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Idempotency-Key": key}
    return client.post("/v1/items", content=body, headers=headers)


def _first(client: httpx.Client, name: str) -> str:
    answer = _send(client, SAME["another boundary"](name), name)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


@pytest.mark.parametrize("case", SAME)
def test_same_content_in_other_bytes_is_the_same_request(api_client: httpx.Client, name: str, case: str) -> None:
    first = _first(api_client, name)
    again = _send(api_client, SAME[case](name), name)
    assert again.status_code in {201, 202}, again.text
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (first, "true")


@pytest.mark.parametrize("case", DIFFERENT)
def test_key_with_other_content_is_refused(api_client: httpx.Client, name: str, case: str) -> None:
    _first(api_client, name)
    answer = _send(api_client, DIFFERENT[case](name), name)
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (
        422,
        "idempotency_key_reused",
        False,
    )
    assert name in answer.json()["detail"]


def test_two_clients_choose_other_boundaries_and_mean_the_same(api: Service, name: str) -> None:
    item = {"title": name, "external_id": name, "attributes": {"width": 1, "brand": "x"}}
    spelt_otherwise = f'{{"attributes": {{"brand": "x", "width": 1.0}}, "external_id": "{name}", "title": "{name}"}}'
    with api.client() as one, api.client() as another:
        first = post(one, item, {"p1": PHOTO}, Idempotency_Key=name)
        again = post(another, item, {"p1": PHOTO}, Idempotency_Key=name)
        changed = post(another, item, {"p1": OTHER_PHOTO}, Idempotency_Key=name)
        parts: dict[str, Any] = {
            "item": (None, spelt_otherwise, "application/json"),
            "p1": ("other.png", PHOTO, "image/png"),
        }
        reordered = one.post("/v1/items", files=parts, headers={"Idempotency-Key": name})
        assert len(items_of(one, name)) == 1
    assert first.request.headers["content-type"] != again.request.headers["content-type"]
    assert (first.status_code, "idempotent-replayed" in first.headers) == (202, False)
    for answer in (again, reordered):
        assert (answer.status_code, answer.json()["id"]) == (202, first.json()["id"])
        assert answer.headers["idempotent-replayed"] == "true"
    assert (changed.status_code, changed.json()["code"]) == (422, "idempotency_key_reused")


class Drip:
    """A first request whose body arrives in pieces: the item part at once, the file when told to go on."""

    def __init__(self, api: Service, title: str, key: str) -> None:
        body = multipart(
            ('name="item"', json.dumps({"title": title, "external_id": key}).encode()),
            ('name="p1"; filename="p.jpg"', PHOTO),
        )
        cut = body.index(PHOTO) + 10
        self._rest = body[cut:]
        self.connection = api.connect()
        headers = head(
            "POST",
            "/v1/items",
            f"Content-Type: multipart/form-data; boundary={BOUNDARY}",
            f"Content-Length: {len(body)}",
            f"Idempotency-Key: {key}",
        )
        self.connection.sendall(headers + body[:cut])

    def trickle(self, over_s: float, pieces: int = 20) -> RawAnswer:
        """The rest in small pieces, as over a slow line."""
        size = -(-len(self._rest) // pieces)
        while len(self._rest) > size:
            self.connection.sendall(self._rest[:size])
            self._rest = self._rest[size:]
            time.sleep(over_s / pieces)
        return self.finish()

    def finish(self) -> RawAnswer:
        self.connection.sendall(self._rest)
        answer = read_answer(self.connection)
        self.connection.close()
        return answer


def _in_progress(api: Service) -> bool:
    return len(api.incoming) == 1


def test_key_is_judged_while_the_first_body_still_arrives(api: Service, api_client: httpx.Client, name: str) -> None:
    first = Drip(api, name, name)
    until(lambda: _in_progress(api))
    item = {"title": name, "external_id": name}
    same = post(api_client, item, {"p1": PHOTO}, Idempotency_Key=name)
    assert (same.status_code, same.json()["code"], same.json()["retryable"]) == (409, "idempotency_in_progress", True)
    assert (same.headers["retry-after"], same.json()["retry_after_s"]) == ("1", 1)
    other = post(api_client, {**item, "title": "another"}, {"p1": PHOTO}, Idempotency_Key=name)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    answer = first.finish()
    assert answer.status == 202, answer.body
    again = post(api_client, item, {"p1": PHOTO}, Idempotency_Key=name)
    assert (again.status_code, again.json()["id"]) == (202, answer.json()["id"])
    assert again.headers["idempotent-replayed"] == "true"
    assert len(items_of(api_client, name)) == 1


def test_key_is_judged_all_the_while_a_body_trickles_in(api: Service, api_client: httpx.Client, name: str) -> None:
    item = {"title": name, "external_id": name}
    first = Drip(api, name, name)
    until(lambda: _in_progress(api))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(first.trickle, over_s=2.0)
        during = []
        while not slow.done():
            same = post(api_client, item, {"p1": PHOTO}, Idempotency_Key=name)
            other = post(api_client, {**item, "title": "another"}, {"p1": PHOTO}, Idempotency_Key=name)
            assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
            during.append(same)
    answer = slow.result()
    assert answer.status == 202, answer.body
    assert during[0].status_code == 409
    for same in during:
        assert same.status_code == 409 or same.json()["id"] == answer.json()["id"]
    again = post(api_client, item, {"p1": PHOTO}, Idempotency_Key=name)
    assert (again.status_code, again.json()["id"]) == (202, answer.json()["id"])
    assert again.headers["idempotent-replayed"] == "true"
    assert len(items_of(api_client, name)) == 1


def test_another_title_is_refused_before_its_file_is_sent(api: Service, api_client: httpx.Client, name: str) -> None:
    post(api_client, {"title": name, "external_id": name}, {"p1": PHOTO}, Idempotency_Key=name)
    other = Drip(api, "another", name)
    answer = read_answer(other.connection)
    assert (answer.status, answer.json()["code"]) == (422, "idempotency_key_reused")
    other.connection.close()


def test_client_that_left_in_the_middle_may_start_anew(api: Service, api_client: httpx.Client, name: str) -> None:
    first = Drip(api, name, name)
    until(lambda: _in_progress(api))
    first.connection.close()
    until(lambda: not api.incoming)
    answer = post(api_client, {"title": "quite another", "external_id": name}, {"p1": PHOTO}, Idempotency_Key=name)
    assert answer.status_code == 202, answer.text
    assert "idempotent-replayed" not in answer.headers
    assert [item["title"] for item in items_of(api_client, name)] == ["quite another"]


def test_refused_request_leaves_its_key_free(api_client: httpx.Client, name: str) -> None:
    refused = post(api_client, {"title": name, "files": [{"part": "p2"}]}, {"p1": PHOTO}, Idempotency_Key=name)
    assert refused.status_code == 400
    answer = post(api_client, {"title": name}, {"p1": PHOTO}, Idempotency_Key=name)
    assert (answer.status_code, "idempotent-replayed" in answer.headers) == (202, False)


def test_old_key_is_a_new_one(api: Service, api_client: httpx.Client, name: str) -> None:
    first = post(api_client, {"title": name}, Idempotency_Key=name)
    with sqlite3.connect(api.data_dir / "sluicegate.db", timeout=20) as database:
        aged = database.execute("UPDATE idempotency_keys SET created_ms = created_ms - 86401000 WHERE key = ?", (name,))
        assert aged.rowcount == 1
    answer = post(api_client, {"title": f"{name} again"}, Idempotency_Key=name)
    assert answer.status_code == 202
    assert answer.json()["id"] != first.json()["id"]
    assert "idempotent-replayed" not in answer.headers


def test_keys_belong_to_their_tenant(api: Service, alpha: str, beta: str, name: str) -> None:
    ids = []
    with api.client() as client:
        for headers in (bearer(alpha), bearer(beta), {}):
            answer = post(client, {"title": name}, {"p1": PHOTO}, Idempotency_Key=name, **headers)
            assert (answer.status_code, "idempotent-replayed" in answer.headers) == (202, False)
            ids.append(answer.json()["id"])
        again = post(client, {"title": name}, {"p1": PHOTO}, Idempotency_Key=name, **bearer(beta))
    assert len(set(ids)) == 3
    assert again.json()["id"] == ids[1]


def test_fifty_at_once_make_one_item(api: Service, name: str) -> None:
    barrier = threading.Barrier(50)

    def send(_: int) -> httpx.Response:
        with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as client:
            barrier.wait()
            return post(client, {"title": name, "external_id": name}, {"p1": PHOTO}, Idempotency_Key=name)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(send, range(50)))
    assert {answer.status_code for answer in answers} <= {201, 202, 409}, {
        a.text for a in answers if a.status_code >= 500
    }
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {"idempotency_in_progress"}
    accepted = [answer for answer in answers if answer.status_code != 409]
    assert len({answer.json()["id"] for answer in accepted}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in accepted) == 1
    with api.client() as client:
        assert len(items_of(client, name)) == 1


def test_retry_after_the_service_was_killed_finds_the_item(tmp_path: Path, name: str) -> None:
    first_life = start("serve", tmp_path, default_wait_s=0)
    with httpx.Client(base_url=first_life.url, timeout=60, trust_env=False) as client:
        first = post(client, {"title": name, "external_id": name}, {"p1": PHOTO}, Idempotency_Key=name)
        cut = Drip(first_life, name, f"{name}-cut")
        until(lambda: _in_progress(first_life))
        first_life.kill()
        cut.connection.close()
    assert first.status_code == 202
    with running("serve", tmp_path, default_wait_s=0) as second_life, second_life.client() as client:
        again = post(client, {"title": name, "external_id": name}, {"p1": PHOTO}, Idempotency_Key=name)
        assert (again.json()["id"], again.headers["idempotent-replayed"]) == (first.json()["id"], "true")
        assert len(items_of(client, name)) == 1
        fresh = post(
            client, {"title": name, "external_id": f"{name}-cut"}, {"p1": PHOTO}, Idempotency_Key=f"{name}-cut"
        )
        assert (fresh.status_code, "idempotent-replayed" in fresh.headers) == (202, False)


# --- the same content without a key ---


def test_same_content_in_flight_is_reused_and_says_so(api_client: httpx.Client, name: str) -> None:
    first = post(api_client, {"title": name}, {"p1": PHOTO})
    again = post(api_client, {"title": name}, {"p1": PHOTO})
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert again.headers["duplicate-of"] == first.json()["id"]
    events = api_client.get(f"/v1/items/{first.json()['id']}/events").json()["events"]
    assert [event["type"] for event in events][-1] == "item.duplicate"


def test_caller_may_want_a_second_item_of_the_same_content(api_client: httpx.Client, name: str) -> None:
    first = post(api_client, {"title": name}, {"p1": PHOTO})
    again = post(api_client, {"title": name, "on_duplicate": "new"}, {"p1": PHOTO})
    assert again.status_code == 202
    assert again.json()["id"] != first.json()["id"]


def test_caller_may_take_a_second_item_for_a_mistake(api_client: httpx.Client, name: str) -> None:
    item = {"title": name, "on_duplicate": "conflict"}
    first = post(api_client, {"title": name}, {"p1": PHOTO})
    again = post(api_client, item, {"p1": PHOTO}, Idempotency_Key=name)
    assert (again.status_code, again.json()["code"]) == (409, "duplicate_item")
    assert again.json()["item_id"] == first.json()["id"]
    api_client.post(f"/v1/items/{first.json()['id']}/cancel")
    free = post(api_client, item, {"p1": PHOTO}, Idempotency_Key=name)
    assert (free.status_code, "idempotent-replayed" in free.headers) == (202, False)


def test_key_of_a_reused_item_replays_that_item(api_client: httpx.Client, name: str) -> None:
    first = post(api_client, {"title": name}, {"p1": PHOTO})
    reused = post(api_client, {"title": name}, {"p1": PHOTO}, Idempotency_Key=name)
    again = post(api_client, {"title": name}, {"p1": PHOTO}, Idempotency_Key=name)
    assert (reused.status_code, reused.json()["id"]) == (200, first.json()["id"])
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (first.json()["id"], "true")


def test_rejected_item_never_blocks_a_new_one(api_client: httpx.Client, name: str) -> None:
    files = {"p1": media.thumbnail()}
    first, again = (post(api_client, {"title": name}, files) for _ in range(2))
    assert (first.json()["status"], again.json()["status"], again.status_code) == ("rejected", "rejected", 201)
    assert first.json()["id"] != again.json()["id"]


def test_other_profile_makes_another_item(service: Service, client: httpx.Client, name: str) -> None:
    first = post(client, {"title": name}, Prefer="respond-async")
    again = post(client, {"title": name, "profile": "one-look"}, Prefer="respond-async")
    assert first.json()["id"] != again.json()["id"]


def test_content_is_never_compared_across_tenants(api: Service, alpha: str, beta: str, name: str) -> None:
    with api.client() as client:
        first = post(client, {"title": name}, {"p1": PHOTO}, **bearer(alpha))
        other = post(client, {"title": name}, {"p1": PHOTO}, **bearer(beta))
    assert (other.status_code, "duplicate-of" in other.headers) == (202, False)
    assert other.json()["id"] != first.json()["id"]
    digest = first.json()["files"][0]["sha256"]
    kept = [
        path.relative_to(api.data_dir / "blobs" / "by-tenant").parts[0]
        for path in (api.data_dir / "blobs").rglob(digest)
    ]
    assert {"alpha", "beta"} <= set(kept)


def test_answer_to_a_retry_is_quick_while_others_are_slow(api: Service, api_client: httpx.Client, name: str) -> None:
    post(api_client, {"title": name}, Idempotency_Key=name)
    slow = Drip(api, "slow", f"{name}-slow")
    until(lambda: _in_progress(api))
    started = time.monotonic()
    assert post(api_client, {"title": name}, Idempotency_Key=name).status_code == 202
    assert time.monotonic() - started < 5
    assert slow.finish().status == 202
