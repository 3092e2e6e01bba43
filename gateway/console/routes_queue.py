"""The queue: filters, rows, a quick look, and the pieces of it that a live page asks for again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.problems import not_found
from gateway.console import casefile, pictures
from gateway.console.access import form_of
from gateway.console.casefile import CaseFile
from gateway.console.pages import see_other
from gateway.console.serving import Backstage
from gateway.console.visit import Visit, visit_of
from gateway.escalation import EscalationRecord
from gateway.review import queue as review
from gateway.review.queue import Claimed
from gateway.store import escalation_rows as store
from gateway.store import items as item_store
from gateway.store import overview
from gateway.store.escalation_rows import CaseFilter
from gateway.store.overview import Counts

PAGE = 50
_UNDECIDED = ("open", "claimed", "waiting_submitter")
_NARROWS = ("tool", "reason", "profile", "group")
_VIEWS = (("", "All open"), ("mine", "Mine"), ("free", "Free to take"), ("late", "Overdue"))


@dataclass(frozen=True, slots=True)
class Row:
    """One case in the list."""

    record: EscalationRecord
    title: str
    sku: str | None
    why: str
    cover: str | None
    attempts: int | None
    cost: str
    group_id: str
    group_size: int
    is_here: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A value to narrow the list by, or to stop doing so."""

    label: str
    value: str
    count: int
    href: str
    is_here: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the address asks for."""

    view: str
    narrows: Mapping[str, str]
    at: int

    @property
    def is_narrowed(self) -> bool:
        """Whether cases may be hidden."""
        return bool(self.view or self.narrows)

    def href(self, **changes: str) -> str:
        """The same list with other choices; an empty text takes one back."""
        chosen = {"view": self.view, **self.narrows, **changes}
        query = urlencode({name: value for name, value in chosen.items() if value})
        return f"/console/?{query}" if query else "/console/"


class QueuePages:
    """Handlers of `/console/` and its pieces."""

    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage

    def add_to(self, router: APIRouter) -> None:
        """The routes."""
        router.add_api_route("/", self.queue, methods=["GET"])
        router.add_api_route("/next", self.take_next, methods=["POST"])
        router.add_api_route("/pieces/rows", self.rows, methods=["GET"])
        router.add_api_route("/pieces/count", self.count, methods=["GET"])
        router.add_api_route("/pieces/words", self.words, methods=["GET"])
        router.add_api_route("/pieces/preview/{escalation_id}", self.preview, methods=["GET"])

    async def queue(self, request: Request) -> Response:
        """The whole page."""
        visit, wanted = visit_of(request), _wanted(request)

        def look(connection: Connection) -> dict[str, Any]:
            found = self._list(connection, visit, wanted)
            chosen = found["rows"][0].record if found["rows"] else None
            case = None if chosen is None else self._case(connection, visit, chosen)
            return {
                **found,
                "case": case,
                "why": "" if case is None else why_of(case.record, visit),
                "views": _views(wanted, found["counts"], visit),
                "facets": _facets(connection, visit, wanted),
            }

        context = await self._backstage.read(look)
        return await self._backstage.render(
            visit,
            "queue.html",
            pieces=_pieces(wanted),
            filter_fields=list(wanted.narrows.items()),
            **context,
        )

    async def rows(self, request: Request) -> Response:
        """The rows alone."""
        visit, wanted = visit_of(request), _wanted(request)
        context = await self._backstage.read(lambda connection: self._list(connection, visit, wanted))
        return await self._backstage.render(visit, "_rows.html", **context)

    async def count(self, request: Request) -> Response:
        """How many cases are open, for the head of every page."""
        return await self._backstage.render(visit_of(request), "_count.html")

    async def words(self, request: Request) -> Response:
        """The same in words."""
        return await self._backstage.render(visit_of(request), "_queue_words.html")

    async def preview(self, escalation_id: str, request: Request) -> Response:
        """A quick look at one case."""
        visit = visit_of(request)

        def look(connection: Connection) -> CaseFile | None:
            record = store.get(connection, escalation_id, tenant=visit.tenant)
            return None if record is None else self._case(connection, visit, record)

        case = await self._backstage.read(look)
        if case is None:
            raise not_found("escalation of this id")
        return await self._backstage.render(visit, "_preview.html", case=case, why=why_of(case.record, visit))

    async def take_next(self, request: Request) -> Response:
        """Claim the most urgent free case and open it; back to the list where there is none."""
        visit = visit_of(request)
        visit.require_reviewer()
        form = form_of(request)
        narrows = {name: form[name] for name in _NARROWS if form.get(name)}
        where = replace(_filter(Wanted("", narrows, 0), visit), status=None)
        taken = await run_in_threadpool(review.claim_next, self._backstage.services, visit.desk, where=where)
        return see_other(f"/console/review/{taken.record.id}" if isinstance(taken, Claimed) else "/console/")

    def _list(self, connection: Connection, visit: Visit, wanted: Wanted) -> dict[str, Any]:
        counted = overview.counts(connection, tenant=visit.tenant, holder=visit.holder)
        where = _filter(wanted, visit)
        found = store.page(connection, tenant=visit.tenant, where=where, after=None, limit=(wanted.at + 1) * PAGE + 1)
        shown = found[wanted.at * PAGE : (wanted.at + 1) * PAGE]
        groups = [group_of(record) for record in shown]
        sizes = overview.group_sizes(connection, tenant=visit.tenant, groups=groups)
        rows = [_row(connection, record, visit, sizes, is_here=not number) for number, record in enumerate(shown)]
        more = wanted.href(at=str(wanted.at + 1)) if len(found) > (wanted.at + 1) * PAGE else None
        hidden = counted.open if wanted.is_narrowed and not rows else 0
        return {"rows": rows, "more": more, "counts": counted, "hidden": hidden}

    def _case(self, connection: Connection, visit: Visit, record: EscalationRecord) -> CaseFile:
        return casefile.collect(connection, visit, self._backstage.services.profiles, record)


def group_of(record: EscalationRecord) -> str:
    """The group's id."""
    return record.group_id or record.group_key


