"""People at the console: logging in and out, what each role may do, and how rights end."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from starlette.datastructures import Headers
from typer.testing import CliRunner

from gateway import credentials, passwords
from gateway.api.auth import Authenticator, csrf_of
from gateway.api.problems import ApiProblem
from gateway.api.sessions import safe_next, session_cookie
from gateway.cli.app import app
from gateway.ids import new_id
from gateway.person import Role
from gateway.store import logins, people
from gateway.store.engine import Database
from gateway.store.logins import Attempt
from gateway.store.tables import escalations, login_attempts, sessions
from gateway.store.tables import people as people_table
from tests.gateway.conftest import store_key
from tests.gateway.running import Service, bearer, environment, running, until
from tests.gateway.sse import stream

PASSWORD = "correct horse battery"
HASHED = passwords.hashed(PASSWORD)
"""Once for all people of these tests: hashing is slow on purpose."""


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The API where nobody is let in without a key or a login."""
    folder = tmp_path_factory.mktemp("locked")
    with running("serve", folder, default_wait_s=0, require_login="true") as started:
        yield started


@pytest.fixture(scope="module")
def rows(locked: Service) -> Iterator[Database]:
    """Its database."""
    database = Database(f"sqlite:///{locked.data_dir / 'sluicegate.db'}")
    yield database
    database.close()


@dataclass
class Browser:
    """Somebody's browser."""

    client: httpx.Client
    name: str
    csrf: str = ""

    def log_in(self, password: str = PASSWORD, **fields: str) -> httpx.Response:
        form = {"name": self.name, "password": password, **fields}
        answer = self.client.post("/console/login", data=form, headers={"Accept": "application/json"})
        if answer.status_code == 200:
            self.csrf = answer.json()["csrf"]
        return answer

    def come_in(self, rows: Database) -> None:
        """As after a login, without the hashing that makes it slow."""
        at_ms = int(time.time() * 1000)
        limits = people.SessionLimits(idle_ms=1, total_ms=12 * 3600 * 1000)
        token = rows.transact(lambda c: people.start_session(c, record(rows, self), at_ms=at_ms, limits=limits))
        self.client.cookies.set("sluicegate_session", token)
        self.csrf = csrf_of(token)

    def post(self, path: str, csrf: str | None = None, **options: Any) -> httpx.Response:
        headers = {"X-CSRF-Token": self.csrf if csrf is None else csrf, **options.pop("headers", {})}
        return self.client.post(path, headers=headers, **options)


Visit = Callable[..., Browser]


@pytest.fixture
def visit(locked: Service, rows: Database, name: str) -> Visit:
    """Makes somebody with a role, who is logged in."""

    def add(role: Role = Role.REVIEWER, tenant: str = "shop", *, is_logged_in: bool = True) -> Browser:
        called = f"{name}-{role.value}"
        rows.transact(lambda c: people.add(c, tenant=tenant, name=called, role=role, password_hash=HASHED, at_ms=1))
        browser = Browser(locked.client(), called)
        if is_logged_in:
            browser.come_in(rows)
        return browser

    return add


def record(rows: Database, browser: Browser) -> people.PersonRecord:
    with rows.read() as connection:
        found = people.find(connection, browser.name)
    assert found is not None
    return found[0]


# --- without a login -------------------------------------------------------------------------------------------------


