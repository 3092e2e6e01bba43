"""Routes of the event log: a page of one item's events, or of all of the tenant's."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import request_values as values
from gateway.api.gate import principal_of
from gateway.api.problems import not_found
from gateway.api.render import event_json
from gateway.api.schemas import parameters
from gateway.store import events
from gateway.store import items as item_store
from gateway.wiring import Services

_PARAMETERS = {"parameters": parameters("after", "limit")}


class EventRoutes:
    """Handlers of `/v1/events` and `/v1/items/{id}/events`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1", tags=["events"])
        add = router.add_api_route
        add("/events", self.all, methods=["GET"], summary="What happened to all items", openapi_extra=_PARAMETERS)
        add(
            "/items/{item_id}/events",
            self.of_item,
            methods=["GET"],
            summary="What happened to an item",
            openapi_extra=_PARAMETERS,
        )
        return router

    async def all(self, request: Request) -> Response:
        """A page of the tenant's events, oldest first: the way to catch up after an outage."""
        return await self._page(request, None)

    async def of_item(self, item_id: str, request: Request) -> Response:
        """A page of the item's events, oldest first."""
        return await self._page(request, item_id)

    async def _page(self, request: Request, item_id: str | None) -> Response:
        wanted = values.query(request, ("after", "limit"))
        after = values.integer(wanted, "after", default=0, least=0, most=2**62)
        limit = values.integer(wanted, "limit", default=values.DEFAULT_LIMIT, least=1, most=values.MAX_LIMIT)
        tenant = principal_of(request.scope["state"]).tenant

        def look() -> list[dict[str, Any]] | None:
            with self._services.database.read() as connection:
                if item_id is not None and item_store.get(connection, item_id, tenant=tenant) is None:
                    return None
                rows = events.page(connection, tenant=tenant, after=after, limit=limit, resource=item_id)
                return [event_json(row) for row in rows]

        found = await run_in_threadpool(look)
        if found is None:
            raise not_found("item of this id")
        return JSONResponse({"events": found, "after": found[-1]["seq"] if found else after})
