"""Delivery on both databases, under a clock of the test's own: what is signed, tried again, left alone, given up, taken over."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import standardwebhooks.webhooks
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.store import migrate, retention, webhook_deliveries, webhooks
from gateway.store.engine import Database
from gateway.store.tables import events, item_callbacks
from gateway.webhooks.model import BodyStyle, DeliveryStatus, DisabledReason, EndpointStatus, ErrorClass, Outcome
from gateway.webhooks.schedule import RETRIES_S, RetryPolicy
from gateway.webhooks.vault import Vault
from tests.gateway.delivering import Ground
from tests.gateway.receiver import Answer, Received, always, one_by_one, receiving
from tests.gateway.running import until
from tests.gateway.test_store import add_item

DAY_S = 24 * 3600
TEN_MINUTES = RetryPolicy(retries_s=(600.0,) * 9)


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the schema, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "sluicegate.db"
    made = Database(f"sqlite:///{path}")
    migrate.upgrade(made)
    made.close()
    return path


@pytest.fixture
def ground(migrated: Path, tmp_path: Path) -> Iterator[Ground]:
    """On SQLite."""
    made = Database(f"sqlite:///{shutil.copy(migrated, tmp_path / 'sluicegate.db')}")
    yield Ground(made)
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """On each of the two databases: for what depends on their locks and statements."""
    if request.param == "sqlite":
        yield request.getfixturevalue("ground")
        return
    made = Database(request.getfixturevalue("postgres_url"))
    yield Ground(made)
    made.close()


def verify_at(monkeypatch: pytest.MonkeyPatch, request: Received, secret: str) -> Any:
    """By the independent implementation, at the time at which the attempt was made; its tolerance is five minutes."""

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(int(request.headers["webhook-timestamp"]) + 200, UTC)

    with monkeypatch.context() as patched:
        patched.setattr(standardwebhooks.webhooks, "datetime", Frozen)
        return Webhook(secret).verify(request.body, dict(request.headers))


def test_every_attempt_is_signed_anew_and_by_both_secrets_while_they_rotate(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.policy = TEN_MINUTES
    answers = one_by_one(Answer(500), Answer(500), Answer(500), Answer(204))
    with receiving(answers) as receiver:
        endpoint = ground.endpoint(receiver.url)
        old = ground.secrets[endpoint.id]
        ground.event(external_id="sku-1", note="甲 ✓ é")
        ground.step()
        ground.later(600)
        ground.step()
        new = ground.rotate(endpoint)
        for _ in range(2):
            ground.later(600)
            ground.step()
        requests = receiver.received
    assert len(requests) == 4
    (delivery,) = ground.deliveries()
    assert (delivery.status, delivery.attempts) == (DeliveryStatus.SUCCEEDED, 4)
    for number, request in enumerate(requests):
        secrets = (old,) if number < 2 else (old, new)
        for secret in secrets:
            assert verify_at(monkeypatch, request, secret)["id"] == delivery.event_id
        assert len(request.headers["webhook-signature"].split()) == len(secrets)
    for request in requests[:2]:
        with pytest.raises(WebhookVerificationError):
            verify_at(monkeypatch, request, new)
    assert {request.headers["webhook-id"] for request in requests} == {delivery.event_id}
    stamps = [int(request.headers["webhook-timestamp"]) for request in requests]
    assert [later - earlier for earlier, later in pairwise(stamps)] == [600] * 3
    assert all(set(request.headers) == set(requests[0].headers) for request in requests)


def test_body_that_was_written_anew_does_not_verify(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        endpoint = ground.endpoint(receiver.url)
        ground.event(external_id="甲")
        ground.step()
        (request,) = receiver.received
    again = json.dumps(json.loads(request.body)).encode()
    assert json.loads(again) == json.loads(request.body)
    with pytest.raises(WebhookVerificationError):
        verify_at(
            monkeypatch,
            Received(request.path, request.headers, again, request.at),
            ground.secrets[endpoint.id],
        )


def test_old_secret_signs_no_longer_than_its_overlap(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        endpoint = ground.endpoint(receiver.url)
        first = ground.secrets[endpoint.id]
        second = ground.rotate(endpoint, overlap_s=60)
        ground.event()
        ground.step()
        ground.later(61)
        ground.event()
        ground.step()
        third = ground.rotate(endpoint)
        fourth = ground.rotate(endpoint)
        ground.event()
        ground.step()
        requests = receiver.received
    signers = [{first, second}, {second}, {third, fourth}]
    for request, expected in zip(requests, signers, strict=True):
        good = set()
        for secret in (first, second, third, fourth):
            try:
                verify_at(monkeypatch, request, secret)
            except WebhookVerificationError:
                continue
            good.add(secret)
        assert good == expected


def test_failed_delivery_is_tried_by_the_schedule_then_dead_and_can_be_sent_again(either: Ground) -> None:
    either.policy = RetryPolicy(breaker_s=0.001)
    answer = always(500, body=b"no luck")
    with receiving(answer) as receiver:
        endpoint = either.endpoint(receiver.url)
        either.event()
        either.step()
        for number, wait_s in enumerate(RETRIES_S, start=1):
            (delivery,) = either.deliveries()
            assert delivery.next_attempt_ms == either.now_ms + wait_s * 1000, f"after attempt {number}"
            either.later(wait_s - 0.001)
            either.step()
            assert len(receiver.received) == number, "not a moment too early"
            either.later(0.001)
            either.step()
        (delivery,) = either.deliveries()
        assert (delivery.status, delivery.attempts, delivery.next_attempt_ms) == (DeliveryStatus.DEAD, 10, None)
        log = either.log(delivery)
        assert [(entry.attempt, entry.status_code, entry.error, entry.response) for entry in log] == [
            (number, 500, ErrorClass.SERVER_ERROR, "no luck") for number in range(1, 11)
        ]
        assert log[-1].next_attempt_ms is None
        either.later(30 * DAY_S)
        either.step()
        assert len(receiver.received) == 10
        receiver.answer = always(200)
        either.redeliver(delivery)
        either.step()
        (delivery,) = either.deliveries()
        assert (delivery.status, delivery.attempts) == (DeliveryStatus.SUCCEEDED, 11)
        assert {request.headers["webhook-id"] for request in receiver.received} == {delivery.event_id}
        assert either.health(endpoint).failures == 0


@pytest.mark.parametrize(("chance", "wait_s"), [(0.0, 4.0), (0.5, 5.0), (1.0, 6.0)])
def test_waits_are_shifted_by_up_to_a_fifth(ground: Ground, chance: float, wait_s: float) -> None:
    ground.chance = chance
    with receiving(always(500)) as receiver:
        ground.endpoint(receiver.url)
        ground.event()
        ground.step()
    (delivery,) = ground.deliveries()
    assert delivery.next_attempt_ms == ground.now_ms + int(wait_s * 1000)


@pytest.mark.parametrize(
    ("status", "retry_after", "wait_s"),
    [
        (429, "60", 60),
        (503, "90", 90),
        (429, "2", 5),
        (429, "999999", 3600),
        (429, "soon", 5),
        (429, "Wed, 21 Oct 2015 07:28:00 GMT", 5),
        (500, "60", 5),
        (404, "60", 5),
    ],
)
def test_retry_after_is_honoured_up_to_an_hour(ground: Ground, status: int, retry_after: str, wait_s: int) -> None:
    with receiving(always(status, headers={"Retry-After": retry_after})) as receiver:
        endpoint = ground.endpoint(receiver.url)
        ground.event()
        ground.step()
        (delivery,) = ground.deliveries()
        assert delivery.next_attempt_ms == ground.now_ms + wait_s * 1000
        ground.event()
        ground.step()
        is_asked_to_wait = status in {429, 503} and retry_after.isdigit()
        assert len(receiver.received) == (1 if is_asked_to_wait else 2), "a receiver that asks for time gets it for all"
    assert (ground.health(endpoint).paused_until_ms is not None) == is_asked_to_wait


def test_gone_disables_at_once_and_says_so_to_the_other_endpoints(either: Ground) -> None:
    with receiving(always(410)) as gone, receiving() as other:
        endpoint = either.endpoint(gone.url, "item.*")
        either.endpoint(other.url, "webhook.*")
        either.event(), either.event()
        either.step()
        disabled = either.get(endpoint)
        assert (disabled.status, disabled.disabled_reason) == (EndpointStatus.DISABLED, DisabledReason.GONE)
        assert disabled.version == endpoint.version + 1
        (told,) = other.received
        assert (told.event["type"], told.event["resource"]) == ("webhook.disabled", endpoint.id)
        assert told.event["data"]["reason"] == "gone"
        assert gone.url not in told.body.decode()
        before = len(gone.received)
        either.event()
        either.later(DAY_S)
        either.step()
        assert len(gone.received) == before
    assert {delivery.status for delivery in either.deliveries(endpoint_id=endpoint.id)} == {DeliveryStatus.DEAD}


def test_five_failures_in_a_row_leave_an_address_alone_and_then_one_delivery_tries(ground: Ground) -> None:
    with receiving(always(500)) as receiver:
        endpoint = ground.endpoint(receiver.url)
        for _ in range(40):
            ground.event()
        ground.step()
        assert 5 <= len(receiver.received) <= 8, "four may be under way when the fifth failure comes"
        broken = ground.health(endpoint)
        assert broken.is_broken
        assert broken.paused_until_ms is not None
        assert broken.paused_until_ms > ground.now_ms
        seen = len(receiver.received)
        ground.later((broken.paused_until_ms - ground.now_ms) / 1000)
        ground.step()
        assert len(receiver.received) == seen + 1, "half open: one"
        receiver.answer = always(204)
        ground.later(900)
        ground.step()
        assert ground.health(endpoint).failures == 0
        ground.later(900)
        ground.step()
    assert ground.count(status="succeeded") == 40


def test_address_that_failed_for_five_days_is_disabled_with_a_notice_after_one(ground: Ground) -> None:
    with receiving(always(500)) as receiver:
        endpoint = ground.endpoint(receiver.url, "item.*")
        noticed_at = disabled_at = None
        began = ground.now_ms
        while disabled_at is None and ground.now_ms - began < 8 * DAY_S * 1000:
            ground.event()
            ground.step()
            if noticed_at is None and "webhook.failing" in ground.event_types():
                noticed_at = ground.now_ms
            if ground.get(endpoint).status is EndpointStatus.DISABLED:
                disabled_at = ground.now_ms
            ground.later(6 * 3600)
    assert noticed_at == began + DAY_S * 1000
    assert disabled_at == began + 5 * DAY_S * 1000
    assert ground.get(endpoint).disabled_reason is DisabledReason.FAILING
    assert Counter(ground.event_types())["webhook.failing"] == 1
    assert Counter(ground.event_types())["webhook.disabled"] == 1


def test_one_burst_of_failures_disables_nothing_and_one_success_forgets_all(ground: Ground) -> None:
    ground.policy = RetryPolicy(retries_s=(), breaker_s=0.001)
    with receiving(always(500)) as receiver:
        endpoint = ground.endpoint(receiver.url)
        for _ in range(3):
            ground.event()
        ground.step()
        ground.later(6 * DAY_S)
        ground.event()
        ground.step()
        assert ground.get(endpoint).status is EndpointStatus.ENABLED, "the second failure came six days after the burst"
        receiver.answer = always(200)
        ground.later(DAY_S)
        ground.event()
        ground.step()
        receiver.answer = always(500)
        ground.later(DAY_S)
        ground.event()
        ground.step()
        health = ground.health(endpoint)
        assert (health.failures, health.failing_since_ms) == (1, ground.now_ms)
    assert ground.get(endpoint).status is EndpointStatus.ENABLED


def test_slow_receiver_delays_nobody_and_gets_four_at_once_at_most(ground: Ground) -> None:
    release = threading.Event()

    def hold(request: Received) -> Answer:
        release.wait(20)
        return Answer(204)

    with receiving(hold) as slow, receiving() as quick:
        ground.endpoint(slow.url)
        ground.endpoint(quick.url)
        for _ in range(30):
            ground.event()
        at_work = ground.dispatcher(timeout_s=30)

        async def deliver() -> None:
            while len(quick.received) < 30:
                await at_work.step()
                await asyncio.sleep(0.01)
            assert len(slow.received) == slow.most_at_once == 4
            release.set()
            await at_work.settled()

        asyncio.run(asyncio.wait_for(deliver(), 30))
        ground.step()
        assert len(slow.received) == 30
        assert slow.most_at_once == 4
    assert ground.count(status="succeeded") == 60


def test_many_processes_make_one_delivery_an_event_and_send_it_once(either: Ground) -> None:
    with receiving() as receiver:
        either.endpoint(receiver.url)
        for number in range(60):
            either.event(number=number)

        def work() -> None:
            either.step(either.dispatcher())

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: work(), range(4)))
        either.step()
        assert receiver.most_at_once <= 4
        numbers = Counter(request.event["data"]["number"] for request in receiver.received)
    assert numbers == Counter(range(60))
    assert either.count() == either.count(status="succeeded", attempts=1) == 60


def test_lease_of_a_killed_process_lapses_and_another_sends(either: Ground) -> None:
    with receiving() as receiver:
        endpoint = either.endpoint(receiver.url)
        either.event()
        dead = either.dispatcher(timeout_s=5)
        either.outbox().fan_out()
        (taken,) = dead._claim(10)  # and then it is killed
        either.step()
        assert receiver.received == []
        either.later(9.9)
        either.step()
        assert receiver.received == []
        either.later(0.1)
        either.step()
        assert len(receiver.received) == 1
        (delivery,) = either.deliveries()
        assert (delivery.id, delivery.status, delivery.attempts) == (taken.id, DeliveryStatus.SUCCEEDED, 2)
        # What the dead one would have written late changes nothing.
        dead._settle(taken, Outcome(500, ErrorClass.SERVER_ERROR, 5))
        (delivery,) = either.deliveries()
        assert delivery.status is DeliveryStatus.SUCCEEDED
    assert either.get(endpoint).cursor_seq == delivery.event_seq


def test_stopped_process_gives_back_what_it_could_not_end(either: Ground) -> None:
    with receiving() as receiver:
        either.endpoint(receiver.url)
        either.event()
        stopped = either.dispatcher()
        either.outbox().fan_out()
        (taken,) = stopped._claim(10)
        stopped._give_back(taken)
        (delivery,) = either.deliveries()
        assert (delivery.attempts, delivery.leased_until_ms) == (0, None)
        either.step()
        assert len(receiver.received) == 1


def test_filter_tenant_and_start_decide_what_an_endpoint_gets(either: Ground) -> None:
    with receiving() as receiver:
        either.event("item.succeeded", n="before it was made")
        either.endpoint(receiver.url, "item.succeeded", "escalation.*")
        either.event("item.succeeded", n="1")
        either.event("item.queued", n="2")
        either.event("escalation.opened", resource="esc_1", n="3")
        either.event("item.succeeded", tenant="other", n="4")
        either.event("key.created", resource="key_1", n="5")
        either.event("rule.activated", resource="rul_1", n="6")
        either.step()
        assert {request.event["data"]["n"] for request in receiver.received} == {"1", "3"}
        all_of_it = either.endpoint(receiver.url)
        either.event("key.created", resource="key_1", n="7")
        either.event("budget.threshold", resource="default", n="8")
        either.step()
        assert [request.event["data"]["n"] for request in receiver.received[2:]] == ["8"]
    assert either.get(all_of_it).events == ("*",)


def test_disabled_endpoint_gets_nothing_of_what_happens_meanwhile_but_its_callbacks_go_on(ground: Ground) -> None:
    with receiving() as receiver, receiving() as called:
        endpoint = ground.endpoint(receiver.url)
        item_id = add_item(ground.database)
        callback = webhooks.Callback(called.url, called.origin, endpoint.id)
        ground.database.transact(lambda c: webhooks.add_callback(c, item_id, callback))
        ground.step()
        before = len(receiver.received)

        def turn(status: str) -> None:
            version = ground.get(endpoint).version
            ground.database.transact(
                lambda c: webhooks.change(
                    c, endpoint.id, tenant="default", version=version, values={"status": status}, at_ms=ground.now_ms
                )
            )

        turn("disabled")
        ground.event("item.rejected", resource=item_id)
        ground.step()
        turn("enabled")
        ground.event("item.succeeded", resource=item_id)
        ground.step()
        assert [request.event["type"] for request in receiver.received[before:]] == ["item.succeeded"]
        told = {request.event["type"] for request in called.received}
    assert told == {"item.rejected", "item.succeeded"}


def test_callback_of_an_item_that_is_purged_at_once_is_told_its_end_and_then_forgotten(ground: Ground) -> None:
    with receiving() as called:
        endpoint = ground.endpoint("https://hooks.example.com/", "rule.*")
        item_id = add_item(ground.database)
        callback = webhooks.Callback(called.url, called.origin, endpoint.id)
        ground.database.transact(lambda c: webhooks.add_callback(c, item_id, callback))
        ground.database.transact(lambda c: retention.ask_purge(c, item_id, tenant="default", actor="test"))
        assert ground.database.transact(lambda c: retention.entomb(c, item_id, actor="test")) is not None
        ground.step()
        assert [request.event["type"] for request in called.received] == ["item.cancelled"]
    with ground.database.read() as connection:
        assert connection.execute(sa.select(item_callbacks)).all() == []


def test_events_come_with_what_tells_stale_ones_from_new(ground: Ground) -> None:
    with receiving() as receiver:
        ground.endpoint(receiver.url)
        ground.event("item.queued", external_id="sku-1")
        ground.step()
        (request,) = receiver.received
    event = request.event
    assert set(event) == {"id", "type", "timestamp", "seq", "resource", "resource_version", "data"}
    assert event["id"] == request.headers["webhook-id"]
    assert (event["type"], event["resource"], event["resource_version"]) == ("item.queued", "itm_1", 1)
    assert event["data"]["external_id"] == "sku-1"
    assert event["data"]["links"]["self"] == "/v1/items/itm_1"
    assert request.headers["content-type"] == "application/json"


def test_full_body_has_the_item_and_never_more_than_20_kb(ground: Ground) -> None:
    with receiving() as receiver:
        ground.endpoint(receiver.url, "item.succeeded", body=BodyStyle.FULL)
        small = add_item(ground.database, submission={"title": "灯", "attributes": {"brand": "x"}})
        large = add_item(ground.database, submission={"title": "灯", "attributes": {"text": "灯" * 9000}})
        for item_id in (small, large, "itm_gone"):
            ground.event(resource=item_id)
        ground.step()
        first, second, third = sorted(receiver.received, key=lambda request: request.event["seq"])
    assert first.event["data"]["item"]["id"] == small
    assert first.event["data"]["item"]["title"] == "灯"
    assert second.event["data"]["omitted"] == "item"
    assert "item" not in third.event["data"]
    assert max(len(request.body) for request in (first, second, third)) <= 20_000


def test_event_that_is_not_kept_any_more_ends_its_delivery(ground: Ground) -> None:
    with receiving(always(500)) as receiver:
        endpoint = ground.endpoint(receiver.url)
        ground.event()
        ground.step()
        ground.database.transact(lambda c: c.execute(events.delete()))
        ground.later(5)
        ground.step()
        assert len(receiver.received) == 1
    (delivery,) = ground.deliveries()
    assert (delivery.status, delivery.last_error) == (DeliveryStatus.DEAD, ErrorClass.EVENT_GONE)
    assert ground.health(endpoint).failures == 1, "that says nothing about the receiver"


def test_replay_sends_a_range_again_under_the_same_ids(either: Ground) -> None:
    with receiving() as receiver:
        for number in range(3):
            either.event(number=number)
        endpoint = either.endpoint(receiver.url, "item.succeeded")
        for number in range(3, 6):
            either.event(number=number)
        either.event("item.queued")
        either.step()
        ids = [delivery.id for delivery in either.deliveries()]
        queued = either.database.transact(
            lambda c: webhook_deliveries.replay(c, endpoint, from_seq=2, to_seq=5, at_ms=either.now_ms)
        )
        either.step()
        assert queued == 4
        assert sorted(request.event["data"]["number"] for request in receiver.received) == [1, 2, 3, 3, 4, 4, 5]
        assert [delivery.id for delivery in either.deliveries()][2:] == ids
        either.step()
        assert len(receiver.received) == 7


def test_test_event_goes_to_its_own_endpoint_even_a_disabled_or_broken_one_and_counts_for_nothing(
    either: Ground,
) -> None:
    with receiving(always(500)) as receiver, receiving() as other:
        endpoint = either.endpoint(receiver.url, "item.*")
        either.endpoint(other.url)
        for _ in range(8):
            either.event()
        either.step()
        seen, health = len(receiver.received), either.health(endpoint)
        assert health.is_broken

        def add(connection: Any) -> str:
            webhooks.announce(connection, endpoint, "webhook.test", {}, at_ms=either.now_ms)
            return webhook_deliveries.add_test(connection, endpoint, at_ms=either.now_ms)

        test_id = either.database.transact(add)
        either.step()
        assert len(receiver.received) == seen + 1
        (delivery,) = (each for each in either.deliveries() if each.id == test_id)
        assert (delivery.status, delivery.attempts, delivery.is_test) == (DeliveryStatus.DEAD, 1, True)
        assert either.log(delivery)[0].response == ""
        assert either.health(endpoint) == health
        assert other.of_type("webhook.test") == []


def test_secret_is_stored_encrypted_where_there_is_a_key_and_opened_by_an_older_one(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = "k" * 32, "n" * 32
    with receiving() as receiver:
        ground.vault = Vault((first,))
        endpoint = ground.endpoint(receiver.url)
        secret = ground.secrets[endpoint.id]
        assert secret.removeprefix("whsec_") not in ground.get(endpoint).secrets[0].sealed
        ground.event()
        ground.vault = Vault((second, first))
        ground.step()
        verify_at(monkeypatch, receiver.received[0], secret)
        ground.event()
        ground.vault = Vault((second,))
        ground.step()
        assert len(receiver.received) == 1, "nothing is sent unsigned"
        (_, unsigned) = ground.deliveries()
        assert (unsigned.status, unsigned.last_error) == (DeliveryStatus.PENDING, ErrorClass.SECRET_UNREADABLE)
        assert ground.health(endpoint).failures == 0


def test_old_deliveries_are_forgotten_and_those_that_wait_are_not(either: Ground) -> None:
    with receiving() as receiver:
        either.endpoint(receiver.url)
        either.event()
        either.step()
        receiver.answer = always(500)
        either.event()
        either.step()
        either.later(31 * DAY_S)
        either.outbox().forget()
    (left,) = either.deliveries()
    assert left.status is DeliveryStatus.PENDING


def test_running_dispatcher_delivers_and_ends_when_told(ground: Ground) -> None:
    with receiving() as receiver:
        ground.endpoint(receiver.url)
        dispatcher = ground.dispatcher()
        thread = threading.Thread(target=dispatcher.run)
        thread.start()
        ground.event()
        dispatcher.wake()
        until(lambda: receiver.received)
        until(lambda: ground.count(status="succeeded") == 1)
        dispatcher.stop()
        thread.join(10)
        assert not thread.is_alive()
