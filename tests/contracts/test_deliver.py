"""Hints at webhooks may be lost, doubled or late: whatever way they take, each delivery arrives, and once while nobody dies."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as client
import sqlalchemy as sa

from gateway.store import events, items
from gateway.store import webhook_deliveries as store
from gateway.store.engine import Database
from gateway.store.tables import events as event_rows
from gateway.webhooks.model import Delivery
from gateway.work.dispatch import Bulkhead
from tests.contracts.ground import QUICK, SOON_S, Ground, add, process_of
from tests.contracts.servers import Redis
from tests.gateway import delivering
from tests.gateway.model_stub import Scripted, model_server
from tests.gateway.receiver import Answer, Received, Receiver, receiving
from tests.gateway.running import environment, running, until

pytestmark = pytest.mark.case

WEBHOOKS = {
    "webhook_private_networks": "127.0.0.0/8", "webhook_ports": "any",
    "webhook_timeout_s": 5, "webhook_retries_s": "0.2,0.2,0.2",
}  # fmt: skip


@pytest.fixture(scope="module")
def posting(ground: Ground) -> Ground:
    """The same, and webhooks may go to this machine."""
    return Ground({**ground.settings, **WEBHOOKS}, ground.database)


@pytest.fixture(scope="module")
def workers(posting: Ground) -> Iterator[None]:
    """One that takes everything, and one that delivers only."""
    delivering_alone = ("worker", "--queue", "deliver") if "dispatch" in posting.settings else ("deliver",)
    with (
        running("worker", posting.folder, **posting.shared),
        process_of(posting.folder, posting.shared, *delivering_alone),
    ):
        yield


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


class Posts:
    """One endpoint at a receiver, and what is on its way there."""

    def __init__(self, database: Database, receiver: Receiver) -> None:
        self.outbox = delivering.Ground(database, now_ms=int(time.time() * 1000))
        self.receiver = receiver
        self.endpoint = self.outbox.endpoint(receiver.url, "item.succeeded")

    def events(self, count: int) -> None:
        for number in range(count):
            self.outbox.event(resource=f"itm_{number}")

    def deliveries(self) -> list[Delivery]:
        return self.outbox.deliveries(endpoint_id=self.endpoint.id)

    def wait(self, count: int) -> list[Delivery]:
        """Until so many have ended; all of them, none twice, well."""

        def ended() -> bool:
            found = self.deliveries()
            return len(found) == count and all(delivery.finished_ms for delivery in found)

        until(ended, within_s=SOON_S)
        assert {delivery.status for delivery in self.deliveries()} == {"succeeded"}
        return self.deliveries()

    def assert_each_once(self, count: int) -> None:
        found = self.wait(count)
        assert [delivery.attempts for delivery in found] == [1] * count
        assert sorted(request.headers["webhook-id"] for request in self.receiver.received) == sorted(
            delivery.event_id for delivery in found
        )


def test_what_happens_is_told_once(posting: Ground, workers: None, receiver: Receiver) -> None:
    posts = Posts(posting.database, receiver)
    posts.events(30)
    posts.assert_each_once(30)
    assert receiver.most_at_once <= 4


def test_each_hint_given_many_times_and_after_the_end(posting: Ground, workers: None, receiver: Receiver) -> None:
    posts = Posts(posting.database, receiver)
    posts.events(6)
    with posting.dispatch() as dispatch:
        until(lambda: len(posts.deliveries()) == 6)
        for _ in range(5):
            for delivery in posts.deliveries():
                dispatch.wake(delivery.id, Bulkhead.DELIVER)
        posts.assert_each_once(6)
        for delivery in posts.deliveries():
            dispatch.wake(delivery.id, Bulkhead.DELIVER)
        posts.events(1)
        posts.assert_each_once(7)


@pytest.mark.parametrize("strange", ["whd_00000000000000000000000000", "", "x" * 100_000, "'; DROP TABLE items; --"])
def test_hint_at_nothing_is_no_harm(posting: Ground, workers: None, receiver: Receiver, strange: str) -> None:
    posts = Posts(posting.database, receiver)
    with posting.dispatch() as dispatch:
        dispatch.wake(strange, Bulkhead.DELIVER)
        posts.events(1)
        posts.assert_each_once(1)


def test_failed_attempt_is_made_again_when_it_is_due(posting: Ground, workers: None) -> None:
    seen: set[str] = set()

    def fails_first(request: Received) -> Answer:
        is_first = request.headers["webhook-id"] not in seen
        seen.add(request.headers["webhook-id"])
        return Answer(500 if is_first else 204)

    with receiving(fails_first) as receiver:
        posts = Posts(posting.database, receiver)
        posts.events(3)
        assert [delivery.attempts for delivery in posts.wait(3)] == [2, 2, 2]
        assert len(receiver.received) == 6


def test_delivery_of_a_killed_process_is_taken_by_another(posting: Ground, workers: None, receiver: Receiver) -> None:
    """The lease was another process's, which is gone before it has sent; no message tells of it."""
    posts = Posts(posting.database, receiver)

    def make_and_claim(connection: sa.Connection) -> list[Delivery]:
        at_ms = items.now_ms(connection)
        events.append(
            connection, tenant="default", kind="item.succeeded", resource="itm_1", version=1, at_ms=at_ms, body={}
        )
        rows = connection.execute(sa.select(event_rows).order_by(event_rows.c.seq.desc()).limit(1)).all()
        store.fan_out(connection, posts.endpoint, rows, at_ms=at_ms)
        return store.claim(connection, posts.endpoint.id, at_ms=at_ms, lease_ms=1500, most=1)

    (taken,) = posting.database.transact(make_and_claim)
    assert receiver.received == []
    (delivery,) = posts.wait(1)
    assert (delivery.id, delivery.attempts, len(receiver.received)) == (taken.id, 2, 1)


