"""The durable record of one attempt: what was asked, decided and answered, from which everything else is rebuilt.

Conversation, guard and costs are all folds over the rows, so any worker can go on where another died.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sqlalchemy.engine import Connection

from gateway.agent.estimate import Estimate
from gateway.budgets import Purse
from gateway.escalation import APPROVAL_NEEDED
from gateway.item import Effect, Item, Lease, StaleLease, Usage
from gateway.settings import money
from gateway.store import budgets, effects, items, steps, switches
from gateway.store.budgets import BudgetExhausted
from gateway.store.engine import Database
from gateway.store.steps import StepKind, StepRow
from gateway.switches import ModelCallsPaused
from guard import Trace, record_from_json, record_to_json
from guard.trace import Record


@dataclass(slots=True)
class Journal:
    """All steps of an item; those of the current attempt carry the conversation. Writes are fenced by the lease."""

    database: Database
    lease: Lease
    attempt: int
    rows: list[StepRow] = field(default_factory=list)
    purse: Purse | None = None
    """Pays for requests to the model; None where nobody counts."""
    waited_s: float = 0.0
    """Spent in the queue since the attempt began, or since a person let it go on: no part of its time budget."""

    @classmethod
    def open(cls, database: Database, lease: Lease, item: Item, *, purse: Purse | None = None) -> Journal:
        """The journal as the last worker left it."""
        with database.read() as connection:
            journal = cls(database, lease, item.attempt, steps.all_of(connection, item.id), purse)
            waited_ms = items.waited_ms(connection, item.id, since_ms=journal._resumed_ms())
        journal.waited_s = waited_ms / 1000
        return journal

    def now(self) -> float:
        """Unix seconds of a clock that stands still while the item waits, so that lost workers cost it no time but their own."""
        return time.time() - self.waited_s

    def _resumed_ms(self) -> int:
        """When a person last let the run go on: whoever did so read the clock on the wall."""
        resumed = (
            row.intent_ms
            for row in reversed(self.current)
            if row.kind is StepKind.CONTROL and row.intent.get("control") == "resume"
        )
        return next(resumed, 0)

    @property
    def current(self) -> list[StepRow]:
        """The steps of this attempt, oldest first."""
        return [row for row in self.rows if row.attempt == self.attempt]

    def begin(self, kind: StepKind, intent: Mapping[str, Any]) -> StepRow:
        """Write a step's intent before it is carried out. Raises `StaleLease`."""
        return self._append(kind, intent, None)

    def begin_request(self, intent: Mapping[str, Any], estimate: Estimate) -> StepRow:
        """Write the intent of a request to the model, with what is set aside for it in the same transaction.

        Raises `ModelCallsPaused`, `BudgetExhausted` (and then nothing was written but that it was refused), `StaleLease`.
        """
        try:
            return self._append(StepKind.MODEL, intent, None, estimate=estimate)
        except BudgetExhausted as refused:
            note = refused
            self.database.transact(lambda connection: budgets.note_refusal(connection, note))
            raise

    def record(self, kind: StepKind, intent: Mapping[str, Any], outcome: Mapping[str, Any] | None = None) -> StepRow:
        """Write a step that is over as soon as it is written, such as a refused call. Raises `StaleLease`."""
        return self._append(kind, intent, outcome or {})

    def finish(
        self,
        row: StepRow,
        outcome: Mapping[str, Any],
        *,
        is_progress: bool = True,
        effect: Effect | None = None,
    ) -> StepRow:
        """Write what a step brought, or (no progress) that its worker was lost. Raises `StaleLease`.

        What was set aside for a request to the model is settled with it. The `effect` of a tool that changes something is
        written with the end of its step, so that it happens once, whenever its worker dies.
        """

        def change(connection: Connection) -> bool:
            is_written = steps.finish(connection, self.lease, seq=row.seq, outcome=outcome, is_progress=is_progress)
            reserved = row.intent.get("reserved") or {}
            if is_written and "day" in reserved and self.purse is not None:
                self.purse.settle(connection, reserved, Decimal(str(outcome.get("cost", "0"))))
            if is_written and effect is not None:
                effects.insert(connection, self.lease.item_id, effect)
            return is_written

        self._write(change)
        return self._replace(row, outcome=outcome, executions=row.executions)

    def begin_again(self, row: StepRow) -> StepRow:
        """Count another execution of a step whose worker died, before it is carried out again. Raises `StaleLease`."""
        self._write(lambda connection: steps.begin_again(connection, self.lease, seq=row.seq))
        return self._replace(row, outcome=None, executions=row.executions + 1)

    def trace(self) -> Trace:
        """The guard's trace of this attempt."""
        return Trace([record for row in self.current for record in records_of(row)])

    def usage(self) -> Usage:
        """What all attempts together have cost."""
        return usage_of(self.rows)

    def _append(
        self,
        kind: StepKind,
        intent: Mapping[str, Any],
        outcome: Mapping[str, Any] | None,
        *,
        estimate: Estimate | None = None,
    ) -> StepRow:
        seq = self.rows[-1].seq + 1 if self.rows else 1
        written = dict(intent)

        def change(connection: Connection) -> bool:
            if estimate is not None:
                written.update(self._set_aside(connection, estimate))
            return steps.append(
                connection,
                self.lease,
                seq=seq,
                attempt=self.attempt,
                kind=kind,
                intent=written,
                outcome=outcome,
            )

        self._write(change)
        now_ms = time.time_ns() // 1_000_000
        row = StepRow(seq, self.attempt, kind, written, now_ms, 1, outcome, None if outcome is None else now_ms)
        self.rows.append(row)
        return row

    def _set_aside(self, connection: Connection, estimate: Estimate) -> dict[str, Any]:
        """What the intent keeps of its price. Raises `ModelCallsPaused`, `BudgetExhausted`."""
        if switches.read(connection).model_calls.is_paused:
            raise ModelCallsPaused
        held = {} if self.purse is None else self.purse.reserve(connection, estimate.cost)
        tokens = {"input_tokens": estimate.input_tokens, "output_tokens": estimate.output_tokens}
        return {"reserved": {**held, **tokens, "cost": money(estimate.cost)}}

    def _replace(self, row: StepRow, *, outcome: Mapping[str, Any] | None, executions: int) -> StepRow:
        ended_ms = None if outcome is None else time.time_ns() // 1_000_000
        changed = StepRow(row.seq, row.attempt, row.kind, row.intent, row.intent_ms, executions, outcome, ended_ms)
        self.rows[self.rows.index(row)] = changed
        return changed

    def _write(self, change: Callable[[Connection], bool]) -> None:
        """One transaction of the lease's holder; a stale lease takes all of it back."""

        def checked(connection: Connection) -> None:
            if not change(connection):
                raise StaleLease

        self.database.transact(checked)