def test_page_sends_to_the_login_and_comes_back(locked: Service, visit: Visit) -> None:
    someone = visit(is_logged_in=False)
    asked = someone.client.get("/console/review/esc_1?tab=trace")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/console/login?next=%2Fconsole%2Freview%2Fesc_1%3Ftab%3Dtrace"
    form = {"name": someone.name.upper(), "password": PASSWORD, "next": "/console/review/esc_1?tab=trace"}
    answer = someone.client.post("/console/login", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/review/esc_1?tab=trace")


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {}),
        ("GET", {"Sec-Fetch-Mode": "cors"}),
        ("GET", {"HX-Request": "true"}),
        ("PUT", {"Accept": "text/html"}),
    ],
)
def test_what_is_no_page_gets_a_401(locked: Service, method: str, headers: dict[str, str]) -> None:
    with locked.client() as client:
        answer = client.request(method, "/console/anything", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def test_service_says_whether_it_asks_for_a_login(locked: Service, api_client: httpx.Client) -> None:
    assert api_client.get("/v1/meta").json()["keyless"] is True
    with locked.client() as client:
        assert client.get("/v1/meta").status_code == 401
        key = store_key(locked, "shop")
        assert client.get("/v1/meta", headers=bearer(key)).json()["keyless"] is False


def test_description_says_of_every_operation_who_may_call_it(
    locked: Service, api_client: httpx.Client, visit: Visit
) -> None:
    keyless = api_client.get("/openapi.json").json()
    someone = visit(Role.ADMIN, "default")
    key = store_key(locked, "default")
    with locked.client() as client:
        document = client.get("/openapi.json").json()
        schemes = document["components"]["securitySchemes"]
        token = client.post("/v1/stream-tokens", headers=bearer(key)).json()["token"]
        found = Counter[str]()
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                ways = [sorted(way) for way in operation["security"]]
                assert set().union(*ways) <= set(schemes)
                assert keyless["paths"][path][method]["security"] == operation["security"] + ([{}] if ways else [])
                url = re.sub(r"{\w+}", "zzz_0", path)
                refused = client.request(method, url).status_code == 401
                assert refused == bool(ways), (method, path)
                found.update("+".join(way) for way in ways)
                if method == "get" and path != "/v1/events":
                    assert client.get(url, headers=bearer(key)).status_code not in {401, 403}, path
                    assert someone.client.get(url).status_code not in {401, 403}, path
        changes = sum(method != "get" for methods in document["paths"].values() for method in methods)
        operations = sum(len(methods) for methods in document["paths"].values())
        assert found == {
            "key": operations - 2, "session": operations - 2 - changes, "csrf+session": changes, "stream_token": 2,
        }  # fmt: skip
        assert [client.get("/v1/events", params={"token": token}).status_code for _ in range(2)] == [200, 401]
    name, header = schemes["session"]["name"], schemes["csrf"]["name"]
    body = {"name": None, "scopes": ["items:read"]}
    with locked.client() as browser:
        browser.cookies.set(name, someone.client.cookies[name])
        assert browser.post("/v1/keys", json=body).json()["reason"] == "csrf"
        assert browser.post("/v1/keys", json=body, headers={header: someone.csrf}).status_code == 201
    assert "runs keyless" in keyless["info"]["description"]
    assert "may run keyless" in document["info"]["description"]


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("/console/items", "/console/items"),
        ("/console/?a=b&c=d", "/console/?a=b&c=d"),
        (None, "/console/"),
        ("https://evil.example/console/", "/console/"),
        ("//evil.example/console/", "/console/"),
        ("/\\evil.example", "/console/"),
        ("/console/../v1/keys", "/console/"),
        ("/v1/items", "/console/"),
        ("/console/login?next=/console/login", "/console/"),
        ("/console/\r\nSet-Cookie: a=b", "/console/"),
        ("javascript:alert(1)", "/console/"),
        ("/consolex", "/console/"),
    ],
)
def test_after_the_login_nobody_is_sent_elsewhere(wanted: str | None, place: str) -> None:
    assert safe_next(wanted) == place


# --- the session's cookie and every answer's headers ------------------------------------------------------------------


def test_cookie_is_kept_from_scripts_and_other_sites(visit: Visit) -> None:
    cookie = visit(is_logged_in=False).log_in().headers["set-cookie"]
    assert re.fullmatch(r"sluicegate_session=[\w-]{40,}; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax", cookie), (
        "plain HTTP on this machine: not Secure, or the browser would not keep it"
    )


@pytest.mark.parametrize(
    ("scheme", "host", "is_secure"),
    [
        ("http", "127.0.0.1:8080", False),
        ("http", "localhost", False),
        ("http", "[::1]:8080", False),
        ("https", "127.0.0.1", True),
        ("https", "gate.example", True),
        ("http", "gate.example:8080", True),
        ("http", "127.0.0.1.evil.example", True),
    ],
)
def test_cookie_is_secure_wherever_it_leaves_the_machine(scheme: str, host: str, is_secure: bool) -> None:
    scope = {"type": "http", "scheme": scheme, "headers": Headers({"host": host}).raw}
    assert session_cookie("t", scope, lasts_s=60).endswith("; Secure") is is_secure


@pytest.mark.parametrize("path", ["/console/", "/console/login", "/console/static/none.css", "/console/none"])
def test_every_answer_of_the_console_is_closed_to_scripts_and_frames_of_others(visit: Visit, path: str) -> None:
    someone = visit()
    for answer in (someone.client.get(path), someone.client.post(path)):
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in str(policy)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"


