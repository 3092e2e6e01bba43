"""Counts over the human queue: how much is open, for how long, what it burnt, and how quickly people decide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.escalation import TIMEOUT_ACTOR, EscalationStatus
from gateway.item import Status
from gateway.store.engine import database_now_ms
from gateway.store.escalation_rows import RESOLVED, UNDECIDED_VALUES, is_free, is_held
from gateway.store.items import now_ms
from gateway.store.tables import escalations, items

_WINDOW_MS = 7 * 24 * 3600 * 1000
_MOST_TIMES = 2000


@dataclass(slots=True)
class GroupFigures:
    """What of a group waits for a decision, and what it has cost."""

    open: int = 0
    claimed: int = 0
    waiting_submitter: int = 0
    cases: int = 0
    """All that ever were."""
    oldest_ms: int | None = None
    burnt: dict[str, Decimal] = field(default_factory=dict)
    """By currency, of the undecided cases."""

    @property
    def to_decide(self) -> int:
        """Cases that can be decided on now."""
        return self.open + self.claimed


def of_groups(connection: Connection, group_ids: Collection[str]) -> dict[str, GroupFigures]:
    """The figures of these groups."""
    found: dict[str, GroupFigures] = defaultdict(GroupFigures)
    ids = list(group_ids)
    columns = escalations.c
    for row in connection.execute(
        sa.select(columns.group_id, sa.func.count().label("cases"))
        .where(columns.group_id.in_(ids))
        .group_by(columns.group_id)
    ):
        found[row.group_id].cases = int(row.cases)
    cost = columns.packet["cost"]
    rows = connection.execute(
        sa.select(
            columns.group_id,
            columns.status,
            columns.created_ms,
            sa.case((is_held(), 1), else_=0).label("held"),
            cost["spent"].as_string().label("spent"),
            cost["currency"].as_string().label("currency"),
        ).where(columns.group_id.in_(ids), columns.status.in_(UNDECIDED_VALUES))
    )
    for row in rows:
        figures = found[row.group_id]
        if row.status == EscalationStatus.WAITING_SUBMITTER.value:
            figures.waiting_submitter += 1
        elif row.held:
            figures.claimed += 1
        else:
            figures.open += 1
        figures.oldest_ms = min(figures.oldest_ms or row.created_ms, row.created_ms)
        currency = row.currency or "USD"
        figures.burnt[currency] = figures.burnt.get(currency, Decimal(0)) + _amount(row.spent)
    return found


def _amount(text: str | None) -> Decimal:
    try:
        return Decimal(text or "0")
    except InvalidOperation:
        return Decimal(0)


def to_decide(connection: Connection, group_id: str) -> list[str]:
    """The cases of a group that can be decided on now, the soonest due first."""
    rows = connection.execute(
        sa.select(escalations.c.id)
        .where(escalations.c.group_id == group_id, sa.or_(is_free(), is_held()))
        .order_by(escalations.c.due_ms, escalations.c.id)
    )
    return [row.id for row in rows]


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took, in seconds, over the last seven days."""

    count: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """How a tenant's queue stands."""

    open: int
    claimed: int
    waiting_submitter: int
    pending: int
    """Decided, and still to be taken back."""
    overdue: int
    on_hold: int
    """Expired without an answer, and held until somebody reopens them."""
    oldest_ms: int | None
    next_lease_expiry_ms: int | None
    by_reason: dict[str, int]
    by_assignee: dict[str, int]
    time_to_claim: Times
    time_to_resolve: Times
    decisions: dict[str, int]
    """By people, by action, over the last seven days."""
    timeouts: dict[str, int]
    """By policy, over the last seven days."""
    at_ms: int


