"""Rows of decisions by people, each with what became of it: read from the history, so that no worker has to write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.ids import new_id
from gateway.item import SETTLED
from gateway.store.tables import decisions, escalations, guard_runs, history, items

_SETTLED = [status.value for status in sorted(SETTLED)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What followed a decision. `status` is None while nothing has yet."""

    status: str | None
    at_ms: int | None
    reason: str | None
    came_back: bool
    """The same item, or run, stopped before a person again."""
    escalation_id: str | None
    """The case as which it came back."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision."""

    id: str
    escalation_id: str | None
    item_id: str | None
    run_id: str | None
    action: str
    actor: str
    at_ms: int
    item_version: int | None
    """Of the item once the decision had taken effect."""
    reason: str | None
    """Why the case had been raised."""
    detector: str | None
    rule: str | None
    tool: str | None
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """What a list is narrowed by; None means any."""

    actor: str | None = None
    action: str | None = None
    item_id: str | None = None
    escalation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Precision:
    """How often the stops by one detector, or one rule, were right by people's judgement."""

    detector: str | None
    rule: str | None
    tool: str | None
    decided: int
    false_alarms: int


def insert(
    connection: Connection,
    *,
    tenant: str,
    escalation_id: str | None,
    item_id: str | None,
    run_id: str | None,
    action: str,
    actor: str,
    at_ms: int,
    item_version: int | None,
    reason: str | None,
    detector: str | None,
    rule: str | None,
    tool: str | None,
    body: Mapping[str, Any],
) -> str:
    """Write a decision that has just taken effect; gives its id."""
    decision_id = new_id("dcn", now_ms=at_ms)
    connection.execute(
        decisions.insert(),
        {
            "id": decision_id,
            "tenant": tenant,
            "escalation_id": escalation_id,
            "item_id": item_id,
            "run_id": run_id,
            "action": action,
            "actor": actor,
            "at_ms": at_ms,
            "item_version": item_version,
            "reason": reason,
            "detector": detector,
            "rule": rule,
            "tool": tool,
            "body": dict(body),
        },
    )
    return decision_id


def page(
    connection: Connection, *, tenant: str, where: DecisionFilter, after: tuple[int, str] | None, limit: int
) -> list[tuple[DecisionRecord, Outcome]]:
    """Up to `limit` decisions, newest first, each with what became of it."""
    columns = decisions.c
    query = sa.select(decisions).where(columns.tenant == tenant)
    for column, value in (
        (columns.actor, where.actor),
        (columns.action, where.action),
        (columns.item_id, where.item_id),
        (columns.escalation_id, where.escalation_id),
    ):
        if value is not None:
            query = query.where(column == value)
    if after is not None:
        query = query.where(sa.tuple_(columns.at_ms, columns.id) < sa.tuple_(*map(sa.literal, after)))
    query = query.order_by(columns.at_ms.desc(), columns.id.desc()).limit(limit)
    found = [record_of(row) for row in connection.execute(query)]
    return list(zip(found, outcomes_of(connection, found), strict=True))


def outcomes_of(connection: Connection, records: Sequence[DecisionRecord]) -> list[Outcome]:
    """What became of each decision: where the item first came to rest after it, or how its run stands."""
    later = _later_rests(connection, [record.item_id for record in records if record.item_id is not None])
    runs = _runs(connection, [record.run_id for record in records if record.run_id is not None])
    cases = _cases(connection, records)
    return [_outcome(record, later, runs, cases) for record in records]


def precision(connection: Connection, *, tenant: str) -> list[Precision]:
    """Per detector, rule and tool: decided cases, and those that were called a false alarm."""
    columns = decisions.c
    query = (
        sa.select(
            columns.detector,
            columns.rule,
            columns.tool,
            sa.func.count(sa.distinct(columns.escalation_id)),
            sa.func.count(sa.distinct(sa.case((columns.action == "dismiss", columns.escalation_id)))),
        )
        .where(columns.tenant == tenant, sa.or_(columns.detector.is_not(None), columns.rule.is_not(None)))
        .where(columns.action != "ask_submitter")
        .group_by(columns.detector, columns.rule, columns.tool)
        .order_by(columns.detector, columns.rule, columns.tool)
    )
    return [Precision(row[0], row[1], row[2], int(row[3]), int(row[4])) for row in connection.execute(query)]


