"""An operator pauses new work or all requests to the model: every process obeys, and nothing is held against an item."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.agent.estimate import Estimate
from gateway.agent.journal import Journal
from gateway.guarding.requests import CallRequest, NewRunRequest
from gateway.guarding.runs import GuardRuns
from gateway.item import Lease
from gateway.store import events, items, steps, switches
from gateway.store.engine import Database
from gateway.store.steps import StepKind
from gateway.store.switches import Switch
from gateway.store.tables import items as items_table
from gateway.switches import ModelCallsPaused, SwitchBoard
from tests import media
from tests.contracts.queue import new_item
from tests.gateway.conftest import store_key
from tests.gateway.model_stub import ModelStub, Scripted, completion, model_server
from tests.gateway.running import Service, bearer, command, running, settled, start, until

FREE = Estimate(0, 0, Decimal(0))


def turn(database: Database, switch: Switch, *, is_paused: bool, reason: str | None = None) -> bool:
    return database.transact(lambda c: switches.turn(c, switch, is_paused=is_paused, reason=reason, by="test"))


def waiting_item(database: Database, *, route: str | None) -> str:
    new = new_item()

    def write(connection: Any) -> None:
        items.insert(connection, new, actor="test", at_ms=items.now_ms(connection))
        connection.execute(items_table.update().where(items_table.c.id == new.id).values(route=route))

    database.transact(write)
    return new.id


# --- on both databases ---


def test_each_turn_of_a_switch_is_kept_with_who_and_why_and_none_is_told_twice(database: Database) -> None:
    assert turn(database, Switch.NEW_WORK, is_paused=True, reason="disk swap")
    assert not turn(database, Switch.NEW_WORK, is_paused=True, reason="disk swap")
    assert turn(database, Switch.NEW_WORK, is_paused=False)
    assert not turn(database, Switch.MODEL_CALLS, is_paused=False)
    with database.read() as connection:
        told = events.page(connection, tenant=switches.DEPLOYMENT, after=0, limit=10)
        assert switches.read(connection).new_work.version == 2
    assert [(row.type, row.resource, row.data["by"], row.data["reason"]) for row in told] == [
        ("switch.paused", "new_work", "test", "disk swap"),
        ("switch.resumed", "new_work", "test", None),
    ]


def test_paused_model_calls_leave_what_waits_for_the_model_and_give_out_the_rest(database: Database) -> None:
    judged = waiting_item(database, route="agent")
    fresh = waiting_item(database, route=None)
    for_a_person = waiting_item(database, route="human")

    def take(may_write: bool) -> str | None:
        lease = database.transact(lambda c: items.claim_next(c, owner="w", lease_ms=60_000, may_write=may_write))
        return None if lease is None else lease.item_id

    assert {take(False), take(False)} == {fresh, for_a_person}
    assert take(False) is None
    assert take(True) == judged


def test_request_while_paused_is_neither_written_nor_paid(database: Database) -> None:
    item_id = waiting_item(database, route="agent")
    lease = database.transact(lambda c: items.claim(c, item_id, owner="w", lease_ms=60_000))
    assert isinstance(lease, Lease)
    journal = Journal(database, lease, 1)
    turn(database, Switch.MODEL_CALLS, is_paused=True)
    with pytest.raises(ModelCallsPaused):
        journal.begin_request({"request": 1}, FREE)
    assert journal.rows == []
    turn(database, Switch.MODEL_CALLS, is_paused=False)
    assert journal.begin_request({"request": 1}, FREE).seq == 1


def test_guard_run_stands_still_while_model_calls_are_paused_and_the_time_is_not_its_own(database: Database) -> None:
    board = SwitchBoard(database)
    runs = GuardRuns(database, board)
    tools = [{"name": "look", "effect": "read"}]
    row, _ = runs.open("t", NewRunRequest.model_validate({"agent": "a", "external_run_id": "1", "tools": tools}))

    def ask(call_id: str, which: GuardRuns) -> str:
        call = CallRequest(call_id=call_id, tool="look", args={"at": call_id})
        [answer] = which.before("t", row.id, [call])
        return answer.text

    def pause(is_paused: bool) -> None:
        turn(database, Switch.MODEL_CALLS, is_paused=is_paused)
        board.forget()

    assert '"action":"allow"' in ask("c1", runs)
    pause(True)
    refused = ask("c2", runs)
    assert '"run_paused"' in refused
    assert '"execute":false' in refused
    assert '"run_paused"' in ask("c3", GuardRuns(database, board))  # another process, by the trace alone
    before = runs.read("t", row.id).progress.spent["seconds"]
    pause(False)
    assert '"action":"allow"' in ask("c4", runs)
    spent = runs.read("t", row.id).progress
    assert spent.spent["seconds"] <= before + 0.5
    assert spent.counts["executed"] == 2
    assert ask("c2", runs) == refused


# --- the service ---


@pytest.fixture(scope="module")
def stub() -> Iterator[ModelStub]:
    with model_server() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, stub: ModelStub) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("pause")
    with running("up", folder, model_url=stub.url, model_attempts=1, default_wait_s=0, sweep_s=0.3) as started:
        yield started


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    """Whatever a test pauses goes on after it."""
    with service.client() as made:
        yield made
        switch(made, new_work=False, model_calls=False)


def switch(client: httpx.Client, **paused: bool) -> dict[str, Any]:
    body = {name: {"is_paused": value, "reason": "a test" if value else None} for name, value in paused.items()}
    answer = client.put("/v1/switches", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def submit(client: httpx.Client, title: str, **fields: str) -> httpx.Response:
    return client.post("/v1/items", json={"title": title, **fields})


def test_paused_new_work_refuses_uploads_with_the_reason_and_is_shown(client: httpx.Client, name: str) -> None:
    switch(client, new_work=True)
    answer = submit(client, name)
    assert (answer.status_code, answer.json()["code"], answer.json()["reason"]) == (503, "paused", "a test")
    assert int(answer.headers["retry-after"]) > 0
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["paused"]["status"]) == (200, "paused")
    assert client.get("/v1/meta").json()["paused"]["new_work"]["reason"] == "a test"
    assert client.get("/v1/items").status_code == 200
    switch(client, new_work=False)
    assert until(lambda: submit(client, name).status_code == 202)
    assert client.get("/readyz").json()["checks"]["paused"]["status"] == "ok"


def test_paused_model_calls_let_items_wait_unharmed_while_judging_goes_on(
    client: httpx.Client, stub: ModelStub, name: str
) -> None:
    stub.script()
    switch(client, model_calls=True)
    item_id = submit(client, name).json()["id"]
    tiny = client.post("/v1/items", files={"p1": ("tiny.png", media.thumbnail(), "image/png")}).json()
    assert settled(client, tiny["id"])["status"] == "rejected"
    prepared = submit(client, f"{name} prepared", mode="prepare").json()
    assert settled(client, prepared["id"])["status"] == "ready"

    def judged() -> dict[str, Any] | None:
        item = client.get(f"/v1/items/{item_id}").json()
        return item if item["route"] is not None and item["status"] == "queued" else None

    until(judged)
    assert stub.requests == []
    switch(client, model_calls=False)
    item = settled(client, item_id)
    assert (item["status"], item["claims"], item["attempt"]) == ("succeeded", 1, 1)
    assert item["failure"] is None


def test_run_in_the_middle_waits_after_its_request_and_goes_on_where_it_was(
    client: httpx.Client, service: Service, stub: ModelStub, name: str
) -> None:
    """The answer of the request in flight is kept; the next one is asked after the pause, and only then."""
    stub.script(Scripted(body=completion("no copy").body, delay_s=2.5), completion())
    item_id = client.post(
        "/v1/items", data={"title": name}, files={"p1": ("facts.pdf", media.pdf_text(), "application/pdf")}
    ).json()["id"]
    until(lambda: len(stub.requests) == 1)
    switch(client, model_calls=True)
    until(lambda: client.get(f"/v1/items/{item_id}").json()["reason"] == "model_calls_paused")
    assert len(stub.requests) == 1
    switch(client, model_calls=False)
    item = settled(client, item_id)
    assert (item["status"], item["usage"]["model_calls"], item["claims"]) == ("succeeded", 2, 1)
    database = Database(f"sqlite:///{service.data_dir / 'sluicegate.db'}")
    with database.read() as connection:
        controls = [row.intent["control"] for row in steps.all_of(connection, item_id) if row.kind is StepKind.CONTROL]
    database.close()
    assert [control for control in controls if "pause" in control] == ["pause", "unpause"]


def test_pause_from_the_command_line_survives_a_restart_of_every_process(tmp_path: Path) -> None:
    paused = command("pause", "--reason", "moving house", data_dir=tmp_path)
    assert paused.returncode == 0, paused.stderr
    service = start("serve", tmp_path, default_wait_s=0)
    with service.client() as client:
        refused = submit(client, "Oak table")
        assert (refused.status_code, refused.json()["reason"]) == (503, "moving house")
        assert client.get("/v1/switches").json()["new_work"]["changed_by"].startswith("cli:")
        resumed = command("resume", data_dir=tmp_path)
        assert resumed.returncode == 0, resumed.stderr
        assert until(lambda: submit(client, "Oak table").status_code == 202, within_s=5)
    assert service.stop() == 0


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/"),
        ({"model": {"is_paused": True}}, "/model"),
        ({"new_work": True}, "/new_work"),
        ({"new_work": {"is_paused": "yes"}}, "/new_work"),
        ({"new_work": {"is_paused": True, "why": "x"}}, "/new_work/why"),
        ({"new_work": {"is_paused": True, "reason": "x" * 501}}, "/reason"),
    ],
    ids=["nothing", "unknown", "no object", "no boolean", "unknown field", "too long"],
)
def test_switch_that_is_none_is_a_400_that_names_it(client: httpx.Client, body: dict[str, Any], pointer: str) -> None:
    answer = client.put("/v1/switches", json=body)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert not any(row["is_paused"] for row in client.get("/v1/switches").json().values())


def test_switches_need_the_scope_admin(service: Service, name: str) -> None:
    with service.client(headers=bearer(store_key(service, name, "items:write", "items:read"))) as narrow:
        assert narrow.get("/v1/switches").status_code == 403
        assert narrow.put("/v1/switches", json={"new_work": {"is_paused": True}}).status_code == 403