def why_of(record: EscalationRecord, visit: Visit) -> str:
    """One sentence: why the run stopped."""
    packet = record.packet
    return str(packet.get("why") or packet.get("question") or visit.say("An agent stopped here."))


def _row(
    connection: Connection, record: EscalationRecord, visit: Visit, sizes: Mapping[str, int], *, is_here: bool
) -> Row:
    item = None if record.item_id is None else item_store.get(connection, record.item_id)
    cost = (record.packet.get("cost") or {}).get("spent") or "0"
    return Row(
        record=record,
        title=casefile.title_of(record, item, visit),
        sku=None if item is None else item.external_id,
        why=why_of(record, visit),
        cover=None if item is None else pictures.cover_of(item),
        attempts=record.packet.get("attempts"),
        cost=str(cost),
        group_id=group_of(record),
        group_size=sizes.get(group_of(record), 1),
        is_here=is_here,
    )


def _wanted(request: Request) -> Wanted:
    query = request.query_params
    views = {name for name, _ in _VIEWS}
    at = query.get("at", "0")
    return Wanted(
        view=query.get("view", "") if query.get("view", "") in views else "",
        narrows={name: query[name] for name in _NARROWS if query.get(name)},
        at=int(at) if at.isascii() and at.isdigit() and len(at) < 4 else 0,
    )


def _filter(wanted: Wanted, visit: Visit) -> CaseFilter:
    narrows = wanted.narrows
    where = CaseFilter(
        status=_UNDECIDED,
        tool=narrows.get("tool"),
        reason=narrows.get("reason"),
        profile=narrows.get("profile"),
        group=narrows.get("group"),
    )
    if wanted.view == "mine":
        return replace(where, status=("claimed",), assignee=visit.holder)
    if wanted.view == "free":
        return replace(where, status=("open",))
    if wanted.view == "late":
        return replace(where, is_overdue=True)
    return where


def _views(wanted: Wanted, counted: Counts, visit: Visit) -> Sequence[Mapping[str, Any]]:
    numbers = {"": counted.open + counted.waiting, "mine": counted.mine, "free": counted.free, "late": counted.overdue}
    return [
        {"name": name, "count": numbers[view], "href": wanted.href(view=view), "is_here": wanted.view == view}
        for view, name in _VIEWS
    ]


_FACET_NAMES = {"tool": "Tool", "reason": "Reason", "profile": "Profile"}


def _facets(connection: Connection, visit: Visit, wanted: Wanted) -> Sequence[Mapping[str, Any]]:
    found = overview.facets(connection, tenant=visit.tenant)
    return [
        {"name": _FACET_NAMES[name], "rows": [_link(name, facet, wanted, visit) for facet in rows]}
        for name, rows in found.items()
    ]


def _link(name: str, facet: overview.Facet, wanted: Wanted, visit: Visit) -> Link:
    is_here = wanted.narrows.get(name) == facet.value
    label = visit.say(facet.value.replace("_", " ")) if name == "reason" else facet.value
    return Link(label, facet.value, facet.count, wanted.href(**{name: "" if is_here else facet.value}), is_here)


def _pieces(wanted: Wanted) -> str:
    query = urlencode({name: value for name, value in {"view": wanted.view, **wanted.narrows}.items() if value})
    return f"/console/pieces/rows?{query}" if query else "/console/pieces/rows"