def reserved_of(row: StepRow) -> Mapping[str, Any]:
    """Tokens and cost that were set aside for a request: what it counts as where nobody knows what became of it."""
    found: Mapping[str, Any] = row.intent.get("reserved") or {}
    return {
        "input_tokens": int(found.get("input_tokens", 0)),
        "output_tokens": int(found.get("output_tokens", 0)),
        "cost": str(found.get("cost", "0")),
    }


def with_unknown(row: StepRow, spent: Iterable[int], *, requests: int) -> tuple[int, int]:
    """Input and output tokens of a step: those that are known, and what was set aside for each request of unknown outcome."""
    reserved = reserved_of(row)
    input_tokens, output_tokens = spent
    return input_tokens + requests * reserved["input_tokens"], output_tokens + requests * reserved["output_tokens"]


def records_of(row: StepRow) -> list[Record]:
    """The guard's records that a step carries, in order."""
    stored = [*row.intent.get("records", ()), *(row.outcome or {}).get("records", ())]
    return [record_from_json(record) for record in stored]


def as_stored(records: Sequence[Record]) -> list[dict[str, object]]:
    """Records as a step keeps them."""
    return [record_to_json(record) for record in records]


def usage_of(rows: Sequence[StepRow]) -> Usage:
    """Costs and counts of these steps. A model call whose answer was lost counts as made and paid for."""
    cost = Decimal(0)
    counted = Usage()
    values = {
        "steps": 0,
        "model_calls": 0,
        "tool_calls": 0,
        "blocked_calls": 0,
        "input_tokens": 0,
        "output_tokens": 0,
    }
    for row in rows:
        outcome = row.outcome or {}
        if row.kind is StepKind.MODEL and row.outcome is None:
            outcome = reserved_of(row)
        if row.kind is StepKind.MODEL:
            values["model_calls"] += row.executions
            values["input_tokens"] += int(outcome.get("input_tokens", 0))
            values["output_tokens"] += int(outcome.get("output_tokens", 0))
            cost += Decimal(str(outcome.get("cost", "0")))
        elif row.kind is StepKind.TOOL and outcome.get("halt", {}).get("reason") == APPROVAL_NEEDED:
            continue  # asked for, not refused: it counts when it runs
        elif row.kind is StepKind.TOOL:
            values["steps"] += 1
            is_run = bool(row.intent.get("execute"))
            values["tool_calls" if is_run else "blocked_calls"] += row.executions if is_run else 1
    avoided = values["blocked_calls"] + _left_at_halts(rows)
    return Usage(**values, avoided_calls=avoided, cost=money(cost), currency=counted.currency)


def _left_at_halts(rows: Sequence[StepRow]) -> int:
    """The calls that the budgets of halted attempts would still have allowed: what they could have gone on burning."""
    left: dict[int, int] = {}
    for row in rows:
        if row.outcome is not None and "halt" in row.outcome:
            left[row.attempt] = int(row.outcome["halt"]["left"])
        elif row.kind is StepKind.CONTROL and row.intent.get("control") in {"resume", "fall_back"}:
            left.pop(row.attempt, None)
    return sum(left.values())