# --- what only a broker can do ---


class Broker:
    """The queue of webhooks on a Redis."""

    def __init__(self, url: str) -> None:
        self._client = client.Redis.from_url(url)

    def waiting(self) -> list[Any]:
        """What the messages in it say."""
        found = self._client.lrange(Bulkhead.DELIVER.value, 0, -1)
        return [json.loads(base64.b64decode(json.loads(raw)["body"])) for raw in found]

    def drop_all(self) -> None:
        self._client.delete(Bulkhead.DELIVER.value)


@pytest.fixture
def broker_url(redis: Redis) -> str:
    return redis.url()


@pytest.fixture
def apart(broker_url: str, postgres_url: str, tmp_path: Path) -> Iterator[Ground]:
    """Celery without workers yet."""
    database = Database(postgres_url)
    settings = {
        "data_dir": tmp_path, "database_url": postgres_url, "dispatch": "celery", "broker_url": broker_url,
        **QUICK, **WEBHOOKS, "webhook_timeout_s": 1,
    }  # fmt: skip
    yield Ground(settings, database)
    database.close()


def test_every_message_dropped_and_then_some_arrive(apart: Ground, broker_url: str, receiver: Receiver) -> None:
    """Workers of other queues tell of what happens, and again when the broker has lost it; those of `deliver` alone send."""
    broker = Broker(broker_url)
    posts = Posts(apart.database, receiver)
    with process_of(apart.folder, apart.shared, "worker", "--queue", "edge"):
        posts.events(3)
        for _ in range(2):
            until(lambda: len(broker.waiting()) >= 3, within_s=SOON_S)
            told = broker.waiting()
            broker.drop_all()
        ids = {delivery.id for delivery in posts.deliveries()}
        assert {arguments[0] for arguments, _, _ in told} == ids
        assert all((len(arguments), keywords) == (1, {}) for arguments, keywords, _ in told)
        assert receiver.received == []
        with process_of(apart.folder, apart.shared, "worker", "--queue", "deliver"):
            posts.assert_each_once(3)


def test_attempt_of_a_worker_that_is_killed_is_made_by_another(apart: Ground) -> None:
    is_killed = threading.Event()

    def hangs(request: Received) -> Answer:
        is_killed.wait(SOON_S)
        return Answer(204)

    with receiving(hangs) as receiver:
        posts = Posts(apart.database, receiver)
        words = [sys.executable, "-m", "gateway", "worker", "--queue", "deliver"]
        dying = subprocess.Popen(words, env=environment(apart.folder, apart.shared), stderr=subprocess.DEVNULL)
        try:
            posts.events(1)
            until(lambda: receiver.received, within_s=SOON_S)
        finally:
            dying.kill()
            dying.wait()
            is_killed.set()
        with process_of(apart.folder, apart.shared, "worker", "--queue", "deliver"):
            (delivery,) = posts.wait(1)
    assert delivery.attempts == len(receiver.received) >= 2
    assert len({request.headers["webhook-id"] for request in receiver.received}) == 1


def test_neither_slow_receivers_nor_a_slow_model_hold_up_others(apart: Ground, receiver: Receiver) -> None:
    """The worker's only thread for items waits for its model, and more receivers hang than threads take messages."""
    is_told = threading.Event()

    def hangs(request: Received) -> Answer:
        is_told.wait(SOON_S)
        return Answer(204)

    settings = {**apart.shared, "worker_concurrency": 1, "webhook_timeout_s": 15}
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(model_server())
        model.script(Scripted(delay_s=SOON_S))
        slow = [Posts(apart.database, stack.enter_context(receiving(hangs))) for _ in range(4)]
        stack.enter_context(
            process_of(apart.folder, {**settings, "model_url": model.url, "model_api_key": "key"}, "worker")
        )
        (item_id,) = add(apart, 1)
        with apart.dispatch() as dispatch:
            dispatch.wake(item_id)
            until(lambda: model.requests, within_s=SOON_S)
        slow[0].events(4)
        until(lambda: all(len(posts.receiver.received) == 4 for posts in slow), within_s=SOON_S)
        quick = Posts(apart.database, receiver)
        quick.events(8)
        slow_ones = [len(posts.receiver.received) for posts in slow]
        quick.assert_each_once(8)
        assert slow_ones == [4] * 4
        is_told.set()
        model.closing.set()


def test_broker_that_was_away_and_lost_everything_is_found_again(
    apart: Ground, redis: Redis, broker_url: str, receiver: Receiver
) -> None:
    posts = Posts(apart.database, receiver)
    with process_of(apart.folder, apart.shared, "worker", "--queue", "deliver"):
        posts.events(2)
        posts.assert_each_once(2)
        admin = client.Redis(port=redis.port)
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        Broker(broker_url).drop_all()
        posts.events(5)
        posts.assert_each_once(7)
