"""Many cases at once: a group of the same incident, and those that a reviewer selected."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.problems import not_found
from gateway.console import casefile, choices, pictures
from gateway.console.access import form_of
from gateway.console.decisions import FormProblem, decision_of
from gateway.console.notices import Notice
from gateway.console.pages import see_other
from gateway.console.routes_queue import why_of
from gateway.console.routes_review import UNDO_MS, suggested_choice, told
from gateway.console.serving import Backstage
from gateway.console.visit import Visit, visit_of
from gateway.escalation import EscalationRecord, EscalationStatus, allowed_actions
from gateway.resolution import NotAllowed
from gateway.review import bulk, groups
from gateway.review.errors import GroupChanged, ReviewError
from gateway.review.groups import GroupView
from gateway.store import escalation_rows as store
from gateway.store import items as item_store
from gateway.store import review_view

MOST_IDS = 200


@dataclass(frozen=True, slots=True)
class Member:
    """One case of several."""

    record: EscalationRecord
    title: str
    sku: str | None
    why: str
    cover: str | None
    is_held_by_other: bool


class GroupPages:
    """Handlers of `/console/groups/{id}` and `/console/bulk`."""

    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage

    def add_to(self, router: APIRouter) -> None:
        """The routes."""
        router.add_api_route("/groups/{group_id}", self.group, methods=["GET"])
        router.add_api_route("/groups/{group_id}/decide", self.decide_group, methods=["POST"])
        router.add_api_route("/groups/{group_id}/split", self.split, methods=["POST"])
        router.add_api_route("/bulk", self.selected, methods=["GET"])
        router.add_api_route("/bulk/decide", self.decide_selected, methods=["POST"])

    async def group(self, group_id: str, request: Request) -> Response:
        """One incident and all that are stuck on it."""
        return await self._group(visit_of(request), group_id)

    async def _group(
        self,
        visit: Visit,
        group_id: str,
        *,
        notice: Notice | None = None,
        form: ImmutableMultiDict[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        try:
            view = await run_in_threadpool(groups.one, self._backstage.services, visit.desk, group_id)
        except ReviewError as error:
            raise not_found("group of this id") from error

        def look(connection: Connection) -> list[Member]:
            found = review_view.open_in_group(connection, tenant=visit.tenant, group=view.group.id)
            return [_member(connection, record, visit) for record in found]

        members = await self._backstage.read(look)
        return await self._page(visit, members, view=view, notice=notice or _told(visit), form=form, status=status)

    async def selected(self, request: Request) -> Response:
        """The cases that were selected in the queue."""
        visit = visit_of(request)
        ids = list(dict.fromkeys(request.query_params.getlist("ids")))[:MOST_IDS]
        if not ids:
            return see_other("/console/")
        members = await self._backstage.read(lambda connection: _members(connection, ids, visit))
        return await self._page(visit, members, view=None, notice=_told(visit), form=None)

    async def _page(
        self,
        visit: Visit,
        members: Sequence[Member],
        *,
        view: GroupView | None,
        notice: Notice | None,
        form: ImmutableMultiDict[str, str] | None,
        status: int = 200,
    ) -> Response:
        sent: dict[str, str] = {} if form is None else dict(form)
        waiting = [m for m in members if m.record.status in {EscalationStatus.OPEN, EscalationStatus.CLAIMED}]
        ways = _common_choices(waiting, visit)
        numbered, others = choices.split(ways)
        last = [] if view is None else list(view.last)
        values = [way.value for way in ways]
        suggested = suggested_choice(waiting[0].record, last, values, visit) if waiting else None
        named = [(choices.name_of(each.action, each.route, visit.say), each) for each in last]
        tools = list(dict.fromkeys(m.record.tool for m in waiting if m.record.tool))
        return await self._backstage.render(
            visit,
            "group.html",
            status=status,
            members=members,
            waiting=len(waiting),
            view=view,
            past=named,
            notice=notice,
            choices=[*numbered, *others],
            numbered=numbered,
            others=others,
            suggestion=suggested,
            chosen=sent.get("choice") or (suggested.value if suggested else None),
            draft=sent,
            banned=[] if form is None else form.getlist("ban_tools"),
            tools=tools[:4],
            decision_key=sent.get("key") or f"console-{secrets.token_urlsafe(12)}",
        )

    async def decide_group(self, group_id: str, request: Request) -> Response:
        """Decide on all that wait in the group, if there are as many as the page showed."""
        visit = visit_of(request)
        visit.require_reviewer()
        form = form_of(request)
        count = form.get("expected_count", "")
        expected = int(count) if count.isdecimal() and len(count) < 6 else -1
        services = self._backstage.services

        def decide() -> bulk.BulkAnswer:
            with services.database.read() as connection:
                found = review_view.open_in_group(connection, tenant=visit.tenant, group=group_id)
            if not found:
                raise GroupChanged(expected, 0)
            wanted = decision_of(form, form.getlist("ban_tools"), found[0], "none", visit.say)
            return bulk.decide_group(
                services,
                visit.desk,
                group_id,
                wanted,
                expected_count=expected,
                key=form.get("key") or None,
                undo_ms=UNDO_MS,
            )

        try:
            answer = await run_in_threadpool(decide)
        except (ReviewError, FormProblem, NotAllowed) as error:
            notice = Notice("bad", visit.say("Nothing was sent."), error.public)
            return await self._group(visit, group_id, notice=notice, form=form, status=409)
        return see_other(f"/console/groups/{group_id}?{told(answer)}")

    async def split(self, group_id: str, request: Request) -> Response:
        """Give the selected cases a group of their own, for good."""
        visit = visit_of(request)
        visit.require_reviewer()
        ids = form_of(request).getlist("ids")[:MOST_IDS]
        if not ids:
            notice = Notice(
                "bad", visit.say("Nothing was sent."), visit.say("Select the cases that do not belong here.")
            )
            return await self._group(visit, group_id, notice=notice, status=422)
        try:
            view, _ = await run_in_threadpool(
                lambda: groups.split(self._backstage.services, visit.desk, group_id, case_ids=ids)
            )
        except ReviewError as error:
            notice = Notice("bad", visit.say("Nothing was changed."), error.public)
            return await self._group(visit, group_id, notice=notice, status=409)
        return see_other(f"/console/groups/{view.group.id}")

    async def decide_selected(self, request: Request) -> Response:
        """Decide on the selected cases alike; what others hold is left alone and told."""
        visit = visit_of(request)
        visit.require_reviewer()
        form = form_of(request)
        ids = list(dict.fromkeys(form.getlist("ids")))[:MOST_IDS]
        members = await self._backstage.read(lambda connection: _members(connection, ids, visit))
        if not members:
            return see_other("/console/")
        services = self._backstage.services
        try:
            wanted = decision_of(form, form.getlist("ban_tools"), members[0].record, "none", visit.say)
            answer = await run_in_threadpool(
                lambda: bulk.decide_many(
                    services, visit.desk, ids, wanted, key=form.get("key") or None, undo_ms=UNDO_MS
                )
            )
        except (ReviewError, FormProblem, NotAllowed) as error:
            notice = Notice("bad", visit.say("Nothing was sent."), error.public)
            return await self._page(visit, members, view=None, notice=notice, form=form, status=409)
        query = "&".join(f"ids={member.record.id}" for member in members)
        return see_other(f"/console/bulk?{told(answer)}&{query}")


def _members(connection: Connection, ids: Sequence[str], visit: Visit) -> list[Member]:
    found = [store.get(connection, case_id, tenant=visit.tenant) for case_id in ids]
    return [_member(connection, record, visit) for record in found if record is not None]


def _member(connection: Connection, record: EscalationRecord, visit: Visit) -> Member:
    item = None if record.item_id is None else item_store.get(connection, record.item_id)
    is_held = record.status is EscalationStatus.CLAIMED and (record.lease_expires_ms or 0) > visit.at_ms
    return Member(
        record=record,
        title=casefile.title_of(record, item, visit),
        sku=None if item is None else item.external_id,
        why=why_of(record, visit),
        cover=None if item is None else pictures.cover_of(item),
        is_held_by_other=is_held and record.holder != visit.holder,
    )


_OF_ONE = frozenset({"answer_item", "answer_tool", "approve_call", "edit_call", "deny_call"})
"""What is written for one case cannot be meant for several."""


def _common_choices(members: Sequence[Member], visit: Visit) -> list[choices.Choice]:
    allowed: set[str] | None = None
    for member in members:
        mine = {action.value for action in allowed_actions(member.record)}
        allowed = mine if allowed is None else allowed & mine
    return choices.choices_for(sorted((allowed or set()) - _OF_ONE), visit.say)


def _told(visit: Visit) -> Notice | None:
    query: Any = visit.request.query_params
    decided, left = query.get("decided", ""), query.get("left", "")
    if not decided.isdecimal() or not left.isdecimal():
        return None
    say = visit.say
    text = say("{n} were left alone: see below who has them, or why.", n=left) if left != "0" else ""
    return Notice("info", say("Sent for {n} cases.", n=decided), text)
