"""Rows of guard runs over HTTP: the run, its trace, a snapshot of the fold, and each decision under its call id."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.store.items import now_ms
from gateway.store.prepared import Prepared
from gateway.store.tables import guard_decisions, guard_records, guard_runs, guard_snapshots


class RunStatus(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    HALTED = "halted"
    """The guard ended the turn; the caller decides."""
    AWAITING_HUMAN = "awaiting_human"
    CANCELLED = "cancelled"
    """Its item was cancelled."""
    ENDED = "ended"


class Kind(StrEnum):
    """What a stored answer answers."""

    BEFORE = "before"
    AFTER = "after"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run without its definition, which only a rebuilt guard needs."""

    id: str
    tenant: str
    agent: str
    external_run_id: str
    item_id: str | None
    policy_id: str
    status: RunStatus
    version: int
    records: int
    decisions: int
    epoch: int
    progress: Mapping[str, Any]
    halt: Mapping[str, Any] | None
    escalation_id: str | None
    outcome: Mapping[str, Any] | None
    created_ms: int
    updated_ms: int
    ended_ms: int | None


@dataclass(frozen=True, slots=True)
class NewDecision:
    """A decision as it is stored: `body` is the answer, byte for byte."""

    seq: int
    id: str
    kind: Kind
    call_id: str
    step: int
    tool: str
    fingerprint: str
    executes: bool
    body: str
    report: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision that was given before."""

    id: str
    step: int
    tool: str
    fingerprint: str
    executes: bool
    body: str


def _put_snapshot(make: Callable[[sa.Table], sqlite.Insert | postgresql.Insert]) -> Prepared:
    inserted = make(guard_snapshots)
    new = {"records": inserted.excluded.records, "state": inserted.excluded.state}
    return Prepared(inserted.on_conflict_do_update(index_elements=["run_id"], set_=new))


_ROW = tuple(guard_runs.c[one.name] for one in fields(RunRow))
_STATUS = [column.name for column in _ROW].index("status")
_BY_ID = sa.select(*_ROW).where(guard_runs.c.id == sa.bindparam("id"), guard_runs.c.tenant == sa.bindparam("tenant"))
_FIND = Prepared(_BY_ID)
_LOCK = Prepared(
    _BY_ID.with_for_update()
)  # SQLite knows no such words: there the writing transactions are alone anyway
_DEFINITION = sa.select(guard_runs.c.definition).where(guard_runs.c.id == sa.bindparam("id"))
_STORED = sa.select(
    guard_decisions.c.id,
    guard_decisions.c.step,
    guard_decisions.c.tool,
    guard_decisions.c.fingerprint,
    guard_decisions.c.executes,
    guard_decisions.c.body,
    guard_decisions.c.call_id,
    guard_decisions.c.phase,
).where(guard_decisions.c.run_id == sa.bindparam("run_id"))
_STORED_ONE = Prepared(_STORED.where(guard_decisions.c.call_id == sa.bindparam("call_id")))
_INSERT_RUN = guard_runs.insert()
_INSERT_RECORD = Prepared(guard_records.insert())
_INSERT_DECISION = Prepared(guard_decisions.insert())
_PUT_SNAPSHOT = {"sqlite": _put_snapshot(sqlite.insert), "postgresql": _put_snapshot(postgresql.insert)}
_UPDATE_RUN = Prepared(
    guard_runs.update()
    .where(guard_runs.c.id == sa.bindparam("at_id"), guard_runs.c.version == sa.bindparam("at_version"))
    .values(
        {
            name: sa.bindparam(f"to_{name}")
            for name in (
                "status", "version", "records", "decisions", "epoch", "progress", "halt", "escalation_id", "outcome",
                "updated_ms", "ended_ms",
            )
        }
    )
)  # fmt: skip


def insert(
    connection: Connection,
    run_id: str,
    *,
    tenant: str,
    agent: str,
    external_run_id: str,
    item_id: str | None,
    definition: Mapping[str, Any],
    policy_id: str,
    progress: Mapping[str, Any],
    records: int,
    at_ms: int,
) -> None:
    """Write a run that has just begun. Raises IntegrityError where (tenant, agent, external_run_id) exists."""
    connection.execute(
        _INSERT_RUN,
        {
            "id": run_id,
            "tenant": tenant,
            "agent": agent,
            "external_run_id": external_run_id,
            "item_id": item_id,
            "definition": dict(definition),
            "policy_id": policy_id,
            "status": RunStatus.RUNNING.value,
            "progress": dict(progress),
            "records": records,
            "created_ms": at_ms,
            "updated_ms": at_ms,
        },
    )


def find(connection: Connection, *, tenant: str, agent: str, external_run_id: str) -> RunRow | None:
    """The run that this agent knows under its own id."""
    row = connection.execute(
        sa.select(*_ROW).where(
            guard_runs.c.tenant == tenant,
            guard_runs.c.agent == agent,
            guard_runs.c.external_run_id == external_run_id,
        )
    ).first()
    return None if row is None else _run(row)


def get(connection: Connection, run_id: str, *, tenant: str) -> RunRow | None:
    """The run; None if there is none of that id in this tenant."""
    return _one(_FIND.rows(connection, {"id": run_id, "tenant": tenant}))


def lock(connection: Connection, run_id: str, *, tenant: str) -> RunRow | None:
    """The run, for one writer alone until the transaction ends. SQLite's writing transactions are alone anyway."""
    return _one(_LOCK.rows(connection, {"id": run_id, "tenant": tenant}))


