"""Tenants by construction: every route of the description is walked with another tenant's ids."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.person import Role
from gateway.store import people
from gateway.store.engine import Database
from gateway.store.tables import escalation_groups, escalations, webhook_deliveries
from tests import media
from tests.gateway.conftest import store_key
from tests.gateway.running import Service, bearer

NO_IDS = {"number": "0", "name": "product-copy"}
"""Path parameters that are the same for all tenants."""
OF_THE_OPERATOR = ("/v1/tenants/", "/v1/budget", "/v1/switches")
BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/guard/runs/{run_id}/before": {"call_id": "c", "tool": "t", "args": {}},
    "POST /v1/guard/runs/{run_id}/before-batch": {"calls": [{"call_id": "c", "tool": "t", "args": {}}]},
    "POST /v1/guard/runs/{run_id}/after": {"call_id": "c", "status": "ok"},
    "POST /v1/guard/runs/{run_id}/end": {"outcome": "succeeded"},
    "POST /v1/guard/runs/{run_id}/resume": {"escalation_id": "esc_0"},
    "POST /v1/items/{item_id}/resume": {"guidance": "go on"},
    "POST /v1/items/{item_id}/retry": {"reason": "again"},
    "POST /v1/items/{item_id}/info": {"text": "here it is"},
    "POST /v1/escalations/{escalation_id}/heartbeat": {"lease_token": "t"},
    "POST /v1/escalations/{escalation_id}/release": {"lease_token": "t"},
    "POST /v1/escalations/{escalation_id}/assign": {"user": "somebody"},
    "POST /v1/escalations/{escalation_id}/notes": {"text": "note"},
    "POST /v1/escalations/{escalation_id}/reopen": {"reason": "again"},
    "POST /v1/escalations/{escalation_id}/resolve": {
        "lease_token": "t", "action": "reject_item", "reason_code": "other", "message": "no",
    },
    "POST /v1/escalation-groups/{group_id}/resolve": {
        "action": "reject_item", "reason_code": "other", "message": "no", "expected_count": 1,
    },
    "POST /v1/escalation-groups/{group_id}/merge": {"groups": ["grp_0"]},
    "POST /v1/escalation-groups/{group_id}/split": {"ids": ["esc_0"]},
    "POST /v1/webhook-endpoints/{endpoint_id}/replay": {"from_seq": 0, "to_seq": 1},
}  # fmt: skip
"""What a route needs before it looks for the thing; others take an empty object."""


def _group(group_id: str, tenant: str) -> dict[str, Any]:
    return {
        "id": group_id,
        "tenant": tenant,
        "profile": "product-copy",
        "kind": "loop",
        "created_ms": 1,
        "updated_ms": 1,
    }


def _case(case_id: str, group_id: str, tenant: str, item_id: str) -> dict[str, Any]:
    later = int(time.time() * 1000) + 3_600_000
    return {
        "id": case_id, "tenant": tenant, "item_id": item_id, "attempt": 1, "profile": "product-copy", "reason": "loop",
        "group_key": group_id, "group_id": group_id, "packet": {"question": "?"}, "status": "open",
        "created_ms": 1, "updated_ms": 1, "due_ms": later, "expires_ms": later,
    }  # fmt: skip


def _delivery(delivery_id: str, tenant: str, endpoint_id: str, item_id: str) -> dict[str, Any]:
    return {
        "id": delivery_id, "tenant": tenant, "endpoint_id": endpoint_id, "lane": "l", "url_key": "k", "event_id": "evt_1",
        "event_seq": 1, "event_type": "item.queued", "resource": item_id, "status": "dead", "is_test": False,
        "created_ms": 1, "updated_ms": 1,
    }  # fmt: skip


@dataclass(frozen=True)
class Household:
    """What one tenant has."""

    key: str
    ids: dict[str, str]
    """By the name of the path parameter."""


def furnish(api: Service, client: httpx.Client, tenant: str) -> Household:
    """An item with a picture, a run, a case, a group, a key, a person, a webhook: one of each kind of thing."""
    key = store_key(api, tenant)
    headers = bearer(key)

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = client.post(path, json=body, headers=headers)
        assert answer.status_code < 300, (path, answer.text)
        made: dict[str, Any] = answer.json()
        return made

    parts = {
        "item": ("", json.dumps({"title": tenant, "files": [{"part": "p1"}]}), "application/json"),
        "p1": ("p.jpg", media.plain_photo(640, 480), "image/jpeg"),
    }
    item = client.post("/v1/items", files=parts, headers={**headers, "Prefer": "wait=1"}).json()
    artifacts = client.get(f"/v1/items/{item['id']}/artifacts", headers=headers).json()["artifacts"]
    run = post("/v1/guard/runs", {"external_run_id": tenant, "agent": "a", "tools": [{"name": "t", "effect": "read"}]})
    endpoint = post("/v1/webhook-endpoints", {"url": "https://8.8.8.8/hook"})
    origin = post("/v1/callback-origins", {"origin": f"https://{tenant}.example"})
    rows = {
        escalation_groups: _group(f"grp_{tenant}", tenant),
        escalations: _case(f"esc_{tenant}", f"grp_{tenant}", tenant, item["id"]),
        webhook_deliveries: _delivery(f"whd_{tenant}", tenant, endpoint["id"], item["id"]),
    }
    database = Database(f"sqlite:///{api.data_dir / 'sluicegate.db'}")
    for table, row in rows.items():
        database.transact(lambda c, table=table, row=row: c.execute(table.insert(), row))
    person = database.transact(
        lambda c: people.add(c, tenant=tenant, name=tenant, role=Role.VIEWER, password_hash="-", at_ms=1)
    )
    database.close()
    ids = {
        "item_id": item["id"],
        "artifact_id": artifacts[0]["id"],
        "run_id": run["run_id"],
        "escalation_id": f"esc_{tenant}",
        "group_id": f"grp_{tenant}",
        "key_id": post("/v1/keys", {"scopes": ["guard"]})["id"],
        "user_id": person.id,
        "endpoint_id": endpoint["id"],
        "origin_id": origin["id"],
        "delivery_id": f"whd_{tenant}",
    }
    return Household(key, ids)


@pytest.fixture(scope="module")
def alpha_home(api: Service) -> Household:
    with api.client() as client:
        return furnish(api, client, "walked")


@pytest.fixture(scope="module")
def stranger(api: Service) -> str:
    """A key of another tenant, with all scopes."""
    return store_key(api, "walker")


@pytest.fixture(scope="module")
def routes(api: Service) -> list[tuple[str, str]]:
    """All methods and paths of the description."""
    with api.client() as client:
        paths: dict[str, dict[str, Any]] = client.get("/openapi.json").json()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert len(found) > 50
    return found


def ask(client: httpx.Client, key: str, method: str, path: str, url: str) -> httpx.Response:
    headers = {**bearer(key), "If-Match": "*", "Idempotency-Key": "walk"}
    options: dict[str, Any] = {} if method in {"GET", "DELETE"} else {"json": BODIES.get(f"{method} {path}", {})}
    return client.request(method, url, headers=headers, **options)


def test_every_route_hides_what_another_tenant_has(
    api_client: httpx.Client, alpha_home: Household, stranger: str, routes: list[tuple[str, str]]
) -> None:
    walked = 0
    for method, path in routes:
        names = [name for name in re.findall(r"{(\w+)}", path) if name not in NO_IDS]
        if not names or path.startswith(OF_THE_OPERATOR):
            continue
        unknown = set(names) - set(alpha_home.ids)
        assert not unknown, f"{path}: give `furnish` a thing of another tenant for {unknown}"
        theirs = path.format(**alpha_home.ids, **NO_IDS)
        nothing = path.format(**dict.fromkeys(alpha_home.ids, "zzz_0"), **NO_IDS)
        answer = ask(api_client, stranger, method, path, theirs)
        missing = ask(api_client, stranger, method, path, nothing)
        assert answer.status_code == 404, (method, path, "perhaps it needs a body in BODIES", answer.text)
        told = [
            {k: v for k, v in one.json().items() if k not in {"request_id", "instance"}} for one in (answer, missing)
        ]
        assert told[0] == told[1], (method, path)
        walked += 1
    assert walked > 30


def test_own_key_finds_what_the_strange_one_does_not_and_finds_it_untouched(
    api_client: httpx.Client, alpha_home: Household, routes: list[tuple[str, str]]
) -> None:
    for method, path in routes:
        if method != "GET" or "{" not in path or path.startswith(OF_THE_OPERATOR) or "{number}" in path:
            continue
        answer = ask(api_client, alpha_home.key, method, path, path.format(**alpha_home.ids, **NO_IDS))
        assert answer.status_code in {200, 409}, (path, answer.text)
        if path == "/v1/escalations/{escalation_id}":
            assert (answer.json()["status"], answer.json().get("holder")) == ("open", None)


def test_no_list_shows_what_another_tenant_has(
    api_client: httpx.Client, alpha_home: Household, stranger: str, routes: list[tuple[str, str]]
) -> None:
    lists = [path for method, path in routes if method == "GET" and "{" not in path and path.startswith("/v1/")]
    own = set()
    for path in lists:
        shown = api_client.get(path, headers=bearer(stranger)).text
        assert not [thing for thing in alpha_home.ids.values() if thing in shown], path
        shown = api_client.get(path, headers=bearer(alpha_home.key)).text
        own |= {name for name, thing in alpha_home.ids.items() if thing in shown}
    assert own >= {
        "item_id",
        "escalation_id",
        "group_id",
        "key_id",
        "user_id",
        "endpoint_id",
        "delivery_id",
        "origin_id",
    }


def test_ids_of_another_tenant_in_a_body_do_nothing(
    api_client: httpx.Client, alpha_home: Household, stranger: str
) -> None:
    ids = alpha_home.ids
    headers = {**bearer(stranger), "Idempotency-Key": "bodies", "If-Match": "*"}
    bulk = {"ids": [ids["escalation_id"]], "action": "reject_item", "reason_code": "other", "message": "no"}
    answers = [
        api_client.post("/v1/escalations/bulk", json=bulk, headers=headers),
        api_client.post("/v1/escalations/claim-next", json={"filter": {"item": ids["item_id"]}}, headers=headers),
        api_client.post(
            "/v1/guard/runs",
            json={"external_run_id": "w", "agent": "a", "tools": [], "item_id": ids["item_id"]},
            headers=headers,
        ),
    ]
    for answer in answers:
        assert answer.status_code < 500, answer.text
    own = {**bearer(alpha_home.key)}
    case = api_client.get(f"/v1/escalations/{ids['escalation_id']}", headers=own).json()
    assert (case["status"], case["item"]) == ("open", ids["item_id"])
    assert answers[2].status_code == 404


def test_admin_of_one_tenant_decides_nothing_for_all(
    api_client: httpx.Client, stranger: str, routes: list[tuple[str, str]]
) -> None:
    concerned = [(method, path) for method, path in routes if path.startswith(OF_THE_OPERATOR)]
    assert concerned
    for method, path in concerned:
        answer = ask(api_client, stranger, method, path, path.format(tenant="walked"))
        assert (answer.status_code, answer.json().get("reason")) == (403, "operator"), path
        if method == "GET":
            assert api_client.get(path.format(tenant="walked")).status_code == 200
