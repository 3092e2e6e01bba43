"""Budgets in force: what the settings say for everybody, and what an operator set for one tenant or for all together."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy.engine import Connection

from gateway.item import Mode
from gateway.settings import Settings
from gateway.store import budgets as store
from gateway.store.budgets import ALL, BudgetExhausted, DayUse, Limits, LimitsRow, micros_of
from gateway.store.engine import Database
from gateway.store.items import now_ms

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Defaults:
    """Limits of those for whom nothing was set."""

    tenant: Limits
    everybody: Limits

    def of(self, name: str) -> Limits:
        """Those of a tenant, or of `ALL`."""
        return self.everybody if name == ALL else self.tenant

    def under(self, name: str, row: LimitsRow | None) -> Limits:
        """What was set, and the defaults where nothing was."""
        own, base = Limits() if row is None else row.limits, self.of(name)
        return Limits(
            base.max_cost_micros if own.max_cost_micros is None else own.max_cost_micros,
            base.max_items if own.max_items is None else own.max_items,
        )


def defaults_of(settings: Settings) -> Defaults:
    """The limits that the settings give."""

    def micros(cost: Decimal | None) -> int | None:
        return None if cost is None else micros_of(cost)

    return Defaults(
        Limits(micros(settings.tenant_daily_budget), settings.tenant_daily_items),
        Limits(micros(settings.daily_budget), None),
    )


def limits_in_force(connection: Connection, tenant: str, defaults: Defaults) -> dict[str, Limits]:
    """The limits of the tenant and of all together, as of this transaction."""
    return {name: defaults.under(name, store.limits_row(connection, name)) for name in (tenant, ALL)}


@dataclass(frozen=True, slots=True)
class Purse:
    """Pays for one item's requests to the model."""

    tenant: str
    defaults: Defaults

    def reserve(self, connection: Connection, cost: Decimal) -> dict[str, Any]:
        """Set money aside; gives what the step keeps of it. Raises `BudgetExhausted`; the transaction is then given up."""
        micros = micros_of(cost)
        limits = limits_in_force(connection, self.tenant, self.defaults)
        return {"micros": micros, "day": store.reserve(connection, self.tenant, micros, limits)}

    def settle(self, connection: Connection, reserved: Mapping[str, Any], cost: Decimal) -> None:
        """The request cost this much."""
        store.settle(
            connection,
            self.tenant,
            int(reserved["day"]),
            reserved=int(reserved["micros"]),
            spent=micros_of(cost),
            limits=limits_in_force(connection, self.tenant, self.defaults),
        )


class Budgets:
    """The limits of all tenants, for one process; a look at the database is good for a second."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.defaults = defaults_of(settings)
        self._database = database
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._rows: Mapping[str, LimitsRow] = {}

    def purse(self, tenant: str) -> Purse:
        """Pays for requests of this tenant's items."""
        return Purse(tenant, self.defaults)

    def limits(self, name: str) -> Limits:
        """Of a tenant or of `ALL`, at most a second old."""
        with self._lock:
            if time.monotonic() - self._looked_at > _LOOK_S:
                with self._database.read() as connection:
                    self._rows = store.all_limits(connection)
                self._looked_at = time.monotonic()
            rows = self._rows
        return self.defaults.under(name, rows.get(name))

    def forget(self) -> None:
        """Look again at the next question: this process has just changed a limit."""
        self._looked_at = float("-inf")

    def is_limited(self, tenant: str) -> bool:
        """Whether there is any limit that an item of this tenant could meet."""
        own, everybody = self.limits(tenant), self.limits(ALL)
        return any(limit is not None for limit in (own.max_cost_micros, own.max_items, everybody.max_cost_micros))

    def check(self, connection: Connection, tenant: str, mode: Mode) -> None:
        """What `admit` would say, without counting. Raises `QuotaExceeded`, `BudgetExhausted`."""
        own = self.limits(tenant)
        if mode is Mode.GENERATE:
            self._check_money(connection, {tenant: own, ALL: self.limits(ALL)})
        if own.max_items is not None:
            store.check_count(connection, tenant, own.max_items)

    def admit(self, connection: Connection, tenant: str, mode: Mode) -> None:
        """Let one new item in, in the transaction that stores it. Raises `QuotaExceeded`, `BudgetExhausted`."""
        own = self.limits(tenant)
        if mode is Mode.GENERATE:
            self._check_money(connection, {tenant: own, ALL: self.limits(ALL)})
        if own.max_items is not None:
            store.count_item(connection, tenant, own.max_items)

    def _check_money(self, connection: Connection, limits: Mapping[str, Limits]) -> None:
        if all(limit.max_cost_micros is None for limit in limits.values()):
            return
        day = store.day_of(now_ms(connection))
        found = store.uses(connection, limits, day)
        for name, limit in limits.items():
            if found.get(name, DayUse()).is_exhausted(limit):
                assert limit.max_cost_micros is not None
                raise BudgetExhausted(name, limit.max_cost_micros, 0, day)


@dataclass(frozen=True, slots=True)
class BudgetView:
    """One budget as an operator looks at it."""

    tenant: str
    day: int
    limits: Limits
    row: LimitsRow | None
    use: DayUse
    items: int | None
    """Submitted today; None for all tenants together."""


def view(connection: Connection, tenant: str, defaults: Defaults) -> BudgetView:
    """The budget of a tenant, or of `ALL`, and what today has taken of it."""
    day = store.day_of(now_ms(connection))
    row = store.limits_row(connection, tenant)
    return BudgetView(
        tenant=tenant,
        day=day,
        limits=defaults.under(tenant, row),
        row=row,
        use=store.day_use(connection, tenant, day),
        items=None if tenant == ALL else store.items_today(connection, tenant, day),
    )


def list_views(connection: Connection, defaults: Defaults) -> list[BudgetView]:
    """All together first, then each tenant for whom something is set or was spent today."""
    day = store.day_of(now_ms(connection))
    names = {*store.all_limits(connection), *store.uses(connection, None, day)} - {ALL}
    return [view(connection, name, defaults) for name in (ALL, *sorted(names))]
