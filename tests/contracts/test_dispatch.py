"""Hints may be lost, doubled or late: whatever way they take to workers, each item is done once, and soon."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as client

from gateway.item import Status
from gateway.settings import DispatchMode, Settings
from gateway.store import items
from gateway.store.engine import Database
from gateway.wiring import open_dispatch
from gateway.work import celery_app as celery_dispatch
from gateway.work.celery_app import celery_app, task_name
from gateway.work.dispatch import Bulkhead
from gateway.work.signals import Signals, signal_folder
from tests import media
from tests.contracts.ground import QUICK, SOON_S, Ground, add, assert_all_done_once, worker_of
from tests.contracts.queue import ways
from tests.contracts.servers import Redis, free_port
from tests.contracts.sizes import sized
from tests.gateway.running import Service, running, start, until

pytestmark = pytest.mark.case


@pytest.fixture(scope="module")
def workers(ground: Ground) -> Iterator[list[Service]]:
    """Two of them."""
    with (
        running("worker", ground.folder, **ground.shared) as one,
        running("worker", ground.folder, **ground.shared) as two,
    ):
        yield [one, two]


def test_hints_that_arrive(ground: Ground, workers: list[Service]) -> None:
    item_ids = add(ground, 8)
    with ground.dispatch() as dispatch:
        for item_id in item_ids:
            dispatch.wake(item_id)
        assert_all_done_once(ground, item_ids)


def test_every_hint_lost(ground: Ground, workers: list[Service]) -> None:
    assert_all_done_once(ground, add(ground, 8))


def test_each_hint_given_many_times(ground: Ground, workers: list[Service]) -> None:
    item_ids = add(ground, 8)
    with ground.dispatch() as dispatch:
        for _ in range(5):
            for item_id in item_ids:
                for bulkhead in Bulkhead:
                    dispatch.wake(item_id, bulkhead)
        assert_all_done_once(ground, item_ids)


def test_hints_that_come_after_the_end(ground: Ground, workers: list[Service]) -> None:
    item_ids = add(ground, 4)
    assert_all_done_once(ground, item_ids)
    before = ways(ground.database, item_ids)
    with ground.dispatch() as dispatch:
        for item_id in item_ids:
            dispatch.wake(item_id)
        (marker,) = add(ground, 1)
        dispatch.wake(marker)
        assert_all_done_once(ground, [marker])
    assert {item_id: found for item_id, found in ways(ground.database, item_ids).items() if item_id in before} == {
        **before
    }


@pytest.mark.parametrize("strange", ["itm_00000000000000000000000000", "", "x" * 100_000, "'; DROP TABLE items; --"])
def test_hint_at_nothing_is_no_harm(ground: Ground, workers: list[Service], strange: str) -> None:
    with ground.dispatch() as dispatch:
        dispatch.wake(strange)
        (item_id,) = add(ground, 1)
        dispatch.wake(item_id)
        assert_all_done_once(ground, [item_id])
    assert all(worker.process.poll() is None for worker in workers)


def test_item_of_a_killed_worker_is_taken_by_the_other(ground: Ground, workers: list[Service]) -> None:
    """S1: the lease was another process's, which is gone; no message tells of it."""
    (item_id,) = add(ground, 1)
    lease = ground.database.transact(lambda c: items.claim(c, item_id, owner="worker:dead:1", lease_ms=1500))
    assert lease is not None
    began = time.monotonic()
    until(lambda: ways(ground.database, [item_id])[item_id][-1] is Status.SUCCEEDED, within_s=SOON_S)
    assert time.monotonic() - began < 1.5 + 10
    with ground.database.read() as connection:
        item = items.get(connection, item_id)
    assert item is not None
    assert item.claims == 2


def test_worker_that_is_told_to_stop_leaves_nothing_leased(ground: Ground, workers: list[Service]) -> None:
    third = start("worker", ground.folder, **ground.shared)
    item_ids = add(ground, 12)
    with ground.dispatch() as dispatch:
        for item_id in item_ids:
            dispatch.wake(item_id)
    assert third.stop() == 0
    assert_all_done_once(ground, item_ids)


# --- what only a broker can do ---


@pytest.fixture
def celery_settings(redis: Redis, postgres_url: str, tmp_path: Path) -> dict[str, object]:
    return {"database_url": postgres_url, "dispatch": "celery", "broker_url": redis.url(), **QUICK}


