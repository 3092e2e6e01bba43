"""Rows of budgets: what a tenant, and all tenants together, may spend on a UTC day, and what is set aside and spent.

Money is kept in millionths of a US dollar. What was set aside counts as spent until its request is settled, and for good
where that never happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.settings import money
from gateway.store import events
from gateway.store.items import now_ms
from gateway.store.switches import DEPLOYMENT
from gateway.store.tables import budget_days, budget_limits, items

ALL = "*"
"""Stands for all tenants together; no tenant can have this name."""
DAY_MS = 24 * 3600 * 1000
MICROS = 1_000_000
THRESHOLDS = (50, 80, 100)
"""Percent of a day's money at which an event tells of it."""
DAYS_KEPT = 35
"""Days whose rows are kept. The service reads today's, and writes to that of a request which is still under way; the others are
for who adds up a month by hand."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one day may take; None is no limit."""

    max_cost_micros: int | None = None
    max_items: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class LimitsRow:
    """Limits that an operator set for one tenant, or for all together."""

    tenant: str
    limits: Limits
    version: int
    changed_by: str
    changed_ms: int


@dataclass(frozen=True, slots=True)
class DayUse:
    """What one day has taken so far."""

    reserved_micros: int = 0
    spent_micros: int = 0
    refused_micros: int | None = None
    """The least that was refused for want of money."""
    model_calls: int = 0

    @property
    def used_micros(self) -> int:
        """Spent, and set aside for requests whose cost is not known yet."""
        return self.spent_micros + self.reserved_micros

    def is_exhausted(self, limits: Limits) -> bool:
        """Whether the limit is reached, or so near that a request was refused."""
        most = limits.max_cost_micros
        if most is None:
            return False
        return self.used_micros >= most or self.used_micros + (self.refused_micros or 0) > most


UNUSED = DayUse()


class BudgetExhausted(Exception):
    """The money of the day, of the tenant or of all together, does not suffice for one more request."""

    code = "budget_exhausted"
    retryable = False

    def __init__(self, scope: str, limit_micros: int, wanted_micros: int, day: int) -> None:
        super().__init__(scope)
        self.scope = scope
        self.limit_micros = limit_micros
        self.wanted_micros = wanted_micros
        self.day = day

    @property
    def resets_ms(self) -> int:
        """When the next day begins."""
        return (self.day + 1) * DAY_MS


class QuotaExceeded(Exception):
    """The tenant has submitted as many items today as it may."""

    code = "quota_exceeded"
    retryable = True

    def __init__(self, limit: int, day: int) -> None:
        super().__init__(str(limit))
        self.limit = limit
        self.resets_ms = (day + 1) * DAY_MS


def is_tenant_name(name: str) -> bool:
    """Whether a tenant can be called so: 1 to 64 letters, digits, `-` or `_`."""
    return 0 < len(name) <= 64 and name.replace("-", "").replace("_", "").isalnum()


def day_of(at_ms: int) -> int:
    """The UTC day, counted from 1970."""
    return at_ms // DAY_MS


def date_of(day: int) -> str:
    """As `2026-11-30`."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


def dollars(micros: int) -> str:
    """As a decimal string."""
    return money(Decimal(micros) / MICROS)


def micros_of(cost: Decimal) -> int:
    """Millionths, rounded up: what is set aside must not be less than what is meant."""
    return int((cost * MICROS).to_integral_value(ROUND_CEILING))


# -- limits ------------------------------------------------------------------------------------------------------------


def limits_row(connection: Connection, tenant: str) -> LimitsRow | None:
    """What was set for this tenant (or `ALL`), if anything was."""
    row = connection.execute(sa.select(budget_limits).where(budget_limits.c.tenant == tenant)).first()
    return None if row is None else _limits(row)


def all_limits(connection: Connection) -> dict[str, LimitsRow]:
    """Whatever was set, by tenant."""
    rows = connection.execute(sa.select(budget_limits).order_by(budget_limits.c.tenant))
    return {row.tenant: _limits(row) for row in rows}


def set_limits(
    connection: Connection, tenant: str, limits: Limits, *, by: str, expected_version: int | None = None
) -> LimitsRow | None:
    """Replace what is set; None where it is no longer of `expected_version`. The day's thresholds are told anew."""
    before = limits_row(connection, tenant)
    version = 0 if before is None else before.version
    if expected_version is not None and expected_version != version:
        return None
    at_ms = now_ms(connection)
    values = {
        "max_cost_micros": limits.max_cost_micros,
        "max_items": limits.max_items,
        "version": version + 1,
        "changed_by": by,
        "changed_ms": at_ms,
    }
    _upsert(connection, budget_limits, {"tenant": tenant}, values)
    connection.execute(
        budget_days.update()
        .where(budget_days.c.tenant == tenant, budget_days.c.day >= day_of(at_ms))
        .values(told_percent=0, item_count=None)
    )
    events.append(
        connection,
        tenant=DEPLOYMENT if tenant == ALL else tenant,
        kind="budget.changed",
        resource=tenant[:40],
        version=version + 1,
        at_ms=at_ms,
        body={
            "tenant": tenant,
            "by": by,
            "max_cost": None if limits.max_cost_micros is None else dollars(limits.max_cost_micros),
            "max_items": limits.max_items,
        },
    )
    return LimitsRow(tenant, limits, version + 1, by, at_ms)


