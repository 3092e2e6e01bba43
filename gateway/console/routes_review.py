"""The review page, and all that is done on it. Looking claims nothing and decides nothing."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.problems import ApiProblem, not_found
from gateway.console import casefile, choices, notices, words
from gateway.console.access import form_of
from gateway.console.casefile import CaseFile
from gateway.console.decisions import FormProblem, decision_of
from gateway.console.lookers import Lookers
from gateway.console.notices import Notice
from gateway.console.pages import rendered, see_other, wants_json
from gateway.console.routes_queue import group_of, why_of
from gateway.console.serving import Backstage
from gateway.console.visit import Visit, visit_of
from gateway.escalation import Action, Change, EscalationRecord, EscalationStatus, allowed_actions
from gateway.resolution import ItemMoved, NotAllowed
from gateway.review import bulk, deciding, past, reopening
from gateway.review import queue as review
from gateway.review.bulk import BulkAnswer, Fate
from gateway.review.errors import NotReversible, ReviewError, StaleVersion
from gateway.review.suggestion import Past, suggest
from gateway.store import escalation_figures as figures
from gateway.store import escalation_log as audit
from gateway.store import escalation_rows as store
from gateway.store import review_view
from gateway.timeline import Block

UNDO_MS = 8_000


@dataclass(frozen=True, slots=True)
class Toast:
    """What was just sent, and until when it can be taken back."""

    id: str
    what: str
    about: str
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupLine:
    """The group in one line."""

    id: str
    open: int
    outcomes: Sequence[tuple[str, int]]


class ReviewPages:
    """Handlers of `/console/review/{id}`."""

    def __init__(self, backstage: Backstage, lookers: Lookers) -> None:
        self._backstage = backstage
        self._lookers = lookers

    def add_to(self, router: APIRouter) -> None:
        """The routes."""
        router.add_api_route("/review/{case_id}", self.show, methods=["GET"])
        router.add_api_route("/pieces/lease/{case_id}", self.lease, methods=["GET"])
        for name, handler in (
            ("claim", self.claim),
            ("release", self.release),
            ("takeover", self.take_over),
            ("heartbeat", self.heartbeat),
            ("looking", self.looking),
            ("decide", self.decide),
            ("undo", self.undo),
            ("note", self.note),
            ("reopen", self.reopen),
        ):
            router.add_api_route(f"/review/{{case_id}}/{name}", handler, methods=["POST"])

    # --- looking -----------------------------------------------------------------------------------------------------

    async def show(self, case_id: str, request: Request) -> Response:
        """The case with everything that is needed to decide."""
        visit = visit_of(request)
        return await self._page(visit, case_id)

    async def lease(self, case_id: str, request: Request) -> Response:
        """Who holds the case, and how long still: the piece that a live page asks for again."""
        visit = visit_of(request)
        return await self._backstage.render(visit, "_lease.html", **await self._lease_context(visit, case_id))

    async def _lease_context(self, visit: Visit, case_id: str) -> Mapping[str, Any]:
        def look(connection: Connection) -> CaseFile:
            return self._collect(connection, visit, case_id)

        case = await self._backstage.read(look)
        others = self._lookers.others(case_id, visit.name)
        return {"case": case, "lease_state": _lease_state(case), "lookers": others}

    def _collect(self, connection: Connection, visit: Visit, case_id: str) -> CaseFile:
        record = _record(connection, visit, case_id)
        return casefile.collect(connection, visit, self._backstage.services.profiles, record)

    async def _page(
        self,
        visit: Visit,
        case_id: str,
        *,
        notice: Notice | None = None,
        form: ImmutableMultiDict[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        context = await self._backstage.read(lambda connection: self._context(connection, visit, case_id, form))
        shown = notice or context["standing"]
        return await self._backstage.render(
            visit, "review.html", status=status, notice=shown, is_locked=_is_locked(shown, visit), **context
        )

    def _context(
        self, connection: Connection, visit: Visit, case_id: str, form: ImmutableMultiDict[str, str] | None
    ) -> dict[str, Any]:
        case = self._collect(connection, visit, case_id)
        record, say = case.record, visit.say
        sent: dict[str, str] = {} if form is None else dict(form)
        ways = choices.choices_for([action.value for action in allowed_actions(record)], say)
        numbered, others = choices.split(ways)
        group = group_of(record)
        last = past.of_groups(connection, [group]).get(group, [])
        suggested = suggested_choice(record, last, [way.value for way in ways], visit)
        around = review_view.neighbours(connection, record)
        waiting = figures.of_groups(connection, [group])[group].to_decide
        resolution = record.resolution or {}
        return {
            "case": case,
            "why": why_of(record, visit),
            "came_back": choices.name_of(record.came_back_after, None, say),
            "choices": ways,
            "numbered": numbered,
            "others": others,
            "suggestion": suggested,
            "chosen": sent.get("choice") or suggested.value,
            "draft": sent,
            "banned": [] if form is None else form.getlist("ban_tools"),
            "tools": _tools(case),
            "decision_key": sent.get("key") or f"console-{secrets.token_urlsafe(12)}",
            "decided_name": choices.name_of(resolution.get("action"), resolution.get("route"), say),
            "notes": [entry for entry in audit.all_of(connection, case_id) if entry.what is Change.NOTED][-2:],
            "group": _group_line(record, waiting, last, visit),
            "next_url": around.next and f"/console/review/{around.next}",
            "previous_url": around.previous and f"/console/review/{around.previous}",
            "timeline_url": casefile.timeline_url(record),
            "lease_state": _lease_state(case),
            "lookers": self._lookers.others(case_id, visit.name),
            "toast": _toast(connection, visit),
            "standing": notices.standing(
                record,
                visit,
                is_held_by_other=case.is_held and not case.is_mine,
                can_reopen=visit.can_review and deciding.may_take_back(record, visit.desk),
            ),
        }

    # --- doing -------------------------------------------------------------------------------------------------------

    async def claim(self, case_id: str, request: Request) -> Response:
        """Take the case, or keep it."""
        visit = visit_of(request)
        visit.require_reviewer()
        try:
            await run_in_threadpool(review.claim, self._backstage.services, visit.desk, case_id)
        except ReviewError as error:
            return await self._refused(visit, case_id, error)
        return await self._here(visit, case_id)

    async def take_over(self, case_id: str, request: Request) -> Response:
        """Take the case from whoever holds it."""
        visit = visit_of(request)
        visit.require_lead()
        try:
            await run_in_threadpool(
                lambda: review.assign(self._backstage.services, visit.desk, case_id, to=visit.holder)
            )
        except ReviewError as error:
            return await self._refused(visit, case_id, error)
        return await self._here(visit, case_id)

    async def heartbeat(self, case_id: str, request: Request) -> Response:
        """Keep one's own lease, and only that: a lease that was lost is not taken again behind the reviewer's back."""
        visit = visit_of(request)
        visit.require_reviewer()
        case = await self._backstage.read(lambda connection: self._collect(connection, visit, case_id))
        if not case.is_mine:
            shown = notices.standing(
                case.record, visit, is_held_by_other=case.is_held, can_reopen=False
            ) or notices.lost(case.record, visit)
            return await self._explained(visit, case_id, shown, 409)
        return await self.claim(case_id, request)

    async def looking(self, case_id: str, request: Request) -> Response:
        """Say that one has the case before oneself; gives who else does."""
        visit = visit_of(request)
        await self._backstage.read(lambda connection: _record(connection, visit, case_id))
        self._lookers.look(case_id, visit.name)
        return JSONResponse({"others": self._lookers.others(case_id, visit.name)})

    async def release(self, case_id: str, request: Request) -> Response:
        """Give the case back."""
        visit = visit_of(request)
        visit.require_reviewer()
        try:
            await run_in_threadpool(self._release, visit, case_id)
        except ReviewError as error:
            return await self._refused(visit, case_id, error)
        return await self._here(visit, case_id)

    def _release(self, visit: Visit, case_id: str) -> None:
        services, desk = self._backstage.services, visit.desk
        if review.case(services, desk, case_id).holder == visit.holder:
            held = review.claim(services, desk, case_id)
            review.release(services, desk, case_id, token=held.lease.token)

    async def note(self, case_id: str, request: Request) -> Response:
        """Say something about the case."""
        visit = visit_of(request)
        visit.require_reviewer()
        text = form_of(request).get("note", "").strip()
        try:
            if text:
                await run_in_threadpool(
                    lambda: review.add_note(self._backstage.services, visit.desk, case_id, text=text[:2000])
                )
        except ReviewError as error:
            return await self._refused(visit, case_id, error)
        return await self._here(visit, case_id)

    async def reopen(self, case_id: str, request: Request) -> Response:
        """Take up a decided case again, with a reason; where that cannot be undone any more, say why."""
        visit = visit_of(request)
        visit.require_reviewer()
        reason = form_of(request).get("reason", "").strip()[:500]
        if not reason:
            notice = Notice("bad", visit.say("Nothing was sent."), visit.say("Write why it is to be opened again."))
            return await self._explained(visit, case_id, notice, 422)
        try:
            record = await run_in_threadpool(
                lambda: reopening.reopen(self._backstage.services, visit.desk, case_id, reason=reason)
            )
        except NotReversible as error:
            notice = Notice("warn", visit.say("It cannot be opened again."), error.public, is_locking=True)
            return await self._explained(visit, case_id, notice, 409)
        except ReviewError as error:
            return await self._refused(visit, case_id, error)
        return _led(visit, f"/console/review/{record.id}")

    async def decide(self, case_id: str, request: Request) -> Response:
        """Decide. Whoever has not taken the case takes it with the decision; nobody's case is taken from them."""
        visit = visit_of(request)
        visit.require_reviewer()
        form = form_of(request)
        try:
            done = await run_in_threadpool(self._decide, visit, case_id, form)
        except ReviewError as error:
            return await self._refused(visit, case_id, error, form)
        except (FormProblem, NotAllowed) as error:
            notice = Notice("bad", visit.say("Nothing was sent."), error.public)
            return await self._explained(visit, case_id, notice, 422, form)
        except ItemMoved:
            return await self._explained(visit, case_id, notices.withdrawn(visit), 409, form)
        if isinstance(done, BulkAnswer):
            record = await run_in_threadpool(review.case, self._backstage.services, visit.desk, case_id)
            return _led(visit, f"/console/groups/{group_of(record)}?{told(done)}")
        around = await self._backstage.read(lambda connection: review_view.neighbours(connection, done.record))
        target = f"/console/review/{around.next}" if around.next else "/console/"
        return _led(visit, f"{target}?sent={case_id}")

    def _decide(self, visit: Visit, case_id: str, form: ImmutableMultiDict[str, str]) -> deciding.Decided | BulkAnswer:
        services, desk = self._backstage.services, visit.desk
        seen = form.get("version", "")
        if not seen.isdecimal() or len(seen) > 9:
            raise ApiProblem("invalid_request", "The form lacks the version of the case.")
        before = review.case(services, desk, case_id)
        version, token = int(seen), "none"
        whole = form.get("whole_group", "")
        if whole.isdecimal() and len(whole) < 6:
            return bulk.decide_group(
                services,
                desk,
                group_of(before),
                decision_of(form, form.getlist("ban_tools"), before, token, visit.say),
                expected_count=int(whole),
                key=form.get("key") or None,
                undo_ms=UNDO_MS,
            )
        if before.status in {EscalationStatus.OPEN, EscalationStatus.CLAIMED}:
            decision_of(
                form, form.getlist("ban_tools"), before, token, visit.say
            )  # a form that is not right takes nothing
            if before.version != version:
                raise StaleVersion(before)
            held = review.claim(services, desk, case_id)
            token, version = held.lease.token, held.record.version
        wanted = decision_of(form, form.getlist("ban_tools"), before, token, visit.say)
        return deciding.decide(
            services, desk, case_id, wanted, version=version, key=form.get("key") or None, undo_ms=UNDO_MS
        )

    async def undo(self, case_id: str, request: Request) -> Response:
        """Take the decision back while that is possible; the case is in one's hands again."""
        visit = visit_of(request)
        visit.require_reviewer()
        try:
            await run_in_threadpool(lambda: deciding.undo(self._backstage.services, visit.desk, case_id))
        except ReviewError as error:
            return await self._refused(visit, case_id, error)
        return await self._here(visit, case_id)

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _here(self, visit: Visit, case_id: str) -> Response:
        """Back to the case; a script gets the piece that changed."""
        if not wants_json(visit.request):
            return see_other(f"/console/review/{case_id}")
        context = await self._lease_context(visit, case_id)
        lease = await run_in_threadpool(lambda: rendered(visit, "_lease.html", **context))
        return JSONResponse({"location": f"/console/review/{case_id}", "lease": lease})

    async def _refused(
        self, visit: Visit, case_id: str, error: ReviewError, form: ImmutableMultiDict[str, str] | None = None
    ) -> Response:
        if error.code == "not_found":
            raise not_found("escalation of this id") from error
        notice = notices.refused(error, visit, chosen=None if form is None else form.get("choice"))
        return await self._explained(visit, case_id, notice, 409, form)

    async def _explained(
        self,
        visit: Visit,
        case_id: str,
        notice: Notice,
        status: int,
        form: ImmutableMultiDict[str, str] | None = None,
    ) -> Response:
        """The page with the notice and what was written; a script gets the notice alone and keeps its form."""
        if not wants_json(visit.request):
            return await self._page(visit, case_id, notice=notice, form=form, status=status)
        context = await self._lease_context(visit, case_id)
        pieces = await run_in_threadpool(
            lambda: {
                "notice": rendered(visit, "_notice.html", notice=notice, **context),
                "lease": rendered(visit, "_lease.html", **context),
            }
        )
        return JSONResponse({**pieces, "locks": notice.is_locking}, status_code=status)


