"""Webhooks over HTTP, on real servers: endpoints and their secrets, callbacks of items, and events that survive kills."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.webhooks.catalogue import CALLBACK_EVENTS
from tests.gateway.conftest import store_key
from tests.gateway.receiver import Answer, Received, Receiver, always, receiving
from tests.gateway.running import Service, bearer, running, settled, until
from tests.media import thumbnail

TERMINAL = {"item.rejected", "item.ready", "item.succeeded", "item.failed", "item.cancelled", "item.expired"}
OPENED = {"webhook_private_networks": "127.0.0.0/8", "webhook_ports": "any", "webhook_breaker_s": 0.2}
QUICK = {
    "decoder_workers": 1,
    "ocr_workers": 1,
    "lease_s": 2,
    "heartbeat_s": 0.5,
    "sweep_s": 0.5,
    "webhook_timeout_s": 5,
}


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """API and worker that may deliver to loopback and try again soon."""
    folder = tmp_path_factory.mktemp("hooked")
    with running("up", folder, **OPENED, **QUICK, webhook_retries_s="0.3,0.3,0.3,0.3,0.3") as started:
        yield started


@pytest.fixture
def hooks(hooked: Service) -> Iterator[httpx.Client]:
    """A tenant of its own for each test."""
    with hooked.client(headers=bearer(store_key(hooked, f"t{random.randrange(10**9)}"))) as made:
        yield made


def make(client: httpx.Client, url: str, **fields: Any) -> dict[str, Any]:
    made = client.post("/v1/webhook-endpoints", json={"url": url, "allow_insecure": True, **fields})
    assert made.status_code == 201, made.text
    body = made.json()
    assert isinstance(body, dict)
    return body


def public(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/webhook-endpoints", json={"url": "https://93.184.215.14/hook", **fields})


# --- endpoints ---


def test_secret_is_in_the_first_answer_alone(api: Service, alpha: str) -> None:
    with api.client(headers=bearer(alpha)) as client:
        made = public(client, description="orders", events=["item.*"], body="full")
        body = made.json()
        assert (made.status_code, made.headers["etag"]) == (201, '"1"')
        assert made.headers["location"] == f"/v1/webhook-endpoints/{body['id']}"
        assert body["id"].startswith("whe_")
        secret = body.pop("secret")
        assert secret.startswith("whsec_")
        seen = client.get(made.headers["location"])
        assert seen.json() == body
        listed = client.get("/v1/webhook-endpoints", params={"limit": 200})
        assert body in listed.json()["webhook_endpoints"]
        rotated = client.post(f"{made.headers['location']}/rotate", json={"overlap_s": 60}).json()
        assert rotated["secret"] not in {secret, None}
        assert [each["expires_at"] is None for each in rotated["secrets"]] == [True, False]
        for answer in (seen, listed, client.get(made.headers["location"])):
            assert "whsec_" not in answer.text


@pytest.mark.parametrize(
    ("fields", "status", "code", "pointer"),
    [
        ({"url": "http://example.com/"}, 422, "url_not_allowed", "/url"),
        ({"url": "https://127.0.0.1/"}, 422, "url_not_allowed", "/url"),
        ({"url": "https://localhost/"}, 422, "url_not_allowed", "/url"),
        ({"url": "https://0x7f.1/"}, 422, "url_not_allowed", "/url"),
        ({"url": "https://169.254.169.254/"}, 422, "url_not_allowed", "/url"),
        ({"url": "https://user:pw@93.184.215.14/"}, 422, "url_not_allowed", "/url"),
        ({"url": "https://93.184.215.14:22/"}, 422, "url_not_allowed", "/url"),
        ({"url": "http://127.0.0.1/", "allow_insecure": True}, 422, "url_not_allowed", "/url"),
        ({"url": None}, 400, "invalid_request", "/url"),
        ({"url": 7}, 400, "invalid_request", "/url"),
        ({"url": "https://93.184.215.14/", "events": ["item.sucseeded"]}, 400, "invalid_request", "/events"),
        ({"url": "https://93.184.215.14/", "events": "item.*"}, 400, "invalid_request", "/events"),
        ({"url": "https://93.184.215.14/", "body": "fat"}, 400, "invalid_request", "/body"),
        ({"url": "https://93.184.215.14/", "allow_insecure": "yes"}, 400, "invalid_request", "/allow_insecure"),
        ({"url": "https://93.184.215.14/", "description": "x" * 256}, 400, "invalid_request", "/description"),
    ],
    ids=str,
)
def test_endpoint_that_cannot_be_is_refused_with_the_field(
    api_client: httpx.Client, fields: dict[str, Any], status: int, code: str, pointer: str
) -> None:
    refused = api_client.post("/v1/webhook-endpoints", json=fields)
    assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    assert refused.json()["errors"][0]["pointer"] == pointer
    assert refused.headers["content-type"] == "application/problem+json"


def test_change_needs_the_version_that_was_read(api: Service, alpha: str) -> None:
    with api.client(headers=bearer(alpha)) as client:
        path = public(client).headers["location"]
        assert client.patch(path, json={"body": "full"}).json()["code"] == "precondition_required"
        stale = client.patch(path, json={"body": "full"}, headers={"If-Match": '"7"'})
        assert (stale.status_code, stale.json()["version"]) == (412, 1)
        changed = client.patch(path, json={"body": "full", "events": ["rule.*"]}, headers={"If-Match": '"1"'})
        assert (changed.headers["etag"], changed.json()["body"], changed.json()["events"]) == (
            '"2"',
            "full",
            ["rule.*"],
        )
        same = client.patch(path, json={}, headers={"If-Match": '"2"'})
        assert (same.status_code, same.headers["etag"]) == (200, '"2"')
        refused = client.patch(path, json={"url": "https://10.0.0.1/"}, headers={"If-Match": '"2"'})
        assert refused.json()["code"] == "url_not_allowed"
        null = client.patch(path, json={"url": None}, headers={"If-Match": '"2"'})
        assert null.json()["code"] == "invalid_request"
        off = client.patch(path, json={"status": "disabled"}, headers={"If-Match": '"2"'}).json()
        assert (off["status"], off["disabled_reason"]) == ("disabled", "operator")
        replay = client.post(f"{path}/replay", json={"from_seq": 0, "to_seq": 5})
        assert (replay.status_code, replay.json()["code"]) == (409, "webhook_disabled")
        on = client.patch(path, json={"status": "enabled"}, headers={"If-Match": '"3"'}).json()
        assert (on["status"], on["disabled_reason"]) == ("enabled", None)
        assert client.delete(path).status_code == 204
        assert client.delete(path).status_code == client.get(path).status_code == 404
        kinds = [event["type"] for event in client.get("/v1/events", params={"limit": 200}).json()["events"]]
        assert "webhook.disabled" in kinds


def test_other_tenants_see_nothing_of_an_endpoint(api: Service, alpha: str, beta: str) -> None:
    with api.client(headers=bearer(alpha)) as ours, api.client(headers=bearer(beta)) as theirs:
        path = public(ours).headers["location"]
        origin = ours.post("/v1/callback-origins", json={"origin": "https://93.184.215.14"}).json()
        calls: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", path, {}),
            ("PATCH", path, {"json": {"body": "full"}, "headers": {"If-Match": '"1"'}}),
            ("DELETE", path, {}),
            ("POST", f"{path}/rotate", {}),
            ("POST", f"{path}/test", {}),
            ("POST", f"{path}/replay", {"json": {"from_seq": 0, "to_seq": 1}}),
            ("DELETE", f"/v1/callback-origins/{origin['id']}", {}),
            ("GET", "/v1/webhook-deliveries/whd_x", {}),
            ("POST", "/v1/webhook-deliveries/whd_x/redeliver", {}),
        ]
        for method, url, more in calls:
            assert theirs.request(method, url, **more).status_code == 404, url
        assert path not in theirs.get("/v1/webhook-endpoints").text
        assert origin["id"] not in theirs.get("/v1/callback-origins").text
        assert ours.get(path).json()["version"] == 1


@pytest.mark.parametrize("path", ["/v1/webhook-endpoints", "/v1/webhook-deliveries", "/v1/callback-origins"])
def test_webhooks_need_the_scope_admin(api: Service, path: str) -> None:
    weak = store_key(api, "alpha", "items:read", "items:write", "review")
    with api.client(headers=bearer(weak)) as client:
        assert client.get(path).json()["scope"] == "admin"
        assert client.post(path, json={}).json()["scope"] == "admin"


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("status=lost", "status"),
        ("endpint=x", "endpint"),
        ("limit=0", "limit"),
        ("cursor=!", "cursor"),
        ("created_after=x", "created_after"),
    ],
)
def test_delivery_list_refuses_what_it_does_not_know(api_client: httpx.Client, query: str, name: str) -> None:
    refused = api_client.get(f"/v1/webhook-deliveries?{query}")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (400, name)


@pytest.mark.parametrize(
    "body", [{}, {"from_seq": 5, "to_seq": 1}, {"from_seq": -1, "to_seq": 1}, {"from_seq": "1", "to_seq": 2}]
)
def test_replay_needs_a_range(api: Service, alpha: str, body: dict[str, Any]) -> None:
    with api.client(headers=bearer(alpha)) as client:
        refused = client.post(f"{public(client).headers['location']}/replay", json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")


def test_endpoints_and_origins_come_in_pages_and_order(api: Service) -> None:
    with api.client(headers=bearer(store_key(api, "pages"))) as client:
        made = [public(client).json()["id"] for _ in range(5)]
        seen, cursor = [], None
        while True:
            page = client.get(
                "/v1/webhook-endpoints", params={"limit": 2, **({"cursor": cursor} if cursor else {})}
            ).json()
            seen += [each["id"] for each in page["webhook_endpoints"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == made[::-1]
        for origin in ("https://B.example.net", "https://a.example.net:443", "https://b.example.net/"):
            client.post("/v1/callback-origins", json={"origin": origin})
        listed = client.get("/v1/callback-origins").json()
    assert [each["origin"] for each in listed["callback_origins"]] == ["https://a.example.net", "https://b.example.net"]


# --- delivery ---


def test_events_of_an_item_arrive_signed_and_are_in_the_log(hooks: httpx.Client, name: str) -> None:
    with receiving() as receiver:
        endpoint = make(hooks, receiver.url, events=["item.*"])
        item = hooks.post("/v1/items", json={"title": f"{name} candle", "external_id": name}).json()
        settled(hooks, item["id"])
        until(lambda: receiver.of_type("item.succeeded"))
        for request in receiver.received:
            event = Webhook(endpoint["secret"]).verify(request.body, dict(request.headers))
            assert (event["resource"], event["data"]["external_id"]) == (item["id"], name)
            with pytest.raises(WebhookVerificationError):
                Webhook(endpoint["secret"]).verify(request.body + b" ", dict(request.headers))

        def log() -> list[dict[str, Any]]:
            where = {"endpoint": endpoint["id"], "resource": item["id"], "status": "succeeded"}
            found: list[dict[str, Any]] = hooks.get("/v1/webhook-deliveries", params=where).json()["webhook_deliveries"]
            return found if len(found) == len(receiver.received) else []

        delivered = until(log)
    assert {each["event"] for each in delivered} == {request.headers["webhook-id"] for request in receiver.received}
    one = hooks.get(f"/v1/webhook-deliveries/{delivered[0]['id']}").json()
    assert [(entry["attempt"], entry["status"], entry["error"]) for entry in one["log"]] == [(1, 204, None)]
    health = hooks.get(f"/v1/webhook-endpoints/{endpoint['id']}").json()["health"]
    assert health["failures_in_row"] == 0
    assert health["last_success_at"] is not None


def test_dead_delivery_is_seen_and_sent_again_by_hand(hooks: httpx.Client, name: str) -> None:
    with receiving(always(500, body=b"token=abcdef123456")) as receiver:
        endpoint = make(hooks, receiver.url, events=["item.succeeded"])
        hooks.post("/v1/items", json={"title": f"{name} candle"})

        def dead() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = hooks.get(
                "/v1/webhook-deliveries", params={"endpoint": endpoint["id"], "status": "dead"}
            ).json()["webhook_deliveries"]
            return found

        (delivery,) = until(dead)
        assert (delivery["attempts"], delivery["last_status"], delivery["last_error"]) == (6, 500, "server_error")
        log = hooks.get(f"/v1/webhook-deliveries/{delivery['id']}").json()["log"]
        assert len(log) == 6
        assert all("abcdef123456" not in entry["response"] for entry in log)
        receiver.answer = always(200)
        again = hooks.post(f"/v1/webhook-deliveries/{delivery['id']}/redeliver")
        assert (again.status_code, again.json()["id"], again.json()["status"]) == (202, delivery["id"], "pending")
        until(lambda: len(receiver.received) == 7)
    assert {request.headers["webhook-id"] for request in receiver.received} == {delivery["event"]}
    metrics = hooks.get("/metrics").text
    for gauge in ("sluicegate_webhooks_pending", "sluicegate_webhooks_dead", "sluicegate_webhooks_lag_seconds"):
        assert f"\n{gauge} " in metrics


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(204), {"status": "succeeded", "status_class": "2xx", "error": None}),
        (Answer(503, body=b"inside"), {"status": "dead", "status_class": "5xx", "error": "server_error"}),
        (
            Answer(302, {"Location": "http://127.0.0.1/"}),
            {"status": "dead", "status_class": "3xx", "error": "redirect"},
        ),
    ],
)
def test_test_tells_class_and_latency_and_nothing_of_the_answer(
    hooks: httpx.Client, answer: Answer, told: dict[str, Any]
) -> None:
    with receiving(lambda request: answer) as receiver:
        endpoint = make(hooks, receiver.url, events=[])
        tested = hooks.post(f"/v1/webhook-endpoints/{endpoint['id']}/test")
        assert tested.status_code == 200
        body = tested.json()
        assert isinstance(body.pop("latency_ms"), int)
        delivery = body.pop("delivery")
        assert body == told
        assert [request.event["type"] for request in receiver.received] == ["webhook.test"]
        assert "inside" not in hooks.get(f"/v1/webhook-deliveries/{delivery}").text
        health = hooks.get(f"/v1/webhook-endpoints/{endpoint['id']}").json()["health"]
        assert health["failures_in_row"] == 0


def test_replay_brings_what_an_endpoint_has_missed(hooks: httpx.Client, name: str) -> None:
    item = hooks.post("/v1/items", json={"title": f"{name} candle"}).json()
    settled(hooks, item["id"])
    with receiving() as receiver:
        endpoint = make(hooks, receiver.url, events=["item.succeeded"])
        last = hooks.get("/v1/events", params={"limit": 200}).json()["after"]
        replayed = hooks.post(f"/v1/webhook-endpoints/{endpoint['id']}/replay", json={"from_seq": 0, "to_seq": last})
        assert (replayed.status_code, replayed.json()["queued"]) == (202, 1)
        until(lambda: receiver.received)
        assert receiver.received[0].event["resource"] == item["id"]


# --- callbacks of items ---


def test_callback_of_an_item_gets_its_outcome_signed_by_the_named_secret(hooks: httpx.Client, name: str) -> None:
    with receiving() as receiver, receiving() as silent:
        endpoint = make(hooks, silent.url, events=[])
        hooks.post("/v1/callback-origins", json={"origin": receiver.origin}).raise_for_status()
        url = f"{receiver.origin}/orders/{name}?a=b"
        wanted = {"title": f"{name} candle", "callback_url": url, "callback_secret_id": endpoint["id"]}
        item = hooks.post("/v1/items", json=wanted).json()
        again = hooks.post("/v1/items", json={**wanted, "callback_url": f"{receiver.origin}/second"})
        assert again.headers["duplicate-of"] == item["id"]
        until(lambda: receiver.of_type("item.succeeded") and receiver.of_type("item.duplicate"))
        until(lambda: "/second" in {request.path for request in receiver.received})
        for request in receiver.received:
            event = Webhook(endpoint["secret"]).verify(request.body, dict(request.headers))
            assert event["resource"] == item["id"]
            assert event["type"] in CALLBACK_EVENTS
        assert {request.path for request in receiver.received} == {f"/orders/{name}?a=b", "/second"}
        assert silent.received == []
        listed = hooks.get("/v1/webhook-deliveries", params={"endpoint": endpoint["id"]}).json()["webhook_deliveries"]
    assert {each["callback_url"] for each in listed} == {url, f"{receiver.origin}/second"}


@pytest.mark.parametrize(
    ("fields", "status", "code", "pointer"),
    [
        ({"callback_url": "https://nobody-allowed.example/x"}, 422, "url_not_allowed", "/callback_url"),
        ({"callback_url": "https://allowed.example:8443/x"}, 422, "url_not_allowed", "/callback_url"),
        ({"callback_url": "http://allowed.example/x"}, 422, "url_not_allowed", "/callback_url"),
        ({"callback_url": "https://allowed.example@evil.example/"}, 422, "url_not_allowed", "/callback_url"),
        ({"callback_url": "https://allowed.example.evil.example/"}, 422, "url_not_allowed", "/callback_url"),
        ({"callback_url": "not a url"}, 422, "url_not_allowed", "/callback_url"),
        ({"callback_url": "https://allowed.example/x"}, 400, "invalid_request", "/callback_secret_id"),
        (
            {"callback_url": "https://allowed.example/x", "callback_secret_id": "whe_unknown"},
            400, "invalid_request", "/callback_secret_id",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_callback_needs_an_allowed_origin_and_a_secret(
    api: Service, alpha: str, fields: dict[str, Any], status: int, code: str, pointer: str
) -> None:
    with api.client(headers=bearer(alpha)) as client:
        client.post("/v1/callback-origins", json={"origin": "https://allowed.example"}).raise_for_status()
        before = len(client.get("/v1/items", params={"limit": 200}).json()["items"])
        refused = client.post("/v1/items", json={"title": "x", **fields})
        assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
        assert refused.json()["errors"][0]["pointer"] == pointer
        assert len(client.get("/v1/items", params={"limit": 200}).json()["items"]) == before, "nothing was stored"


def test_secret_of_another_tenant_signs_no_callback(api: Service, alpha: str, beta: str, name: str) -> None:
    with api.client(headers=bearer(alpha)) as ours, api.client(headers=bearer(beta)) as theirs:
        foreign = public(theirs).json()["id"]
        ours.post("/v1/callback-origins", json={"origin": "https://allowed.example"}).raise_for_status()
        wanted = {"title": name, "callback_url": "https://allowed.example/", "callback_secret_id": foreign}
        assert ours.post("/v1/items", json=wanted).json()["errors"][0]["pointer"] == "/callback_secret_id"


# --- no event outruns its transaction, none is lost ---


def looking(url: list[str], seen: list[tuple[int, int, int]]) -> Receiver:
    """A receiver that calls back from within its handler, as integrations do, and notes (status, version, event's version)."""
    local = threading.local()

    def answer(request: Received) -> Answer:
        if not hasattr(local, "client"):
            local.client = httpx.Client(trust_env=False, timeout=20)
        event = request.event
        looked = local.client.get(f"{url[0]}/v1/items/{event['resource']}")
        version = looked.json()["version"] if looked.status_code == 200 else -1
        seen.append((looked.status_code, version, event["resource_version"]))
        return Answer(204)

    return Receiver(answer)


def test_receiver_that_calls_back_at_once_sees_the_new_state_200_of_200(hooked: Service, name: str) -> None:
    seen: list[tuple[int, int, int]] = []
    receiver = looking([hooked.url], seen)
    tiny = thumbnail()
    with contextlib.closing(receiver), hooked.client() as client:
        endpoint = make(client, receiver.url, events=["item.queued", "item.rejected"])

        def submit(number: int) -> int:
            files = {"p1": ("x.jpg", tiny, "image/jpeg")}
            return client.post("/v1/items", data={"title": f"{name} {number}"}, files=files).status_code

        with ThreadPoolExecutor(4) as threads:
            assert Counter(threads.map(submit, range(100))) == {201: 100}
        until(lambda: len(seen) >= 200, within_s=60)
        client.delete(f"/v1/webhook-endpoints/{endpoint['id']}")
    assert [entry for entry in seen if entry[0] != 200 or entry[1] < entry[2]] == []


def test_kills_at_random_moments_lose_no_terminal_event(hooked: Service, name: str) -> None:
    chance = random.Random(7)
    key = bearer(store_key(hooked, name))
    items: dict[int, str] = {}
    stop = threading.Event()

    def submit(number: int) -> None:
        """Until it is accepted, under one idempotency key, as a client does."""
        body = {"title": f"{name} {number}", "mode": "prepare" if number % 2 else "generate"}
        headers = {**key, "Idempotency-Key": f"{name}-{number}", "Prefer": "respond-async"}
        while number not in items and not stop.is_set():
            with contextlib.suppress(httpx.TransportError):
                answer = client.post("/v1/items", json=body, headers=headers)
                if answer.status_code in {200, 201, 202}:
                    items[number] = answer.json()["id"]
                    return
            time.sleep(0.05)

    def kill(role: str) -> None:
        (pid,) = until(lambda: hooked.children(role))
        os.kill(pid, signal.SIGKILL)
        until(lambda: hooked.children(role) not in ([], [pid]))

    def told() -> set[str]:
        return {request.event["resource"] for request in list(receiver.received) if request.event["type"] in TERMINAL}

    with receiving() as receiver, hooked.client(headers=key) as client, ThreadPoolExecutor(3) as threads:
        endpoint = make(client, receiver.url)
        submitting = [threads.submit(submit, number) for number in range(50)]
        try:
            for role in ("worker", "serve", "worker"):
                time.sleep(chance.uniform(0.1, 0.8))
                kill(role)
            for future in submitting:
                future.result(timeout=120)
            assert len(items) == 50
            until(lambda: told() >= set(items.values()), within_s=120)
        finally:
            stop.set()
        client.delete(f"/v1/webhook-endpoints/{endpoint['id']}")
    with contextlib.closing(sqlite3.connect(hooked.data_dir / "sluicegate.db")) as raw:
        rows = raw.execute("SELECT id, type FROM events WHERE tenant = ?", (name,)).fetchall()
    sent = {request.headers["webhook-id"] for request in receiver.received}
    assert {event_id for event_id, kind in rows if kind in TERMINAL} <= sent
