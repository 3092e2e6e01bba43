"""Try again, override a refusal, replace an item: each from where it is allowed, and each told in the item itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.store.engine import Database
from gateway.store.tables import items
from tests import media
from tests.gateway.conftest import store_key
from tests.gateway.running import Service, bearer, running, settled


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """API and worker, without a model: the offline writer writes."""
    with running("up", tmp_path_factory.mktemp("verbs"), default_wait_s=10) as started:
        yield started


@pytest.fixture
def tenant() -> str:
    return f"verbs-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def client(whole: Service, tenant: str) -> Iterator[httpx.Client]:
    with whole.client(headers=bearer(store_key(whole, tenant))) as made:
        yield made


@pytest.fixture(scope="module")
def thumbnail() -> bytes:
    """Refused for its few pixels, and nothing else wrong with it."""
    return media.thumbnail(side=40)


def submit(client: httpx.Client, *files: bytes, **item: Any) -> httpx.Response:
    parts: dict[str, Any] = {"item": (None, json.dumps({"title": "Soap", **item}), "application/json")}
    for number, content in enumerate(files, 1):
        parts[f"p{number}"] = (f"p{number}", content)
    return client.post("/v1/items", files=parts)


def refused(client: httpx.Client, thumbnail: bytes, **item: Any) -> dict[str, Any]:
    answer = submit(client, thumbnail, on_duplicate="new", **item)
    found: dict[str, Any] = answer.json()
    assert found["status"] == "rejected", answer.text
    return found


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    found: dict[str, Any] = answer.json()
    return found


def retry(client: httpx.Client, item: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return client.post(f"/v1/items/{item}/retry", json={"reason": "once more", **body}, headers=headers)


# --- retry ------------------------------------------------------------------------------------------------------------


def test_cancelled_item_is_tried_again_with_its_own_budget(client: httpx.Client, whole: Service) -> None:
    item = _halted_by_hand(client, whole, "cancelled")
    answer = retry(client, item, route="text_only", budget={"max_steps": 3}, guidance="Be brief.")
    assert answer.status_code == 202, answer.text
    done = settled(client, item)
    assert (done["status"], done["route"], done["attempt"]) == ("succeeded", "text_only", 2)
    first, second = done["attempts"]
    assert first["ended"]["status"] == "cancelled"
    assert (second["action"], second["reason"], second["budget"]) == ("retry", "once more", {"max_steps": 3})
    assert second["by"].startswith("key:")


def _halted_by_hand(client: httpx.Client, whole: Service, status: str) -> str:
    """An item in a status that the offline writer never leads to."""
    item = str(submit(client, on_duplicate="new", text=uuid.uuid4().hex).json()["id"])
    settled(client, item)
    database = Database(f"sqlite:///{whole.data_dir / 'sluicegate.db'}")
    change = items.update().where(items.c.id == item).values(status=status, result=None, cancel_requested_ms=1)
    database.transact(lambda connection: connection.execute(change))
    database.close()
    return item


@pytest.mark.parametrize("status", ["failed", "halted", "expired"])
def test_what_ended_without_a_result_may_be_tried_again(client: httpx.Client, whole: Service, status: str) -> None:
    item = _halted_by_hand(client, whole, status)
    assert retry(client, item).status_code == 202
    assert settled(client, item)["status"] == "succeeded"


def test_same_retry_under_one_key_is_carried_out_once(client: httpx.Client, whole: Service) -> None:
    item = _halted_by_hand(client, whole, "failed")
    key = {"Idempotency-Key": "again"}
    assert retry(client, item, key).status_code == 202
    done = settled(client, item)
    replayed = retry(client, item, key)
    assert (replayed.status_code, replayed.headers["Idempotent-Replayed"]) == (202, "true")
    assert replayed.json()["attempt"] == done["attempt"] == 2
    problem(retry(client, item, key, route="text_only"), 422, "idempotency_key_reused")


def test_stale_version_is_a_412(client: httpx.Client, whole: Service) -> None:
    item = _halted_by_hand(client, whole, "failed")
    problem(retry(client, item, {"If-Match": '"1"'}), 412, "conflict_version")
    etag = client.get(f"/v1/items/{item}").headers["ETag"]
    assert retry(client, item, {"If-Match": etag}).status_code == 202


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"reason": ""}, "/reason"), ({"reason": None}, "/reason"), ({"route": "human"}, "/route"),
        ({"ban_tools": "ocr"}, "/ban_tools"), ({"budget": {"max_stps": 1}}, "/budget/max_stps"),
        ({"budget": {"max_cost": 0.5}}, "/budget/max_cost"), ({"override": "yes"}, "/override"), ({"why": "x"}, "/why"),
        ({"ban_tools": ["orc_extract"]}, "/ban_tools/0"),
    ],
)  # fmt: skip
def test_mistaken_retry_names_its_field(
    client: httpx.Client, whole: Service, body: dict[str, Any], pointer: str
) -> None:
    item = _halted_by_hand(client, whole, "failed")
    found = problem(retry(client, item, **body), 400, "invalid_request")
    assert pointer in [error["pointer"] for error in found["errors"]]
    assert client.get(f"/v1/items/{item}").json()["status"] == "failed"


def test_item_that_is_done_says_what_it_allows(client: httpx.Client) -> None:
    item = submit(client, text=uuid.uuid4().hex).json()["id"]
    done = settled(client, item)
    assert done["status"] == "succeeded"
    for path, body in (
        ("retry", {"reason": "more"}),
        ("cancel", {}),
        ("resume", {"guidance": "x"}),
        ("info", {"text": "x"}),
    ):
        found = problem(client.post(f"/v1/items/{item}/{path}", json=body), 409, "item_state_conflict")
        assert (found["item_status"], found["allowed"]) == ("succeeded", [])


# --- a wrongly refused photo ------------------------------------------------------------------------------------------


def test_refused_photo_is_opened_again_by_a_person_and_the_explanation_says_by_whom(
    client: httpx.Client, thumbnail: bytes
) -> None:
    item = refused(client, thumbnail)
    found = problem(retry(client, item["id"]), 409, "item_state_conflict")
    assert (found["item_status"], found["allowed"]) == ("rejected", ["retry", "supersede"])
    assert "override: true" in found["detail"]
    reviewer = {"On-Behalf-Of": "ann@example.org"}
    answer = retry(client, item["id"], reviewer, override=True, reason="The label can be read well.")
    assert answer.status_code == 202, answer.text
    done = settled(client, item["id"])
    assert (done["status"], done["route"], done["attempt"]) == ("succeeded", "agent", 2)
    assert done["decision"]["verdict"] == "accept"
    assert done["decision"]["problem"] is None
    assert done["decision"]["overridden"]["by"] == "person:ann@example.org"
    assert done["decision"]["overridden"]["problem"]["code"] == "low_resolution"
    [file] = done["files"]
    assert (file["verdict"], file["overridden"]["reason"]) == ("accept", "The label can be read well.")
    assert "overridden" in file["notes"]
    explained = client.get(f"/v1/items/{item['id']}/explanation").json()
    [step] = [step for step in explained["steps"] if step["decided"]]
    assert (step["code"], step["overridden"]["by"]) == ("low_resolution", "person:ann@example.org")
    assert [row["reason"] for row in explained["history"] if row["actor"] == "person:ann@example.org"] == ["overridden"]
    [decided] = client.get("/v1/decisions", params={"by": "me"}, headers=reviewer).json()["decisions"]
    assert (decided["action"], decided["outcome"]["status"]) == ("override", "succeeded")


def test_payload_of_an_overridden_photo_holds_the_picture(client: httpx.Client, thumbnail: bytes) -> None:
    item = refused(client, thumbnail, mode="prepare")
    assert retry(client, item["id"], override=True).status_code == 202
    ready = settled(client, item["id"])
    assert (ready["status"], ready["route"]) == ("ready", "agent")
    payload = client.get(f"/v1/items/{item['id']}/llm-payload").json()
    assert "image_url" in [part["type"] for part in payload["content"]]


def test_override_needs_the_scope_of_a_reviewer(
    client: httpx.Client, whole: Service, tenant: str, thumbnail: bytes
) -> None:
    item = refused(client, thumbnail)
    key = store_key(whole, tenant, "items:read", "items:write")
    with whole.client(headers=bearer(key)) as submitter:
        assert problem(retry(submitter, item["id"], override=True), 403, "scope_missing")["scope"] == "review"
    assert client.get(f"/v1/items/{item['id']}").json()["status"] == "rejected"


def test_file_that_nobody_can_read_cannot_be_overridden_but_its_item_can_go_on_by_text(client: httpx.Client) -> None:
    item = refused(client, b"GIF89a but no more")
    found = problem(retry(client, item["id"], override=True), 409, "item_state_conflict")
    assert f"supersedes: {item['id']}" in found["detail"]
    assert retry(client, item["id"], override=True, route="text_only").status_code == 202
    assert settled(client, item["id"])["status"] == "succeeded"


# --- replacing --------------------------------------------------------------------------------------------------------


def test_new_photos_replace_a_refused_item_and_both_name_the_other(client: httpx.Client, thumbnail: bytes) -> None:
    old = refused(client, thumbnail)
    new = submit(client, media.pdf_text(), supersedes=old["id"]).json()
    assert new["supersedes"] == old["id"]
    old = client.get(f"/v1/items/{old['id']}").json()
    assert (old["superseded_by"], old["status"]) == (new["id"], "rejected")
    assert "item.superseded" in [e["type"] for e in client.get(f"/v1/items/{old['id']}/events").json()["events"]]
    again = problem(submit(client, media.pdf_text(), supersedes=old["id"], text="x"), 409, "item_state_conflict")
    assert new["id"] in again["detail"]
    assert "supersede" not in problem(retry(client, old["id"], override=True), 409, "item_state_conflict")["allowed"]


@pytest.mark.parametrize("which", ["itm_00000000000000000000000000", "succeeded"])
def test_item_that_is_not_there_or_done_is_not_replaced(client: httpx.Client, which: str) -> None:
    if which == "succeeded":
        which = submit(client, text=uuid.uuid4().hex).json()["id"]
        settled(client, which)
        problem(submit(client, supersedes=which), 409, "item_state_conflict")
    else:
        found = problem(submit(client, supersedes=which), 400, "invalid_request")
        assert found["errors"][0]["pointer"] == "/supersedes"


def test_other_tenants_cannot_touch_an_item(client: httpx.Client, whole: Service, thumbnail: bytes) -> None:
    item = refused(client, thumbnail)
    with whole.client(headers=bearer(store_key(whole, "stranger"))) as stranger:
        for path in ("retry", "info", "resume"):
            answer = stranger.post(f"/v1/items/{item['id']}/{path}", json={"reason": "x", "guidance": "x", "text": "x"})
            assert answer.status_code in {400, 404}, answer.text
        problem(retry(stranger, item["id"], override=True), 404, "not_found")
        problem(submit(stranger, supersedes=item["id"]), 400, "invalid_request")
        assert stranger.get("/v1/decisions").json()["decisions"] == []
