"""One transaction on one guard run: its row is locked, its guard at hand, and at the end all is written together.

The trace in the database is the state. A snapshot of the fold and the guards kept in memory only spare the replay.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy.engine import Connection

from gateway.guarding.answers import OpenCall
from gateway.guarding.problems import conflict
from gateway.guarding.requests import read_definition
from gateway.item import Status
from gateway.store import guard_runs as store
from gateway.store import items
from gateway.store.guard_runs import NewDecision, RunRow, RunStatus
from guard import Decision, Guard, Trace, record_from_json, record_to_json

LIVE_GUARDS: Final = 512


class LiveGuards:
    """Guards in memory, each as it was after so many committed records of its run. Handed out to one visitor at a time."""

    def __init__(self, limit: int = LIVE_GUARDS) -> None:
        self._limit = limit
        self._guards: OrderedDict[str, tuple[int, Guard]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, run_id: str, records: int) -> tuple[int, Guard] | None:
        """The guard of this run with the number of records that it has seen, at most `records`; no longer kept here."""
        with self._lock:
            kept = self._guards.pop(run_id, None)
        return kept if kept is not None and kept[0] <= records else None

    def put(self, run_id: str, records: int, guard: Guard) -> None:
        """Keep a guard whose records are all committed."""
        with self._lock:
            kept = self._guards.get(run_id)
            if kept is not None and kept[0] > records:  # a later visit of the same commit was quicker to return
                return
            self._guards[run_id] = (records, guard)
            self._guards.move_to_end(run_id)
            while len(self._guards) > self._limit:
                self._guards.popitem(last=False)


@dataclass(slots=True)
class Progress:
    """What of a run is read and written with each call."""

    counts: dict[str, int] = field(default_factory=dict)
    open: list[OpenCall] = field(default_factory=list)
    turn: str | int | None = None
    """The message of the latest call."""
    is_own_turn: bool = False
    """The caller named no message, so we did."""
    banned: list[str] = field(default_factory=list)
    spent: dict[str, Any] = field(default_factory=dict)
    halts: int = 0

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Progress:
        """From what `dump` made of it."""
        calls = [OpenCall(**call) for call in stored.get("open", ())]
        return cls(**{**stored, "open": calls, "counts": dict(stored.get("counts", {}))})

    def dump(self) -> dict[str, Any]:
        """As JSON values. Written out, for it is part of every answer and `asdict` copies deeply."""
        return {
            "counts": self.counts,
            "open": [
                {"call_id": c.call_id, "tool": c.tool, "signature": c.signature, "turn": c.turn, "at_ms": c.at_ms}
                for c in self.open
            ],
            "turn": self.turn,
            "is_own_turn": self.is_own_turn,
            "banned": self.banned,
            "spent": self.spent,
            "halts": self.halts,
        }

    def count(self, name: str) -> None:
        """One more of a kind."""
        self.counts[name] = self.counts.get(name, 0) + 1


@dataclass(slots=True)
class Visit:
    """One transaction on one run whose row is ours: its guard, and what will be written at the end."""

    connection: Connection
    row: RunRow
    guard: Guard
    at_ms: int
    progress: Progress
    status: RunStatus
    halt: Mapping[str, Any] | None
    escalation_id: str | None
    records: int
    decisions: list[NewDecision] = field(default_factory=list)
    judged: list[Decision] = field(default_factory=list)
    """What was decided about calls, for the metrics."""

    @property
    def now(self) -> float:
        """Seconds of the one clock that all records of a run have: the database's."""
        return self.at_ms / 1000

    def pause_while(self, is_paused: bool) -> None:
        """Let the run stand still while all requests to models are paused, and go on after it."""
        if is_paused and not self.guard.is_paused:
            self.guard.pause(now=self.now)
        elif self.guard.is_paused and not is_paused:
            self.guard.unpause(now=self.now)

    @property
    def next_seq(self) -> int:
        """The number of the next answer."""
        return self.row.decisions + len(self.decisions) + 1

    def save(self) -> None:
        """Write the records, the decisions and the run."""
        connection, row, guard = self.connection, self.row, self.guard
        fresh = [record_to_json(record) for record in guard.trace.records]
        guard.trace.records.clear()
        store.append_records(connection, row.id, after=self.records, records=fresh)
        self.records += len(fresh)
        store.add_decisions(connection, row.id, self.decisions, at_ms=self.at_ms)
        self.progress.banned = list(guard.closed_tools)
        self.progress.spent = spent_json(guard)
        self.progress.halts = guard.halts
        is_written = store.save(
            connection,
            row,
            status=self.status,
            records=self.records,
            decisions=row.decisions + len(self.decisions),
            epoch=guard.epoch,
            progress=self.progress.dump(),
            halt=self.halt,
            escalation_id=self.escalation_id,
            outcome=row.outcome,
            ended_ms=row.ended_ms,
            at_ms=self.at_ms,
        )
        if not is_written:
            raise RuntimeError(f"run {row.id} was written by somebody else while its row was ours")
        if _is_snapshot_due(row.records, self.records):
            store.put_snapshot(connection, row.id, records=self.records, state=guard.snapshot())


