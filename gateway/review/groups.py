"""Cases of the same kind of incident together: what waits, what it cost, how it was decided before; merged and split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from gateway.escalation import EscalationRecord, allowed_actions
from gateway.review import past
from gateway.review.desk import Desk
from gateway.review.errors import GroupSplit, NoSuchCase, NoSuchGroup
from gateway.review.suggestion import Past, Suggestion, suggest
from gateway.store import escalation_figures as figures
from gateway.store import escalation_groups as store
from gateway.store import escalation_rows as rows
from gateway.store.escalation_figures import GroupFigures, QueueFigures
from gateway.store.escalation_groups import Group
from gateway.store.escalation_rows import CaseFilter
from gateway.wiring import Services


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group with all that its page shows."""

    group: Group
    figures: GroupFigures
    last: Sequence[Past]
    """The last five decisions, the newest first."""
    suggestion: Suggestion | None
    fingerprints: Mapping[str, str | None]
    """Its keys, each with the group that it was split from."""


def listed(
    services: Services, desk: Desk, *, has_open: bool = True, after: str | None = None, limit: int = 50
) -> list[GroupView]:
    """Up to `limit` groups, the newest first; with `has_open` only those with something undecided."""
    with services.database.read() as connection:
        found = store.page(connection, tenant=desk.tenant, has_open=has_open, after=after, limit=limit)
        return _views(connection, found)


def one(services: Services, desk: Desk, group_id: str) -> GroupView:
    """One group; one that was merged away is the one that it became. Raises `NoSuchGroup`."""
    with services.database.read() as connection:
        return _views(connection, [find(connection, desk, group_id)])[0]


def suggestion_for(services: Services, record: EscalationRecord) -> tuple[Suggestion | None, list[Past]]:
    """What to decide on one case, suggested, and the last five decisions on which that rests."""
    with services.database.read() as connection:
        last = past.of_groups(connection, [record.group_id]).get(record.group_id, []) if record.group_id else []
    allowed = allowed_actions(record)
    return suggest(last, allowed=allowed, reason=record.reason, came_back_after=record.came_back_after), last


def queue_figures(services: Services, desk: Desk) -> QueueFigures:
    """How the queue stands."""
    with services.database.read() as connection:
        return figures.of_queue(connection, tenant=desk.tenant)


def merge(services: Services, desk: Desk, group_id: str, *, others: Sequence[str]) -> GroupView:
    """Make other groups part of this one. Raises `NoSuchGroup`, `GroupSplit` for what a person split apart."""

    def work(connection: Connection) -> None:
        into = find(connection, desk, group_id, lock=True)
        for other in others:
            source = find(connection, desk, other, lock=True)
            if source.id == into.id:
                continue
            mine, theirs = store.keys_of(connection, into.id), store.keys_of(connection, source.id)
            if source.id in mine.values() or into.id in theirs.values():
                raise GroupSplit
            store.merge(connection, source=source, into=into, actor=desk.person)

    services.database.transact(work)
    return one(services, desk, group_id)


def split(services: Services, desk: Desk, group_id: str, *, case_ids: Sequence[str]) -> tuple[GroupView, list[str]]:
    """Cases in a group of their own, for good, with those that will be like them; gives it and the moved cases.

    Raises `NoSuchGroup`, and `NoSuchCase` where one is not in the group.
    """

    def work(connection: Connection) -> tuple[str, list[str]]:
        group = find(connection, desk, group_id, lock=True)
        for case_id in case_ids:
            record = rows.get(connection, case_id, tenant=desk.tenant)
            if record is None or record.group_id != group.id:
                raise NoSuchCase(f"There is no escalation {case_id[:40]} in this group.")
        return store.split(connection, group=group, case_ids=case_ids, actor=desk.person)

    new, moved = services.database.transact(work)
    return one(services, desk, new), moved


def find(connection: Connection, desk: Desk, group_id: str, *, lock: bool = False) -> Group:
    """The group, or the one that it was merged into. Raises `NoSuchGroup`."""
    seen: set[str] = set()
    while group_id not in seen:
        seen.add(group_id)
        found = store.get(connection, group_id, tenant=desk.tenant, lock=lock)
        if found is None:
            raise NoSuchGroup
        if found.merged_into is None:
            return found
        group_id = found.merged_into
    raise NoSuchGroup


def _views(connection: Connection, found: Sequence[Group]) -> list[GroupView]:
    ids = [group.id for group in found]
    counted = figures.of_groups(connection, ids)
    decided = past.of_groups(connection, ids)
    return [_view(connection, group, counted[group.id], decided.get(group.id, [])) for group in found]


def _view(connection: Connection, group: Group, counted: GroupFigures, last: Sequence[Past]) -> GroupView:
    where = CaseFilter(group=group.id, status=("open", "claimed"))
    first = rows.page(connection, tenant=group.tenant, where=where, after=None, limit=1)
    suggestion = suggest(last, allowed=allowed_actions(first[0]), reason=first[0].reason) if first else None
    return GroupView(group, counted, last, suggestion, store.keys_of(connection, group.id))