def _later_rests(connection: Connection, ids: Sequence[str]) -> dict[str, list[sa.Row[Any]]]:
    if not ids:
        return {}
    query: sa.Select[Any] = (
        sa.select(history.c.item_id, history.c.version, history.c.to_status, history.c.at_ms, history.c.reason)
        .where(history.c.item_id.in_(set(ids)), history.c.to_status.in_(_SETTLED))
        .order_by(history.c.id)
    )
    grouped: dict[str, list[sa.Row[Any]]] = {}
    for row in connection.execute(query):
        grouped.setdefault(row.item_id, []).append(row)
    return grouped


def _runs(connection: Connection, ids: Sequence[str]) -> dict[str, sa.Row[Any]]:
    if not ids:
        return {}
    columns = guard_runs.c
    query: sa.Select[Any] = sa.select(columns.id, columns.status, columns.updated_ms, columns.outcome).where(
        columns.id.in_(set(ids))
    )
    return {row.id: row for row in connection.execute(query)}


def _cases(connection: Connection, records: Sequence[DecisionRecord]) -> list[sa.Row[Any]]:
    """The cases of the same items and runs that came back."""
    columns = escalations.c
    items_of = {record.item_id for record in records if record.item_id is not None}
    runs_of = {record.run_id for record in records if record.run_id is not None}
    if not items_of and not runs_of:
        return []
    query: sa.Select[Any] = (
        sa.select(columns.id, columns.item_id, columns.run_id, columns.created_ms)
        .where(sa.or_(columns.item_id.in_(items_of), columns.run_id.in_(runs_of)))
        .order_by(columns.created_ms, columns.id)
    )
    return list(connection.execute(query))


def _outcome(
    record: DecisionRecord,
    later: Mapping[str, Sequence[sa.Row[Any]]],
    runs: Mapping[str, sa.Row[Any]],
    cases: Sequence[sa.Row[Any]],
) -> Outcome:
    case = next(
        (
            case
            for case in cases
            if case.id != record.escalation_id
            and case.created_ms >= record.at_ms
            and (case.run_id == record.run_id if record.run_id is not None else case.item_id == record.item_id)
        ),
        None,
    )
    came_back = None if case is None else str(case.id)
    if record.run_id is not None:
        run = runs.get(record.run_id)
        status = None if run is None else str(run.status)
        reason = None if run is None or run.outcome is None else run.outcome.get("outcome")
        return Outcome(status, None if run is None else run.updated_ms, reason, case is not None, came_back)
    version = (record.item_version or 0) + (record.action == "ask_submitter")
    rest = next((row for row in later.get(record.item_id or "", ()) if row.version >= version), None)
    if rest is None:
        return Outcome(None, None, None, came_back=False, escalation_id=None)
    is_back = case is not None and rest.to_status in {"awaiting_human", "halted"}
    return Outcome(rest.to_status, rest.at_ms, rest.reason, is_back, came_back if is_back else None)


def item_version(connection: Connection, item_id: str | None) -> int | None:
    """The item's version now."""
    if item_id is None:
        return None
    version: int | None = connection.execute(sa.select(items.c.version).where(items.c.id == item_id)).scalar()
    return version


def record_of(row: sa.Row[Any]) -> DecisionRecord:
    """A whole row as a record."""
    return DecisionRecord(
        id=row.id,
        escalation_id=row.escalation_id,
        item_id=row.item_id,
        run_id=row.run_id,
        action=row.action,
        actor=row.actor,
        at_ms=row.at_ms,
        item_version=row.item_version,
        reason=row.reason,
        detector=row.detector,
        rule=row.rule,
        tool=row.tool,
        body=row.body,
    )
