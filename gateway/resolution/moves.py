"""What all decisions do to an item: a step that tells what was decided, and a conditional transition."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from gateway.item import Item, Status
from gateway.resolution.refusals import ItemMoved
from gateway.store import attempts, steps
from gateway.store import items as item_store
from gateway.store.steps import StepKind
from guard import record_to_json
from guard.trace import Control, ControlRecord, Record

FALSE_ALARM = "A reviewer looked at this and found that you were not repeating yourself. Go on."


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Who decides, as the history and the audit name them."""

    name: str


def advice(guidance: str) -> str:
    """What the agent is told that a reviewer said."""
    return f"A reviewer looked at this and says: {guidance}"


def control(
    *,
    ban_tools: tuple[str, ...] = (),
    extra_steps: int = 0,
    forgiven: tuple[str, ...] = (),
    approved: tuple[str, ...] = (),
    note: str | None = None,
) -> ControlRecord:
    """The guard's record of a person's word, as of now."""
    return ControlRecord(
        Control.RESUME, time.time(), ban_tools, extra_steps, forgiven=forgiven, approved=approved, note=note
    )


def go_on(
    connection: Connection,
    item: Item,
    reviewer: Reviewer,
    *records: Record,
    text: str | None,
    expected: Status = Status.AWAITING_HUMAN,
    reason: str = "resumed",
    said: Mapping[str, Any] | None = None,
) -> None:
    """Let the same attempt go on in a new epoch. `said` is what the step tells beside `text`. Raises `ItemMoved`."""
    intent = {"control": "resume", "by": reviewer.name, "text": text, **(said or {})}
    tell(connection, item, intent, *records, attempt=item.attempt)
    values = {
        "epoch": item.epoch + 1,
        "lost_claims": 0,
        "failure": None,
        "escalation_id": None,
        "available_ms": item_store.now_ms(connection),
    }
    move(connection, item, reviewer, Status.QUEUED, reason=reason, values=values, expected=expected)


def begin_attempt(
    connection: Connection,
    item: Item,
    reviewer: Reviewer,
    *,
    action: str,
    route: str | None,
    reason: str | None,
    moved_because: str,
    guidance: str | None = None,
    ban_tools: tuple[str, ...] = (),
    budget: Mapping[str, Any] | None = None,
    expected: Status = Status.AWAITING_HUMAN,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Put the item back to the start of its work, as a new attempt on `route`; None has it judged again first.

    Raises `ItemMoved`.
    """
    at_ms = item_store.now_ms(connection)
    attempt = item.attempt + 1
    if guidance or ban_tools:
        intent = {"control": action, "by": reviewer.name, "text": guidance}
        note = None if guidance is None else guidance[:2000]
        tell(connection, item, intent, control(ban_tools=ban_tools, note=note), attempt=attempt)
    attempts.insert(
        connection, item, action=action, actor=reviewer.name, reason=reason, route=route, budget=budget, at_ms=at_ms
    )
    changed = {
        "attempt": attempt,
        "epoch": 0,
        "lost_claims": 0,
        "route": route,
        "failure": None,
        "escalation_id": None,
        "available_ms": at_ms,
        **(values or {}),
    }
    move(connection, item, reviewer, Status.QUEUED, reason=moved_because, values=changed, expected=expected)


def tell(connection: Connection, item: Item, intent: Mapping[str, Any], *records: Record, attempt: int) -> None:
    """Write a step that says what somebody decided."""
    steps.insert(
        connection,
        item.id,
        seq=steps.next_seq(connection, item.id),
        attempt=attempt,
        kind=StepKind.CONTROL,
        fence=item.fence,
        intent={**intent, "records": [record_to_json(record) for record in records]},
        outcome={},
        at_ms=item_store.now_ms(connection),
    )


def move(
    connection: Connection,
    item: Item,
    reviewer: Reviewer,
    to: Status,
    *,
    reason: str | None,
    values: Mapping[str, Any],
    expected: Status = Status.AWAITING_HUMAN,
) -> None:
    """The transition, if the item still is where it was. Raises `ItemMoved`."""
    before = item_store.transition(
        connection,
        item.id,
        expected=(expected,),
        to=to,
        actor=reviewer.name,
        fence=item.fence,
        reason=reason,
        values=values,
    )
    if before is None:
        raise ItemMoved