def test_session_is_stored_as_a_hash(locked: Service, visit: Visit) -> None:
    someone = visit()
    stored = b"".join(path.read_bytes() for path in locked.data_dir.glob("sluicegate.db*"))
    for secret in (someone.client.cookies["sluicegate_session"], someone.csrf, PASSWORD):
        assert secret.encode() not in stored


# --- what a session may do ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("csrf", "headers", "status", "reason"),
    [
        (None, {}, 202, None),
        (None, {"Sec-Fetch-Site": "same-origin"}, 202, None),
        ("", {}, 403, "csrf"),
        ("wrong", {}, 403, "csrf"),
        (None, {"Sec-Fetch-Site": "cross-site"}, 403, "origin"),
        (None, {"Sec-Fetch-Site": "same-site"}, 403, "origin"),
        (None, {"Origin": "https://evil.example"}, 403, "origin"),
        (None, {"Origin": "null"}, 403, "origin"),
    ],
)
def test_change_over_the_api_needs_the_token_of_the_own_page(
    visit: Visit, csrf: str | None, headers: dict[str, str], status: int, reason: str | None
) -> None:
    answer = visit().post("/v1/items", csrf=csrf, json={"title": new_id("t")}, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json().get("reason") == reason


def test_form_of_a_page_needs_the_token_in_a_field_or_a_header(visit: Visit) -> None:
    someone = visit()
    for fields in ({}, {"csrf": ""}, {"csrf": "wrong"}, {"csrf": visit(Role.LEAD).csrf}):
        answer = someone.client.post("/console/logout", data=fields)
        assert (answer.status_code, answer.json()["reason"]) == (403, "csrf")
    assert someone.client.get("/v1/items").status_code == 200
    assert someone.client.post("/console/logout", data={"csrf": someone.csrf}).status_code == 303
    assert someone.client.get("/v1/items").status_code == 401


def test_token_outweighs_the_cookie(locked: Service, visit: Visit) -> None:
    someone = visit(Role.ADMIN)
    headers = bearer(store_key(locked, "elsewhere", "items:read"))
    assert someone.client.get("/v1/keys", headers=headers).status_code == 403
    assert someone.client.get("/v1/items", headers=bearer("sgk_wrong")).status_code == 401


ALLOWED = {
    ("GET", "/v1/items"): {Role.VIEWER, Role.REVIEWER, Role.LEAD, Role.ADMIN},
    ("POST", "/v1/items"): {Role.REVIEWER, Role.LEAD, Role.ADMIN},
    ("GET", "/v1/escalations"): {Role.REVIEWER, Role.LEAD, Role.ADMIN},
    ("GET", "/v1/users"): {Role.ADMIN},
    ("GET", "/v1/keys"): {Role.ADMIN},
    ("GET", "/metrics"): {Role.ADMIN},
}


@pytest.mark.parametrize("role", Role)
def test_role_says_what_a_person_may_do(visit: Visit, role: Role) -> None:
    someone = visit(role)
    for (method, path), roles in ALLOWED.items():
        options = {"json": {"title": "t"}} if method == "POST" else {}
        answer = someone.client.request(method, path, headers={"X-CSRF-Token": someone.csrf}, **options)
        assert (answer.status_code < 300) is (role in roles), (method, path, answer.text)
        if role not in roles:
            assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")


def test_nobody_who_is_logged_in_acts_under_another_name(visit: Visit) -> None:
    answer = visit(Role.ADMIN).post("/v1/escalations/claim-next", json={}, headers={"On-Behalf-Of": "boss"})
    assert (answer.status_code, answer.json()["scope"]) == (403, "review:delegate")


def test_deed_stands_under_the_persons_name_in_the_history(visit: Visit, rows: Database) -> None:
    someone = visit()
    item = someone.post("/v1/items", json={"title": new_id("t")}).json()
    with rows.read() as connection:
        actor = connection.execute(sa.text("SELECT actor FROM history WHERE item_id = :id"), {"id": item["id"]})
        assert actor.scalars().first() == f"person:{someone.name}"


def test_person_sees_the_own_tenant_alone(visit: Visit, locked: Service) -> None:
    someone, other = visit(Role.ADMIN, "one"), visit(Role.REVIEWER, "two")
    item = someone.post("/v1/items", json={"title": new_id("t")}).json()
    assert someone.client.get(f"/v1/items/{item['id']}").status_code == 200
    assert other.client.get(f"/v1/items/{item['id']}").status_code == 404
    listed = someone.client.get("/v1/users").json()["users"]
    assert other.name not in {user["name"] for user in listed}


SETTINGS = (
    "switches", "keys", "keys/key_1/rotate", "keys/key_1/revoke", "webhooks", "webhooks/whe_1/status", "webhooks/whe_1/rotate",
    "webhooks/whe_1/test", "webhooks/whe_1/delete", "deliveries/whd_1/redeliver", "people", "people/usr_1",
)  # fmt: skip
CHANGES = {
    **dict.fromkeys(
        ("next", "bulk/decide", "groups/grp_1/decide", "groups/grp_1/split", "items/itm_1/retry"), Role.REVIEWER
    ),
    **{
        f"review/esc_1/{verb}": Role.LEAD if verb == "takeover" else Role.REVIEWER
        for verb in ("claim", "release", "heartbeat", "decide", "undo", "note", "reopen", "takeover")
    },
    **{f"settings/{path}": Role.ADMIN for path in SETTINGS},
}
"""What is changed on the console's pages, and the least role for it."""


@pytest.mark.parametrize("role", Role)
def test_page_asks_for_the_role_and_what_is_not_there_is_no_fault_of_the_service(visit: Visit, role: Role) -> None:
    someone = visit(role)
    fields = {"note": "a note", "reason": "a reason", "ids": "esc_1", "version": "1", "expected_count": "many"}
    for path, least in CHANGES.items():
        answer = someone.post(f"/console/{path}", data=fields)
        if role.includes(least):
            assert answer.status_code in {303, 400, 404, 409, 422}, (path, answer.status_code)
        else:
            assert answer.status_code == 403, (path, answer.status_code)


def test_only_an_admin_of_all_tenants_pauses_the_service_on_its_page(visit: Visit) -> None:
    fields = {"switch": "new_work", "paused": "yes"}
    page = visit(Role.ADMIN, "shop").post("/console/settings/switches", data=fields)
    assert page.status_code == 422
    assert visit(Role.REVIEWER, "shop").post("/v1/items", json={"title": new_id("t")}).status_code == 202


def test_nobody_learns_who_looks_at_a_case_of_another_tenant(visit: Visit) -> None:
    assert visit(Role.REVIEWER).post("/console/review/esc_1/looking", data={}).status_code == 404


@pytest.mark.parametrize("query", ["q=%00", "q=a%00b"])
def test_nul_character_is_refused_in_addresses_and_forms_of_pages(visit: Visit, query: str) -> None:
    someone = visit(Role.REVIEWER)
    assert someone.client.get(f"/console/items?{query}").status_code == 400
    assert someone.post("/console/review/esc_1/note", data={"note": "a\x00b"}).status_code == 400


# --- how a session ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["seen_ms", "expires_ms"])
def test_session_ends_after_idleness_and_after_its_whole_time(visit: Visit, rows: Database, column: str) -> None:
    someone = visit()
    hashed = people.token_hash(someone.client.cookies["sluicegate_session"])
    assert someone.client.get("/v1/items").status_code == 200
    passed = {"seen_ms": 4 * 3600 * 1000, "expires_ms": 12 * 3600 * 1000}[column]
    rows.transact(
        lambda c: c.execute(
            sessions.update()
            .where(sessions.c.token_hash == hashed)
            .values({column: sessions.c[column] - passed - 1000})
        )
    )
    assert someone.client.get("/v1/items").status_code == 401
    page = someone.client.get("/console/")
    assert (page.status_code, "error" in page.headers["location"]) == (303, False)


def test_new_login_in_the_same_browser_ends_the_session_before(visit: Visit, locked: Service) -> None:
    someone = visit()
    cookie = f"sluicegate_session={someone.client.cookies['sluicegate_session']}"
    assert someone.log_in().status_code == 200
    with locked.client(headers={"Cookie": cookie}) as thief:
        assert thief.get("/v1/items").status_code == 401
    assert someone.client.get("/v1/items").status_code == 200


def test_use_keeps_a_session_alive(visit: Visit, rows: Database) -> None:
    someone = visit()
    hashed = people.token_hash(someone.client.cookies["sluicegate_session"])
    own = sessions.c.token_hash == hashed
    rows.transact(
        lambda c: c.execute(sessions.update().where(own).values(seen_ms=sessions.c.seen_ms - 3 * 3600 * 1000))
    )
    assert someone.client.get("/v1/items").status_code == 200
    with rows.read() as connection:
        seen_ms = connection.execute(sa.select(sessions.c.seen_ms).where(own)).scalar_one()
    assert time.time() * 1000 - seen_ms < 60_000


def test_logging_out_everywhere_ends_the_other_browsers_too(visit: Visit, locked: Service, rows: Database) -> None:
    here = visit()
    there = Browser(locked.client(), here.name)
    there.come_in(rows)
    here.post("/console/logout", data={"everywhere": "1"})
    for browser in (here, there):
        assert browser.client.get("/v1/items").status_code == 401


ENDINGS = {
    "role_changed": {"role": Role.VIEWER},
    "password_changed": {"password": "another long one"},
    "disabled": {"is_disabled": True},
}


@pytest.mark.parametrize("reason", ENDINGS)
def test_session_of_changed_rights_ends_at_once_and_says_why(visit: Visit, rows: Database, reason: str) -> None:
    someone = visit(Role.LEAD)
    credentials.change_person(rows, record(rows, someone), by="operator", **ENDINGS[reason])  # type: ignore[arg-type]
    answer = someone.client.get("/v1/items")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_revoked")
    assert answer.json()["reason"] == reason
    page = someone.client.get("/console/")
    assert (page.status_code, f"error={reason}" in page.headers["location"]) == (303, True)
    password = {"password_changed": "another long one"}.get(reason, PASSWORD)
    assert someone.log_in(password).status_code == (401 if reason == "disabled" else 200)


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({"role": Role.VIEWER}, False),
        ({"is_disabled": True}, False),
        ({"role": Role.LEAD}, True),
        ({"password": "another long one"}, True),
    ],
)
def test_cases_of_who_may_decide_no_longer_go_back(
    visit: Visit, rows: Database, change: dict[str, Any], is_kept: bool
) -> None:
    someone = visit()
    case_id = f"esc_{someone.name}"
    far = int(time.time() * 1000) + 600_000
    values = {
        "id": case_id, "tenant": "shop", "attempt": 1, "profile": "p", "reason": "r", "group_key": "g", "packet": {},
        "status": "claimed", "holder": f"person:{someone.name}", "lease_token": "t", "lease_expires_ms": far,
        "created_ms": 1, "updated_ms": 1, "due_ms": far, "expires_ms": far,
    }  # fmt: skip
    rows.transact(lambda c: c.execute(escalations.insert(), values))
    credentials.change_person(rows, record(rows, someone), by="operator", **change)
    with rows.read() as connection:
        row = connection.execute(sa.select(escalations).where(escalations.c.id == case_id)).one()
    assert (row.status, row.holder) == (("claimed", f"person:{someone.name}") if is_kept else ("open", None))
    rows.transact(lambda c: c.execute(escalations.delete().where(escalations.c.id == case_id)))