# -- money -------------------------------------------------------------------------------------------------------------


def reserve(connection: Connection, tenant: str, micros: int, limits: Mapping[str, Limits]) -> int:
    """Set money aside for one request, of the tenant's day and of all tenants'; gives the day that it is of.

    `limits` has an entry for the tenant and one for `ALL`. Raises `BudgetExhausted`, and then the transaction must be
    given up. The rows are always taken in the same order.
    """
    at_ms = now_ms(connection)
    day = day_of(at_ms)
    for name in (tenant, ALL):
        most = limits[name].max_cost_micros
        if not _set_aside(connection, name, day, micros, most):
            _make_day(connection, name, day)
            if not _set_aside(connection, name, day, micros, most):
                assert most is not None
                raise BudgetExhausted(name, most, micros, day)
        _tell(connection, name, day, most, at_ms)
    return day


def settle(
    connection: Connection, tenant: str, day: int, *, reserved: int, spent: int, limits: Mapping[str, Limits]
) -> None:
    """Put what a request cost in the place of what was set aside for it."""
    at_ms = now_ms(connection)
    for name in (tenant, ALL):
        connection.execute(
            budget_days.update()
            .where(budget_days.c.tenant == name, budget_days.c.day == day)
            .values(
                reserved_micros=budget_days.c.reserved_micros - reserved,
                spent_micros=budget_days.c.spent_micros + spent,
            )
        )
        _tell(connection, name, day, limits[name].max_cost_micros, at_ms)


def note_refusal(connection: Connection, refused: BudgetExhausted) -> None:
    """Remember that a request was refused, so that nothing more is begun that would be refused too."""
    where = (budget_days.c.tenant == refused.scope, budget_days.c.day == refused.day)
    _make_day(connection, refused.scope, refused.day)
    connection.execute(
        budget_days.update()
        .where(
            *where,
            sa.or_(budget_days.c.refused_micros.is_(None), budget_days.c.refused_micros > refused.wanted_micros),
        )
        .values(refused_micros=refused.wanted_micros)
    )
    _tell(connection, refused.scope, refused.day, refused.limit_micros, now_ms(connection), is_refused=True)


def day_use(connection: Connection, tenant: str, day: int) -> DayUse:
    """What a day has taken."""
    return uses(connection, [tenant], day).get(tenant, UNUSED)


def uses(connection: Connection, tenants: Iterable[str] | None, day: int) -> dict[str, DayUse]:
    """What a day has taken, by tenant; None asks for all."""
    query = sa.select(budget_days).where(budget_days.c.day == day)
    if tenants is not None:
        query = query.where(budget_days.c.tenant.in_(list(tenants)))
    return {
        row.tenant: DayUse(row.reserved_micros, row.spent_micros, row.refused_micros, row.model_calls)
        for row in connection.execute(query.order_by(budget_days.c.tenant))
    }


def _set_aside(connection: Connection, name: str, day: int, micros: int, most: int | None) -> bool:
    statement = budget_days.update().where(budget_days.c.tenant == name, budget_days.c.day == day)
    if most is not None:
        statement = statement.where(budget_days.c.spent_micros + budget_days.c.reserved_micros + micros <= most)
    changed = connection.execute(
        statement.values(
            reserved_micros=budget_days.c.reserved_micros + micros, model_calls=budget_days.c.model_calls + 1
        )
    )
    return changed.rowcount == 1


