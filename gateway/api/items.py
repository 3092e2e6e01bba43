"""Routes of items. Each is parse, one call, render."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fallback.route import Route
from gateway import payload, pipeline
from gateway.api import paging, versions
from gateway.api import request_values as values
from gateway.api.gate import principal_of
from gateway.api.prefer import parse_prefer
from gateway.api.problems import ApiProblem, FieldError, invalid, not_found
from gateway.api.purge import refuse_purged
from gateway.api.render import explanation_json, item_json, language_of
from gateway.api.schemas import ITEM_RESPONSES, LIST_PARAMETERS, SUBMIT_OPENAPI, parameters
from gateway.api.submit import Submissions
from gateway.api.verbs import conflict_of
from gateway.api.waiting import Waiting
from gateway.item import TERMINAL, Item, Status
from gateway.store import escalations
from gateway.store import items as item_store
from gateway.store.items import ItemFilter
from gateway.wiring import Services

_AT_WORK = (Status.INSPECTING, Status.RUNNING)
_WAITING = tuple(set(Status) - TERMINAL - {*_AT_WORK, Status.CANCELLING})
_LEAST_SIDE, _MOST_SIDE = 64, 2048


class ItemRoutes:
    """Handlers of `/v1/items`."""

    def __init__(self, services: Services, waiting: Waiting, submissions: Submissions) -> None:
        self._services = services
        self._waiting = waiting
        self._submissions = submissions

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/items", tags=["items"])
        add = router.add_api_route
        add(
            "",
            self.create,
            methods=["POST"],
            summary="Submit an item",
            responses=ITEM_RESPONSES,
            openapi_extra=SUBMIT_OPENAPI,
        )
        add(
            "",
            self.list,
            methods=["GET"],
            summary="List items, newest first",
            openapi_extra={"parameters": LIST_PARAMETERS},
        )
        add(
            "/{item_id}",
            self.get,
            methods=["GET"],
            summary="One item; `Prefer: wait=n` waits for a change",
            responses=ITEM_RESPONSES,
        )
        add("/{item_id}/cancel", self.cancel, methods=["POST"], summary="Stop working on an item")
        add("/{item_id}/explanation", self.explanation, methods=["GET"], summary="Why: each rule, measured and needed")
        add(
            "/{item_id}/llm-payload",
            self.llm_payload,
            methods=["GET"],
            summary="A payload for the caller's own model",
            openapi_extra={"parameters": parameters("format", "max_px", "detail", "images")},
        )
        return router  # fmt: skip

    async def create(self, request: Request) -> Response:
        """One product with up to 20 files: multipart, form fields, JSON without files, or one raw file."""
        return await self._submissions.create(request)

    async def get(self, item_id: str, request: Request) -> Response:
        """The item as it stands, or as it is after a change."""
        values.query(request, ())
        tenant = principal_of(request.scope["state"]).tenant
        known_version = versions.version_in(request.headers.get("if-none-match"))
        wait_s = parse_prefer(request.headers.getlist("prefer")).wait_s or 0.0
        seen = known_version if known_version is not None else (await self._item(item_id, tenant)).version
        item = await self._waiting.until(
            item_id, lambda version, status: version != seen or status in TERMINAL, timeout_s=wait_s, tenant=tenant
        )
        if item is None:
            raise not_found("item of this id")
        refuse_purged(item, language=_language(request))
        headers = {**versions.etag(item.version), "Vary": "Accept-Language"}
        if known_version == item.version:
            return Response(status_code=304, headers=headers)
        if item.status not in TERMINAL:
            headers["Retry-After"] = "1"
        return JSONResponse(item_json(item, language=_language(request)), headers=headers)

    async def list(self, request: Request) -> Response:
        """Items of the caller's tenant."""
        wanted = values.query(
            request,
            ("status", "profile", "external_id", "created_after", "route", "reason", *paging.PARAMETERS),
        )
        asked = paging.asked_in(wanted)
        where = ItemFilter(
            status=_statuses(wanted.get("status")),
            profile=wanted.get("profile"),
            external_id=wanted.get("external_id"),
            route=wanted.get("route"),
            reason=wanted.get("reason"),
            created_after_ms=values.moment(wanted, "created_after"),
        )
        tenant = principal_of(request.scope["state"]).tenant

        def look() -> list[Item]:
            with self._services.database.read() as connection:
                return item_store.page(connection, tenant=tenant, where=where, after=asked.after, limit=asked.enough)

        found = await run_in_threadpool(look)
        language = _language(request)
        return JSONResponse(
            asked.listing(
                "items",
                found,
                show=lambda item: item_json(item, language=language),
                place=lambda item: (item.created_ms, item.id),
            )
        )

    async def cancel(self, item_id: str, request: Request) -> Response:
        """Ask for the end of an item: at once where nobody works on it, else as soon as its worker notices."""
        values.query(request, ())
        reason = values.optional_text(await values.json_object(request), "reason", most=255)
        principal = principal_of(request.scope["state"])
        item = await self._item(item_id, principal.tenant)
        if item.status not in TERMINAL and item.status is not Status.CANCELLING:
            await run_in_threadpool(
                self._services.database.transact,
                lambda connection: _cancel(connection, item_id, actor=principal.actor, reason=reason),
            )
            for kind in ("worker", "api"):
                self._services.signals.send(kind, item_id)
            item = await self._item(item_id, principal.tenant)
        if item.status not in {Status.CANCELLED, Status.CANCELLING}:
            raise conflict_of(item, f"The item is {item.status.value}, so there is nothing left to cancel.")
        headers = versions.etag(item.version)
        status = 200 if item.status is Status.CANCELLED else 202
        return JSONResponse(item_json(item, language=_language(request)), status_code=status, headers=headers)

    async def explanation(self, item_id: str, request: Request) -> Response:
        """Stage, rule, measured value, threshold, effect, and what would have passed."""
        values.query(request, ())
        item = await self._item(item_id, principal_of(request.scope["state"]).tenant)

        def look() -> dict[str, Any]:
            with self._services.database.read() as connection:
                history = item_store.history_of(connection, item_id)
            return explanation_json(item, history, language=_language(request))

        return JSONResponse(await run_in_threadpool(look))

    async def llm_payload(self, item_id: str, request: Request) -> Response:
        """The content for one model message, on the route that was decided."""
        wanted = values.query(request, ("format", "images", "max_px", "detail"))
        form = values.choice(wanted, "format", payload.FORMATS, "openai.chat")
        detail = values.choice(wanted, "detail", payload.DETAILS, "auto")
        values.choice(wanted, "images", ("inline",), "inline")
        max_side = values.integer(wanted, "max_px", default=1024, least=_LEAST_SIDE, most=_MOST_SIDE)
        item = await self._item(item_id, principal_of(request.scope["state"]).tenant)
        if item.route is None or item.route == Route.HUMAN.value or item.decision is None:
            raise ApiProblem(
                "item_state_conflict",
                f"The item is {item.status.value} and has no route to a model, so there is no payload for it.",
                extra={"item_status": item.status.value, "allowed": ["GET explanation"]},
            )
        profile = self._services.profiles.get(item.profile)
        if profile is None:
            raise ApiProblem("item_state_conflict", f"The profile {item.profile} is no longer installed.")
        built = await run_in_threadpool(
            lambda: payload.build_payload(
                self._services,
                item,
                profile,
                pipeline.screened_files(self._services, item, profile),
                route=Route(item.route or ""),
                form=form,
                max_side=max_side,
                detail=detail,
            )
        )
        return JSONResponse(built)

    async def _item(self, item_id: str, tenant: str) -> Item:
        def look() -> Item | None:
            with self._services.database.read() as connection:
                return item_store.get(connection, item_id, tenant=tenant)

        item = await run_in_threadpool(look)
        if item is None:
            raise not_found("item of this id")
        refuse_purged(item)
        return item


def _cancel(connection: Connection, item_id: str, *, actor: str, reason: str | None) -> None:
    """One of two transitions, whichever fits where the item stands in this transaction: nobody's work can come between."""
    for expected, to in ((_AT_WORK, Status.CANCELLING), (_WAITING, Status.CANCELLED)):
        moved = item_store.transition(
            connection,
            item_id,
            expected=expected,
            to=to,
            actor=actor,
            reason=reason or "cancelled by the caller",
            values={"reason": "cancelled", "cancel_requested_ms": item_store.now_ms(connection)},
            release=to is Status.CANCELLED,
        )
        if moved is not None:
            escalations.withdraw_of_item(connection, item_id)
            return


def _language(request: Request) -> str:
    return language_of(request.headers.get("accept-language"))


def _statuses(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    wanted = tuple(part.strip() for part in text.split(","))
    unknown = [part for part in wanted if part not in set(Status)]
    if unknown:
        detail = f"Must be among {', '.join(sorted(Status))}."
        raise invalid(f"`status` is not valid. {detail}", FieldError("status", "choice", detail))
    return wanted