def test_own_password_is_changed_with_the_current_one_and_ends_the_other_sessions(
    visit: Visit, locked: Service
) -> None:
    here = visit()
    there = Browser(locked.client(), here.name)
    there.log_in()
    json = {"Accept": "application/json"}
    for fields, status in (
        ({"current": "wrong", "password": "a new long one"}, 401),
        ({"current": PASSWORD, "password": "short"}, 400),
        ({"current": PASSWORD, "password": "a new long one"}, 200),
    ):
        assert here.post("/console/password", data=fields, headers=json).status_code == status
    assert here.client.get("/v1/items").status_code == 200
    assert there.client.get("/v1/items").status_code == 403
    assert there.log_in("a new long one").status_code == 200


def test_stream_of_a_persons_page_ends_with_their_rights(visit: Visit, rows: Database, locked: Service) -> None:
    someone = visit()
    cookie = f"Cookie: sluicegate_session={someone.client.cookies['sluicegate_session']}"
    with stream(locked.port, "/v1/events", cookie) as opened:
        assert opened.status == 200
        opened.next()
        credentials.change_person(rows, record(rows, someone), by="operator", role=Role.VIEWER)
        while opened.next(15) is not None:
            continue
    with stream(locked.port, "/v1/events", cookie) as again:
        assert again.status == 403


