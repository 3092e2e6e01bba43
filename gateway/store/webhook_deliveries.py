"""Rows of deliveries: made from events, claimed by lease, tried, and kept as a log."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.ids import new_id
from gateway.store.tables import (
    events,
    item_callbacks,
    webhook_attempts,
    webhook_deliveries,
    webhook_endpoints,
    webhook_lanes,
)
from gateway.store.webhooks import health_in, insert_or_leave
from gateway.webhooks import catalogue
from gateway.webhooks.model import Attempt, Delivery, DeliveryStatus, Endpoint, EndpointStatus, ErrorClass, Outcome
from gateway.webhooks.schedule import CONCURRENCY, Health

_PENDING: sa.ColumnClause[str] = sa.literal_column(f"'{DeliveryStatus.PENDING.value}'")
"""Written out rather than bound, so that the indexes of what waits can be used."""
_IS_PENDING = webhook_deliveries.c.status == _PENDING
MOST_REPLAYED = 10_000
"""Events that one replay may look at."""
_LANES_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Untold:
    """A due delivery of which workers are to be told."""

    id: str
    updated_ms: int


def fan_out(connection: Connection, endpoint: Endpoint, rows: Sequence[sa.Row[Any]], *, at_ms: int) -> int | None:
    """Make deliveries of these events, which follow the endpoint's cursor, and move it behind them, in one transaction.

    Gives how many there are to send; None if another process was quicker, and then nothing was written.
    """
    columns = webhook_endpoints.c
    moved = connection.execute(
        webhook_endpoints.update()
        .where(columns.id == endpoint.id, columns.cursor_seq == endpoint.cursor_seq)
        .values(cursor_seq=rows[-1].seq)
        .returning(columns.status, columns.events)
    ).first()
    if moved is None:
        return None
    made = [*_of_endpoint(endpoint, moved, rows, at_ms), *_of_callbacks(connection, endpoint, rows, at_ms)]
    if made:
        connection.execute(insert_or_leave(connection, webhook_deliveries), made)
    _forget_callbacks(connection, endpoint, rows)
    return len(made)


def _forget_callbacks(connection: Connection, endpoint: Endpoint, rows: Sequence[sa.Row[Any]]) -> None:
    """Of purged items: not before this, since what happened to them until then was still to be told."""
    purged = {row.resource for row in rows if row.type == catalogue.PURGED}
    if purged:
        connection.execute(
            item_callbacks.delete().where(
                item_callbacks.c.endpoint_id == endpoint.id, item_callbacks.c.item_id.in_(purged)
            )
        )


def _of_endpoint(
    endpoint: Endpoint, current: sa.Row[Any], rows: Sequence[sa.Row[Any]], at_ms: int
) -> list[dict[str, Any]]:
    if current.status != EndpointStatus.ENABLED.value:
        return []
    return [_new(endpoint, row, at_ms, lane=endpoint.id) for row in rows if _wants(endpoint, current.events, row)]


def _wants(endpoint: Endpoint, filters: Sequence[str], event: sa.Row[Any]) -> bool:
    """Tests are made one by one, and nobody is told by an address that it does not answer."""
    is_own = event.type.startswith("webhook.") and event.resource == endpoint.id
    return event.type != catalogue.TEST and not is_own and catalogue.lets_through(filters, event.type)


def _of_callbacks(
    connection: Connection, endpoint: Endpoint, rows: Sequence[sa.Row[Any]], at_ms: int
) -> list[dict[str, Any]]:
    about = [row for row in rows if row.type in catalogue.CALLBACK_EVENTS]
    if not about:
        return []
    found = connection.execute(
        sa.select(item_callbacks).where(
            item_callbacks.c.endpoint_id == endpoint.id,
            item_callbacks.c.item_id.in_({row.resource for row in about}),
        )
    ).all()
    return [
        _new(endpoint, row, at_ms, lane=callback.lane, url=callback.url, url_key=callback.url_key)
        for row in about
        for callback in found
        if callback.item_id == row.resource
    ]


def _new(
    endpoint: Endpoint,
    event: sa.Row[Any],
    at_ms: int,
    *,
    lane: str,
    url: str | None = None,
    url_key: str = "",
    is_test: bool = False,
) -> dict[str, Any]:
    return {
        "id": new_id("whd", now_ms=at_ms),
        "tenant": endpoint.tenant,
        "endpoint_id": endpoint.id,
        "lane": lane,
        "url": url,
        "url_key": url_key,
        "event_id": event.id,
        "event_seq": event.seq,
        "event_type": event.type,
        "resource": event.resource,
        "status": DeliveryStatus.PENDING.value,
        "is_test": is_test,
        "next_attempt_ms": at_ms,
        "created_ms": at_ms,
        "updated_ms": at_ms,
    }


def add_test(connection: Connection, endpoint: Endpoint, *, at_ms: int) -> str:
    """A delivery of the newest test event of this endpoint; gives its id."""
    event = connection.execute(
        sa.select(events)
        .where(events.c.resource == endpoint.id, events.c.type == catalogue.TEST)
        .order_by(events.c.seq.desc())
        .limit(1)
    ).one()
    row = _new(endpoint, event, at_ms, lane=endpoint.id, is_test=True)
    connection.execute(webhook_deliveries.insert(), row)
    return str(row["id"])


def replay(connection: Connection, endpoint: Endpoint, *, from_seq: int, to_seq: int, at_ms: int) -> int | None:
    """Send the events of a range (again), those that the filter lets through; None where the range holds too many."""
    found = connection.execute(
        sa.select(events)
        .where(events.c.tenant == endpoint.tenant, events.c.seq >= from_seq, events.c.seq <= to_seq)
        .order_by(events.c.seq)
        .limit(MOST_REPLAYED + 1)
    ).all()
    if len(found) > MOST_REPLAYED:
        return None
    made = [_new(endpoint, row, at_ms, lane=endpoint.id) for row in found if _wants(endpoint, endpoint.events, row)]
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    for start in range(0, len(made), 500):
        statement = insert(webhook_deliveries).values(made[start : start + 500])
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["endpoint_id", "event_id", "url_key"],
                set_={**_again(at_ms)},
                where=webhook_deliveries.c.status != DeliveryStatus.PENDING.value,
            )
        )
    if made:
        unpause(connection, endpoint.id)
    return len(made)


def _again(at_ms: int) -> dict[str, Any]:
    return {
        "status": DeliveryStatus.PENDING.value,
        "tries": 0,
        "next_attempt_ms": at_ms,
        "leased_until_ms": None,
        "finished_ms": None,
        "updated_ms": at_ms,
    }


def redeliver(connection: Connection, delivery_id: str, *, tenant: str, at_ms: int) -> Delivery | None:
    """Send a delivery again, now, under the same id; one that is being sent is left alone."""
    columns = webhook_deliveries.c
    is_idle = sa.or_(columns.leased_until_ms.is_(None), columns.leased_until_ms <= at_ms)
    row = connection.execute(
        webhook_deliveries.update()
        .where(columns.id == delivery_id, columns.tenant == tenant, is_idle)
        .values(**_again(at_ms))
        .returning(columns.lane)
    ).first()
    if row is not None:
        unpause(connection, row.lane)
    return get(connection, delivery_id, tenant=tenant)


def unpause(connection: Connection, lane: str) -> None:
    """Somebody asks for it: try now, whatever failed before."""
    connection.execute(webhook_lanes.update().where(webhook_lanes.c.id == lane).values(paused_until_ms=None))


def waiting_lane(connection: Connection, delivery_id: str) -> str | None:
    """The address that a delivery waits for; None if it has ended, or is none."""
    query = sa.select(webhook_deliveries.c.lane).where(webhook_deliveries.c.id == delivery_id, _IS_PENDING)
    return connection.execute(query).scalar()


def due_lanes(connection: Connection, *, at_ms: int, among: Collection[str] | None = None) -> list[str]:
    """Addresses (among these) for which something is due and that have room for it, those that answer first."""
    return _lanes_with(connection, sa.true(), at_ms=at_ms, among=among)


def _lanes_with(
    connection: Connection, condition: sa.ColumnElement[bool], *, at_ms: int, among: Collection[str] | None = None
) -> list[str]:
    lanes, columns = webhook_lanes.c, webhook_deliveries.c
    is_due = sa.and_(columns.lane == lanes.id, _IS_PENDING, columns.next_attempt_ms <= at_ms, condition)
    is_open = sa.or_(lanes.paused_until_ms.is_(None), lanes.paused_until_ms <= at_ms)
    busy = (
        sa.select(sa.func.count())
        .select_from(webhook_deliveries)
        .where(columns.lane == lanes.id, columns.leased_until_ms > at_ms)
        .scalar_subquery()
    )
    query = sa.select(lanes.id).where(
        sa.or_(
            sa.and_(is_open, sa.exists().where(is_due)),
            sa.exists().where(is_due, columns.is_test.is_(True)),
        ),
        busy < sa.case((lanes.failures == 0, CONCURRENCY), else_=1),
    )
    if among is not None:
        query = query.where(lanes.id.in_(among))
    return [str(row.id) for row in connection.execute(query.order_by(lanes.failures, lanes.id))]


def untold(connection: Connection, *, at_ms: int, patience_ms: int) -> list[Untold]:
    """Due deliveries of which workers were not told since they came due, or last longer ago than `patience_ms`.

    Of each address that has room the next ones, no more than may be under way to it: who sends them goes on with the rest.
    """
    columns = webhook_deliveries.c
    is_untold = sa.or_(columns.updated_ms <= columns.next_attempt_ms, columns.updated_ms < at_ms - patience_ms)
    lanes = _lanes_with(connection, is_untold, at_ms=at_ms)
    found: list[Untold] = []
    for lane in random.sample(lanes, min(len(lanes), _LANES_AT_ONCE)):  # by chance, so that none waits for ever
        first = (
            sa.select(columns.id, columns.updated_ms, is_untold.label("is_untold"))
            .where(columns.lane == lane, _IS_PENDING, columns.next_attempt_ms <= at_ms)
            .order_by(columns.next_attempt_ms, columns.event_seq)
            .limit(CONCURRENCY)
        )
        found += [Untold(row.id, row.updated_ms) for row in connection.execute(first) if row.is_untold]
    return found


def note_told(connection: Connection, found: Sequence[Untold], *, at_ms: int) -> list[str]:
    """Count these as told now; gives the ids of those that nobody else told of meanwhile.

    A delivery that waits and was changed after it came due has been told of: nothing else changes one then.
    """
    columns = webhook_deliveries.c
    after_it_came_due = sa.case((columns.next_attempt_ms >= at_ms, at_ms + 1), else_=at_ms)
    return [
        one.id
        for one in found
        if connection.execute(
            webhook_deliveries.update()
            .where(columns.id == one.id, _IS_PENDING, columns.updated_ms == one.updated_ms)
            .where(columns.next_attempt_ms <= at_ms)
            .values(updated_ms=after_it_came_due)
        ).rowcount
    ]


def claim(connection: Connection, lane: str, *, at_ms: int, lease_ms: int, most: int) -> list[Delivery]:
    """Take up to `most` due deliveries of an address, as many as may be under way to it; counts the attempt before it is made.

    A process that dies meanwhile leaves them to others once the lease is over.
    """
    query = sa.select(webhook_lanes).where(webhook_lanes.c.id == lane)
    if connection.dialect.name == "postgresql":
        query = query.with_for_update(skip_locked=True)
    row = connection.execute(query).first()
    if row is None:
        return []
    health, columns = health_in(row), webhook_deliveries.c
    busy = connection.execute(
        sa.select(sa.func.count())
        .select_from(webhook_deliveries)
        .where(columns.lane == lane, columns.leased_until_ms > at_ms)
    ).scalar_one()
    free = min(most, health.concurrency() - busy)
    if free <= 0:
        return []
    due = sa.select(columns.id).where(columns.lane == lane, _IS_PENDING, columns.next_attempt_ms <= at_ms)
    if health.paused_until_ms is not None and health.paused_until_ms > at_ms:
        due = due.where(columns.is_test.is_(True))
    ids = connection.execute(due.order_by(columns.next_attempt_ms, columns.event_seq).limit(free)).scalars().all()
    taken = connection.execute(
        webhook_deliveries.update()
        .where(columns.id.in_(ids), _IS_PENDING, columns.next_attempt_ms <= at_ms)
        .values(
            attempts=columns.attempts + 1,
            next_attempt_ms=at_ms + lease_ms,
            leased_until_ms=at_ms + lease_ms,
            updated_ms=at_ms,
        )
        .returning(*columns)
    )
    return sorted((_delivery(row) for row in taken), key=lambda delivery: delivery.event_seq)


def give_back(connection: Connection, delivery: Delivery, *, at_ms: int) -> None:
    """The attempt was not made: it is due for others at once."""
    connection.execute(
        webhook_deliveries.update()
        .where(*_is_mine(delivery))
        .values(next_attempt_ms=at_ms, leased_until_ms=None, attempts=delivery.attempts - 1, updated_ms=at_ms)
    )


def _is_mine(delivery: Delivery) -> tuple[sa.ColumnElement[bool], ...]:
    columns = webhook_deliveries.c
    return (columns.id == delivery.id, columns.attempts == delivery.attempts, _IS_PENDING)


def settle(
    connection: Connection, delivery: Delivery, outcome: Outcome, *, next_attempt_ms: int | None, at_ms: int
) -> bool:
    """Write what an attempt came to; False if the delivery was taken over or ended meanwhile, and is left as it is.

    A 2xx counts even then: the receiver has it.
    """
    columns = webhook_deliveries.c
    _log(connection, delivery, outcome, next_attempt_ms=next_attempt_ms, at_ms=at_ms)
    status = DeliveryStatus.PENDING
    if outcome.is_success:
        status = DeliveryStatus.SUCCEEDED
    elif next_attempt_ms is None:
        status = DeliveryStatus.DEAD
    where = (columns.id == delivery.id,) if outcome.is_success else _is_mine(delivery)
    changed = connection.execute(
        webhook_deliveries.update()
        .where(*where)
        .values(
            status=status.value,
            tries=columns.tries + (0 if outcome.is_success else 1),
            next_attempt_ms=next_attempt_ms if status is DeliveryStatus.PENDING else None,
            leased_until_ms=None,
            last_status=outcome.status_code,
            last_error=None if outcome.error is None else outcome.error.value,
            finished_ms=None if status is DeliveryStatus.PENDING else at_ms,
            updated_ms=at_ms,
        )
    )
    return changed.rowcount == 1


def _log(
    connection: Connection, delivery: Delivery, outcome: Outcome, *, next_attempt_ms: int | None, at_ms: int
) -> None:
    is_there = connection.execute(
        sa.select(webhook_deliveries.c.id).where(webhook_deliveries.c.id == delivery.id)
    ).first()
    if is_there is None:  # its endpoint was deleted meanwhile
        return
    connection.execute(
        insert_or_leave(connection, webhook_attempts),
        {
            "delivery_id": delivery.id,
            "attempt": delivery.attempts,
            "at_ms": at_ms - outcome.latency_ms,
            "status_code": outcome.status_code,
            "latency_ms": outcome.latency_ms,
            "error": None if outcome.error is None else outcome.error.value,
            "next_attempt_ms": next_attempt_ms,
            "response": ""
            if delivery.is_test
            else outcome.response,  # or anybody could read answers of the inside by tests
        },
    )


def health_for_update(connection: Connection, lane: str) -> Health | None:
    """The lane's health, kept from others until the transaction ends; None if it is gone."""
    query = sa.select(webhook_lanes).where(webhook_lanes.c.id == lane)
    if connection.dialect.name == "postgresql":
        query = query.with_for_update()
    row = connection.execute(query).first()
    return None if row is None else health_in(row)


