"""The durable steps of a run: an intent row before each model or tool call, its outcome after; fenced like the item.

A step without an outcome was begun by a worker that died: whether it had an effect is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.item import Lease
from gateway.store.items import holds, now_ms
from gateway.store.tables import items, steps


class StepKind(StrEnum):
    """What a step is."""

    PROMPT = "prompt"
    """What the run began with."""
    MODEL = "model"
    TOOL = "tool"
    CONTROL = "control"
    """A fallback, a nudge, or a person's decision."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step as stored. `seq` counts from 1 over all attempts of the item."""

    seq: int
    attempt: int
    kind: StepKind
    intent: Mapping[str, Any]
    intent_ms: int
    executions: int
    outcome: Mapping[str, Any] | None
    outcome_ms: int | None


def all_of(connection: Connection, item_id: str) -> list[StepRow]:
    """All steps of an item, oldest first."""
    rows = connection.execute(sa.select(steps).where(steps.c.item_id == item_id).order_by(steps.c.seq))
    return [
        StepRow(
            seq=row.seq,
            attempt=row.attempt,
            kind=StepKind(row.kind),
            intent=row.intent,
            intent_ms=row.intent_ms,
            executions=row.executions,
            outcome=row.outcome,
            outcome_ms=row.outcome_ms,
        )
        for row in rows
    ]


def append(
    connection: Connection,
    lease: Lease,
    *,
    seq: int,
    attempt: int,
    kind: StepKind,
    intent: Mapping[str, Any],
    outcome: Mapping[str, Any] | None = None,
) -> bool:
    """Write a step under the lease; False if the lease is stale, and then nothing was written."""
    if not holds(connection, lease):
        return False
    at_ms = now_ms(connection)
    insert(
        connection,
        lease.item_id,
        seq=seq,
        attempt=attempt,
        kind=kind,
        fence=lease.fence,
        intent=intent,
        outcome=outcome,
        at_ms=at_ms,
    )
    if outcome is not None:
        _note_progress(connection, lease)
    return True


def _note_progress(connection: Connection, lease: Lease) -> None:
    """A finished step is a sign of life: the count of workers lost in a row starts again.

    A step that was only begun is none: a call that kills every worker would else be begun for ever.
    """
    connection.execute(items.update().where(items.c.id == lease.item_id, items.c.lost_claims > 0).values(lost_claims=0))


def insert(
    connection: Connection,
    item_id: str,
    *,
    seq: int,
    attempt: int,
    kind: StepKind,
    fence: int,
    intent: Mapping[str, Any],
    outcome: Mapping[str, Any] | None,
    at_ms: int,
) -> None:
    """Write a step in a transaction that has made sure of its right to do so."""
    connection.execute(
        steps.insert(),
        {
            "item_id": item_id,
            "seq": seq,
            "attempt": attempt,
            "kind": kind.value,
            "fence": fence,
            "intent": dict(intent),
            "intent_ms": at_ms,
            "outcome": None if outcome is None else dict(outcome),
            "outcome_ms": None if outcome is None else at_ms,
        },
    )


def finish(
    connection: Connection, lease: Lease, *, seq: int, outcome: Mapping[str, Any], is_progress: bool = True
) -> bool:
    """Write what a step brought; False if the lease is stale or the step has its outcome already.

    `is_progress` says that it was carried out, and not only closed for a worker that was lost.
    """
    if not holds(connection, lease):
        return False
    changed = connection.execute(
        steps.update()
        .where(steps.c.item_id == lease.item_id, steps.c.seq == seq, steps.c.outcome_ms.is_(None))
        .values(outcome=dict(outcome), outcome_ms=now_ms(connection))
    )
    if changed.rowcount == 1 and is_progress:
        _note_progress(connection, lease)
    return changed.rowcount == 1


def begin_again(connection: Connection, lease: Lease, *, seq: int) -> bool:
    """Count another execution of a step whose outcome is not known, before it is run again."""
    if not holds(connection, lease):
        return False
    changed = connection.execute(
        steps.update()
        .where(steps.c.item_id == lease.item_id, steps.c.seq == seq, steps.c.outcome_ms.is_(None))
        .values(executions=steps.c.executions + 1)
    )
    return changed.rowcount == 1


def next_seq(connection: Connection, item_id: str) -> int:
    """The number that the next step gets."""
    last = connection.execute(sa.select(sa.func.max(steps.c.seq)).where(steps.c.item_id == item_id)).scalar()
    return 1 if last is None else int(last) + 1
