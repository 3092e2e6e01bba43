"""Who may call: this machine without a key, others with one, and each tenant sees its own alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import media
from tests.gateway.conftest import store_key
from tests.gateway.running import Service, bearer, command, make_key, running, until


def test_loopback_needs_no_key(api_client: httpx.Client) -> None:
    assert api_client.get("/v1/items").status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "Bearer sgk_unknown",
        "Bearer ",
        "Bearer",
        "Basic dXNlcjpwYXNz",
        "sgk_unknown",
        "Bearer " + "x" * 600,
        "Bearer \xff",
    ],
)
def test_key_that_is_sent_is_checked_even_on_loopback(api_client: httpx.Client, header: str) -> None:
    answer = api_client.get("/v1/items", headers={"Authorization": header.encode("latin-1").strip()})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "sgk_unknown" not in answer.text


HEADERS = [
    ({"Host": "sluicegate.example"}, 403),
    ({"Host": "sluicegate.example:8080"}, 403),
    ({"Host": "127.0.0.1.evil.example"}, 403),
    ({"Host": "localhost.evil.example"}, 403),
    ({"Host": "192.168.1.7:8080"}, 403),
    ({"Host": "0.0.0.0"}, 403),
    ({"Host": "localhost"}, 200),
    ({"Host": "LOCALHOST:9"}, 200),
    ({"Host": "127.0.0.1:1"}, 200),
    ({"Host": "[::1]:8080"}, 200),
    ({"Host": "[::1]"}, 200),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "http://localhost.evil.example"}, 403),
    ({"Origin": "http://evil.example/#http://localhost"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://localhost:3000"}, 200),
    ({"Origin": "http://127.0.0.1"}, 200),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "status"), HEADERS, ids=lambda value: str(value))
def test_without_a_key_only_this_machines_own_programs_may_call(
    api_client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    answer = api_client.get("/v1/items", headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["code"] == "forbidden"


def test_with_a_key_any_host_name_will_do(api_client: httpx.Client, alpha: str) -> None:
    headers = {**bearer(alpha), "Host": "sluicegate.example", "Origin": "https://shop.example"}
    assert api_client.get("/v1/items", headers=headers).status_code == 200


@pytest.fixture(scope="module")
def of_alpha(api: Service, alpha: str) -> dict[str, Any]:
    """An item of one tenant, with everything that can hang on it."""
    with api.client() as client:
        document = {"title": "Alpha's own", "external_id": "alpha-secret", "mode": "prepare"}
        parts = {
            "item": (None, json.dumps(document), "application/json"),
            "p1": ("p.jpg", media.thumbnail(), "image/jpeg"),
        }
        made: dict[str, Any] = client.post("/v1/items", files=parts, headers=bearer(alpha)).json()
        return made


ROUTES = [
    ("GET", "/v1/items/{id}"),
    ("GET", "/v1/items/{id}/events"),
    ("GET", "/v1/items/{id}/explanation"),
    ("GET", "/v1/items/{id}/llm-payload"),
    ("POST", "/v1/items/{id}/cancel"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_item_of_another_tenant_looks_like_none(
    api_client: httpx.Client, beta: str, of_alpha: dict[str, Any], method: str, path: str
) -> None:
    for headers in (bearer(beta), {}):
        answer = api_client.request(method, path.format(id=of_alpha["id"]), headers=headers)
        missing = api_client.request(method, path.format(id="itm_0"), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert answer.json()["detail"] == missing.json()["detail"]


def test_list_shows_the_tenants_own_alone(
    api_client: httpx.Client, alpha: str, beta: str, of_alpha: dict[str, Any]
) -> None:
    query = {"external_id": "alpha-secret"}
    own = api_client.get("/v1/items", params=query, headers=bearer(alpha)).json()["items"]
    assert [item["id"] for item in own] == [of_alpha["id"]]
    for headers in (bearer(beta), {}):
        assert api_client.get("/v1/items", params=query, headers=headers).json()["items"] == []


SCOPES = [
    ("items:read", "GET", "/v1/items", 200),
    ("items:read", "GET", "/v1/profiles", 200),
    ("items:read", "POST", "/v1/items", 403),
    ("items:read", "POST", "/v1/items/itm_0/cancel", 403),
    ("items:write", "POST", "/v1/items", 202),
    ("items:write", "POST", "/v1/items/itm_0/cancel", 404),
    ("items:write", "GET", "/v1/items", 403),
    ("guard", "GET", "/v1/items", 403),
    ("review", "POST", "/v1/items", 403),
]


@pytest.mark.parametrize(("scope", "method", "path", "status"), SCOPES)
def test_scope_says_what_a_key_may_do(
    api: Service, api_client: httpx.Client, name: str, scope: str, method: str, path: str, status: int
) -> None:
    headers = bearer(store_key(api, "scoped", scope))
    options = {"json": {"title": name}} if (method, path) == ("POST", "/v1/items") else {}
    answer = api_client.request(method, path, headers=headers, **options)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["code"] == "scope_missing"
        assert answer.json()["scope"].startswith("items:")


@pytest.fixture(scope="module")
def open_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """A service that other machines can reach, with a key that the command line made."""
    folder = tmp_path_factory.mktemp("open")
    for role in ("serve", "up"):
        refused = command(role, data_dir=folder, host="0.0.0.0")
        assert refused.returncode == 2
        assert len(refused.stderr.strip().splitlines()) == 1
        assert "sluicegate keys create" in refused.stderr
    key = make_key(folder, "shop")
    with running("serve", folder, host="0.0.0.0", default_wait_s=0) as started:
        yield started, key


def test_reachable_service_does_not_start_without_a_key_and_asks_for_it(
    open_door: tuple[Service, str], name: str
) -> None:
    service, key = open_door
    with service.client() as client:
        for path in ("/v1/items", "/v1/meta", "/v1/profiles", "/v1/nothing"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert client.get("/healthz").status_code == 200
        answer = client.post("/v1/items", json={"title": name}, headers=bearer(key))
        assert answer.status_code == 202
        assert client.get("/v1/items", headers=bearer(key)).json()["items"][0]["id"] == answer.json()["id"]


def test_key_is_stored_as_a_hash(open_door: tuple[Service, str]) -> None:
    service, key = open_door
    stored = b"".join(path.read_bytes() for path in service.data_dir.glob("sluicegate.db*"))
    assert key.encode() not in stored
    listed = command("keys", "list", data_dir=service.data_dir)
    assert key not in listed.stdout
    assert "shop" in listed.stdout


def test_revoked_key_ends_within_seconds(open_door: tuple[Service, str]) -> None:
    service, _ = open_door
    key = make_key(service.data_dir, "leaver")
    with service.client() as client:
        assert client.get("/v1/items", headers=bearer(key)).status_code == 200
        key_id = next(line.split()[0] for line in _listed(service.data_dir) if "leaver" in line)
        assert command("keys", "revoke", key_id, data_dir=service.data_dir).returncode == 0
        until(lambda: client.get("/v1/items", headers=bearer(key)).status_code == 401, within_s=15)
    again = command("keys", "revoke", key_id, data_dir=service.data_dir)
    assert (again.returncode, "no live key" in again.stderr) == (1, True)


def _listed(data_dir: Path) -> list[str]:
    table = command("keys", "list", data_dir=data_dir).stdout
    return [line.strip("│┃ ") for line in table.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("keys", "create", "--scope", "everything"), "items:write"),
        (("keys", "create", "--tenant", "../x"), "letters"),
        (("keys", "create", "--tenant", ""), "letters"),
    ],
)
def test_key_with_a_wrong_scope_or_tenant_is_not_made(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    made = command(*arguments, data_dir=tmp_path)
    assert (made.returncode, made.stdout) == (2, "")
    assert named in made.stderr