def _make_day(connection: Connection, name: str, day: int) -> None:
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(make(budget_days).values(tenant=name, day=day).on_conflict_do_nothing())


def _tell(
    connection: Connection, name: str, day: int, most: int | None, at_ms: int, *, is_refused: bool = False
) -> None:
    """An event for each threshold that the day has passed for the first time."""
    if most is None:
        return
    row = connection.execute(
        sa.select(budget_days.c.spent_micros, budget_days.c.reserved_micros, budget_days.c.told_percent).where(
            budget_days.c.tenant == name, budget_days.c.day == day
        )
    ).first()
    if row is None:  # the day is not kept any more
        return
    used = row.spent_micros + row.reserved_micros
    percent = 100 if is_refused or most == 0 else used * 100 // most
    passed = [threshold for threshold in THRESHOLDS if row.told_percent < threshold <= percent]
    if not passed:
        return
    connection.execute(
        budget_days.update()
        .where(budget_days.c.tenant == name, budget_days.c.day == day)
        .values(told_percent=passed[-1])
    )
    for threshold in passed:
        events.append(
            connection,
            tenant=DEPLOYMENT if name == ALL else name,
            kind="budget.threshold",
            resource=name[:40],
            version=threshold,
            at_ms=at_ms,
            body={
                "tenant": name,
                "percent": threshold,
                "used": dollars(used),
                "max_cost": dollars(most),
                "currency": "USD",
                "day": date_of(day),
            },
        )


def drop_old_days(connection: Connection, *, limit: int) -> int:
    """Days past `DAYS_KEPT`, of all tenants; gives how many rows."""
    old = (
        sa.select(budget_days.c.tenant, budget_days.c.day)
        .where(budget_days.c.day < day_of(now_ms(connection)) - DAYS_KEPT)
        .limit(limit)
    )
    key = sa.tuple_(budget_days.c.tenant, budget_days.c.day)
    return connection.execute(budget_days.delete().where(key.in_(old))).rowcount


# -- items -------------------------------------------------------------------------------------------------------------


def count_item(connection: Connection, tenant: str, most: int) -> None:
    """Count one more item of the tenant's day. Raises `QuotaExceeded`."""
    day = day_of(now_ms(connection))
    if _count(connection, tenant, day, most):
        return
    _make_day(connection, tenant, day)
    connection.execute(  # nobody has counted so far today: the items themselves tell
        budget_days.update()
        .where(budget_days.c.tenant == tenant, budget_days.c.day == day, budget_days.c.item_count.is_(None))
        .values(item_count=_items_of(tenant, day).scalar_subquery())
    )
    if not _count(connection, tenant, day, most):
        raise QuotaExceeded(most, day)


def check_count(connection: Connection, tenant: str, most: int) -> None:
    """Raise `QuotaExceeded` where the tenant has no item left today; counts nothing."""
    day = day_of(now_ms(connection))
    counted = connection.execute(
        sa.select(budget_days.c.item_count).where(budget_days.c.tenant == tenant, budget_days.c.day == day)
    ).scalar()
    if (items_today(connection, tenant, day) if counted is None else counted) >= most:
        raise QuotaExceeded(most, day)


def items_today(connection: Connection, tenant: str, day: int) -> int:
    """How many items the tenant has submitted on a day."""
    return int(connection.execute(_items_of(tenant, day)).scalar_one())


def _items_of(tenant: str, day: int) -> sa.Select[Any]:
    return (
        sa.select(sa.func.count())
        .select_from(items)
        .where(items.c.tenant == tenant, items.c.created_ms >= day * DAY_MS, items.c.created_ms < (day + 1) * DAY_MS)
    )


def _count(connection: Connection, tenant: str, day: int, most: int) -> bool:
    changed = connection.execute(
        budget_days.update()
        .where(budget_days.c.tenant == tenant, budget_days.c.day == day, budget_days.c.item_count < most)
        .values(item_count=budget_days.c.item_count + 1)
    )
    return changed.rowcount == 1


def _upsert(connection: Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(table).values({**key, **values})
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=dict(values)))


def _limits(row: sa.Row[Any]) -> LimitsRow:
    return LimitsRow(
        row.tenant, Limits(row.max_cost_micros, row.max_items), row.version, row.changed_by, row.changed_ms
    )
