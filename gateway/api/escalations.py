"""Routes of the human queue. Each is parse, one call, render."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import escalation_json as shown
from gateway.api import escalation_values as said
from gateway.api import idempotency, paging, versions
from gateway.api import request_values as values
from gateway.api.changes import Changes
from gateway.api.decision_schemas import RESOLVE_OPENAPI
from gateway.api.problems import FieldError, invalid
from gateway.api.queue_schemas import described
from gateway.api.review_problems import problem_of
from gateway.api.schemas import parameters
from gateway.escalation import EscalationRecord
from gateway.resolution import NotAllowed
from gateway.review import bulk, deciding, groups, queue, reopening
from gateway.review.bulk import BulkAnswer
from gateway.review.errors import ReviewError
from gateway.review.queue import Claimed
from gateway.wiring import Services

T = TypeVar("T")


class EscalationRoutes:
    """Handlers of `/v1/escalations`."""

    def __init__(self, services: Services, changes: Changes) -> None:
        self._services = services
        self._changes = changes

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/escalations", tags=["escalations"])
        add = router.add_api_route
        filters = {"parameters": parameters(*said.FILTERS, *paging.PARAMETERS)}
        add(
            "",
            self.list,
            methods=["GET"],
            summary="Cases for a person, the soonest due first",
            **described("list", filters),
        )
        add(
            "/claim-next",
            self.claim_next,
            methods=["POST"],
            summary="Take the next case that nobody holds",
            **described("claim_next"),
        )
        add(
            "/stats",
            self.stats,
            methods=["GET"],
            summary="How the queue stands, and how quickly people decide",
            **described("stats"),
        )
        add(
            "/bulk",
            self.bulk,
            methods=["POST"],
            summary="One decision on many cases; what others hold is skipped",
            **described("bulk"),
        )
        case = "/{escalation_id}"
        add(case, self.get, methods=["GET"], summary="One case with all that is needed to decide", **described("get"))
        for verb, handler, summary in (
            ("claim", self.claim, "Take a case, or renew one's own lease"),
            ("heartbeat", self.heartbeat, "Renew a lease by its token"),
            ("release", self.release, "Give a case back"),
            ("assign", self.assign, "Hand a case to a person, or take it over"),
            ("undo", self.undo, "Take a decision back before it takes effect"),
            ("reopen", self.reopen, "Take a decided case up again"),
        ):
            add(f"{case}/{verb}", handler, methods=["POST"], summary=summary, **described(verb))
        add(f"{case}/notes", self.note, methods=["POST"], summary="Add a note to a case", **described("note"))
        add(f"{case}/audit", self.audit, methods=["GET"], summary="All that happened to a case", **described("audit"))
        decide = described("resolve", RESOLVE_OPENAPI)
        add(f"{case}/resolve", self.resolve, methods=["POST"], summary="Decide; the first valid writer wins", **decide)
        return router

    async def list(self, request: Request) -> Response:
        """Cases of the caller's tenant, and how many are open, held, and hidden by the filter."""
        wanted = values.query(request, (*said.FILTERS, *paging.PARAMETERS))
        desk = said.desk_of(request)
        asked = paging.asked_in(wanted)
        after = said.case_at(asked.after)
        where = said.case_filter(wanted, desk)
        found = await self._run(
            lambda: queue.listed(self._services, desk, where=where, after=after, limit=asked.enough)
        )
        state = await self._run(lambda: queue.state(self._services, desk, where=where))
        return JSONResponse(
            {
                **asked.listing("escalations", found, show=shown.escalation_json, place=said.place_of),
                "queue": {**shown.empty_json(state), "empty": not state.matching},
            }
        )

    async def get(self, escalation_id: str, request: Request) -> Response:
        """The decision packet."""
        values.query(request, ())
        desk = said.desk_of(request)
        record = await self._run(lambda: queue.case(self._services, desk, escalation_id))
        suggestion, last = await self._run(lambda: groups.suggestion_for(self._services, record))
        body = {
            **shown.escalation_json(record),
            "suggestion": shown.suggestion_json(suggestion),
            "group_last": shown.past_json(last),
        }
        return JSONResponse(body, headers=versions.etag(record.version))

    async def claim_next(self, request: Request) -> Response:
        """A case with a lease, or why there is none: nothing open, all held by others, or hidden by the filter."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("filter", "lease_s"))
        where = said.body_filter(body.get("filter"), desk)
        lease_ms = said.lease_ms(body)
        taken = await self._run(lambda: queue.claim_next(self._services, desk, where=where, lease_ms=lease_ms))
        return self._claimed(taken) if isinstance(taken, Claimed) else JSONResponse(shown.empty_json(taken))

    async def claim(self, escalation_id: str, request: Request) -> Response:
        """A lease on this case."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("lease_s",))
        lease_ms = said.lease_ms(body)
        return self._claimed(
            await self._run(lambda: queue.claim(self._services, desk, escalation_id, lease_ms=lease_ms))
        )

    async def heartbeat(self, escalation_id: str, request: Request) -> Response:
        """A longer lease."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("lease_token", "lease_s"))
        token, lease_ms = said.lease_token(body), said.lease_ms(body)
        lease = await self._run(
            lambda: queue.heartbeat(self._services, desk, escalation_id, token=token, lease_ms=lease_ms)
        )
        return JSONResponse({"lease": shown.lease_json(lease)})

    async def release(self, escalation_id: str, request: Request) -> Response:
        """Open again for others."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("lease_token", "note"))
        token, note = said.lease_token(body), values.optional_text(body, "note", most=2000)
        return self._case(
            await self._run(lambda: queue.release(self._services, desk, escalation_id, token=token, note=note))
        )

    async def assign(self, escalation_id: str, request: Request) -> Response:
        """In another person's hands; the lease is theirs, its token comes with their next claim."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("user", "lease_s", "note"))
        user = body.get("user", "me")
        to = desk.person if user == "me" else said.person_named(user, "`user`")
        note, lease_ms = values.optional_text(body, "note", most=2000), said.lease_ms(body)
        given = await self._run(
            lambda: queue.assign(self._services, desk, escalation_id, to=to, lease_ms=lease_ms, note=note)
        )
        return self._claimed(given) if to == desk.person else self._case(given.record)

    async def note(self, escalation_id: str, request: Request) -> Response:
        """A note that stays."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("text",))
        text = said.text_of(body, "text")
        entry = await self._run(lambda: queue.add_note(self._services, desk, escalation_id, text=text))
        return JSONResponse(shown.entry_json(entry), status_code=201)

    async def audit(self, escalation_id: str, request: Request) -> Response:
        """Every change with who, when and what, oldest first."""
        values.query(request, ())
        desk = said.desk_of(request)
        entries = await self._run(lambda: queue.audit_of(self._services, desk, escalation_id))
        return JSONResponse({"audit": [shown.entry_json(entry) for entry in entries]})

    async def resolve(self, escalation_id: str, request: Request) -> Response:
        """The decision and its effect, once; the same request again gets the same answer."""
        values.query(request, ())
        desk = said.desk_of(request)
        key = idempotency.parse_key(request.headers.get("idempotency-key"))
        body = await values.json_object(request)
        undo_ms = said.take_undo_ms(body)
        wanted = said.decision_of(body)
        version = versions.version_matched(request)
        done = await self._run(
            lambda: deciding.decide(
                self._services, desk, escalation_id, wanted, version=version, key=key, undo_ms=undo_ms
            )
        )
        if done.record.item_id is not None:
            self._changes.notify(done.record.item_id)
        headers = {**versions.etag(done.record.version), **({"Idempotent-Replayed": "true"} if done.is_replay else {})}
        return JSONResponse(shown.resolved_json(done.record), headers=headers)

    async def undo(self, escalation_id: str, request: Request) -> Response:
        """In one's hands again, as before the decision."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("lease_s",))
        lease_ms = said.lease_ms(body)
        return self._claimed(
            await self._run(lambda: deciding.undo(self._services, desk, escalation_id, lease_ms=lease_ms))
        )

    async def reopen(self, escalation_id: str, request: Request) -> Response:
        """The case open again (200), or a new one that names it (201)."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("reason",))
        reason = said.text_of(body, "reason")
        record = await self._run(lambda: reopening.reopen(self._services, desk, escalation_id, reason=reason))
        if record.item_id is not None:
            self._changes.notify(record.item_id)
        headers = {**versions.etag(record.version), "Location": f"/v1/escalations/{record.id}"}
        status = 200 if record.id == escalation_id else 201
        return JSONResponse(shown.escalation_json(record), status_code=status, headers=headers)

    async def stats(self, request: Request) -> Response:
        """Counts of now; times and decisions of the last seven days."""
        values.query(request, ())
        desk = said.desk_of(request)
        return JSONResponse(shown.stats_json(await self._run(lambda: groups.queue_figures(self._services, desk))))

    async def bulk(self, request: Request) -> Response:
        """What became of each case, in the order in which they were named."""
        values.query(request, ())
        desk = said.desk_of(request)
        key = idempotency.parse_key(request.headers.get("idempotency-key"))
        body = await values.json_object(request)
        undo_ms = said.take_undo_ms(body)
        wanted = said.decision_for_many(body, beside=("ids", "group", "expected_count", "dry_run"))
        dry_run = said.flag_of(body, "dry_run")
        if ("ids" in body) == ("group" in body):
            raise invalid("Name either `ids` or a `group` with its `expected_count`.", FieldError("", "choice", "One."))
        if "ids" in body:
            ids = said.ids_of(body["ids"], "ids", most=bulk.MOST_IDS)
            answer = await self._run(
                lambda: bulk.decide_many(self._services, desk, ids, wanted, key=key, dry_run=dry_run, undo_ms=undo_ms)
            )
        else:
            [group_id] = said.ids_of([body["group"]], "group", most=1)
            expected = said.count_of(body, "expected_count")
            answer = await self._run(
                lambda: bulk.decide_group(
                    self._services, desk, group_id, wanted, expected_count=expected, key=key, dry_run=dry_run,
                    undo_ms=undo_ms,
                )
            )  # fmt: skip
        return bulk_answer(answer, self._changes)

    @staticmethod
    def _case(record: EscalationRecord) -> Response:
        return JSONResponse(shown.escalation_json(record), headers=versions.etag(record.version))

    @staticmethod
    def _claimed(claimed: Claimed) -> Response:
        return JSONResponse(shown.claimed_json(claimed), headers=versions.etag(claimed.record.version))

    async def _run(self, act: Callable[[], T]) -> T:
        return await run_review(act)


def bulk_answer(answer: BulkAnswer, changes: Changes) -> Response:
    """A bulk decision's answer, once those who wait for its items are told."""
    for one in answer.results:
        if one.item is not None:
            changes.notify(one.item)
    headers = {"Idempotent-Replayed": "true"} if answer.is_replay else {}
    return JSONResponse(shown.bulk_json(answer), headers=headers)


async def run_review(act: Callable[[], T]) -> T:
    """Do something at the queue in a thread; what cannot be done is raised as a problem."""
    try:
        return await run_in_threadpool(act)
    except (ReviewError, NotAllowed) as error:
        raise problem_of(error) from error
