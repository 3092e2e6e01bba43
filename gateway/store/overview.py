"""The state of the queue and of the service at a glance: counts, facets, what was avoided, how long decisions take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import TIMEOUT_ACTOR, EscalationStatus
from gateway.store.engine import database_now_ms
from gateway.store.tables import escalations, items

_DAY_MS = 86_400_000
_WAITING_FOR_US = (EscalationStatus.OPEN.value, EscalationStatus.CLAIMED.value)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many cases wait, and how."""

    open: int = 0
    """Free, or under a lease: somebody has to decide them."""
    held: int = 0
    """Of them, under a live lease."""
    mine: int = 0
    overdue: int = 0
    waiting: int = 0
    """For the submitter."""
    next_expiry_ms: int | None = None

    @property
    def free(self) -> int:
        """Those that can be taken."""
        return self.open - self.held


def counts(connection: Connection, *, tenant: str, holder: str) -> Counts:
    """The queue of a tenant, counted for one reviewer."""
    columns = escalations.c
    is_open = columns.status.in_(_WAITING_FOR_US)
    is_held = sa.and_(columns.status == EscalationStatus.CLAIMED.value, columns.lease_expires_ms > database_now_ms())
    row = connection.execute(
        sa.select(
            _count(is_open),
            _count(is_held),
            _count(sa.and_(is_held, columns.holder == holder)),
            _count(sa.and_(is_open, columns.due_ms < database_now_ms())),
            _count(columns.status == EscalationStatus.WAITING_SUBMITTER.value),
            sa.func.min(sa.case((is_held, columns.lease_expires_ms))),
        ).where(
            columns.tenant == tenant, columns.status.in_([*_WAITING_FOR_US, EscalationStatus.WAITING_SUBMITTER.value])
        )
    ).one()
    opened, held, mine, overdue, waiting = (int(value or 0) for value in row[:5])
    return Counts(opened, held, mine, overdue, waiting, row[5])


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


@dataclass(frozen=True, slots=True)
class Facet:
    """One value by which the queue can be narrowed, with how many open cases have it."""

    value: str
    count: int


def facets(connection: Connection, *, tenant: str, most: int = 8) -> Mapping[str, Sequence[Facet]]:
    """The commonest values among the open cases, by column."""
    found = {}
    for name in ("tool", "reason", "profile"):
        column = escalations.c[name]
        rows = connection.execute(
            sa.select(column, sa.func.count())
            .where(escalations.c.tenant == tenant, escalations.c.status.in_(_WAITING_FOR_US), column.is_not(None))
            .group_by(column)
            .order_by(sa.func.count().desc(), column)
            .limit(most)
        )
        found[name] = [Facet(str(value), int(count)) for value, count in rows]
    return found


def group_sizes(connection: Connection, *, tenant: str, groups: Sequence[str]) -> Mapping[str, int]:
    """How many open cases each of these groups has."""
    if not groups:
        return {}
    rows = connection.execute(
        sa.select(escalations.c.group_id, sa.func.count())
        .where(
            escalations.c.tenant == tenant,
            escalations.c.status.in_(_WAITING_FOR_US),
            escalations.c.group_id.in_(groups),
        )
        .group_by(escalations.c.group_id)
    )
    return {str(key): int(count) for key, count in rows}


# --- what the service did over a time ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Avoided:
    """What was not spent."""

    guard_calls: int
    """Calls that the guard refused, or that a halted run still had in its budget."""
    guard_cost: Decimal
    """Of those calls, by what a request of the same run cost on average: a reckoning, no bill."""
    edge_items: int
    """Items that never reached an agent, or only without tools."""
    edge_cost: Decimal
    """Of a typical run on each of those."""
    spent: Decimal
    items: int


def avoided(connection: Connection, *, tenant: str, since_ms: int) -> Avoided:
    """Calls and money that were not spent on items of this time."""
    usage, decision = items.c.usage, items.c.decision
    is_ours = (items.c.tenant == tenant, items.c.created_ms >= since_ms)
    rows = connection.execute(
        sa.select(
            usage["avoided_calls"].as_integer(),
            usage["model_calls"].as_integer(),
            usage["cost"].as_string(),
        ).where(*is_ours, usage["model_calls"].as_integer() > 0)
    ).all()
    guard_calls = sum(int(row[0] or 0) for row in rows)
    guard_cost = sum((Decimal(row[2] or "0") / row[1] * int(row[0] or 0) for row in rows), Decimal(0))
    saved = connection.execute(
        sa.select(decision["saved"]["cost"].as_string()).where(
            *is_ours, items.c.status.in_(["rejected", "succeeded", "ready"]), decision.is_not(None)
        )
    ).scalars()
    edge = [Decimal(value) for value in saved if value is not None]
    total = connection.execute(sa.select(sa.func.count()).select_from(items).where(*is_ours)).scalar_one()
    spent = sum((Decimal(row[2] or "0") for row in rows), Decimal(0))
    return Avoided(guard_calls, guard_cost, len(edge), sum(edge, Decimal(0)), spent, int(total))