def definition_of(connection: Connection, run_id: str) -> Mapping[str, Any]:
    """What the run was opened with: policy, tools, facts, bans."""
    definition: Mapping[str, Any] = connection.execute(_DEFINITION, {"id": run_id}).scalar_one()
    return definition


def known_tools(connection: Connection, run_id: str) -> tuple[str, ...]:
    """The tools that the run declared, and those that it asked about; none where it declared none, so that any may exist."""
    declared = definition_of(connection, run_id)["tools"]
    if not declared:
        return ()
    asked = sa.select(guard_decisions.c.tool).where(
        guard_decisions.c.run_id == run_id, guard_decisions.c.phase == Kind.BEFORE.value
    )
    return tuple(
        dict.fromkeys([*declared, *connection.execute(asked.distinct().order_by(guard_decisions.c.tool)).scalars()])
    )


def save(
    connection: Connection,
    before: RunRow,
    *,
    status: RunStatus,
    records: int,
    decisions: int,
    epoch: int,
    progress: Mapping[str, Any],
    halt: Mapping[str, Any] | None,
    escalation_id: str | None,
    outcome: Mapping[str, Any] | None,
    ended_ms: int | None,
    at_ms: int,
) -> bool:
    """Write the run as it is now; False if somebody else wrote it meanwhile, and then nothing was written."""
    changed = _UPDATE_RUN.run(
        connection,
        {
            "at_id": before.id,
            "at_version": before.version,
            "to_status": status.value,
            "to_version": before.version + 1,
            "to_records": records,
            "to_decisions": decisions,
            "to_epoch": epoch,
            "to_progress": dict(progress),
            "to_halt": sa.null() if halt is None else dict(halt),
            "to_escalation_id": escalation_id,
            "to_outcome": sa.null() if outcome is None else dict(outcome),
            "to_updated_ms": at_ms,
            "to_ended_ms": ended_ms,
        },
    )
    return changed == 1


def close(connection: Connection, run_id: str, *, outcome: Mapping[str, Any]) -> bool:
    """End a run from outside; False if it has ended already."""
    at_ms = now_ms(connection)
    changed = connection.execute(
        guard_runs.update()
        .where(guard_runs.c.id == run_id, guard_runs.c.status != RunStatus.ENDED.value)
        .values(
            status=RunStatus.ENDED.value,
            outcome=dict(outcome),
            version=guard_runs.c.version + 1,
            updated_ms=at_ms,
            ended_ms=at_ms,
        )
    )
    return changed.rowcount == 1


def append_records(connection: Connection, run_id: str, *, after: int, records: Sequence[Mapping[str, Any]]) -> None:
    """Add records to the run's trace; the first gets number `after` + 1. Texts that are no Unicode stay escaped."""
    _INSERT_RECORD.run_each(
        connection,
        [
            {"run_id": run_id, "seq": number, "record": _encode(record)}
            for number, record in enumerate(records, after + 1)
        ],
    )


