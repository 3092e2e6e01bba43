"""What an operator set, as gauges: today's budgets, and what is paused. Tenants with neither budget nor use are left out."""

from __future__ import annotations

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy.engine import Connection

from gateway.budgets import Budgets
from gateway.store import budgets as store
from gateway.store import switches
from gateway.store.budgets import ALL, DayUse
from gateway.store.items import now_ms


def operator_gauges(connection: Connection, budgets: Budgets) -> list[Metric]:
    """US dollars of today by tenant (`*` for all together), and 1 for each switch that is paused."""
    used = GaugeMetricFamily("sluicegate_budget_used_dollars", "Spent and set aside on this UTC day", labels=["tenant"])
    limit = GaugeMetricFamily("sluicegate_budget_limit_dollars", "What the day may take", labels=["tenant"])
    found = store.uses(connection, None, store.day_of(now_ms(connection)))
    for name in sorted({ALL, *found, *store.all_limits(connection)}):
        used.add_metric([name], found.get(name, DayUse()).used_micros / store.MICROS)
        most = budgets.limits(name).max_cost_micros
        if most is not None:
            limit.add_metric([name], most / store.MICROS)
    paused = GaugeMetricFamily("sluicegate_paused", "Whether the operator has paused it", labels=["what"])
    for row in switches.read(connection).both:
        paused.add_metric([row.switch.value], int(row.is_paused))
    return [used, limit, paused]
