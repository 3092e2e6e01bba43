"""The process part that delivers: makes deliveries of the event log, claims what is due, sends, and writes what came of it.

Nothing that matters is in memory: a cursor per endpoint says which events were looked at, a row per delivery says what is to be
sent and when, a lease on that row says who is at it. After a kill at any moment others go on; an event may then arrive twice.
Any number of processes may run this at once. One that is hinted looks at nothing by itself: it claims for the addresses of the
deliveries that it is told of, and goes on with an address while something is due there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog
from sqlalchemy.engine import Connection

from gateway import metrics
from gateway.store import webhook_deliveries as deliveries
from gateway.store import webhooks as endpoints
from gateway.store.engine import Database
from gateway.webhooks import catalogue, signing
from gateway.webhooks.body import body_of
from gateway.webhooks.model import Delivery, DisabledReason, Endpoint, ErrorClass, Outcome
from gateway.webhooks.outbox import POLL_S, Clock, Outbox
from gateway.webhooks.schedule import RetryPolicy, after_failure, after_success, next_delay_s
from gateway.webhooks.sender import Sender
from gateway.webhooks.vault import SecretUnreadable, Vault

log = structlog.get_logger()

T = TypeVar("T")

LEASE_TIMES = 2
"""How often the time that an attempt may take goes into its lease: the rest is for the database."""
DRAIN_S = 5.0
MOST_IN_HAND = 256
"""Attempts that one process has under way."""
_THREADS = 4


@dataclass(frozen=True, slots=True)
class _Message:
    """What one attempt sends."""

    url: str
    headers: dict[str, str]
    body: bytes
    allow_insecure: bool


class Dispatcher:
    """Delivers until `stop` is called."""

    def __init__(
        self,
        database: Database,
        sender: Sender,
        vault: Vault,
        policy: RetryPolicy,
        *,
        keep_days: int = 30,
        timeout_s: float = 15.0,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        is_hinted: bool = False,
    ) -> None:
        self._database = database
        self._sender = sender
        self._vault = vault
        self._policy = policy
        self._lease_ms = int(timeout_s * LEASE_TIMES * 1000)
        self._clock = clock or Clock()
        self._outbox = None if is_hinted else Outbox(database, keep_days=keep_days, clock=self._clock)
        self._hinted: set[str] = set()
        """Addresses for which something may be due."""
        self._hinted_lock = threading.Lock()
        self._has_room = threading.Event()
        self._has_room.set()
        self._chance = chance
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="webhooks")
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._awake: asyncio.Event | None = None
        self._in_hand: dict[asyncio.Task[None], Delivery] = {}

    def run(self) -> None:
        """Deliver, blocking this thread."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """Claim nothing more; `run` returns once what is under way has ended, within `DRAIN_S`."""
        self._stopping.set()
        self._has_room.set()
        self.wake()

    def hint(self, delivery_id: str) -> None:
        """This delivery may be due: begin it, or whichever waits longest for its address. From any thread.

        Blocks while as much is under way here as may be, so that further hints go to other processes. One at a delivery that
        has ended, or never was, does nothing.
        """
        with self._database.read() as connection:
            lane = deliveries.waiting_lane(connection, delivery_id)
        if lane is not None:
            self._has_room.wait()
            self._note_lanes([lane])
            self.wake()

    def wake(self) -> None:
        """Something happened: look now. From any thread."""
        loop, awake = self._loop, self._awake
        if loop is not None and awake is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(awake.set)

    async def _run(self) -> None:
        self._loop, self._awake = asyncio.get_running_loop(), asyncio.Event()
        log.info("webhooks.started")
        while not self._stopping.is_set():
            has_more = False
            try:
                has_more = await self.step()
            except Exception:
                log.exception("webhooks.step_failed")
            if not has_more:
                await self._rest()
        await self._end()
        self._sender.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        log.info("webhooks.stopped")

    async def _rest(self) -> None:
        assert self._awake is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), POLL_S)
        self._awake.clear()

    async def step(self) -> bool:
        """One round: look for events, begin what is due. Whether there is more to do at once."""
        has_more = self._outbox is not None and await self._in_thread(self._outbox.fan_out)
        room = MOST_IN_HAND - len(self._in_hand)
        for delivery in await self._in_thread(partial(self._claim, room)):
            task = asyncio.get_running_loop().create_task(self._deliver(delivery))
            self._in_hand[task] = delivery
            task.add_done_callback(self._ended)
        if len(self._in_hand) >= MOST_IN_HAND and not self._stopping.is_set():
            self._has_room.clear()
        if self._outbox is not None:
            await self._in_thread(self._outbox.forget)
        return has_more

    async def settled(self) -> None:
        """Until nothing is under way."""
        while self._in_hand:
            await asyncio.wait(list(self._in_hand))

    def _ended(self, task: asyncio.Task[None]) -> None:
        delivery = self._in_hand.pop(task, None)
        self._has_room.set()
        if delivery is not None:
            self._note_lanes([delivery.lane])
        if self._awake is not None:
            self._awake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("webhooks.delivery_failed", exc_info=task.exception())

    async def _end(self) -> None:
        """Let what is under way end; give the rest back."""
        if self._in_hand:
            await asyncio.wait(list(self._in_hand), timeout=DRAIN_S)
        left = dict(self._in_hand)
        for task in left:
            task.cancel()
        for delivery in left.values():
            await self._in_thread(partial(self._give_back, delivery))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # What follows blocks, in threads.

    def _note_lanes(self, lanes: Collection[str]) -> None:
        if self._outbox is None:
            with self._hinted_lock:
                self._hinted.update(lanes)

    def _claim(self, room: int) -> list[Delivery]:
        taken: list[Delivery] = []
        lanes = self._lanes()
        for number, lane in enumerate(lanes):
            if len(taken) >= room or self._stopping.is_set():
                self._note_lanes(lanes[number:])
                break
            claimed = self._database.transact(partial(self._claim_lane, lane=lane, most=room - len(taken)))
            if not claimed:
                self._note_lanes([lane])  # another process was at it, and may not have seen what we were told of
            taken += claimed
        return taken

    def _lanes(self) -> list[str]:
        """Addresses to claim for: all, or those that were hinted at."""
        among = None
        if self._outbox is None:
            with self._hinted_lock:
                among, self._hinted = self._hinted, set()
            if not among:
                return []
        with self._database.read() as connection:
            return deliveries.due_lanes(connection, at_ms=self._clock.database_ms(connection), among=among)

    def _claim_lane(self, connection: Connection, *, lane: str, most: int) -> list[Delivery]:
        at_ms = self._clock.database_ms(connection)
        return deliveries.claim(connection, lane, at_ms=at_ms, lease_ms=self._lease_ms, most=most)

    def _give_back(self, delivery: Delivery) -> None:
        self._database.transact(
            lambda connection: deliveries.give_back(connection, delivery, at_ms=self._clock.database_ms(connection))
        )

    async def _deliver(self, delivery: Delivery) -> None:
        """One attempt, from signing to the log."""
        try:
            outcome = await self._attempt(delivery)
        except Exception:
            log.exception("webhooks.attempt_failed", delivery_id=delivery.id)
            outcome = Outcome(None, ErrorClass.INTERNAL, 0)
        await self._in_thread(partial(self._settle, delivery, outcome))

    async def _attempt(self, delivery: Delivery) -> Outcome:
        message = await self._in_thread(partial(self._message, delivery))
        if isinstance(message, ErrorClass):
            return Outcome(None, message, 0)
        return await self._sender.send(
            message.url, headers=message.headers, body=message.body, allow_insecure=message.allow_insecure
        )

    def _message(self, delivery: Delivery) -> _Message | ErrorClass:
        """Everything that is sent, made anew for each attempt; or why nothing can be."""
        with self._database.read() as connection:
            endpoint = endpoints.get(connection, delivery.endpoint_id)
            event = deliveries.event_of(connection, delivery)
            if endpoint is None or event is None:
                return ErrorClass.EVENT_GONE
            body = body_of(connection, event, endpoint.body)
            at_ms = self._clock.database_ms(connection)
        try:
            live = [self._vault.open(secret.sealed) for secret in endpoint.live_secrets(at_ms)]
        except SecretUnreadable as error:
            log.warning("webhooks.secret_unreadable", endpoint_id=endpoint.id, why=str(error))
            return ErrorClass.SECRET_UNREADABLE
        headers = signing.headers(live, message_id=event.id, timestamp=int(self._clock.wall_s()), body=body)
        is_callback = delivery.url is not None
        return _Message(delivery.url or endpoint.url, headers, body, endpoint.allow_insecure or is_callback)

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        self._database.transact(partial(self._write, delivery=delivery, outcome=outcome))
        metrics.webhook_attempts.labels("success" if outcome.error is None else outcome.error.value).inc()
        log.info(
            "webhook.attempt",
            delivery_id=delivery.id,
            endpoint_id=delivery.endpoint_id,
            event_id=delivery.event_id,
            attempt=delivery.attempts,
            status=outcome.status_code,
            error=outcome.error,
            latency_ms=outcome.latency_ms,
        )

    def _write(self, connection: Connection, *, delivery: Delivery, outcome: Outcome) -> None:
        at_ms = self._clock.database_ms(connection)
        next_ms = None if outcome.is_success else self._next_ms(delivery, outcome, at_ms)
        is_written = deliveries.settle(connection, delivery, outcome, next_attempt_ms=next_ms, at_ms=at_ms)
        if outcome.is_success and is_written:
            metrics.webhook_seconds.observe(max(0, at_ms - delivery.created_ms) / 1000)
        health = deliveries.health_for_update(connection, delivery.lane)
        if health is None:
            return
        if outcome.is_success:
            if health.failures or health.failing_since_ms is not None or health.last_success_ms is None:
                deliveries.set_health(connection, delivery.lane, after_success(health, at_ms))
            return
        if delivery.is_test or outcome.error in _NOT_ITS_FAULT:
            return
        judged = after_failure(health, at_ms, self._policy, retry_after_s=outcome.retry_after_s)
        deliveries.set_health(connection, delivery.lane, judged.health)
        if delivery.url is not None:
            return
        if judged.notice:
            self._notice(connection, delivery.endpoint_id, judged.health.failing_since_ms or at_ms, at_ms)
        if outcome.error is ErrorClass.GONE:
            self._disable(connection, delivery.endpoint_id, DisabledReason.GONE, at_ms)
        elif judged.disable:
            self._disable(connection, delivery.endpoint_id, DisabledReason.FAILING, at_ms)

    def _next_ms(self, delivery: Delivery, outcome: Outcome, at_ms: int) -> int | None:
        if delivery.is_test or outcome.error in {ErrorClass.GONE, ErrorClass.EVENT_GONE}:
            return None
        delay_s = next_delay_s(
            delivery.tries + 1, self._policy.retries_s, chance=self._chance(), retry_after_s=outcome.retry_after_s
        )
        return None if delay_s is None else at_ms + int(delay_s * 1000)

    def _notice(self, connection: Connection, endpoint_id: str, since_ms: int, at_ms: int) -> None:
        endpoint: Endpoint | None = endpoints.get(connection, endpoint_id)
        if endpoint is not None:
            log.warning("webhook.failing", endpoint_id=endpoint_id, tenant=endpoint.tenant, since_ms=since_ms)
            endpoints.announce(connection, endpoint, catalogue.FAILING, {"failing_since_ms": since_ms}, at_ms=at_ms)

    def _disable(self, connection: Connection, endpoint_id: str, reason: DisabledReason, at_ms: int) -> None:
        if endpoints.disable(connection, endpoint_id, reason, at_ms=at_ms):
            log.warning("webhook.disabled", endpoint_id=endpoint_id, reason=reason.value)


_NOT_ITS_FAULT = frozenset({ErrorClass.EVENT_GONE, ErrorClass.SECRET_UNREADABLE, ErrorClass.INTERNAL})
"""Failures that say nothing about the receiver."""