# --- guessing ------------------------------------------------------------------------------------------------------------


def test_unknown_name_wrong_password_and_disabled_account_look_alike(visit: Visit, rows: Database) -> None:
    wrong, disabled = visit(), visit(Role.LEAD, is_logged_in=False)
    credentials.change_person(rows, record(rows, disabled), by="operator", is_disabled=True)
    unknown = Browser(wrong.client, "nobody-at-all")
    answers = [wrong.log_in("not it at all"), disabled.log_in(), unknown.log_in()]
    told = [{k: v for k, v in answer.json().items() if k != "request_id"} for answer in answers]
    assert told[0] == told[1] == told[2]
    assert {answer.status_code for answer in answers} == {401}
    form = {"name": "nobody-at-all", "password": "x"}
    page = unknown.client.post("/console/login", data=form)
    assert page.headers["location"] == "/console/login?next=%2Fconsole%2F&error=credentials"


def test_password_is_looked_at_even_where_there_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    hasher = passwords._HASHER

    class Watching:
        def verify(self, stored: str, password: str) -> bool:
            looked.append(stored)
            return hasher.verify(stored, password)

        def hash(self, password: str) -> str:
            return hasher.hash(password)

    monkeypatch.setattr(passwords, "_HASHER", Watching())
    assert passwords.matches(None, PASSWORD) is False
    assert passwords.matches(HASHED, PASSWORD) is True
    assert passwords.matches(HASHED, "wrong") is False
    parameters = [stored.split("$")[:4] for stored in looked]
    assert parameters[0] == parameters[1] == parameters[2]


