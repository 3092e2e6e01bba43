"""All that the review page shows of one case, collected: one read, no rule of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy.engine import Connection

from gateway import timeline
from gateway.console import pictures
from gateway.console.pictures import Picture
from gateway.console.visit import Visit
from gateway.escalation import EscalationRecord, EscalationStatus
from gateway.item import Item
from gateway.profiles import Profile, Profiles
from gateway.store import guard_runs as run_store
from gateway.store import items as item_store
from gateway.store import steps as step_store
from gateway.timeline import Block, Note, Timeline

_LONG_STRIP = 8
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Meter:
    """Something spent of something allowed."""

    label: str
    spent: str
    of: str | None
    share: float | None
    """0..1, and more where it was overdrawn; None without a limit."""


@dataclass(frozen=True, slots=True)
class CaseFile:
    """One case with its item, as the page shows it."""

    record: EscalationRecord
    item: Item | None
    pictures: Sequence[Picture]
    strip: Sequence[Block | Note]
    strip_left_out: int
    timeline: Timeline
    meters: Sequence[Meter]
    pace: str | None
    """What letting it run would cost in an hour."""
    title: str
    sku: str | None
    is_mine: bool
    is_held: bool
    """By anybody, at this moment."""

    @property
    def is_open(self) -> bool:
        """Whether it can still be decided."""
        return self.record.status in {EscalationStatus.OPEN, EscalationStatus.CLAIMED}


def collect(connection: Connection, visit: Visit, profiles: Profiles, record: EscalationRecord) -> CaseFile:
    """The case as it stands in this transaction."""
    item = None if record.item_id is None else item_store.get(connection, record.item_id)
    folded = timeline_of(connection, record, item)
    now = item_store.now_ms(connection)
    is_held = record.status is EscalationStatus.CLAIMED and (record.lease_expires_ms or 0) > now
    shown = folded.blocks[-_LONG_STRIP:]
    return CaseFile(
        record=record,
        item=item,
        pictures=[] if item is None else pictures.pictures_of(item, visit.say, language=visit.language),
        strip=shown,
        strip_left_out=len(folded.blocks) - len(shown),
        timeline=folded,
        meters=_meters(visit, record, folded, None if item is None else profiles.get(item.profile)),
        pace=_pace(folded),
        title=title_of(record, item, visit),
        sku=None if item is None else item.external_id,
        is_mine=is_held and record.holder == visit.holder,
        is_held=is_held,
    )


def timeline_of(connection: Connection, record: EscalationRecord, item: Item | None) -> Timeline:
    """The run that stands still, folded."""
    if record.run_id is not None:
        records = run_store.records_after(connection, record.run_id, after=0)
        return timeline.fold(timeline.entries_of_records(records))
    rows = [] if item is None else step_store.all_of(connection, item.id)
    return timeline.fold(timeline.entries_of_steps(rows))


def timeline_url(record: EscalationRecord) -> str | None:
    """Where the whole run can be read."""
    if record.run_id is not None:
        return f"/console/traces/{record.run_id}"
    return None if record.item_id is None else f"/console/items/{record.item_id}/timeline#first"


def title_of(record: EscalationRecord, item: Item | None, visit: Visit) -> str:
    """What the case is about, in a few words."""
    if item is not None and item.title:
        return item.title
    if item is not None and item.external_id:
        return item.external_id
    return visit.say("A run of another agent") if record.run_id else visit.say("Untitled item")


def _meters(visit: Visit, record: EscalationRecord, folded: Timeline, profile: Profile | None) -> list[Meter]:
    say, packet = visit.say, record.packet
    cost: Mapping[str, Any] = packet.get("cost") or {}
    steps: Mapping[str, Any] = packet.get("steps") or {}
    spent = Decimal(str(cost.get("spent") or folded.cost))
    limit = None if profile is None else Decimal(profile.budget.max_cost)
    taken, of = int(steps.get("taken") or folded.calls), steps.get("of")
    meters = [
        Meter(say("Spent"), str(spent), None if limit is None else str(limit), _share(spent, limit)),
        Meter(say("Steps"), str(taken), None if of is None else str(of), _share(taken, of)),
    ]
    first, last = _times(folded)
    if last > first:
        seconds = None if profile is None else profile.budget.max_seconds
        taken_s = (last - first) / 1000
        meters.append(
            Meter(
                say("Time"), _minutes(taken_s), None if seconds is None else _minutes(seconds), _share(taken_s, seconds)
            )
        )
    return meters


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _share(spent: Decimal | float, of: Decimal | float | None) -> float | None:
    return float(Decimal(str(spent)) / Decimal(str(of))) if of else None


def _times(folded: Timeline) -> tuple[int, int]:
    blocks = [block for block in folded.blocks if isinstance(block, Block)]
    return (blocks[0].first_ms, blocks[-1].last_ms) if blocks else (0, 0)


def _pace(folded: Timeline) -> str | None:
    first, last = _times(folded)
    if last - first < 500 or not folded.cost:
        return None
    return str((folded.cost * _HOUR_MS / (last - first)).quantize(Decimal("0.01")))