def set_health(connection: Connection, lane: str, health: Health) -> None:
    """Write it."""
    connection.execute(webhook_lanes.update().where(webhook_lanes.c.id == lane).values(**asdict(health)))


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """What a list is narrowed by; None means any."""

    endpoint_id: str | None = None
    status: tuple[str, ...] | None = None
    event_type: str | None = None
    event_id: str | None = None
    resource: str | None = None
    created_after_ms: int | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """The filter in SQL."""
        columns = webhook_deliveries.c
        found: list[sa.ColumnElement[bool]] = [
            column == value
            for column, value in (
                (columns.endpoint_id, self.endpoint_id),
                (columns.event_type, self.event_type),
                (columns.event_id, self.event_id),
                (columns.resource, self.resource),
            )
            if value is not None
        ]
        if self.status is not None:
            found.append(columns.status.in_(self.status))
        if self.created_after_ms is not None:
            found.append(columns.created_ms > self.created_after_ms)
        return found


def page(
    connection: Connection, *, tenant: str, where: DeliveryFilter, after: tuple[int, str] | None, limit: int
) -> list[Delivery]:
    """Up to `limit` deliveries of a tenant, newest first."""
    columns = webhook_deliveries.c
    query = sa.select(webhook_deliveries).where(columns.tenant == tenant, *where.conditions())
    if after is not None:
        query = query.where(sa.tuple_(columns.created_ms, columns.id) < sa.tuple_(*map(sa.literal, after)))
    rows = connection.execute(query.order_by(columns.created_ms.desc(), columns.id.desc()).limit(limit))
    return [_delivery(row) for row in rows]


