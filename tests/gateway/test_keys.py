"""The life of API keys: made, used, rotated, ended; and never a way to more rights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.store import keys
from gateway.store.engine import Database
from gateway.store.tables import api_keys
from tests.gateway.conftest import store_key
from tests.gateway.running import Service, bearer, command, until

WITHIN_S = 15.0
"""Five seconds on a machine of its own; other tests may keep this one busy."""

Call = Callable[..., httpx.Response]


@pytest.fixture
def tenant(name: str) -> str:
    return f"tenant-{name}"


@pytest.fixture
def call(api: Service, api_client: httpx.Client, tenant: str) -> Call:
    """Calls with an admin's key of a tenant of its own."""
    admin = store_key(api, tenant)

    def made(method: str, path: str, *, key: str = admin, **options: Any) -> httpx.Response:
        return api_client.request(method, path, headers={**bearer(key), **options.pop("headers", {})}, **options)

    return made


@pytest.fixture
def rows(api: Service) -> Iterator[Database]:
    database = Database(f"sqlite:///{api.data_dir / 'sluicegate.db'}")
    yield database
    database.close()


def make(call: Call, *scopes: str, **more: Any) -> dict[str, Any]:
    answer = call("POST", "/v1/keys", json={"scopes": list(scopes), **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_key_is_made_shown_once_and_works(call: Call, rows: Database) -> None:
    made = make(call, "items:read", name="shop frontend")
    assert made["secret"].startswith("sgk_")
    assert (made["name"], made["scopes"], made["status"]) == ("shop frontend", ["items:read"], "live")
    assert call("GET", "/v1/items", key=made["secret"]).status_code == 200
    assert call("POST", "/v1/items", key=made["secret"], json={"title": "t"}).status_code == 403
    one = call("GET", f"/v1/keys/{made['id']}")
    listed = next(key for key in call("GET", "/v1/keys").json()["keys"] if key["id"] == made["id"])
    assert one.json() == listed
    assert made["secret"] not in one.text
    assert made["secret"].endswith(listed["ends_with"].removeprefix("…"))
    with rows.read() as connection:
        stored = connection.execute(sa.select(api_keys.c.secret_hash).where(api_keys.c.id == made["id"])).scalar_one()
    assert stored == keys.secret_hash(made["secret"])


def test_list_comes_in_pages(call: Call) -> None:
    made = [make(call, "guard")["id"] for _ in range(3)]
    first = call("GET", "/v1/keys?limit=2").json()
    second = call("GET", "/v1/keys", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    listed = [key["id"] for key in (*first["keys"], *second["keys"])]
    assert len(set(listed)) == 4, "with the admin's own"
    assert set(made) < set(listed)
    assert second["next_cursor"] is None


def test_old_secret_works_until_the_overlap_ends(call: Call, rows: Database) -> None:
    made = make(call, "items:read")
    rotated = call("POST", f"/v1/keys/{made['id']}/rotate", json={"overlap_s": 3600}).json()
    assert rotated["id"] == made["id"]
    assert rotated["secret"] != made["secret"]
    for secret in (made["secret"], rotated["secret"]):
        assert call("GET", "/v1/items", key=secret).status_code == 200
    own = api_keys.c.id == made["id"]
    rows.transact(lambda c: c.execute(api_keys.update().where(own).values(previous_until_ms=int(time.time() * 1000))))
    until(lambda: call("GET", "/v1/items", key=made["secret"]).status_code == 401, within_s=WITHIN_S)
    assert call("GET", "/v1/items", key=rotated["secret"]).status_code == 200


def test_rotation_without_overlap_ends_the_old_secret_and_a_second_one_the_one_before(call: Call) -> None:
    made = make(call, "items:read")
    path = f"/v1/keys/{made['id']}/rotate"
    second = call("POST", path, json={"overlap_s": 600}).json()["secret"]
    third = call("POST", path, json={"overlap_s": 0}).json()["secret"]
    for secret, status in ((made["secret"], 401), (second, 401), (third, 200)):
        assert call("GET", "/v1/items", key=secret).status_code == status


def test_deleted_key_ends_within_seconds_and_cannot_be_rotated(call: Call) -> None:
    made = make(call, "items:read")
    path = f"/v1/keys/{made['id']}"
    assert call("GET", "/v1/items", key=made["secret"]).status_code == 200
    assert [call("DELETE", path).status_code for _ in range(2)] == [204, 204]
    until(lambda: call("GET", "/v1/items", key=made["secret"]).status_code == 401, within_s=WITHIN_S)
    assert call("GET", path).json()["status"] == "revoked"
    assert call("POST", f"{path}/rotate", json={}).status_code == 404
    told = [event["type"] for event in call("GET", "/v1/events").json()["events"] if event["resource"] == made["id"]]
    assert told == ["key.created", "key.revoked"]


def test_key_ends_at_its_time(call: Call, rows: Database) -> None:
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    made = make(call, "items:read", expires_at=at)
    assert call("GET", "/v1/items", key=made["secret"]).status_code == 200
    own = api_keys.c.id == made["id"]
    rows.transact(lambda c: c.execute(api_keys.update().where(own).values(expires_ms=int(time.time() * 1000))))
    until(lambda: call("GET", "/v1/items", key=made["secret"]).status_code == 401, within_s=WITHIN_S)
    assert call("GET", f"/v1/keys/{made['id']}").json()["status"] == "expired"


def test_last_use_is_told_without_a_write_for_each_request(call: Call, rows: Database) -> None:
    made = make(call, "items:read")
    path = f"/v1/keys/{made['id']}"
    assert call("GET", path).json()["last_used_at"] is None
    assert call("GET", "/v1/items", key=made["secret"]).status_code == 200
    first = call("GET", path).json()["last_used_at"]
    assert first is not None
    with rows.read() as connection:
        for at_ms, is_written in ((1, False), (59_999, False), (60_000, True)):
            used = connection.execute(
                sa.select(api_keys.c.last_used_ms).where(api_keys.c.id == made["id"])
            ).scalar_one()
            record = keys.get(connection, made["id"])
            assert record is not None
            assert record.is_unseen(used + at_ms) is is_written


GRANTS = [
    (("admin",), ["items:read"], "items:read"),
    (("admin", "items:read"), ["items:read"], None),
    (("admin", "items:read"), ["items:read", "review:delegate"], "review:delegate"),
    (("admin", "items:read"), ["admin"], None),
]


@pytest.mark.parametrize(("own", "wanted", "lacking"), GRANTS)
def test_key_gives_no_scope_that_it_lacks(
    api: Service, call: Call, tenant: str, own: tuple[str, ...], wanted: list[str], lacking: str | None
) -> None:
    answer = call("POST", "/v1/keys", key=store_key(api, tenant, *own), json={"scopes": wanted})
    assert (answer.status_code, answer.json().get("scope")) == ((201, None) if lacking is None else (403, lacking))


def test_new_secret_is_no_way_to_scopes_that_the_caller_lacks(api: Service, call: Call, tenant: str) -> None:
    rich = make(call, "items:write", "review")
    answer = call("POST", f"/v1/keys/{rich['id']}/rotate", key=store_key(api, tenant, "admin"), json={})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")
    assert call("GET", f"/v1/keys/{rich['id']}").json()["previous_secret_until"] is None


def test_keys_are_for_admins(api: Service, call: Call, tenant: str) -> None:
    everything_else = store_key(api, tenant, *(scope for scope in keys.SCOPES if scope != "admin"))
    for method, path in (("GET", ""), ("POST", ""), ("GET", "/key_0"), ("DELETE", "/key_0"), ("POST", "/key_0/rotate")):
        answer = call(method, f"/v1/keys{path}", key=everything_else)
        assert (answer.status_code, answer.json()["scope"]) == (403, "admin")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/scopes"),
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["everything"]}, "/scopes"),
        ({"scopes": "guard"}, "/scopes"),
        ({"scopes": [["guard"]]}, "/scopes"),
        ({"scopes": ["guard"], "name": "n" * 121}, "/name"),
        ({"scopes": ["guard"], "expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"scopes": ["guard"], "tenant": "other"}, "/tenant"),
    ],
)
def test_wrong_wish_makes_no_key(call: Call, body: dict[str, Any], pointer: str) -> None:
    answer = call("POST", "/v1/keys", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.json()["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize("overlap_s", [-1, True, "1", 1.5, 30 * 24 * 3600 + 1])
def test_wrong_overlap_rotates_nothing(call: Call, overlap_s: object) -> None:
    made = make(call, "guard")
    answer = call("POST", f"/v1/keys/{made['id']}/rotate", json={"overlap_s": overlap_s})
    assert answer.status_code == 400
    assert call("GET", f"/v1/keys/{made['id']}").json()["ends_with"] == made["ends_with"]


def test_command_line_makes_a_key_that_ends_and_rotates_it(tmp_path: Path) -> None:
    made = command("keys", "create", "--name", "[/b] cron", "--expires", "90d", data_dir=tmp_path)
    assert made.returncode == 0, made.stderr
    listed = next(line for line in command("keys", "list", data_dir=tmp_path).stdout.splitlines() if "cron" in line)
    assert "[/b] cron" in listed
    assert "live until" in listed
    key_id = listed.strip("│┃ ").split()[0]
    rotated = command("keys", "rotate", key_id, "--overlap", "1h", data_dir=tmp_path)
    assert (rotated.returncode, rotated.stdout.startswith("sgk_")) == (0, True)
    assert rotated.stdout != made.stdout
    database = Database(f"sqlite:///{tmp_path / 'sluicegate.db'}")
    with database.read() as connection:
        now = int(time.time() * 1000)
        for later_ms, secrets in ((0, 2), (2 * 3600 * 1000, 1), (91 * 24 * 3600 * 1000, 0)):
            found = [keys.find(connection, one.stdout.strip(), at_ms=now + later_ms) for one in (made, rotated)]
            assert sum(record is not None for record in found) == secrets
    database.close()
