"""Reading what was submitted: lists, changes, events, reasons, and the way out."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from typing import Any

import httpx
import pytest

from gateway.api.problems import KINDS
from gateway.item import Status, may_follow
from prefilters import messages
from tests import media
from tests.gateway.running import Service, bearer, settled


def submit(client: httpx.Client, item: dict[str, Any], content: bytes | None = None, **headers: str) -> dict[str, Any]:
    parts: dict[str, Any] = {"item": (None, json.dumps(item), "application/json")}
    if content is not None:
        parts["p1"] = ("p.jpg", content, "image/jpeg")
    answer = client.post("/v1/items", files=parts, headers=headers)
    assert answer.status_code in {200, 201, 202}, answer.text
    made: dict[str, Any] = answer.json()
    return made


def ids(page: dict[str, Any]) -> list[str]:
    return [item["id"] for item in page["items"]]


# --- lists ---


def test_pages_neither_skip_nor_repeat_while_items_arrive(api_client: httpx.Client, alpha: str, name: str) -> None:
    mine = {"params": {"external_id": name, "limit": "3"}, "headers": bearer(alpha)}
    made = [submit(api_client, {"title": f"{name} {n}", "external_id": name}, **bearer(alpha))["id"] for n in range(8)]
    seen: list[str] = []
    page = api_client.get("/v1/items", **mine).json()
    while True:
        seen += ids(page)
        submit(api_client, {"title": f"{name} late {len(seen)}", "external_id": name}, **bearer(alpha))
        if page["next_cursor"] is None:
            break
        mine["params"]["cursor"] = page["next_cursor"]
        page = api_client.get("/v1/items", **mine).json()
    assert seen == made[::-1]


def test_list_is_narrowed_by_each_filter(client: httpx.Client, name: str) -> None:
    refused = submit(client, {"title": f"{name} 1", "external_id": name}, media.thumbnail())
    ready = submit(client, {"title": f"{name} 2", "external_id": name, "mode": "prepare", "profile": "one-look"})
    ready = settled(client, ready["id"])

    def found(**query: str) -> list[str]:
        answer = client.get("/v1/items", params={"external_id": name, **query})
        assert answer.status_code == 200, answer.text
        return ids(answer.json())

    assert found() == [ready["id"], refused["id"]]
    assert found(status="rejected") == [refused["id"]]
    assert found(status="rejected,ready") == [ready["id"], refused["id"]]
    assert found(status="queued") == []
    assert found(profile="one-look") == [ready["id"]]
    assert found(route="text_only") == [ready["id"]]
    assert found(reason="low_resolution") == [refused["id"]]
    assert found(created_after=refused["created_at"]) == [ready["id"]]
    assert found(created_after="2099-01-01T00:00:00+08:00") == []
    assert client.get("/v1/items", params={"external_id": f"{name}%"}).json()["items"] == []


# --- changes ---


def test_unchanged_item_is_not_sent_again(api_client: httpx.Client, name: str) -> None:
    item = submit(api_client, {"title": name})
    path = f"/v1/items/{item['id']}"
    etag = api_client.get(path).headers["etag"]
    assert etag == f'"{item["version"]}"'
    for spelt in (etag, f"W/{etag}"):
        answer = api_client.get(path, headers={"If-None-Match": spelt})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    api_client.post(f"{path}/cancel")
    answer = api_client.get(path, headers={"If-None-Match": etag})
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert answer.headers["etag"] != etag


def test_waiting_reader_is_woken_by_a_change(api_client: httpx.Client, api: Service, name: str) -> None:
    item = submit(api_client, {"title": name})
    path = f"/v1/items/{item['id']}"
    answers: list[tuple[float, httpx.Response]] = []

    def read() -> None:
        started = time.monotonic()
        with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as client:
            answer = client.get(path, headers={"Prefer": "wait=25", "If-None-Match": f'"{item["version"]}"'})
        answers.append((time.monotonic() - started, answer))

    reader = threading.Thread(target=read)
    reader.start()
    api_client.post(f"{path}/cancel")
    reader.join(30)
    took_s, answer = answers[0]
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert took_s < 20


def test_waiting_ends_when_the_callers_patience_does(api_client: httpx.Client, name: str) -> None:
    item = submit(api_client, {"title": name})
    started = time.monotonic()
    headers = {"Prefer": "wait=1", "If-None-Match": f'"{item["version"]}"'}
    answer = api_client.get(f"/v1/items/{item['id']}", headers=headers)
    assert answer.status_code == 304
    assert 0.9 < time.monotonic() - started < 10


def test_finished_item_is_not_waited_for(client: httpx.Client, name: str) -> None:
    item = submit(client, {"title": name}, media.thumbnail())
    started = time.monotonic()
    assert client.get(f"/v1/items/{item['id']}", headers={"Prefer": "wait=25"}).json()["status"] == "rejected"
    assert time.monotonic() - started < 15


# --- events and history ---


def test_events_tell_the_way_of_an_item_in_pages(client: httpx.Client, name: str) -> None:
    item = settled(client, submit(client, {"title": name, "external_id": name})["id"])
    path = f"/v1/items/{item['id']}/events"
    whole = client.get(path).json()
    assert [event["type"] for event in whole["events"]] == ["item.queued", "item.running", "item.succeeded"]
    assert all(event["id"].startswith("evt_") and event["resource"] == item["id"] for event in whole["events"])
    assert all(event["data"]["external_id"] == name for event in whole["events"])
    assert [event["resource_version"] for event in whole["events"]] == sorted(
        e["resource_version"] for e in whole["events"]
    )
    paged: list[dict[str, Any]] = []
    after = 0
    while page := client.get(path, params={"after": after, "limit": 1}).json()["events"]:
        paged += page
        after = page[-1]["seq"]
    assert paged == whole["events"]
    assert client.get(path, params={"after": after}).json() == {"events": [], "after": after}


def test_no_item_goes_where_no_arrow_leads(client: httpx.Client, name: str) -> None:
    uploads = [media.thumbnail(), media.packshot(size=700), None]
    for number, content in enumerate(uploads):
        item = settled(client, submit(client, {"title": f"{name} {number}"}, content)["id"])
        history = client.get(f"/v1/items/{item['id']}/explanation").json()["history"]
        assert (history[0]["from"], history[0]["to"]) == (None, "queued")
        for before, after in pairwise(history):
            assert after["from"] == before["to"]
            assert after["version"] == before["version"] + 1
            assert may_follow(Status(after["from"]), Status(after["to"]))
        assert history[-1]["to"] == item["status"]


# --- reasons ---


def test_explanation_says_what_would_have_passed(client: httpx.Client, name: str) -> None:
    item = submit(client, {"title": name}, media.thumbnail())
    explained = client.get(f"/v1/items/{item['id']}/explanation").json()
    (deciding,) = [step for step in explained["steps"] if step["decided"]]
    assert (deciding["code"], deciding["measured"], deciding["outcome"]) == ("low_resolution", 48, "fail")
    assert (deciding["fact"], deciding["effect"]) == ("image.short_side", "reject")
    assert deciding["threshold"] == 64
    assert deciding["rule"]["ruleset"].startswith("rs_")
    (counterfactual,) = explained["counterfactuals"]
    assert (counterfactual["part"], counterfactual["code"]) == ("p1", "low_resolution")
    assert counterfactual["would_pass_if"]
    assert explained["decision"]["problem"]["code"] == "low_resolution"


def test_explanation_of_an_accepted_item_names_the_rules_that_passed(client: httpx.Client, name: str) -> None:
    item = settled(client, submit(client, {"title": name, "mode": "prepare"}, media.label_photo(long_side=900))["id"])
    explained = client.get(f"/v1/items/{item['id']}/explanation").json()
    assert (explained["status"], explained["route"]) == ("ready", "agent")
    assert "pass" in {step["outcome"] for step in explained["steps"]}
    assert explained["counterfactuals"] == []


# --- the way out ---


def test_waiting_item_is_cancelled_at_once_and_again_is_the_same(api_client: httpx.Client, name: str) -> None:
    item = submit(api_client, {"title": name})
    path = f"/v1/items/{item['id']}"
    first = api_client.post(f"{path}/cancel", json={"reason": "sold out " * 20})
    again = api_client.post(f"{path}/cancel")
    for answer in (first, again):
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert first.json()["version"] == again.json()["version"]
    history = api_client.get(f"{path}/explanation").json()["history"]
    assert (history[-1]["to"], history[-1]["reason"]) == ("cancelled", "sold out " * 20)
    assert history[-1]["actor"] == "local"


@pytest.mark.parametrize(
    "content", [pytest.param(media.thumbnail(), id="rejected"), pytest.param(None, id="succeeded")]
)
def test_finished_item_cannot_be_cancelled(client: httpx.Client, name: str, content: bytes | None) -> None:
    item = settled(client, submit(client, {"title": name}, content)["id"])
    answer = client.post(f"/v1/items/{item['id']}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "item_state_conflict")
    assert answer.json()["item_status"] == item["status"]
    assert client.get(f"/v1/items/{item['id']}").json()["version"] == item["version"]


# --- the service itself ---


def test_profiles_tell_limits_and_schema_and_keep_the_prompt(client: httpx.Client) -> None:
    listed = client.get("/v1/profiles").json()["profiles"]
    assert {profile["name"] for profile in listed} == {"product-copy", "one-look", "all-or-none"}
    one = client.get("/v1/profiles/product-copy")
    assert one.headers["etag"] == f'"{one.json()["version"]}"'
    assert one.json()["version"].startswith("pv_")
    assert one.json()["text_limits"]["title_chars"] == 300
    assert one.json()["output_schema"]["properties"]["bullets"]["maxItems"] == 5
    assert "prompt" not in one.json()


def test_meta_tells_limits_and_formats(api_client: httpx.Client) -> None:
    meta = api_client.get("/v1/meta").json()
    assert meta["limits"] == {
        "request_bytes": 4 * 1024 * 1024,
        "files_per_item": 20,
        "wait_s": 30,
        "idempotency_ttl_s": 86400,
    }
    assert meta["ruleset"].startswith("rs_")
    assert set(meta["profiles"]) == {"product-copy"}
    assert len(meta["formats"]) >= 15


def test_health_tells_the_process_and_readiness_each_part(api_client: httpx.Client) -> None:
    assert api_client.get("/healthz").json() == {"status": "ok"}
    ready = api_client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    checks = ready.json()["checks"]
    assert {name for name, check in checks.items() if check["required"]} >= {"database", "blobs", "ruleset", "profiles"}
    assert (checks["model"]["status"], checks["transcriber"]["status"]) == ("missing", "missing")
    assert checks["model"]["problem"]


@pytest.mark.parametrize("code", sorted({*KINDS, *messages.codes()}))
def test_each_problem_has_a_page_of_its_own(api_client: httpx.Client, code: str) -> None:
    answer = api_client.get(f"/problems/{code}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert code in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_every_answer_carries_the_headers_of_the_contract(api_client: httpx.Client) -> None:
    seen = set()
    for path in ("/healthz", "/v1/items", "/v1/items/itm_0", "/v1/nothing", "/problems/corrupt"):
        answer = api_client.get(path)
        assert answer.headers["sluicegate-version"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        seen.add(answer.headers["request-id"])
    assert len(seen) == 5


def test_description_lists_every_route_and_resolves_its_references(api_client: httpx.Client) -> None:
    document = api_client.get("/openapi.json").json()
    assert {"/v1/items", "/v1/items/{item_id}", "/v1/items/{item_id}/llm-payload", "/v1/meta"} <= set(document["paths"])
    schemas = document["components"]["schemas"]
    references = {part.split('"')[0] for part in json.dumps(document).split('"#/components/schemas/')[1:]}
    assert references <= set(schemas)
