"""What a tenant, and all together, may spend on a day: set aside before, settled after, and never passed unnoticed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import yaml

from gateway.agent.estimate import Estimate
from gateway.agent.journal import Journal
from gateway.budgets import Defaults, Purse, view
from gateway.item import Lease, StaleLease
from gateway.profiles import loader
from gateway.store import budgets as store
from gateway.store import events, items
from gateway.store.budgets import ALL, BudgetExhausted, Limits, QuotaExceeded
from gateway.store.engine import Database
from tests.contracts.queue import add_items, new_item
from tests.gateway.conftest import store_key
from tests.gateway.model_stub import ModelStub, model_server
from tests.gateway.running import Service, bearer, command, running, settled, until

CENT = store.MICROS // 100
NO_DEFAULTS = Defaults(Limits(), Limits())
ASKED = Estimate(1000, 500, Decimal("0.01"))


def limit(database: Database, tenant: str, cost: str | None = None, items_a_day: int | None = None) -> None:
    micros = None if cost is None else store.micros_of(Decimal(cost))
    database.transact(lambda c: store.set_limits(c, tenant, Limits(micros, items_a_day), by="test"))


def used(database: Database, tenant: str) -> store.DayUse:
    with database.read() as connection:
        return view(connection, tenant, NO_DEFAULTS).use


def told(database: Database, tenant: str) -> list[int]:
    with database.read() as connection:
        rows = events.page(connection, tenant=tenant, after=0, limit=1000)
    return [row.data["percent"] for row in rows if row.type == "budget.threshold"]


def journal(database: Database, tenant: str = "shop") -> Journal:
    """Of a claimed item of this tenant."""
    new = new_item(tenant=tenant)
    database.transact(lambda c: items.insert(c, new, actor="test", at_ms=items.now_ms(c)))
    lease = database.transact(lambda c: items.claim(c, new.id, owner="w", lease_ms=60_000))
    assert isinstance(lease, Lease)
    with database.read() as connection:
        item = items.get(connection, new.id)
    assert item is not None
    return Journal.open(database, lease, item, purse=Purse(tenant, NO_DEFAULTS))


# --- set aside and settle, on both databases ---


@pytest.mark.parametrize("whose", ["shop", ALL])
def test_workers_that_ask_at_once_never_set_aside_more_than_the_limit(database: Database, whose: str) -> None:
    limit(database, whose, "0.10")
    journals = [journal(database) for _ in range(8)]

    def ask(one: Journal) -> int:
        granted = 0
        for number in range(5):
            try:
                row = one.begin_request({"request": number}, ASKED)
            except BudgetExhausted:
                continue
            granted += 1
            one.finish(row, {"cost": "0.01"})
        return granted

    with ThreadPoolExecutor(8) as pool:
        granted = sum(pool.map(ask, journals))
    assert granted == 10
    for name in ("shop", ALL):
        assert (used(database, name).spent_micros, used(database, name).reserved_micros) == (10 * CENT, 0)


def test_requests_that_cost_more_than_was_set_aside_overspend_by_those_in_flight_and_no_more(
    database: Database,
) -> None:
    """The documented bound: what the requests in flight cost above their reservation, when the limit is reached."""
    limit(database, "shop", "0.10")
    in_flight = 4
    journals = [journal(database) for _ in range(in_flight)]

    def ask(one: Journal) -> None:
        for number in itertools.count():
            try:
                row = one.begin_request({"request": number}, ASKED)
            except BudgetExhausted:
                return
            one.finish(row, {"cost": "0.03"})

    with ThreadPoolExecutor(in_flight) as pool:
        list(pool.map(ask, journals))
    assert 10 * CENT <= used(database, "shop").used_micros <= (10 + in_flight * 2) * CENT


def test_request_whose_worker_died_counts_as_spent_at_what_was_set_aside(database: Database) -> None:
    limit(database, "shop", "0.02")
    dead = journal(database)
    row = dead.begin_request({"request": 1}, ASKED)
    assert used(database, "shop").used_micros == CENT
    with database.read() as connection:
        item = items.get(connection, dead.lease.item_id)
    assert item is not None
    heir = Journal.open(database, dead.lease, item, purse=dead.purse)
    assert heir.usage().cost == "0.01"
    heir.finish(heir.rows[-1], {"error": "worker_lost", "cost": "0.01"}, is_progress=False)
    assert (used(database, "shop").spent_micros, used(database, "shop").reserved_micros) == (CENT, 0)
    heir.begin_request({"request": 2}, ASKED)
    with pytest.raises(BudgetExhausted):
        heir.begin_request({"request": 3}, ASKED)
    assert row.intent["reserved"]["cost"] == "0.01"


def test_answer_of_a_worker_that_lost_its_lease_settles_nothing_twice(database: Database) -> None:
    late = journal(database)
    row = late.begin_request({"request": 1}, ASKED)
    late.finish(row, {"cost": "0.004"})
    with pytest.raises(StaleLease):
        late.finish(row, {"cost": "0.004"})
    assert (used(database, "shop").spent_micros, used(database, "shop").reserved_micros) == (4000, 0)


def test_refused_request_writes_no_step_and_sets_nothing_aside(database: Database) -> None:
    limit(database, "shop", "0.005")
    poor = journal(database)
    with pytest.raises(BudgetExhausted) as refused:
        poor.begin_request({"request": 1}, ASKED)
    assert (refused.value.scope, poor.rows) == ("shop", [])
    assert used(database, "shop").used_micros == 0
    assert used(database, "shop").is_exhausted(Limits(5000))
    assert not used(database, "shop").is_exhausted(Limits(20_000))


def test_money_of_one_tenant_is_not_anothers_but_all_share_the_one_stop(database: Database) -> None:
    limit(database, "rich", "1")
    limit(database, ALL, "0.02")
    journal(database, "rich").begin_request({"request": 1}, ASKED)
    journal(database, "other").begin_request({"request": 1}, ASKED)
    with pytest.raises(BudgetExhausted) as refused:
        journal(database, "rich").begin_request({"request": 1}, ASKED)
    assert refused.value.scope == ALL
    assert (used(database, "rich").used_micros, used(database, ALL).used_micros) == (CENT, 2 * CENT)


def test_each_threshold_is_told_once_a_day_and_anew_for_a_new_limit(database: Database) -> None:
    limit(database, "shop", "0.10")
    one = journal(database)
    seen = []
    for number in range(12):
        try:
            one.finish(one.begin_request({"request": number}, ASKED), {"cost": "0.01"})
        except BudgetExhausted:
            break
        seen.append(told(database, "shop"))
    assert [len(percents) for percents in seen] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert told(database, "shop") == [50, 80, 100]
    limit(database, "shop", "0.12")
    one.finish(one.begin_request({"request": 20}, ASKED), {"cost": "0.01"})
    assert told(database, "shop") == [50, 80, 100, 50, 80]


def test_items_of_a_day_are_counted_exactly_however_many_submit_at_once(database: Database) -> None:
    add_items(database, 3)

    def submit(_: int) -> bool:
        new = new_item()

        def store_one(connection: sa.Connection) -> None:
            store.count_item(connection, "default", 10)
            items.insert(connection, new, actor="test", at_ms=items.now_ms(connection))

        try:
            database.transact(store_one)
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(submit, range(20))) == 7
    with database.read() as connection:
        assert store.items_today(connection, "default", store.day_of(items.now_ms(connection))) == 10


def test_limit_is_replaced_only_by_who_has_read_it(database: Database) -> None:
    first = database.transact(lambda c: store.set_limits(c, "shop", Limits(1), by="ann", expected_version=0))
    assert first is not None
    assert database.transact(lambda c: store.set_limits(c, "shop", Limits(2), by="bob", expected_version=0)) is None
    with database.read() as connection:
        row = store.limits_row(connection, "shop")
    assert row is not None
    assert (row.limits.max_cost_micros, row.changed_by) == (1, "ann")


# --- the service ---


@pytest.fixture(scope="module")
def stub() -> Iterator[ModelStub]:
    with model_server() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, stub: ModelStub) -> Iterator[Service]:
    """A model that costs 0.0009 an answer; one more profile, whose caller decides where a run stands still."""
    folder = tmp_path_factory.mktemp("budgets")
    shipped = yaml.safe_load(Path(loader.__file__).with_name("product-copy.yaml").read_text("utf-8"))
    profiles = folder / "profiles"
    profiles.mkdir()
    (profiles / "own.yaml").write_text(
        yaml.safe_dump({**shipped, "name": "caller-decides", "on_loop": "halt"}), "utf-8"
    )
    settings = {"model_url": stub.url, "model_attempts": 1, "profiles_dir": profiles, "default_wait_s": 0}
    with running("up", folder / "data", **settings) as started:
        yield started


@pytest.fixture
def tenant(service: Service, name: str) -> str:
    return name


@pytest.fixture
def shop(service: Service, tenant: str) -> Iterator[httpx.Client]:
    """A client with a key of a tenant of its own."""
    with service.client(headers=bearer(store_key(service, tenant))) as made:
        yield made


@pytest.fixture
def operator(service: Service) -> Iterator[httpx.Client]:
    """Who sets budgets: the caller on this machine, of the tenant `default`."""
    with service.client() as made:
        yield made


def submit(client: httpx.Client, **fields: str) -> httpx.Response:
    return client.post("/v1/items", json={"title": "Oak table", **fields})


def put(client: httpx.Client, tenant: str, **limits: Any) -> dict[str, Any]:
    answer = client.put(f"/v1/tenants/{tenant}/budget", json=limits)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_spent_budget_refuses_what_needs_the_model_until_it_is_raised(
    shop: httpx.Client, operator: httpx.Client, tenant: str
) -> None:
    put(operator, tenant, max_cost="0.01")
    first = settled(shop, submit(shop).json()["id"])
    assert first["usage"]["cost"] == "0.0009"
    shown = operator.get(f"/v1/tenants/{tenant}/budget").json()
    assert (shown["used"]["cost"], shown["used"]["reserved"], shown["used"]["items"]) == ("0.0009", "0", 1)
    assert until(
        lambda: f'sluicegate_budget_used_dollars{{tenant="{tenant}"}} 0.0009' in operator.get("/metrics").text,
        within_s=15,
    )
    put(operator, tenant, max_cost="0.0009")

    def refused() -> httpx.Response | None:
        answer = submit(shop, on_duplicate="new")
        return answer if answer.status_code == 409 else None

    answer = until(refused).json()
    assert (answer["code"], answer["scope"], answer["limits"]["max_cost"]) == ("budget_exhausted", "tenant", "0.0009")
    assert answer["resets_at"].endswith("T00:00:00.000Z")
    assert submit(shop, on_duplicate="new", mode="prepare").status_code in {201, 202}
    assert submit(shop).headers["duplicate-of"] == first["id"]
    put(operator, tenant, max_cost="5")
    assert until(lambda: submit(shop, on_duplicate="new").status_code == 202)


@pytest.mark.parametrize(
    ("profile", "status"), [("product-copy", "awaiting_human"), ("caller-decides", "halted")], ids=["person", "caller"]
)
def test_item_that_finds_the_budget_spent_goes_where_its_profile_says(
    shop: httpx.Client, operator: httpx.Client, tenant: str, profile: str, status: str
) -> None:
    put(operator, tenant, max_cost="0.003")  # more than nothing, less than is set aside for one request
    item = settled(shop, submit(shop, profile=profile).json()["id"])
    assert (item["status"], item["reason"], item["usage"]["cost"]) == (status, "budget", "0")
    if status == "awaiting_human":
        case = shop.get(f"/v1/escalations/{item['escalation']}").json()
        assert "budget" in case["question"]
    assert operator.get(f"/v1/tenants/{tenant}/budget").json()["is_exhausted"] is True
    percents = [
        event["data"]["percent"]
        for event in shop.get("/v1/events").json()["events"]
        if event["type"] == "budget.threshold"
    ]
    assert percents == [50, 80, 100]


def test_quota_of_items_is_429_with_the_time_of_its_end(
    shop: httpx.Client, operator: httpx.Client, tenant: str
) -> None:
    put(operator, tenant, max_items=2)

    def refused() -> httpx.Response | None:
        answer = submit(shop, on_duplicate="new", mode="prepare")
        return answer if answer.status_code == 429 else None

    answer = until(refused)
    assert (answer.json()["code"], answer.json()["limits"]) == ("quota_exceeded", {"max_items": 2})
    assert 0 < int(answer.headers["retry-after"]) <= 24 * 3600
    assert len(shop.get("/v1/items").json()["items"]) == 2


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("budget", {"max_cost": "much"}, "/max_cost"),
        ("budget", {"max_cost": -1}, "/max_cost"),
        ("budget", {"max_cost": True}, "/max_cost"),
        ("budget", {"max_items": 3}, "/max_items"),
        ("tenants/t/budget", {"max_items": 1.5}, "/max_items"),
        ("tenants/t/budget", {"max_costs": "1"}, "/max_costs"),
    ],
)
def test_limit_that_is_none_is_a_400_that_names_it(
    service: Service, path: str, body: dict[str, Any], pointer: str
) -> None:
    answer = service.client().put(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_budgets_need_the_scope_admin_and_the_version_that_was_read(service: Service, name: str) -> None:
    narrow, shops_own = (
        service.client(headers=bearer(store_key(service, name, *scopes))) for scopes in (("items:read",), ("admin",))
    )
    for path in ("/v1/budgets", "/v1/budget", f"/v1/tenants/{name}/budget"):
        assert narrow.get(path).status_code == shops_own.get(path).status_code == 403
    client = service.client()
    path = f"/v1/tenants/{name}/budget"
    tag = client.put(path, json={"max_cost": "1"}).headers["etag"]
    assert client.put(path, json={"max_cost": "2"}, headers={"If-Match": tag}).status_code == 200
    assert client.put(path, json={"max_cost": "3"}, headers={"If-Match": tag}).json()["code"] == "conflict_version"
    assert client.get(path).json()["limits"]["max_cost"] == "2"
    assert name in [one["tenant"] for one in client.get("/v1/budgets").json()["budgets"]]


def test_command_line_sets_and_shows_what_the_api_enforces(service: Service, name: str) -> None:
    made = command("budgets", "set", name, "--max-cost", "2.5", data_dir=service.data_dir)
    assert made.returncode == 0, made.stderr
    shown = service.client().get(f"/v1/tenants/{name}/budget").json()
    assert (shown["limits"]["max_cost"], shown["changed_by"].startswith("cli:")) == ("2.5", True)
    wrong = command("budgets", "set", name, "--max-cost", "much", data_dir=service.data_dir)
    assert (wrong.returncode, "no amount" in wrong.stderr) == (2, True)
