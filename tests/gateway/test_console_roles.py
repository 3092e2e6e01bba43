"""What the console shows and offers follows the reader's role: the audit, and the way back from a decision."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

from gateway.console.routes_overview import PAGE
from gateway.person import Role
from gateway.store import events, people
from gateway.store.engine import Database
from gateway.store.items import now_ms
from tests.gateway.queue_client import Queue, queue_of
from tests.gateway.running import Service

ADMIN_KINDS = ("key.created", "person.changed", "webhook.disabled", "budget.changed", "switch.paused")


@pytest.fixture
def queue(api: Service, name: str) -> Iterator[Queue]:
    with queue_of(api, name) as made:
        yield made


Read = Callable[[Role, str], str]


@pytest.fixture
def read(api: Service, queue: Queue) -> Iterator[Read]:
    """A page of the console as somebody of a role sees it."""
    browsers: dict[Role, httpx.Client] = {}

    def browser(role: Role) -> httpx.Client:
        tenant, limits = queue.tenant, people.SessionLimits(idle_ms=1, total_ms=3_600_000)
        person = queue.database.transact(
            lambda c: people.add(c, tenant=tenant, name=f"{tenant}-{role}", role=role, password_hash="-", at_ms=1)
        )
        cookie = queue.database.transact(lambda c: people.start_session(c, person, at_ms=now_ms(c), limits=limits))
        client = api.client()
        client.cookies.set("sluicegate_session", cookie)
        return client

    def seen(role: Role, path: str = "/console/audit") -> str:
        client = browsers.setdefault(role, browsers.get(role) or browser(role))
        answer = client.get(path)
        assert answer.status_code == 200
        return answer.text

    yield seen
    for client in browsers.values():
        client.close()


def happen(database: Database, tenant: str, kind: str, body: Mapping[str, Any]) -> None:
    told = {"by": "person:root", **body}
    database.transact(
        lambda c: events.append(c, tenant=tenant, kind=kind, resource="r_1", version=1, at_ms=now_ms(c), body=told)
    )


@pytest.mark.parametrize(("role", "sees_all"), [(Role.VIEWER, False), (Role.LEAD, False), (Role.ADMIN, True)])
def test_audit_tells_a_role_what_it_may_read(queue: Queue, read: Read, role: Role, sees_all: bool) -> None:
    case = queue.raised()
    said = {"scopes": ["guard", "admin"], "reason": "<b>spring</b>", "disabled": True}
    for kind in ADMIN_KINDS:
        happen(queue.database, queue.tenant, kind, said)
    shown = read(role, "/console/audit")
    assert f"/console/review/{case}" in shown
    told = [kind for kind in ADMIN_KINDS if f"<b>{kind.replace('.', ' ')}</b>" in shown]
    assert told == (list(ADMIN_KINDS) if sees_all else [])
    assert ("scopes guard, admin" in shown, "&lt;b&gt;spring" in shown) == (sees_all, sees_all)
    assert "<b>spring" not in shown


def test_pages_of_the_audit_show_each_line_once_whatever_it_is_about(queue: Queue, read: Read) -> None:
    cases = [queue.raised() for _ in range(3)]
    for number in range(PAGE):
        happen(queue.database, queue.tenant, "budget.changed", {"tenant": f"number-{number}-"})
    cases += [queue.raised() for _ in range(3)]
    shown, path, pages = "", "/console/audit", 0
    while path:
        found = read(Role.ADMIN, path)
        shown, pages = shown + found, pages + 1
        link = re.search(r'class="more" href="([^"]+)"', found)
        path = link[1].replace("&amp;", "&") if link else ""
    assert pages == 2
    lines = [f"number-{number}-" for number in range(PAGE)] + [f"/console/review/{case}" for case in cases]
    assert {line: shown.count(line) for line in lines} == dict.fromkeys(lines, 1)


@pytest.mark.parametrize(
    ("undo_s", "role", "is_offered"),
    [(60, Role.REVIEWER, False), (60, Role.LEAD, True), (0, Role.REVIEWER, True), (0, Role.VIEWER, False)],
)
def test_colleague_is_offered_to_reopen_a_case_once_its_decision_cannot_be_undone(
    queue: Queue, read: Read, undo_s: float, role: Role, is_offered: bool
) -> None:
    case = queue.raised()
    queue.decided(case, "reject_item", message="Too dark.", undo_s=undo_s)
    shown = read(role, f"/console/review/{case}")
    assert (f'action="/console/review/{case}/reopen"' in shown) == is_offered