def records_after(connection: Connection, run_id: str, *, after: int) -> list[dict[str, Any]]:
    """The records of the trace from number `after` + 1 on, oldest first."""
    rows = connection.execute(
        sa.select(guard_records.c.record)
        .where(guard_records.c.run_id == run_id, guard_records.c.seq > after)
        .order_by(guard_records.c.seq)
    )
    return [json.loads(text) for text in rows.scalars()]


def snapshot_of(connection: Connection, run_id: str) -> tuple[int, dict[str, Any]] | None:
    """The newest snapshot with the number of records that it stands for."""
    row = connection.execute(
        sa.select(guard_snapshots.c.records, guard_snapshots.c.state).where(guard_snapshots.c.run_id == run_id)
    ).first()
    return None if row is None else (row.records, json.loads(row.state))


def put_snapshot(connection: Connection, run_id: str, *, records: int, state: Mapping[str, Any]) -> None:
    """Keep a snapshot instead of the one before."""
    values = {"run_id": run_id, "records": records, "state": _encode(state)}
    statement = _PUT_SNAPSHOT[connection.dialect.name]
    statement.run(connection, values)


def drop_snapshot(connection: Connection, run_id: str) -> None:
    """Forget the snapshot of a run that has ended."""
    connection.execute(guard_snapshots.delete().where(guard_snapshots.c.run_id == run_id))


def stored(connection: Connection, run_id: str, call_ids: Collection[str]) -> dict[tuple[Kind, str], StoredDecision]:
    """All that was answered under these call ids."""
    rows: Iterable[Sequence[Any]]
    if len(call_ids) == 1:
        rows = _STORED_ONE.rows(connection, {"run_id": run_id, "call_id": next(iter(call_ids))})
    else:
        rows = connection.execute(_STORED.where(guard_decisions.c.call_id.in_(list(call_ids))), {"run_id": run_id})
    return {(Kind(phase), call_id): StoredDecision(*values) for *values, call_id, phase in rows}


def ask_again(connection: Connection, run_id: str, call_id: str, *, seq: int) -> None:
    """Let a call that was held back be asked about once more under its id; the decision of then is kept under another."""
    kept = f"{call_id[:180]}#held-{seq}"
    connection.execute(
        guard_decisions.update()
        .where(
            guard_decisions.c.run_id == run_id,
            guard_decisions.c.call_id == call_id,
            guard_decisions.c.phase == Kind.BEFORE.value,
        )
        .values(call_id=kept)
    )


def add_decisions(connection: Connection, run_id: str, decisions: Iterable[NewDecision], *, at_ms: int) -> None:
    """Write decisions; a second one for the same phase and call id is an IntegrityError."""
    rows = [
        {
            "run_id": run_id,
            "seq": new.seq,
            "id": new.id,
            "phase": new.kind.value,
            "call_id": new.call_id,
            "step": new.step,
            "tool": new.tool,
            "fingerprint": new.fingerprint,
            "executes": new.executes,
            "body": new.body,
            "report": sa.null() if new.report is None else dict(new.report),
            "created_ms": at_ms,
        }
        for new in decisions
    ]
    _INSERT_DECISION.run_each(connection, rows)


def latest(connection: Connection, run_id: str, *, limit: int) -> list[dict[str, Any]]:
    """The newest decisions about calls, newest first. Looks at all of the run: an index would slow each call down."""
    rows = connection.execute(
        sa.select(guard_decisions.c.body)
        .where(guard_decisions.c.run_id == run_id, guard_decisions.c.phase != Kind.RESUME.value)
        .order_by(guard_decisions.c.seq.desc())
        .limit(limit)
    )
    return [json.loads(text) for text in rows.scalars()]


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _one(rows: Sequence[Sequence[Any]]) -> RunRow | None:
    return _run(rows[0]) if rows else None


def _run(row: Sequence[Any]) -> RunRow:
    """From the columns of `_ROW`."""
    values = list(row)
    values[_STATUS] = RunStatus(values[_STATUS])
    return RunRow(*values)