def spent_json(guard: Guard) -> dict[str, Any]:
    """What the run has used so far, and may use. Written out, for the reason that `Progress.dump` is."""
    spent, limits = guard.spent, guard.limits
    return {
        "steps": spent.steps,
        "steps_max": spent.steps_max,
        "tokens": spent.tokens,
        "tokens_max": limits.tokens,
        "cost": spent.cost,
        "cost_max": limits.cost,
        "seconds": spent.seconds,
        "seconds_max": limits.seconds,
    }


FIRST_SNAPSHOT: Final = 256
"""A shorter trace is folded again in less than 5 ms: about as quickly as a snapshot of it is read."""


def _is_snapshot_due(before: int, now: int) -> bool:
    """Ever more rarely: the replay after a snapshot stays below a quarter of the trace, or so many records."""
    return _snapshot_number(now) > _snapshot_number(before)


def _snapshot_number(records: int) -> int:
    number, at = 0, FIRST_SNAPSHOT
    while records >= at:
        number += 1
        at += FIRST_SNAPSHOT + at // 4
    return number


def open_visit(connection: Connection, row: RunRow, live: LiveGuards) -> Visit:
    """Begin a visit of a run whose row is locked. Raises `RunProblem` when the run has ended."""
    if row.status is RunStatus.ENDED:
        raise conflict("The run has ended; open another one.", row.status.value, outcome=row.outcome)
    kept = live.take(row.id, row.records)
    guard = _rebuilt(connection, row) if kept is None else _caught_up(connection, row, *kept)
    visit = Visit(
        connection=connection,
        row=row,
        guard=guard,
        at_ms=items.now_ms(connection),
        progress=Progress.load(row.progress),
        status=row.status,
        halt=row.halt,
        escalation_id=row.escalation_id,
        records=row.records,
    )
    if row.item_id is not None and row.status is not RunStatus.CANCELLED:
        _cancel_with_item(visit, row.item_id)
    return visit


def _caught_up(connection: Connection, row: RunRow, records: int, guard: Guard) -> Guard:
    """A guard of this process after what other processes have answered meanwhile."""
    if records < row.records:
        guard.follow(record_from_json(record) for record in store.records_after(connection, row.id, after=records))
        guard.trace.records.clear()
    return guard


def _rebuilt(connection: Connection, row: RunRow) -> Guard:
    """The guard as it was after the last record: from the snapshot and what came after it, else from the whole trace."""
    definition = store.definition_of(connection, row.id)
    policy, tools = read_definition(definition)
    kept = store.snapshot_of(connection, row.id)
    if kept is not None:
        records, snapshot = kept
        tail = [record_from_json(record) for record in store.records_after(connection, row.id, after=records)]
        try:
            guard = Guard.from_trace(
                Trace(tail), policy, tools=tools, facts=definition["facts"], snapshot={**snapshot, "records": 0}
            )
        except (ValueError, TypeError, KeyError):
            kept = None  # made by another release; the trace is the truth
    if kept is None:
        trace = Trace([record_from_json(record) for record in store.records_after(connection, row.id, after=0)])
        guard = Guard.from_trace(trace, policy, tools=tools, facts=definition["facts"])
    guard.trace.records.clear()
    return guard


def _cancel_with_item(visit: Visit, item_id: str) -> None:
    status = items.version_and_status(visit.connection, item_id)
    if status is not None and status[1] in {Status.CANCELLED, Status.CANCELLING}:
        visit.guard.cancel(now=visit.now)
        visit.status = RunStatus.CANCELLED