def get(connection: Connection, delivery_id: str, *, tenant: str) -> Delivery | None:
    """The delivery; None if there is none of that id in this tenant."""
    columns = webhook_deliveries.c
    row = connection.execute(
        sa.select(webhook_deliveries).where(columns.id == delivery_id, columns.tenant == tenant)
    ).first()
    return None if row is None else _delivery(row)


def attempts_of(connection: Connection, delivery_id: str) -> list[Attempt]:
    """The delivery log, oldest first."""
    rows = connection.execute(
        sa.select(webhook_attempts)
        .where(webhook_attempts.c.delivery_id == delivery_id)
        .order_by(webhook_attempts.c.attempt)
    )
    return [
        Attempt(
            attempt=row.attempt,
            at_ms=row.at_ms,
            status_code=row.status_code,
            latency_ms=row.latency_ms,
            error=None if row.error is None else ErrorClass(row.error),
            next_attempt_ms=row.next_attempt_ms,
            response=row.response,
        )
        for row in rows
    ]


def event_of(connection: Connection, delivery: Delivery) -> sa.Row[Any] | None:
    """The event that is delivered; None if it is older than what is kept."""
    return connection.execute(sa.select(events).where(events.c.seq == delivery.event_seq)).first()


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits and what failed, over all tenants."""

    pending: int
    dead: int
    oldest_due_s: float


def backlog(connection: Connection, *, at_ms: int) -> Backlog:
    """For metrics."""
    columns = webhook_deliveries.c
    pending = connection.execute(sa.select(sa.func.count()).where(_IS_PENDING)).scalar_one()
    dead = connection.execute(
        sa.select(sa.func.count()).where(columns.status == DeliveryStatus.DEAD.value)
    ).scalar_one()
    oldest = connection.execute(
        sa.select(sa.func.min(columns.next_attempt_ms)).where(_IS_PENDING, columns.next_attempt_ms <= at_ms)
    ).scalar_one()
    return Backlog(int(pending), int(dead), 0.0 if oldest is None else (at_ms - int(oldest)) / 1000)


def forget(connection: Connection, *, before_ms: int, most: int = 500) -> int:
    """Remove deliveries that ended before a time, some at a time; gives how many."""
    columns = webhook_deliveries.c
    old = (
        sa.select(columns.id)
        .where(columns.finished_ms.is_not(None), columns.status != _PENDING, columns.finished_ms < before_ms)
        .limit(most)
    )
    return connection.execute(webhook_deliveries.delete().where(columns.id.in_(old.scalar_subquery()))).rowcount


def _delivery(row: sa.Row[Any]) -> Delivery:
    fields = {column.name: getattr(row, column.name) for column in webhook_deliveries.c if column.name != "url_key"}
    fields["status"] = DeliveryStatus(row.status)
    fields["last_error"] = None if row.last_error is None else ErrorClass(row.last_error)
    return Delivery(**fields)