def _record(connection: Connection, visit: Visit, case_id: str) -> EscalationRecord:
    record = store.get(connection, case_id, tenant=visit.tenant)
    if record is None:
        raise not_found("escalation of this id")
    return record


def told(answer: BulkAnswer) -> str:
    """What became of a decision on several cases, as the query of the page that tells it."""
    decided = answer.count(Fate.DECIDED)
    return f"decided={decided}&left={len(answer.results) - decided}"


def _led(visit: Visit, location: str) -> Response:
    return JSONResponse({"location": location}) if wants_json(visit.request) else see_other(location)


def _lease_state(case: CaseFile) -> str:
    if not case.is_open:
        return "over"
    if case.is_mine:
        return "mine"
    return "other" if case.is_held else "open"


def _is_locked(notice: Notice | None, visit: Visit) -> bool:
    return not visit.can_review or (notice is not None and notice.is_locking)


def _tools(case: CaseFile) -> list[str]:
    """Tools that may be closed: the one it stopped at, then the others that were called."""
    called = [block.tool for block in case.timeline.blocks if isinstance(block, Block)]
    first = [case.record.tool] if case.record.tool else []
    return list(dict.fromkeys([*first, *called]))[:4]


@dataclass(frozen=True, slots=True)
class Suggested:
    """The choice that is made beforehand, and why; no value where nothing can be chosen."""

    value: str | None
    reason: str | None