def of_queue(connection: Connection, *, tenant: str) -> QueueFigures:
    """The figures of a tenant."""
    columns = escalations.c
    mine = columns.tenant == tenant
    undecided = sa.and_(mine, columns.status.in_(UNDECIDED_VALUES))

    def count(*where: sa.ColumnElement[bool]) -> int:
        return int(connection.execute(sa.select(sa.func.count()).select_from(escalations).where(*where)).scalar_one())

    oldest = connection.execute(sa.select(sa.func.min(columns.created_ms)).where(undecided)).scalar()
    expiry = connection.execute(sa.select(sa.func.min(columns.lease_expires_ms)).where(mine, is_held())).scalar()
    reasons = connection.execute(
        sa.select(columns.reason, sa.func.count()).where(undecided).group_by(columns.reason)
    ).all()
    holders = connection.execute(
        sa.select(columns.holder, sa.func.count()).where(mine, is_held()).group_by(columns.holder)
    ).all()
    at_ms = now_ms(connection)
    claim_times, resolve_times = _times(connection, tenant, since_ms=at_ms - _WINDOW_MS)
    decided, timeouts = _decided(connection, tenant, since_ms=at_ms - _WINDOW_MS)
    return QueueFigures(
        open=count(mine, is_free()),
        claimed=count(mine, is_held()),
        waiting_submitter=count(mine, columns.status == EscalationStatus.WAITING_SUBMITTER.value),
        pending=count(mine, columns.status == RESOLVED, columns.apply_ms.is_not(None)),
        overdue=count(undecided, columns.due_ms < database_now_ms()),
        on_hold=_on_hold(connection, tenant),
        oldest_ms=oldest,
        next_lease_expiry_ms=expiry,
        by_reason={row[0]: int(row[1]) for row in reasons},
        by_assignee={row[0]: int(row[1]) for row in holders},
        time_to_claim=claim_times,
        time_to_resolve=resolve_times,
        decisions=decided,
        timeouts=timeouts,
        at_ms=at_ms,
    )


def _on_hold(connection: Connection, tenant: str) -> int:
    query = (
        sa.select(sa.func.count())
        .select_from(escalations.join(items, items.c.escalation_id == escalations.c.id))
        .where(
            escalations.c.tenant == tenant,
            escalations.c.status == EscalationStatus.EXPIRED.value,
            items.c.status == Status.AWAITING_HUMAN.value,
        )
    )
    return int(connection.execute(query).scalar_one())


def _times(connection: Connection, tenant: str, *, since_ms: int) -> tuple[Times, Times]:
    """To the first claim and to the decision, of cases that people decided; each from when the case was raised."""
    columns = escalations.c
    rows = connection.execute(
        sa.select(columns.created_ms, columns.claimed_ms, columns.decided_ms)
        .where(columns.tenant == tenant, columns.decided_ms >= since_ms, columns.decided_by != TIMEOUT_ACTOR)
        .order_by(columns.decided_ms.desc())
        .limit(_MOST_TIMES)
    ).all()
    claims = [row.claimed_ms - row.created_ms for row in rows if row.claimed_ms is not None]
    return times_of(claims), times_of([row.decided_ms - row.created_ms for row in rows])


def times_of(durations_ms: Sequence[int]) -> Times:
    """Percentiles by nearest rank."""
    ordered = sorted(durations_ms)

    def at(percent: int) -> float | None:
        if not ordered:
            return None
        return round(ordered[max(-(-len(ordered) * percent // 100) - 1, 0)] / 1000, 3)

    return Times(len(ordered), at(50), at(90), at(99))


def _decided(connection: Connection, tenant: str, *, since_ms: int) -> tuple[dict[str, int], dict[str, int]]:
    found = _decisions(connection, escalations.c.tenant == tenant, escalations.c.decided_ms >= since_ms)
    by_people = {action: count for (action, is_timeout), count in found.items() if not is_timeout}
    by_clock = {action: count for (action, is_timeout), count in found.items() if is_timeout}
    return by_people, by_clock


def decisions_of_all(connection: Connection) -> dict[tuple[str, bool], int]:
    """Of all tenants: decided cases by action, and whether the clock decided."""
    return _decisions(connection)


def _decisions(connection: Connection, *where: sa.ColumnElement[bool]) -> dict[tuple[str, bool], int]:
    is_timeout = (escalations.c.decided_by == TIMEOUT_ACTOR).label("is_timeout")
    rows = connection.execute(
        sa.select(escalations.c.decided_action, is_timeout, sa.func.count())
        .where(escalations.c.decided_action.is_not(None), *where)
        .group_by(escalations.c.decided_action, "is_timeout")
    )
    return {(row[0], bool(row[1])): int(row[2]) for row in rows}
