"""Delivery by hints, under a clock of the test's own: who is told of what, how often, and what is made of a hint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gateway.webhooks import dispatcher as module
from gateway.webhooks.dispatcher import Dispatcher
from tests.gateway.delivering import Ground
from tests.gateway.receiver import Answer, Received, always, receiving
from tests.gateway.running import until
from tests.gateway.test_webhook_delivery import either, ground, migrated

__all__ = ["either", "ground", "migrated"]

PATIENCE_MS = 10_000


def told(ground: Ground) -> list[str]:
    outbox = ground.outbox()
    while outbox.fan_out():
        pass
    return sorted(outbox.take_untold(patience_ms=PATIENCE_MS))


def ids(ground: Ground) -> list[str]:
    return [delivery.id for delivery in ground.deliveries()]


def test_one_hint_sends_whatever_is_due_at_its_address_and_nothing_else(either: Ground) -> None:
    with receiving() as receiver, receiving() as other:
        endpoint = either.endpoint(receiver.url)
        either.endpoint(other.url)
        for number in range(30):
            either.event(number=number)
        told(either)
        hinted = either.dispatcher(is_hinted=True)
        either.step(hinted)
        assert receiver.received == [], "it looks at nothing by itself"
        newest = either.deliveries(endpoint_id=endpoint.id)[-1]
        hinted.hint(newest.id)
        either.step(hinted)
        numbers = [request.event["data"]["number"] for request in receiver.received]
        assert sorted(numbers) == list(range(30))
        assert set(numbers[:4]) == set(range(4)), "who waits longest comes first"
        assert other.received == []


@pytest.mark.parametrize("times", [1, 3])
def test_hint_at_what_has_ended_or_never_was_does_nothing(either: Ground, times: int) -> None:
    with receiving() as receiver:
        either.endpoint(receiver.url)
        either.event()
        (delivery_id,) = told(either)
        hinted = either.dispatcher(is_hinted=True)
        for _ in range(times):
            hinted.hint(delivery_id)
        either.step(hinted)
        for name in (delivery_id, "whd_00000000000000000000000000", ""):
            hinted.hint(name)
        either.step(hinted)
        assert len(receiver.received) == 1


def test_of_what_is_due_as_much_is_told_as_there_is_room_for_and_once_by_whoever_looks_first(either: Ground) -> None:
    with receiving() as receiver:
        either.endpoint(receiver.url)
        for _ in range(10):
            either.event()
        either.outbox().fan_out()
        with ThreadPoolExecutor(4) as threads:
            found = sorted(name for one in threads.map(lambda _: told(either), range(8)) for name in one)
        assert found == sorted(ids(either)[:4])
        either.later(PATIENCE_MS / 1000)
        assert told(either) == []
        either.later(0.002)
        assert told(either) == found, "nobody has sent them, so the hints were lost"
        hinted = either.dispatcher(is_hinted=True)
        hinted.hint(found[0])
        either.step(hinted)
        either.later(60)
        assert (told(either), len(receiver.received)) == ([], 10)


def test_attempt_is_told_when_it_is_due_and_not_before(either: Ground) -> None:
    with receiving(always(500)) as receiver:
        either.endpoint(receiver.url)
        either.event()
        hinted = either.dispatcher(is_hinted=True)
        for wait_s in (5, 300, 1800):
            (delivery_id,) = told(either)
            hinted.hint(delivery_id)
            either.step(hinted)
            hinted.hint(delivery_id)  # the same message once more
            either.step(hinted)
            either.later(wait_s - 0.001)
            assert told(either) == []
            either.later(0.001)
        assert len(receiver.received) == 3


def test_delivery_of_a_killed_process_is_told_as_soon_as_its_lease_is_over(either: Ground) -> None:
    with receiving() as receiver:
        either.endpoint(receiver.url)
        either.event()
        (delivery_id,) = told(either)
        dead = either.dispatcher(is_hinted=True, timeout_s=20)
        dead.hint(delivery_id)
        (taken,) = dead._claim(10)  # and then it is killed
        either.later(39.9)
        assert told(either) == []
        either.later(0.1)
        assert told(either) == [taken.id]
        hinted = either.dispatcher(is_hinted=True)
        hinted.hint(taken.id)
        either.step(hinted)
        assert len(receiver.received) == 1


def test_nothing_is_told_of_an_address_that_is_left_alone(ground: Ground) -> None:
    with receiving(always(500)) as receiver:
        endpoint = ground.endpoint(receiver.url)
        for _ in range(20):
            ground.event()
        hinted = ground.dispatcher(is_hinted=True)
        hinted.hint(told(ground)[0])
        ground.step(hinted)
        paused = ground.health(endpoint)
        assert paused.is_broken
        assert paused.paused_until_ms is not None
        ground.later((paused.paused_until_ms - ground.now_ms) / 1000 - 1)
        assert told(ground) == []
        ground.later(1)
        seen = len(receiver.received)
        hinted.hint(told(ground)[0])
        ground.step(hinted)
        assert len(receiver.received) == seen + 1, "half open: one"


@contextmanager
def at_work(dispatcher: Dispatcher) -> Iterator[None]:
    thread = threading.Thread(target=dispatcher.run)
    thread.start()
    try:
        yield
    finally:
        dispatcher.stop()
        thread.join(10)
    assert not thread.is_alive()


def test_process_that_has_enough_in_hand_takes_no_more_hints(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IN_HAND", 2)
    may_answer = threading.Event()

    def hangs(request: Received) -> Answer:
        may_answer.wait(30)
        return Answer(204)

    with receiving(hangs) as receiver:
        endpoints = [ground.endpoint(f"{receiver.url}/{number}") for number in range(3)]
        ground.event()
        told(ground)
        first = {endpoint.id: ground.deliveries(endpoint_id=endpoint.id)[0].id for endpoint in endpoints}
        hinted = ground.dispatcher(is_hinted=True, timeout_s=30)
        with at_work(hinted):
            for endpoint in endpoints[:2]:
                hinted.hint(first[endpoint.id])
            until(lambda: len(receiver.received) == 2)
            waiting = threading.Thread(target=hinted.hint, args=(first[endpoints[2].id],), daemon=True)
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive(), "the message stays with the broker, for another process"
            may_answer.set()
            until(lambda: ground.count(status="succeeded") == 3)
            waiting.join(10)
            assert not waiting.is_alive()
