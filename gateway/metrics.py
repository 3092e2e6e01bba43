"""Prometheus metrics: what this process saw, and what the database knows.

Counters and histograms belong to the process that counts (each process is scraped by itself); the gauges of items, queue
and cases are read from the database when they are asked for, at most every few seconds, so any API process can tell them.
Labels are closed sets or names of the deployment's own (profiles' tools, verdict codes), never what callers send; but for
the names of the first hundred tools that guard runs declare.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy.engine import Connection

from gateway.store import backlog, escalation_figures, webhook_deliveries
from gateway.store.engine import Database
from gateway.store.items import now_ms

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOOK_S = 5.0
_LOOK_SHARE = 0.02
"""Share of its time that a process may spend on looking: counting a large table's items takes seconds."""

registry = CollectorRegistry()

edge_seconds = Histogram(
    "sluicegate_edge_seconds",
    "Time of the edge rules inside a request",
    registry=registry,
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
submissions = Counter("sluicegate_submissions", "Submissions by outcome", ["outcome"], registry=registry)
idempotent_replays = Counter(
    "sluicegate_idempotent_replays", "Submissions that were answered with an earlier item", registry=registry
)
refused_uploads = Counter(
    "sluicegate_refused_uploads", "Uploads refused at the door, by reason", ["reason"], registry=registry
)
rule_hits = Counter(
    "sluicegate_rule_hits",
    "Matches of edge rules on files of items that were decided, by rule and mode",
    ["rule", "mode"],
    registry=registry,
)
guard_decisions = Counter(
    "sluicegate_guard_decisions",
    "Decisions of the guard on the agent's tool calls",
    ["action", "reason", "tool"],
    registry=registry,
)
avoided_calls = Counter("sluicegate_avoided_calls", "Tool calls that the guard did not let run", registry=registry)
avoided_cost = Counter(
    "sluicegate_avoided_cost",
    "What those would have cost, each at the mean of its run's calls, in the currency of the run",
    registry=registry,
)
model_requests = Counter(
    "sluicegate_model_requests", "Requests to the model by outcome", ["outcome"], registry=registry
)
model_tokens = Counter("sluicegate_model_tokens", "Tokens of the model", ["direction"], registry=registry)
event_streams = Gauge("sluicegate_sse_clients", "Event streams that are open", registry=registry)
purged_items = Counter("sluicegate_purged_items", "Items whose content was purged", registry=registry)
removed_files = Counter("sluicegate_removed_files", "Stored files that nothing named any more", registry=registry)
leases_lost = Counter("sluicegate_leases_lost", "Leases that this process lost while working", registry=registry)
review_decisions = Counter(
    "sluicegate_review_decisions", "Decisions of people on cases, by action", ["action"], registry=registry
)
review_leases_lost = Counter(
    "sluicegate_review_leases_lost", "Times that a reviewer was told that the lease is over", registry=registry
)
_PATIENCE_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 72 * 3600)
claim_seconds = Histogram(
    "sluicegate_escalation_claim_seconds", "From a case to its first claim", registry=registry, buckets=_PATIENCE_S
)
resolve_seconds = Histogram(
    "sluicegate_escalation_resolve_seconds", "From a case to its decision", registry=registry, buckets=_PATIENCE_S
)
webhook_attempts = Counter(
    "sluicegate_webhook_attempts", "Attempts to deliver a webhook, by outcome", ["outcome"], registry=registry
)
webhook_seconds = Histogram(
    "sluicegate_webhook_seconds",
    "From a delivery's making to its 2xx",
    registry=registry,
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 3600, 24 * 3600),
)


class DatabaseGauges(Collector):
    """What the database knows, looked up at most every `_LOOK_S` seconds, and less often where a look takes long."""

    def __init__(self, database: Database, *more: Callable[[Connection], list[Metric]]) -> None:
        """`more` are gauges of other parts, read in the same look."""
        self._database = database
        self._more = more
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._good_for_s = _LOOK_S
        self._found: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        """The gauges as of the last look."""
        with self._lock:
            began = time.monotonic()
            if began - self._looked_at > self._good_for_s:
                self._found = self._look()
                self._looked_at = time.monotonic()
                self._good_for_s = max(_LOOK_S, (self._looked_at - began) / _LOOK_SHARE)
            yield from self._found

    def _look(self) -> list[Metric]:
        with self._database.read() as connection:
            items = backlog.items_by_status(connection)
            cases = backlog.cases_by_status(connection)
            overdue = backlog.overdue_cases(connection)
            decided = escalation_figures.decisions_of_all(connection)
            waiting = backlog.total(backlog.waiting_by_tenant(connection).values())
            webhooks = webhook_deliveries.backlog(connection, at_ms=now_ms(connection))
            others = [gauge for read in self._more for gauge in read(connection)]
        by_status = GaugeMetricFamily("sluicegate_items", "Items by status and reason", labels=["status", "reason"])
        for (status, reason), count in items.items():
            by_status.add_metric([status, reason or ""], count)
        by_case = GaugeMetricFamily("sluicegate_escalations", "Cases for a person by status", labels=["status"])
        for status, count in cases.items():
            by_case.add_metric([status], count)
        return [
            by_status,
            by_case,
            *_decision_gauges(decided),
            *others,
            GaugeMetricFamily("sluicegate_escalations_overdue", "Undecided cases past their due time", overdue),
            GaugeMetricFamily("sluicegate_webhooks_pending", "Webhook deliveries that are not done", webhooks.pending),
            GaugeMetricFamily("sluicegate_webhooks_dead", "Webhook deliveries without attempts left", webhooks.dead),
            GaugeMetricFamily(
                "sluicegate_webhooks_lag_seconds", "How long the oldest due webhook has waited", webhooks.oldest_due_s
            ),
            GaugeMetricFamily("sluicegate_queue_depth", "Items that wait for a worker", waiting.items),
            GaugeMetricFamily("sluicegate_queue_bytes", "Uploaded bytes of the items that wait", waiting.bytes),
            GaugeMetricFamily(
                "sluicegate_queue_oldest_age_seconds", "How long the oldest of them has waited", waiting.oldest_s
            ),
        ]


def _decision_gauges(decided: dict[tuple[str, bool], int]) -> list[Metric]:
    """Decisions of people and of the clock apart: that nobody answered is no decision of a person."""
    by_people = GaugeMetricFamily(
        "sluicegate_escalations_decided", "Cases that people decided, by action", labels=["action"]
    )
    by_clock = GaugeMetricFamily(
        "sluicegate_escalations_timed_out", "Cases that nobody answered in time, by policy", labels=["policy"]
    )
    for (action, is_timeout), count in sorted(decided.items()):
        (by_clock if is_timeout else by_people).add_metric([action], count)
    rejections = GaugeMetricFamily(
        "sluicegate_human_rejections", "Items that people rejected", decided.get(("reject_item", False), 0)
    )
    return [by_people, by_clock, rejections]


def exposition(gauges: DatabaseGauges) -> bytes:
    """Everything in Prometheus' text format."""
    from_database = CollectorRegistry()
    from_database.register(gauges)
    return generate_latest(registry) + generate_latest(from_database)
