"""`DELETE /v1/items/{id}`, and what a caller is told of an item whose content is gone."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import retention
from gateway.api import request_values as values
from gateway.api.gate import principal_of
from gateway.api.problems import ApiProblem, not_found
from gateway.api.render import decision_json, timestamp
from gateway.api.schemas import problem
from gateway.item import Item, Status
from gateway.store import items as item_store
from gateway.store import retention as store
from gateway.wiring import Services

_RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {
        "description": "The content is purged, or will be once the item's worker has stopped",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["id", "status", "purged_at"],
                    "properties": {
                        "id": {"type": "string"},
                        "status": {"type": "string"},
                        "purged_at": {"type": ["string", "null"], "format": "date-time"},
                    },
                }
            }
        },
    },
    404: problem("No such item"),
}


class PurgeRoutes:
    """Handler of `DELETE /v1/items/{id}`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """The route with its description."""
        router = APIRouter(prefix="/v1/items", tags=["items"])
        router.add_api_route(
            "/{item_id}",
            self.delete,
            methods=["DELETE"],
            status_code=202,
            summary="Purge an item's content; hashes, verdicts and history stay",
            responses=_RESPONSES,
        )
        return router

    async def delete(self, item_id: str, request: Request) -> Response:
        """End the item where it is not over, and purge it; a second time changes nothing."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        found = await run_in_threadpool(self._delete, item_id, principal.tenant, principal.actor)
        if found is None:
            raise not_found("item of this id")
        for kind in ("worker", "api"):
            self._services.signals.send(kind, item_id)
        body = {"id": found.id, "status": found.status.value, "purged_at": timestamp(found.purged_ms)}
        return JSONResponse(body, status_code=202)

    def _delete(self, item_id: str, tenant: str, actor: str) -> Item | None:
        ask = partial(store.ask_purge, item_id=item_id, tenant=tenant, actor=actor)
        status = self._services.database.transact(ask)
        if status is None:
            return None
        if status is not Status.CANCELLING:  # a worker has it in hand; the sweeper goes on from there
            retention.purge(self._services, item_id, actor=actor)
        with self._services.database.read() as connection:
            return item_store.get(connection, item_id, tenant=tenant)


def refuse_purged(item: Item, *, language: str = "en") -> None:
    """Raise a 410 with the tombstone for an item whose content is gone."""
    if item.purged_ms is None:
        return
    raise ApiProblem(
        "gone",
        "The content of this item was purged. `tombstone` is what remains of it.",
        extra={
            "tombstone": {
                "id": item.id,
                "external_id": item.external_id,
                "status": item.status.value,
                "reason": item.reason,
                "route": item.route,
                "profile": item.profile,
                "ruleset": item.ruleset,
                "decision": decision_json(item.decision, language),
                "files": [
                    {
                        "id": record.id,
                        "part": record.part,
                        "sha256": record.sha256,
                        "bytes": record.bytes,
                        "media_type": record.media_type,
                        "verdict": record.verdict,
                    }
                    for record in item.files
                ],
                "created_at": timestamp(item.created_ms),
                "purged_at": timestamp(item.purged_ms),
            }
        },
    )