def test_guesses_at_an_account_end_whoever_makes_them_and_a_restart_forgives_nothing(tmp_path: Path, name: str) -> None:
    with running("serve", tmp_path, require_login="true") as service:
        database = Database(f"sqlite:///{tmp_path / 'sluicegate.db'}")
        database.transact(
            lambda c: people.add(c, tenant="t", name=name, role=Role.ADMIN, password_hash=HASHED, at_ms=1)
        )
        browser = Browser(service.client(), name)
        assert browser.log_in("wrong").status_code == 401
        assert browser.log_in().status_code == 200, "which starts the account afresh"
        attempt = Attempt(people.login_of(name), "10.0.0.1")
        for _ in range(logins.PER_ACCOUNT - 2):
            database.transact(lambda c: logins.begin(c, attempt, at_ms=int(time.time() * 1000)))
        told: list[int] = []
        threads = [threading.Thread(target=lambda: told.append(browser.log_in("wrong").status_code)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == [401] * 2 + [429] * 6, "attempts at the same time do not slip through"
        refused = browser.log_in()
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    with running("serve", tmp_path, require_login="true") as service:
        browser = Browser(service.client(), name)
        refused = browser.log_in()
        assert refused.status_code == 429, "the right password does not help before the time is over"
        assert 0 < int(refused.headers["retry-after"]) <= 900
        page = browser.client.post("/console/login", data={"name": name, "password": PASSWORD})
        assert re.search(r"error=throttled&wait=\d+$", page.headers["location"])
        database.transact(
            lambda c: c.execute(login_attempts.update().values(since_ms=login_attempts.c.since_ms - 901_000))
        )
        assert browser.log_in().status_code == 200
    database.close()


def test_attempts_are_counted_by_account_and_by_address(database: Database) -> None:
    def begin(account: str, address: str, at_ms: int = 1000) -> int | None:
        return database.transact(lambda c: logins.begin(c, Attempt(account, address), at_ms=at_ms))

    assert [begin("li", f"10.0.0.{n}") for n in range(logins.PER_ACCOUNT)] == [None] * logins.PER_ACCOUNT
    assert begin("li", "10.0.0.99", at_ms=2000) == logins.WINDOW_MS - 1000
    assert begin("wang", "10.0.0.99") is None
    assert [begin(f"n{n}", "10.9.9.9") for n in range(logins.PER_ADDRESS)] == [None] * logins.PER_ADDRESS
    assert begin("zhao", "10.9.9.9") is not None
    assert begin("zhao", "10.0.0.77") is None
    assert begin("li", "10.0.0.99", at_ms=1000 + logins.WINDOW_MS) is None


def test_right_password_starts_the_account_afresh_and_does_not_charge_the_address(database: Database) -> None:
    attempt = Attempt("li", "10.1.1.1")

    def round_trip() -> int | None:
        waited = database.transact(lambda c: logins.begin(c, attempt, at_ms=1000))
        database.transact(lambda c: logins.succeed(c, attempt))
        return waited

    assert [round_trip() for _ in range(logins.PER_ADDRESS * 2)] == [None] * logins.PER_ADDRESS * 2


# --- managing people -----------------------------------------------------------------------------------------------------


def test_admin_adds_changes_and_disables_people(visit: Visit, name: str) -> None:
    admin = visit(Role.ADMIN)
    answer = admin.post("/v1/users", json={"name": f"{name}-new", "role": "reviewer", "password": PASSWORD})
    assert answer.status_code == 201, answer.text
    user = answer.json()
    assert (user["role"], user["disabled"], answer.headers["etag"]) == ("reviewer", False, '"1"')
    assert PASSWORD not in answer.text
    assert "hash" not in answer.text
    path = answer.headers["location"]
    headers = {"X-CSRF-Token": admin.csrf}
    assert admin.client.patch(path, json={"role": "lead"}, headers=headers).status_code == 428
    stale = admin.client.patch(path, json={"role": "lead"}, headers={**headers, "If-Match": '"9"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "conflict_version")
    changed = admin.client.patch(path, json={"role": "lead"}, headers={**headers, "If-Match": '"1"'})
    assert (changed.json()["role"], changed.headers["etag"]) == ("lead", '"2"')
    disabled = admin.client.patch(path, json={"disabled": True}, headers={**headers, "If-Match": '"2"'})
    assert disabled.json()["disabled"] is True
    told = [
        event for event in admin.client.get("/v1/events?limit=200").json()["events"] if event["resource"] == user["id"]
    ]
    assert [event["type"] for event in told] == ["person.added", "person.changed", "person.changed"]
    assert told[0]["data"]["by"] == f"person:{admin.name}"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "role": "reviewer", "password": "short"}, "/password"),
        ({"name": "x", "role": "reviewer", "password": "aaaaaaaaaaaa"}, "/password"),
        ({"name": "longer-name", "role": "reviewer", "password": "Longer-Name"}, "/password"),
        ({"name": "x y", "role": "reviewer", "password": PASSWORD}, "/name"),
        ({"name": "<b>", "role": "reviewer", "password": PASSWORD}, "/name"),
        ({"name": "x", "role": "king", "password": PASSWORD}, "/role"),
        ({"name": "x", "role": "reviewer", "password": PASSWORD, "admin": True}, "/admin"),
        ({"name": "{taken}", "role": "reviewer", "password": PASSWORD}, "/name"),
    ],
)
def test_person_that_cannot_be_is_not_made(visit: Visit, body: dict[str, Any], field: str) -> None:
    admin = visit(Role.ADMIN)
    body["name"] = body["name"].replace("{taken}", admin.name.upper())
    answer = admin.post("/v1/users", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, field)