def suggested_choice(
    record: EscalationRecord, last: Sequence[Past], possible: Sequence[str], visit: Visit
) -> Suggested:
    """What the queue suggests, as a choice of the form; else the first that is possible, without a reason."""
    found = suggest(last, allowed=allowed_actions(record), reason=record.reason, came_back_after=record.came_back_after)
    if found is not None:
        value = found.route if found.action is Action.REROUTE else found.action.value
        if value in possible:
            return Suggested(value, found.reason.get(visit.language) or found.reason.get("en"))
    return Suggested(next(iter(possible), None), None)


def _group_line(record: EscalationRecord, count: int, last: Sequence[Past], visit: Visit) -> GroupLine | None:
    if count <= 1 and not last:
        return None
    named = Counter(choices.name_of(each.action, each.route, visit.say) for each in last)
    return GroupLine(group_of(record), count, named.most_common(3))


def _toast(connection: Connection, visit: Visit) -> Toast | None:
    sent = visit.request.query_params.get("sent")
    record = None if not sent else store.get(connection, sent, tenant=visit.tenant)
    if record is None or record.resolution is None:
        return None
    name = choices.name_of(record.resolution.get("action"), record.resolution.get("route"), visit.say)
    about = words.short(record.id)
    return Toast(record.id, name, about, record.apply_ms if record.is_pending else None)
