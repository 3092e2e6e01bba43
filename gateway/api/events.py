"""Routes of the event log, of one item or of the whole tenant: as pages, or live as server-sent events."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import paging, stream
from gateway.api import request_values as values
from gateway.api.auth import Principal
from gateway.api.event_access import readable_families, reading_scopes
from gateway.api.gate import principal_of
from gateway.api.problems import FieldError, invalid, not_found
from gateway.api.render import event_json, timestamp
from gateway.api.schemas import parameters, problem
from gateway.api.stream import Backlog, EventHub, EventStream, Subscriber
from gateway.item import TERMINAL
from gateway.store import events, stream_tokens
from gateway.store import items as item_store
from gateway.store.engine import Database
from gateway.store.events import Extent
from gateway.store.stream_tokens import StreamTicket

_MOST_NUMBER = 2**62
_PAGE = 200

_OPENAPI: dict[str, Any] = {
    "parameters": [
        *parameters("after", "limit"),
        {
            "name": "token",
            "in": "query",
            "required": False,
            "schema": {"type": "string"},
            "description": "For a stream, instead of the `Authorization` header: made by `POST /v1/stream-tokens`",
        },
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": "For a stream, like `after`: the number of the last event that came",
        },
    ],
}
_EVENT = {
    "type": "object",
    "required": ["id", "seq", "type", "timestamp", "resource", "resource_version", "data"],
    "properties": {
        "id": {"type": "string"},
        "seq": {"type": "integer"},
        "type": {"type": "string"},
        "timestamp": {"type": "string", "format": "date-time"},
        "resource": {"type": "string"},
        "resource_version": {"type": "integer"},
        "data": {"type": "object"},
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page, oldest first; with `Accept: text/event-stream` a stream of the same events",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["events", "after"],
                    "properties": {"events": {"type": "array", "items": _EVENT}, "after": {"type": "integer"}},
                }
            },
            stream.MEDIA_TYPE: {"schema": {"type": "string"}},
        },
    },
    204: {"description": "To a stream that is opened again: the item is finished and all its events came"},
    400: problem("The request is not valid"),
    401: problem("A valid API key is needed"),
    404: problem("No such item"),
    503: problem("No room for another stream"),
}


class EventRoutes:
    """Handlers of `/v1/events`, `/v1/items/{id}/events` and `/v1/stream-tokens`."""

    def __init__(self, database: Database, hub: EventHub) -> None:
        self._database = database
        self._hub = hub

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1", tags=["events"])
        add = router.add_api_route
        add(
            "/events",
            self.all,
            methods=["GET"],
            summary="What happened in the tenant, as far as the caller may read it",
            openapi_extra=_OPENAPI,
            responses={status: _RESPONSES[status] for status in (200, 400, 401, 503)},
        )
        add(
            "/items/{item_id}/events",
            self.of_item,
            methods=["GET"],
            summary="What happened to an item",
            openapi_extra=_OPENAPI,
            responses=_RESPONSES,
        )
        add(
            "/stream-tokens",
            self.token,
            methods=["POST"],
            status_code=201,
            summary="A token that opens one event stream within a minute",
            responses={
                201: {"description": "The token, and until when it can be used"},
                401: problem("A valid API key is needed"),
            },
        )
        return router

    async def all(self, request: Request) -> Response:
        """A page of the tenant's events, oldest first, to catch up after an outage; or the events as they happen."""
        return await self._answer(request, None)

    async def of_item(self, item_id: str, request: Request) -> Response:
        """A page of the item's events, oldest first; or all of them as a stream that ends with the item."""
        return await self._answer(request, item_id)

    async def token(self, request: Request) -> Response:
        """For clients that cannot send headers, such as a browser's EventSource."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        ticket = StreamTicket(principal.tenant, principal.actor, reading_scopes(principal), principal.credential)

        def make(connection: Connection) -> tuple[str, int]:
            return stream_tokens.make(connection, ticket, at_ms=item_store.now_ms(connection))

        secret, expires_ms = await run_in_threadpool(self._database.transact, make)
        return JSONResponse({"token": secret, "expires_at": timestamp(expires_ms)}, status_code=201)

    async def _answer(self, request: Request, item_id: str | None) -> Response:
        principal = principal_of(request.scope["state"])
        if stream.MEDIA_TYPE in request.headers.get("accept", ""):
            return await self._stream(request, principal, item_id)
        wanted = values.query(request, ("after", "limit", "token"))
        after = values.integer(wanted, "after", default=0, least=0, most=_MOST_NUMBER)
        limit = paging.limit_in(wanted)
        families = readable_families(principal)

        def look() -> list[dict[str, Any]] | None:
            with self._database.read() as connection:
                if item_id is not None and item_store.get(connection, item_id, tenant=principal.tenant) is None:
                    return None
                rows = events.page(
                    connection, tenant=principal.tenant, after=after, limit=limit, resource=item_id, families=families
                )
                return [event_json(row) for row in rows]

        found = await run_in_threadpool(look)
        if found is None:
            raise not_found("item of this id")
        return JSONResponse(
            {"events": found, "after": found[-1]["seq"] if found else after}, headers={"Vary": "Accept"}
        )

    async def _stream(self, request: Request, principal: Principal, item_id: str | None) -> Response:
        cursor = _cursor(request)
        self._hub.check_room()
        extent, backlog = await run_in_threadpool(self._first_look, principal, item_id, cursor)
        if backlog is None:
            raise not_found("item of this id")
        is_lost = cursor is not None and not extent.forgotten <= cursor <= extent.last
        if backlog.item_is_over and cursor is not None and not is_lost and not backlog.rows:
            return Response(status_code=204)
        after = extent.last if is_lost else cursor if cursor is not None else _start(extent, item_id)
        return EventStream(
            self._hub,
            Subscriber(principal.tenant, item_id, principal.credential, families=readable_families(principal)),
            lambda last: self._backlog(principal, item_id, last),
            after=after,
            first=_reset(cursor or 0, extent, item_id) if is_lost else b"",
        )

    def _first_look(
        self, principal: Principal, item_id: str | None, cursor: int | None
    ) -> tuple[Extent, Backlog | None]:
        with self._database.read() as connection:
            extent = events.extent(connection)
            if item_id is not None and item_store.get(connection, item_id, tenant=principal.tenant) is None:
                return extent, None
        return extent, self._backlog(principal, item_id, cursor or 0)

    def _backlog(self, principal: Principal, item_id: str | None, after: int) -> Backlog:
        tenant, families = principal.tenant, readable_families(principal)
        with self._database.read() as connection:
            item = None if item_id is None else item_store.get(connection, item_id, tenant=tenant)
            rows = events.page(connection, tenant=tenant, after=after, limit=_PAGE, resource=item_id, families=families)
        is_over = item is None or item.status in TERMINAL
        is_over = item_id is not None and stream.ends_with(rows, otherwise=is_over)  # they were read after the item
        return Backlog(rows, is_whole=len(rows) < _PAGE, item_is_over=is_over)


def _start(extent: Extent, item_id: str | None) -> int:
    """Without a cursor: an item's stream tells its whole story, the tenant's begins now."""
    return extent.last if item_id is None else 0


def _cursor(request: Request) -> int | None:
    """The number of the last event that the client knows. What its browser sends is newer than what its page was made with."""
    wanted = values.query(request, ("after", "token"))
    header = request.headers.get("last-event-id", "").strip()
    if header:
        if not header.isascii() or not header.isdigit() or len(header) > 18:
            raise invalid(
                "`Last-Event-ID` is not valid.",
                FieldError("Last-Event-ID", "range", "Send the id of the last event as it was given."),
            )
        return int(header)
    if "after" not in wanted:
        return None
    return values.integer(wanted, "after", default=0, least=0, most=_MOST_NUMBER)


def _reset(cursor: int, extent: Extent, item_id: str | None) -> bytes:
    """Some events after the cursor are not kept any more: read the state anew, what follows is new."""
    snapshot = "/v1/items" if item_id is None else f"/v1/items/{item_id}"
    body = {"after": cursor, "oldest": extent.forgotten + 1, "links": {"snapshot": snapshot}}
    return stream.named("stream.reset", body, number=extent.last)