def test_nobody_takes_their_own_role_away(visit: Visit, rows: Database) -> None:
    admin = visit(Role.ADMIN)
    own = record(rows, admin)
    for body in ({"role": "viewer"}, {"disabled": True}):
        headers = {"X-CSRF-Token": admin.csrf, "If-Match": f'"{own.version}"'}
        answer = admin.client.patch(f"/v1/users/{own.id}", json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "action_not_allowed")


def test_key_makes_nobody_who_may_do_more_than_it(locked: Service, visit: Visit, rows: Database, name: str) -> None:
    boss = visit(Role.ADMIN)
    headers = bearer(store_key(locked, "shop", "admin", "items:read"))
    with locked.client() as client:
        body = {"name": name, "role": "reviewer", "password": PASSWORD}
        assert client.post("/v1/users", json=body, headers=headers).json()["scope"] == "items:write"
        own = record(rows, boss)
        taking_over = client.patch(
            f"/v1/users/{own.id}", json={"password": "my own long one"}, headers={**headers, "If-Match": "*"}
        )
        assert taking_over.status_code == 403
        assert client.post("/v1/users", json={**body, "role": "viewer"}, headers=headers).status_code == 201


# --- the command line -----------------------------------------------------------------------------------------------------


def users(data_dir: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", "users", *arguments],
        env=environment(data_dir, {}), input=typed, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_people_are_managed_on_the_command_line(locked: Service, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    made = users(
        locked.data_dir, "add", name, "--role", "lead", "--tenant", "shop", "--password-stdin", typed=f"{PASSWORD}\n"
    )
    assert made.returncode == 0, made.stderr
    assert PASSWORD not in made.stdout + made.stderr
    browser = Browser(locked.client(), name)
    assert browser.log_in().json()["role"] == "lead"
    monkeypatch.setenv("SLUICEGATE_DATA_DIR", str(locked.data_dir))

    def run(*arguments: str, typed: str = "") -> str:
        ran = CliRunner().invoke(app, ["users", *arguments], input=typed)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    run("set-role", name, "viewer")
    assert browser.client.get("/v1/items").status_code == 403
    run("set-password", name, "--password-stdin", typed="another long one")
    assert browser.log_in("another long one").json()["role"] == "viewer"
    run("disable", name)
    assert browser.log_in("another long one").status_code == 401
    row = next(line for line in run("list").splitlines() if name in line)
    assert "viewer" in row
    assert "disabled" in row
    run("enable", name)
    assert browser.log_in("another long one").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "typed", "status", "named"),
    [
        (("add", "li"), "", 2, "--password-stdin"),
        (("add", "li", "--password-stdin"), "short\n", 2, "10 to 256"),
        (("add", "l i", "--password-stdin"), f"{PASSWORD}\n", 2, "letters"),
        (("add", "li", "--role", "king", "--password-stdin"), f"{PASSWORD}\n", 2, "king"),
        (("set-role", "nobody", "lead"), "", 1, "nobody"),
        (("disable", "nobody"), "", 1, "nobody"),
    ],
)
def test_wrong_command_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], typed: str, status: int, named: str
) -> None:
    monkeypatch.setenv("SLUICEGATE_DATA_DIR", str(tmp_path))
    ran = CliRunner().invoke(app, ["users", *arguments], input=typed)
    assert (ran.exit_code, ran.stdout) == (status, "")
    assert named in ran.stderr


