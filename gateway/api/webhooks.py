"""Routes of webhooks: endpoints, deliveries, and the origins that items may call back. Each is parse, one call, render."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ValidationError
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import paging, versions
from gateway.api import request_values as values
from gateway.api import webhook_json as shown
from gateway.api.changes import Changes
from gateway.api.gate import principal_of
from gateway.api.prefer import parse_prefer
from gateway.api.problems import ApiProblem, FieldError, invalid, not_found
from gateway.api.webhook_schemas import DELIVERY_FILTERS, description_of
from gateway.settings import origin_list
from gateway.store import items as item_store
from gateway.store import webhook_deliveries as deliveries
from gateway.store import webhooks as store
from gateway.webhooks import catalogue, signing
from gateway.webhooks.model import BodyStyle, Delivery, DeliveryStatus, Endpoint, EndpointStatus
from gateway.webhooks.parts import open_vault, target_policy
from gateway.webhooks.requests import EndpointChange, NewEndpointRequest, OriginRequest, ReplayRequest, RotateRequest
from gateway.webhooks.resolving import SystemResolver, check_url
from gateway.webhooks.schedule import Health
from gateway.webhooks.targets import ANY_TARGET, UrlRefused, parse_origin
from gateway.wiring import Services

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)

_TEST_WAIT_S = 20.0
_LOOK_S = 0.1


class WebhookRoutes:
    """Handlers of `/v1/webhook-endpoints`, `/v1/webhook-deliveries` and `/v1/callback-origins`."""

    def __init__(self, services: Services, changes: Changes) -> None:
        self._services = services
        self._changes = changes
        self._policy = target_policy(services.settings)
        self._vault = open_vault(services.settings)
        self._resolve = SystemResolver()
        self._origins_for_all = sorted(origin_list(services.settings.callback_origins))

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1", tags=["webhooks"])
        for method, path, handler in (
            ("POST", "/webhook-endpoints", self.create),
            ("GET", "/webhook-endpoints", self.list),
            ("GET", "/webhook-endpoints/{endpoint_id}", self.get),
            ("PATCH", "/webhook-endpoints/{endpoint_id}", self.change),
            ("DELETE", "/webhook-endpoints/{endpoint_id}", self.delete),
            ("POST", "/webhook-endpoints/{endpoint_id}/rotate", self.rotate),
            ("POST", "/webhook-endpoints/{endpoint_id}/test", self.test),
            ("POST", "/webhook-endpoints/{endpoint_id}/replay", self.replay),
            ("GET", "/webhook-deliveries", self.deliveries),
            ("GET", "/webhook-deliveries/{delivery_id}", self.delivery),
            ("POST", "/webhook-deliveries/{delivery_id}/redeliver", self.redeliver),
            ("GET", "/callback-origins", self.origins),
            ("POST", "/callback-origins", self.allow),
            ("DELETE", "/callback-origins/{origin_id}", self.forbid),
        ):
            router.add_api_route(path, handler, methods=[method], **description_of(method, path))
        return router

    async def create(self, request: Request) -> Response:
        """A new endpoint. Its secret is in this answer alone."""
        values.query(request, ())
        tenant = principal_of(request.scope["state"]).tenant
        wanted = _read(NewEndpointRequest, await values.json_object(request))
        await self._check_url(wanted.url, allow_insecure=wanted.allow_insecure)
        secret = signing.new_secret()
        new = store.NewEndpoint(
            tenant=tenant,
            url=wanted.url,
            description=wanted.description,
            events=tuple(wanted.events),
            body=BodyStyle(wanted.body),
            allow_insecure=wanted.allow_insecure,
            sealed_secret=self._vault.seal(secret),
        )

        def make(connection: Connection) -> Endpoint:
            if store.count(connection, tenant=tenant) >= store.MOST_ENDPOINTS:
                raise ApiProblem(
                    "quota_exceeded", f"There are {store.MOST_ENDPOINTS} endpoints already. Delete one first."
                )
            return store.create(connection, new, at_ms=item_store.now_ms(connection))

        endpoint = await self._transact(make)
        headers = {**versions.etag(endpoint.version), "Location": f"/v1/webhook-endpoints/{endpoint.id}"}
        return JSONResponse(
            {**shown.endpoint_json(endpoint, Health()), "secret": secret}, status_code=201, headers=headers
        )

    async def list(self, request: Request) -> Response:
        """The tenant's endpoints."""
        wanted = values.query(request, paging.PARAMETERS)
        asked = paging.asked_in(wanted)
        tenant = principal_of(request.scope["state"]).tenant

        def look(connection: Connection) -> tuple[list[Endpoint], dict[str, Health]]:
            found = store.page(connection, tenant=tenant, after=asked.after, limit=asked.enough)
            return found, store.health_of(connection, [endpoint.id for endpoint in found])

        found, health = await self._read(look)
        return JSONResponse(
            asked.listing(
                "webhook_endpoints",
                found,
                show=lambda each: shown.endpoint_json(each, health.get(each.id, Health())),
                place=_place_of,
            )
        )

    async def get(self, endpoint_id: str, request: Request) -> Response:
        """One endpoint, and how it has answered of late."""
        values.query(request, ())
        return await self._shown(await self._endpoint(endpoint_id, request))

    async def change(self, endpoint_id: str, request: Request) -> Response:
        """Change what is named; needs `If-Match`."""
        values.query(request, ())
        endpoint = await self._endpoint(endpoint_id, request)
        wanted = _read(EndpointChange, await values.json_object(request))
        version = versions.required_version(request, "endpoint")
        if version != endpoint.version:
            raise _changed(endpoint)
        changes = wanted.model_dump(include=wanted.model_fields_set)
        if {"url", "allow_insecure"} & changes.keys():
            await self._check_url(
                changes.get("url", endpoint.url), allow_insecure=changes.get("allow_insecure", endpoint.allow_insecure)
            )
        if changes.get("status") == endpoint.status.value:
            del changes["status"]
        if not changes:
            return await self._shown(endpoint)
        changed = await self._transact(
            lambda connection: store.change(
                connection,
                endpoint.id,
                tenant=endpoint.tenant,
                version=endpoint.version,
                values=changes,
                at_ms=item_store.now_ms(connection),
            )
        )
        if changed is None:
            raise _changed(await self._endpoint(endpoint_id, request))
        return await self._shown(changed)

    async def delete(self, endpoint_id: str, request: Request) -> Response:
        """Remove an endpoint, its deliveries and their log."""
        values.query(request, ())
        tenant = principal_of(request.scope["state"]).tenant
        if not await self._transact(lambda connection: store.delete(connection, endpoint_id, tenant=tenant)):
            raise _no_endpoint()
        return Response(status_code=204)

    async def rotate(self, endpoint_id: str, request: Request) -> Response:
        """A new secret, in this answer alone; for the overlap the one before signs as well."""
        values.query(request, ())
        endpoint = await self._endpoint(endpoint_id, request)
        wanted = _read(RotateRequest, await values.json_object(request))
        secret = signing.new_secret()
        changed = await self._transact(
            lambda connection: store.rotate(
                connection,
                endpoint.id,
                tenant=endpoint.tenant,
                sealed=self._vault.seal(secret),
                overlap_ms=wanted.overlap_s * 1000,
                at_ms=item_store.now_ms(connection),
            )
        )
        if changed is None:
            raise _no_endpoint()
        health = await self._health(changed)
        return JSONResponse(
            {**shown.endpoint_json(changed, health), "secret": secret}, headers=versions.etag(changed.version)
        )

    async def test(self, endpoint_id: str, request: Request) -> Response:
        """Send a `webhook.test` event once, and tell the class of the status and how long it took; nothing else."""
        values.query(request, ())
        endpoint = await self._endpoint(endpoint_id, request)
        wait_s = parse_prefer(request.headers.getlist("prefer")).wait_s

        def make(connection: Connection) -> str:
            at_ms = item_store.now_ms(connection)
            store.announce(connection, endpoint, catalogue.TEST, {}, at_ms=at_ms)
            return deliveries.add_test(connection, endpoint, at_ms=at_ms)

        delivery_id = await self._transact(make)
        self._services.signals.send("api", endpoint.id)
        delivery = await self._ended(delivery_id, endpoint.tenant, _TEST_WAIT_S if wait_s is None else wait_s)
        is_over = delivery.status is not DeliveryStatus.PENDING
        attempts = await self._read(lambda connection: deliveries.attempts_of(connection, delivery_id))
        return JSONResponse(shown.test_json(delivery, attempts), status_code=200 if is_over else 202)

    async def replay(self, endpoint_id: str, request: Request) -> Response:
        """Send the events of a range of the log again, those that the endpoint's filter lets through."""
        values.query(request, ())
        endpoint = await self._endpoint(endpoint_id, request)
        wanted = _read(ReplayRequest, await values.json_object(request))
        if endpoint.status is EndpointStatus.DISABLED:
            raise _is_disabled(endpoint)
        queued = await self._transact(
            lambda connection: deliveries.replay(
                connection,
                endpoint,
                from_seq=wanted.from_seq,
                to_seq=wanted.to_seq,
                at_ms=item_store.now_ms(connection),
            )
        )
        if queued is None:
            raise invalid(
                f"The range holds more than {deliveries.MOST_REPLAYED:,} events. Replay it in parts.",
                FieldError("/to_seq", "range", "Choose a smaller range."),
            )
        return JSONResponse({"queued": queued, "from_seq": wanted.from_seq, "to_seq": wanted.to_seq}, status_code=202)

    async def deliveries(self, request: Request) -> Response:
        """The delivery log, newest first."""
        wanted = values.query(request, (*DELIVERY_FILTERS, *paging.PARAMETERS))
        asked = paging.asked_in(wanted)
        where = deliveries.DeliveryFilter(
            endpoint_id=wanted.get("endpoint"),
            status=_statuses(wanted.get("status")),
            event_type=wanted.get("event_type"),
            event_id=wanted.get("event"),
            resource=wanted.get("resource"),
            created_after_ms=values.moment(wanted, "created_after"),
        )
        tenant = principal_of(request.scope["state"]).tenant
        found = await self._read(
            lambda connection: deliveries.page(
                connection, tenant=tenant, where=where, after=asked.after, limit=asked.enough
            )
        )
        return JSONResponse(asked.listing("webhook_deliveries", found, show=shown.delivery_json, place=_place_of))

    async def delivery(self, delivery_id: str, request: Request) -> Response:
        """One delivery with every attempt."""
        values.query(request, ())
        delivery = await self._delivery(delivery_id, principal_of(request.scope["state"]).tenant)
        attempts = await self._read(lambda connection: deliveries.attempts_of(connection, delivery_id))
        return JSONResponse({**shown.delivery_json(delivery), "log": [shown.attempt_json(each) for each in attempts]})

    async def redeliver(self, delivery_id: str, request: Request) -> Response:
        """Send a delivery again, now, under the same ids."""
        values.query(request, ())
        tenant = principal_of(request.scope["state"]).tenant
        delivery = await self._delivery(delivery_id, tenant)
        endpoint = await self._endpoint(delivery.endpoint_id, request)
        if endpoint.status is EndpointStatus.DISABLED and delivery.url is None and not delivery.is_test:
            raise _is_disabled(endpoint)
        again = await self._transact(
            lambda connection: deliveries.redeliver(
                connection, delivery_id, tenant=tenant, at_ms=item_store.now_ms(connection)
            )
        )
        if again is None:
            raise _no_delivery()
        return JSONResponse(shown.delivery_json(again), status_code=202)

    async def origins(self, request: Request) -> Response:
        """The tenant's own list, and what the operator allows for all."""
        values.query(request, ())
        tenant = principal_of(request.scope["state"]).tenant
        found = await self._read(lambda connection: store.origins(connection, tenant=tenant))
        listed = [shown.origin_json(each) for each in found]
        return JSONResponse({"callback_origins": listed, "for_all": self._origins_for_all})

    async def allow(self, request: Request) -> Response:
        """Add an origin; one that is there already stays."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        wanted = _read(OriginRequest, await values.json_object(request))
        try:
            origin = parse_origin(wanted.origin, ANY_TARGET)
        except UrlRefused as error:
            raise _refused(error, "/origin") from error
        await self._check_url(origin, allow_insecure=True, pointer="/origin")
        added, is_new = await self._transact(
            lambda connection: store.allow_origin(
                connection,
                tenant=principal.tenant,
                origin=origin,
                actor=principal.actor,
                at_ms=item_store.now_ms(connection),
            )
        )
        return JSONResponse(shown.origin_json(added), status_code=201 if is_new else 200)

    async def forbid(self, origin_id: str, request: Request) -> Response:
        """Take an origin off the list."""
        values.query(request, ())
        tenant = principal_of(request.scope["state"]).tenant
        if not await self._transact(lambda connection: store.forbid_origin(connection, origin_id, tenant=tenant)):
            raise not_found("callback origin of this id")
        return Response(status_code=204)

    async def _endpoint(self, endpoint_id: str, request: Request) -> Endpoint:
        tenant = principal_of(request.scope["state"]).tenant
        endpoint = await self._read(lambda connection: store.get(connection, endpoint_id, tenant=tenant))
        if endpoint is None:
            raise _no_endpoint()
        return endpoint

    async def _delivery(self, delivery_id: str, tenant: str) -> Delivery:
        delivery = await self._read(lambda connection: deliveries.get(connection, delivery_id, tenant=tenant))
        if delivery is None:
            raise _no_delivery()
        return delivery

    async def _health(self, endpoint: Endpoint) -> Health:
        found = await self._read(lambda connection: store.health_of(connection, [endpoint.id]))
        return found.get(endpoint.id, Health())

    async def _shown(self, endpoint: Endpoint) -> Response:
        health = await self._health(endpoint)
        return JSONResponse(shown.endpoint_json(endpoint, health), headers=versions.etag(endpoint.version))

    async def _ended(self, delivery_id: str, tenant: str, wait_s: float) -> Delivery:
        """The delivery once it has ended, or as it stands after the wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            delivery = await self._delivery(delivery_id, tenant)
            if delivery.status is not DeliveryStatus.PENDING or self._changes.is_closing or loop.time() >= deadline:
                return delivery
            await asyncio.sleep(_LOOK_S)

    async def _check_url(self, url: str, *, allow_insecure: bool, pointer: str = "/url") -> None:
        try:
            await check_url(url, self._policy, self._resolve, allow_insecure=allow_insecure)
        except UrlRefused as error:
            raise _refused(error, pointer) from error

    async def _read(self, look: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._services.database.read() as connection:
                return look(connection)

        return await run_in_threadpool(run)

    async def _transact(self, work: Callable[[Connection], T]) -> T:
        return await run_in_threadpool(self._services.database.transact, work)


def _read(kind: type[B], document: dict[str, Any]) -> B:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        fields = [
            FieldError("/" + "/".join(map(str, item["loc"])), str(item["type"]), f"{item['msg']}.")
            for item in error.errors(include_url=False, include_context=False, include_input=False)[:20]
        ]
        raise invalid(f"The request is not valid at {fields[0].pointer}: {fields[0].detail}", *fields) from error


def _place_of(row: Endpoint | Delivery) -> paging.Place:
    return row.created_ms, row.id


def _statuses(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    wanted = tuple(text.split(","))
    known = [status.value for status in DeliveryStatus]
    if not set(wanted) <= set(known):
        detail = f"Must be one or more of {', '.join(known)}, separated by commas."
        raise invalid(f"`status` is not valid. {detail}", FieldError("status", "choice", detail))
    return wanted


def _changed(endpoint: Endpoint) -> ApiProblem:
    return ApiProblem(
        "conflict_version",
        f"The endpoint has version {endpoint.version} now. Read it again before you change it.",
        extra={"version": endpoint.version},
    )


def _refused(error: UrlRefused, pointer: str) -> ApiProblem:
    return ApiProblem("url_not_allowed", error.public, errors=[FieldError(pointer, error.reason, error.public)])


def _is_disabled(endpoint: Endpoint) -> ApiProblem:
    return ApiProblem(
        "webhook_disabled",
        "The endpoint is disabled. Enable it (PATCH `status`) before you send anything to it.",
        extra={"endpoint": endpoint.id, "reason": endpoint.disabled_reason},
    )


def _no_endpoint() -> ApiProblem:
    return not_found("webhook endpoint of this id")


def _no_delivery() -> ApiProblem:
    return not_found("webhook delivery of this id")
