"""Routes of decisions: what each person decided, what became of it, and how often the stops were right."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import paging
from gateway.api import request_values as values
from gateway.api.escalation_values import desk_of
from gateway.api.render import timestamp
from gateway.api.schemas import parameters
from gateway.escalation import Action
from gateway.store import decisions as store
from gateway.store.decisions import DecisionFilter, DecisionRecord, Outcome, Precision
from gateway.wiring import Services

_FILTERS = ("by", "action", "item", "escalation")
_ACTIONS = (*(action.value for action in Action), "override")


class DecisionRoutes:
    """Handlers of `/v1/decisions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/decisions", tags=["escalations"])
        router.add_api_route(
            "",
            self.list,
            methods=["GET"],
            summary="Decisions, newest first, each with what became of the item",
            openapi_extra={"parameters": parameters("by", "action", "item", "escalation", "cursor", "limit")},
        )
        router.add_api_route(
            "/precision",
            self.precision,
            methods=["GET"],
            summary="Per detector, rule and tool: how often people called a stop a false alarm",
        )
        return router

    async def list(self, request: Request) -> Response:
        """`by=me` are the caller's own."""
        wanted = values.query(request, (*_FILTERS, *paging.PARAMETERS))
        desk = desk_of(request)
        asked = paging.asked_in(wanted)
        by = wanted.get("by")
        action = None if "action" not in wanted else values.choice(wanted, "action", _ACTIONS, "")
        where = DecisionFilter(desk.person if by == "me" else by, action, wanted.get("item"), wanted.get("escalation"))

        def look() -> list[tuple[DecisionRecord, Outcome]]:
            with self._services.database.read() as connection:
                return store.page(connection, tenant=desk.tenant, where=where, after=asked.after, limit=asked.enough)

        found = await run_in_threadpool(look)
        return JSONResponse(
            asked.listing(
                "decisions",
                found,
                show=lambda one: decision_json(*one),
                place=lambda one: (one[0].at_ms, one[0].id),
            )
        )

    async def precision(self, request: Request) -> Response:
        """Of this tenant's decided cases."""
        values.query(request, ())
        tenant = desk_of(request).tenant

        def look() -> list[Precision]:
            with self._services.database.read() as connection:
                return store.precision(connection, tenant=tenant)

        return JSONResponse({"precision": [precision_json(row) for row in await run_in_threadpool(look)]})


def decision_json(record: DecisionRecord, outcome: Outcome) -> dict[str, Any]:
    """A decision with what became of it; `outcome.status` is null while nothing has yet."""
    return {
        "id": record.id,
        "escalation": record.escalation_id,
        "item": record.item_id,
        "run": record.run_id,
        "action": record.action,
        "by": record.actor,
        "at": timestamp(record.at_ms),
        "reason": record.reason,
        "detector": record.detector,
        "rule": record.rule,
        "tool": record.tool,
        "details": record.body,
        "outcome": {
            "status": outcome.status,
            "reason": outcome.reason,
            "at": timestamp(outcome.at_ms),
            "came_back": outcome.came_back,
            "escalation": outcome.escalation_id,
        },
    }


def precision_json(row: Precision) -> dict[str, Any]:
    """One row of the account; `precision` is the share of stops that nobody called a false alarm."""
    return {
        "detector": row.detector,
        "rule": row.rule,
        "tool": row.tool,
        "decided": row.decided,
        "false_alarms": row.false_alarms,
        "precision": round(1 - row.false_alarms / row.decided, 4) if row.decided else None,
    }
