"""Routes of groups: cases of the same kind of incident, decided, merged and split together."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import escalation_json as shown
from gateway.api import escalation_values as said
from gateway.api import idempotency, paging
from gateway.api import request_values as values
from gateway.api.changes import Changes
from gateway.api.escalations import bulk_answer, run_review
from gateway.api.queue_schemas import described
from gateway.api.schemas import parameters
from gateway.review import bulk, groups
from gateway.wiring import Services

_MOST_MERGED = 50


class EscalationGroupRoutes:
    """Handlers of `/v1/escalation-groups`."""

    def __init__(self, services: Services, changes: Changes) -> None:
        self._services = services
        self._changes = changes

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/escalation-groups", tags=["escalations"])
        add = router.add_api_route
        page = {"parameters": parameters("all", *paging.PARAMETERS)}
        add(
            "",
            self.list,
            methods=["GET"],
            summary="Kinds of incidents with open cases, the newest first",
            **described("groups", page),
        )
        group = "/{group_id}"
        add(
            group,
            self.get,
            methods=["GET"],
            summary="One kind of incident, and how it was decided before",
            **described("group"),
        )
        add(
            f"{group}/resolve",
            self.resolve,
            methods=["POST"],
            summary="Decide on all its open cases alike",
            **described("group_resolve"),
        )
        add(
            f"{group}/merge",
            self.merge,
            methods=["POST"],
            summary="Make other groups part of this one",
            **described("merge"),
        )
        add(
            f"{group}/split",
            self.split,
            methods=["POST"],
            summary="Give cases a group of their own, for good",
            **described("split"),
        )
        return router

    async def list(self, request: Request) -> Response:
        """Groups of the caller's tenant; with `all=true` also those without an open case."""
        wanted = values.query(request, ("all", *paging.PARAMETERS))
        desk = said.desk_of(request)
        asked = paging.asked_in(wanted)
        has_open = values.choice(wanted, "all", ("true", "false"), "false") == "false"
        after = None if asked.after is None else asked.after[1]
        found = await run_review(
            lambda: groups.listed(self._services, desk, has_open=has_open, after=after, limit=asked.enough)
        )
        return JSONResponse(
            asked.listing("groups", found, show=shown.group_json, place=lambda view: (0, view.group.id))
        )

    async def get(self, group_id: str, request: Request) -> Response:
        """One group; one that was merged away is the one that it became part of."""
        values.query(request, ())
        desk = said.desk_of(request)
        return JSONResponse(shown.group_json(await run_review(lambda: groups.one(self._services, desk, group_id))))

    async def resolve(self, group_id: str, request: Request) -> Response:
        """One decision on as many cases as the caller has seen; what others hold is skipped and listed."""
        values.query(request, ())
        desk = said.desk_of(request)
        key = idempotency.parse_key(request.headers.get("idempotency-key"))
        body = await values.json_object(request)
        undo_ms = said.take_undo_ms(body)
        wanted = said.decision_for_many(body, beside=("expected_count", "dry_run"))
        dry_run = said.flag_of(body, "dry_run")
        expected = said.count_of(body, "expected_count")
        answer = await run_review(
            lambda: bulk.decide_group(
                self._services, desk, group_id, wanted, expected_count=expected, key=key, dry_run=dry_run, undo_ms=undo_ms
            )
        )  # fmt: skip
        return bulk_answer(answer, self._changes)

    async def merge(self, group_id: str, request: Request) -> Response:
        """The group with all that came to it."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("groups",))
        others = said.ids_of(body.get("groups"), "groups", most=_MOST_MERGED)
        view = await run_review(lambda: groups.merge(self._services, desk, group_id, others=others))
        return JSONResponse(shown.group_json(view))

    async def split(self, group_id: str, request: Request) -> Response:
        """The new group, and the cases that went there."""
        values.query(request, ())
        desk = said.desk_of(request)
        body = await values.json_object(request)
        said.refuse_unknown(body, ("ids",))
        ids = said.ids_of(body.get("ids"), "ids", most=bulk.MOST_IDS)
        view, moved = await run_review(lambda: groups.split(self._services, desk, group_id, case_ids=ids))
        headers = {"Location": f"/v1/escalation-groups/{view.group.id}"}
        return JSONResponse({"group": shown.group_json(view), "moved": moved}, status_code=201, headers=headers)