def test_service_opens_to_the_network_once_somebody_can_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SLUICEGATE_HOST", "0.0.0.0")
    refused = CliRunner().invoke(app, ["serve"])
    assert (refused.exit_code, "sluicegate users add" in refused.stderr) == (2, True)
    database = Database(f"sqlite:///{tmp_path / 'sluicegate.db'}")
    database.transact(lambda c: people.add(c, tenant="t", name="li", role=Role.ADMIN, password_hash=HASHED, at_ms=1))
    with running("serve", tmp_path, host="0.0.0.0") as service, service.client() as client:
        assert client.get("/console/").status_code == 303
    database.transact(lambda c: c.execute(people_table.update().values(disabled_ms=1)))
    database.close()
    assert CliRunner().invoke(app, ["serve"]).exit_code == 2


# --- without keys, on this machine -------------------------------------------------------------------------------------------


def test_keyless_page_needs_its_token_too(api_client: httpx.Client) -> None:
    page = api_client.get("/console/")
    found = re.search(r'name="csrf"[^>]*value="([\w-]+)"|name="csrf-token" content="([\w-]+)"', page.text)
    assert found, page.text[:2000]
    assert api_client.post("/console/logout", data={}).status_code == 403
    assert api_client.post("/console/logout", data={"csrf": found[1] or found[2]}).status_code == 303
    evil = {"Origin": "https://evil.example"}
    assert api_client.post("/console/logout", data={"csrf": found[1] or found[2]}, headers=evil).status_code == 403


def test_keyless_page_can_still_be_sent_after_a_restart(database: Database) -> None:
    limits = people.SessionLimits(idle_ms=1000, total_ms=1000)
    processes = [Authenticator(database, keyless=True, limits=limits) for _ in range(2)]
    first, second = (process.keyless().person for process in processes)
    assert first == second
    assert first.is_keyless
    with pytest.raises(ApiProblem, match="unauthenticated"):
        Authenticator(database, keyless=False, limits=limits).keyless()


def test_keyless_service_takes_a_login_too(api: Service, name: str) -> None:
    database = Database(f"sqlite:///{api.data_dir / 'sluicegate.db'}")
    database.transact(
        lambda c: people.add(c, tenant="shop", name=name, role=Role.VIEWER, password_hash=HASHED, at_ms=1)
    )
    database.close()
    browser = Browser(api.client(), name)
    page = browser.client.get("/console/login")
    assert 'type="password"' in page.text
    assert browser.log_in().status_code == 200
    assert browser.client.get("/v1/keys").status_code == 403
    browser.post("/console/logout")
    until(lambda: browser.client.get("/v1/keys").status_code == 200)