def refusals(connection: Connection, *, tenant: str, since_ms: int, most: int = 8) -> list[Facet]:
    """Why items were refused, the commonest first."""
    rows = connection.execute(
        sa.select(items.c.reason, sa.func.count())
        .where(items.c.tenant == tenant, items.c.created_ms >= since_ms, items.c.status == "rejected")
        .group_by(items.c.reason)
        .order_by(sa.func.count().desc(), items.c.reason)
        .limit(most)
    )
    return [Facet(str(reason or "unknown"), int(count)) for reason, count in rows]


def stops(connection: Connection, *, tenant: str, since_ms: int, most: int = 8) -> list[Facet]:
    """Why runs were stopped and a person asked, the commonest first."""
    rows = connection.execute(
        sa.select(escalations.c.reason, sa.func.count())
        .where(escalations.c.tenant == tenant, escalations.c.created_ms >= since_ms)
        .group_by(escalations.c.reason)
        .order_by(sa.func.count().desc(), escalations.c.reason)
        .limit(most)
    )
    return [Facet(str(reason), int(count)) for reason, count in rows]


def open_ages(connection: Connection, *, tenant: str) -> list[int]:
    """How long each open case has waited, in milliseconds, the longest first."""
    rows = connection.execute(
        sa.select(database_now_ms() - escalations.c.created_ms)
        .where(escalations.c.tenant == tenant, escalations.c.status.in_(_WAITING_FOR_US))
        .order_by(escalations.c.created_ms)
        .limit(5_000)
    ).scalars()
    return [int(age) for age in rows]


@dataclass(frozen=True, slots=True)
class Decisions:
    """How people decided in a time."""

    to_claim_ms: Sequence[int]
    to_decide_ms: Sequence[int]
    by_action: Sequence[Facet]
    timed_out: int
    """Closed because nobody answered; nobody's decision."""


def decisions(connection: Connection, *, tenant: str, since_ms: int) -> Decisions:
    """Times to claim and to decide, and what was decided."""
    columns = escalations.c
    rows = connection.execute(
        sa.select(
            columns.created_ms, columns.claimed_ms, columns.decided_ms, columns.decided_action, columns.resolution
        )
        .where(
            columns.tenant == tenant,
            columns.decided_ms >= since_ms,
            columns.decided_by.is_not(None),
            columns.decided_by != TIMEOUT_ACTOR,
        )
        .order_by(columns.decided_ms.desc())
        .limit(5_000)
    ).all()
    timed_out = connection.execute(
        sa.select(sa.func.count())
        .select_from(escalations)
        .where(
            columns.tenant == tenant, columns.status == EscalationStatus.EXPIRED.value, columns.updated_ms >= since_ms
        )
    ).scalar_one()
    named = Counter((row.resolution or {}).get("route") or row.decided_action for row in rows)
    return Decisions(
        to_claim_ms=[row.claimed_ms - row.created_ms for row in rows if row.claimed_ms is not None],
        to_decide_ms=[row.decided_ms - row.created_ms for row in rows],
        by_action=[Facet(str(name), count) for name, count in named.most_common(8)],
        timed_out=int(timed_out),
    )


@dataclass(frozen=True, slots=True)
class Day:
    """Items of one UTC day."""

    at_ms: int
    accepted: int
    refused: int
    asked: int
    """Of them, those for which a person was asked."""


def days(connection: Connection, *, tenant: str, since_ms: int) -> list[Day]:
    """Day by day, the oldest first; days without an item are there too."""
    bucket = sa.cast(items.c.created_ms / _DAY_MS, sa.BigInteger)
    rows = connection.execute(
        sa.select(
            bucket,
            sa.func.count(),
            _count(items.c.status == "rejected"),
            _count(sa.exists().where(escalations.c.item_id == items.c.id)),
        )
        .where(items.c.tenant == tenant, items.c.created_ms >= since_ms)
        .group_by(bucket)
    ).all()
    found = {int(row[0]): row for row in rows}
    now = int(connection.execute(sa.select(database_now_ms())).scalar_one())
    listed = []
    for day in range(since_ms // _DAY_MS, now // _DAY_MS + 1):
        row = found.get(day)
        total, refused, asked = (0, 0, 0) if row is None else (int(row[1]), int(row[2]), int(row[3]))
        listed.append(Day(day * _DAY_MS, total - refused, refused, asked))
    return listed
