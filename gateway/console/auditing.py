"""The audit as one list: what happened to cases, and for admins to keys, people, webhooks, budgets and switches too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from gateway.console import words
from gateway.console.visit import Visit
from gateway.store import audit_view
from gateway.store.audit_view import AdminRow, AuditRow

_ACTORS = frozenset({"holder", "previous_holder", "decided_by", "to", "by"})
_PLACES: Mapping[str, str] = {"key": "keys", "person": "people", "webhook": "webhooks"}
"""Pages of the settings, by the family of what happened."""


@dataclass(frozen=True, slots=True)
class Line:
    """Who did what to which."""

    at_ms: int
    actor: str | None
    what: str
    subject: str
    href: str
    note: str | None
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page of the audit begins: below a line about a case, and below an event; None for the newest."""

    case_line: int | None = None
    event: int | None = None


def page(connection: Connection, visit: Visit, place: Place, *, limit: int) -> tuple[list[Line], Place | None]:
    """Up to `limit` lines that the reader's role may read, the newest first, and where the next page begins, if there is one.

    The two lists are merged by their times; each goes on below its own last line, so none is shown twice or left out.
    """
    cases = audit_view.entries(connection, tenant=visit.tenant, before=place.case_line, limit=limit + 1)
    others: list[AdminRow] = []
    if visit.is_admin:
        others = audit_view.admin_entries(connection, tenant=visit.tenant, before=place.event, limit=limit + 1)
    lines: list[Line] = []
    for row in _merged(cases, others):
        if len(lines) == limit:
            return lines, place
        if isinstance(row, AuditRow):
            lines.append(_of_case(row, visit))
            place = Place(row.id, place.event)
        else:
            lines.append(_of_admins(row, visit))
            place = Place(place.case_line, row.seq)
    return lines, None


def _merged(cases: list[AuditRow], others: list[AdminRow]) -> Iterator[AuditRow | AdminRow]:
    left, right = iter(cases), iter(others)
    case, other = next(left, None), next(right, None)
    while case is not None or other is not None:
        if other is None or (case is not None and case.at_ms >= other.at_ms):
            assert case is not None
            yield case
            case = next(left, None)
        else:
            yield other
            other = next(right, None)


def _of_case(row: AuditRow, visit: Visit) -> Line:
    subject = row.title or words.short(row.case_id)
    details = _details(row.detail or {}, visit)
    return Line(row.at_ms, row.actor, row.what, subject, f"/console/review/{row.case_id}", row.note, details)


def _of_admins(row: AdminRow, visit: Visit) -> Line:
    told = dict(row.told)
    actor, note = told.pop("by", "system:service"), told.pop("reason", None)
    tenant, switch, _ = told.pop("tenant", None), told.pop("switch", None), told.pop("endpoint", None)
    subject = row.name or told.pop("description", None) or tenant or switch or words.short(row.resource)
    place = _PLACES.get(row.kind.partition(".")[0])
    href = "/console/settings" if place is None else f"/console/settings/{place}"
    return Line(row.at_ms, actor, row.kind.replace(".", " "), str(subject), href, note, _details(told, visit))


def _details(told: Mapping[str, Any], visit: Visit) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", " "), _shown(name, value, visit)) for name, value in told.items() if value)


def _shown(name: str, value: Any, visit: Visit) -> str:
    if name in _ACTORS:
        return words.who(str(value), visit.say)
    if value is True:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