def test_sender_is_not_held_up_by_a_broker_that_is_away() -> None:
    settings = Settings(dispatch=DispatchMode.CELERY, broker_url=f"redis://127.0.0.1:{free_port()}/0")
    signals = Signals(signal_folder("sqlite://"))
    dispatch = open_dispatch(settings, signals)
    began = time.monotonic()
    for number in range(20_000):
        dispatch.wake(f"itm_{number}")
    assert time.monotonic() - began < 2
    dispatch.close()
    signals.close()


def test_message_carries_an_id_and_nothing_else(redis: Redis) -> None:
    url = redis.url()
    settings = Settings(dispatch=DispatchMode.CELERY, broker_url=url)
    app = celery_app(settings)
    app.send_task(task_name(Bulkhead.EDGE), args=["itm_1"], queue="edge")
    (raw,) = client.Redis.from_url(url).lrange("edge", 0, -1)
    message = json.loads(raw)
    arguments = json.loads(base64.b64decode(message["body"]))
    assert arguments[:2] == [["itm_1"], {}]
    app.close()


@pytest.mark.parametrize("broker", ["redis", *sized((), ("rabbitmq_url",))])
def test_queue_that_nobody_takes_from_stays_bounded(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    monkeypatch.setattr(celery_dispatch, "MOST_QUEUED", 5)
    monkeypatch.setattr(celery_dispatch, "_LOOK_S", 0.0)
    found = request.getfixturevalue(broker)
    settings = Settings(dispatch=DispatchMode.CELERY, broker_url=found.url() if broker == "redis" else found)
    dispatch = celery_dispatch.CeleryDispatch(celery_app(settings))
    for bulkhead in (Bulkhead.OCR, Bulkhead.DELIVER):
        for number in range(12):
            dispatch.wake(f"x_{number}", bulkhead)
    until(lambda: dispatch._unsent.empty())
    dispatch.close()
    with celery_app(settings).connection_for_read() as connection:
        for bulkhead in (Bulkhead.OCR, Bulkhead.DELIVER):
            queue = connection.channel().queue_declare(bulkhead.value, passive=True)
            assert 5 <= queue.message_count <= 6, "one may be on its way while it is looked"


def test_queues_are_bulkheads(celery_settings: dict[str, object], tmp_path: Path) -> None:
    """A worker for judging only leaves the writing to others, and does not stand still meanwhile."""
    database = Database(str(celery_settings["database_url"]))
    ground = Ground({**celery_settings, "data_dir": tmp_path}, database)
    with worker_of(tmp_path, celery_settings, "--queue", "edge"), ground.dispatch() as dispatch:
        item_ids = add(ground, 6)
        for item_id in item_ids:
            dispatch.wake(item_id)

        def all_judged() -> bool:
            with database.read() as connection:
                return all(
                    (item := items.get(connection, item_id)) and item.route and item.status is Status.QUEUED
                    for item_id in item_ids
                )

        until(all_judged, within_s=SOON_S)
        with worker_of(tmp_path, celery_settings, "--queue", "agent"):
            assert_all_done_once(ground, item_ids)
    database.close()


def test_what_has_to_be_read_is_left_to_those_who_read(celery_settings: dict[str, object], tmp_path: Path) -> None:
    settings = {**celery_settings, "edge_wall_s": 0.001}  # so that a worker measures, not the request
    with (
        running("serve", tmp_path, **settings) as service,
        service.client() as client,
        worker_of(tmp_path, settings, "--queue", "edge"),
    ):
        link = client.post(
            "/v1/items?mode=prepare",
            content=media.label_photo(long_side=900),
            headers={"Content-Type": "image/jpeg", "Prefer": "respond-async"},
        ).json()["links"]["self"]

        def facts() -> dict[str, object]:
            (file,) = client.get(link).json()["files"]
            return dict(file["facts"])

        until(lambda: "image.sharpness" in facts(), within_s=SOON_S)
        measured = client.get(link).json()
        assert (measured["status"], "text.tokens" in facts()) == ("queued", False)
        with worker_of(tmp_path, settings, "--queue", "ocr"):
            until(lambda: client.get(link).json()["status"] == "ready", within_s=SOON_S)
        assert "text.tokens" in facts()


def test_broker_that_was_away_and_lost_everything_is_found_again(
    celery_settings: dict[str, object], redis: Redis, tmp_path: Path
) -> None:
    database = Database(str(celery_settings["database_url"]))
    ground = Ground({**celery_settings, "data_dir": tmp_path}, database)
    with running("worker", tmp_path, **celery_settings), ground.dispatch() as dispatch:
        admin = client.Redis(port=redis.port)
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        admin.flushall()
        item_ids = add(ground, 5)
        for item_id in item_ids:
            dispatch.wake(item_id)
        assert_all_done_once(ground, item_ids)
    database.close()
