"""The web application: wiring only."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
import sqlalchemy as sa
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway import __version__
from gateway.api.artifacts import ArtifactRoutes
from gateway.api.auth import Authenticator
from gateway.api.budgets import BudgetRoutes
from gateway.api.changes import Changes
from gateway.api.decision_schemas import decision_components
from gateway.api.decisions import DecisionRoutes
from gateway.api.described import complete
from gateway.api.escalation_groups import EscalationGroupRoutes
from gateway.api.escalations import EscalationRoutes
from gateway.api.events import EventRoutes
from gateway.api.gate import Gate, Pace, internal_problem, refusal
from gateway.api.guard_runs import GuardRunRoutes
from gateway.api.guard_schemas import guard_components
from gateway.api.items import ItemRoutes
from gateway.api.keys import KeyRoutes
from gateway.api.outages import outage_of
from gateway.api.problems import ApiProblem, FieldError, invalid
from gateway.api.purge import PurgeRoutes
from gateway.api.queue_schemas import queue_components
from gateway.api.schemas import components
from gateway.api.security_schemes import about_access
from gateway.api.service import ServiceRoutes
from gateway.api.stream import EventHub, StreamPace
from gateway.api.submit import Submissions
from gateway.api.switches import SwitchRoutes
from gateway.api.trace import TraceRoutes
from gateway.api.users import UserRoutes
from gateway.api.verbs import VerbRoutes
from gateway.api.waiting import Waiting
from gateway.api.webhook_schemas import webhook_components
from gateway.api.webhooks import WebhookRoutes
from gateway.blobs import BlobStoreUnreachable, BlobUnusable
from gateway.console.access import AccessRoutes
from gateway.console.routes import ConsoleRoutes
from gateway.store.people import SessionLimits
from gateway.wiring import Services

log = structlog.get_logger()

_THREADS = 64


def create_app(services: Services) -> Gate:
    """The service's ASGI application. Closing `services` stays with the caller."""
    changes = Changes()
    waiting = Waiting(services.database, changes)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        listener = services.signals.listen("api")
        changes.attach(listener)
        services.warm_decoders(reads=False)
        # What start-up made stays: leaving it out of every full collection spares requests pauses of 65 ms and more.
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            changes.detach(listener)
            listener.close()

    app = FastAPI(
        title="Sluicegate",
        version=__version__,
        description="Verdicts on uploads before the model, and a guard around its tool calls.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        telemetry={"tracing": False, "metrics": False, "logs": False},  # asks for a provider at every message otherwise
    )
    settings = services.settings
    session_limits = SessionLimits(int(settings.session_idle_s * 1000), int(settings.session_s * 1000))
    authenticator = Authenticator(services.database, keyless=settings.is_keyless, limits=session_limits)
    # First, since routes are tried in order and an agent asks here twice a call.
    app.include_router(GuardRunRoutes(services.database, services.switches).router())
    app.include_router(ItemRoutes(services, waiting, Submissions(services, waiting)).router())
    pace = StreamPace(settings.stream_ping_s, settings.stream_cap_s)
    hub = EventHub(services.database, changes, authenticator, pace)
    app.include_router(EventRoutes(services.database, hub).router())
    app.include_router(ArtifactRoutes(services).router())
    app.include_router(EscalationRoutes(services, changes).router())
    app.include_router(VerbRoutes(services, changes).router())
    app.include_router(DecisionRoutes(services).router())
    app.include_router(EscalationGroupRoutes(services, changes).router())
    app.include_router(KeyRoutes(services.database).router())
    app.include_router(UserRoutes(services.database).router())
    app.include_router(AccessRoutes(services.database, session_limits).router())
    app.include_router(TraceRoutes(services.database).router())
    app.include_router(ConsoleRoutes(services, changes).router())
    app.include_router(PurgeRoutes(services).router())
    app.include_router(BudgetRoutes(services).router())
    app.include_router(SwitchRoutes(services).router())
    app.include_router(WebhookRoutes(services, changes).router())
    app.include_router(ServiceRoutes(services, changes).router())
    _speak_problems(app)
    _describe(app, keyless=settings.is_keyless)
    is_keyless = settings.is_keyless
    return Gate(
        app,
        authenticator=authenticator,
        admission=services.admission,
        switches=services.switches,
        max_bytes=services.settings.max_request_bytes,
        pace=Pace(settings.body_idle_s, settings.body_least_rate, settings.body_grace_s),
        keyless=is_keyless,
        on_shutdown=changes.close,
    )


def _speak_problems(app: FastAPI) -> None:
    """Every error that the framework itself raises becomes a problem document too."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiProblem)
        return refusal(error, request.scope)

    async def of_the_router(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refusal(_from_http(error, request), request.scope)

    async def of_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = [
            FieldError("/" + "/".join(map(str, item["loc"])), str(item["type"]), str(item["msg"])[:200])
            for item in error.errors()[:20]
        ]
        return refusal(invalid("The request is not valid; `errors` names each field.", *fields), request.scope)

    async def of_a_client_that_left(request: Request, error: Exception) -> Response:
        log.info("request.client_left", path=request.scope["path"])
        return Response(status_code=400)  # nobody is there to read it

    async def of_an_outage(request: Request, error: Exception) -> Response:
        problem = outage_of(error)
        if problem is None:
            return await of_ours(request, error)
        log.warning("request.outage", path=request.scope["path"], code=problem.code, error=type(error).__name__)
        return refusal(problem, request.scope)

    async def of_ours(request: Request, error: Exception) -> Response:
        log.error("request.failed", path=request.scope["path"], exc_info=error)
        return refusal(internal_problem(), request.scope)

    app.add_exception_handler(ApiProblem, ours)
    app.add_exception_handler(HTTPException, of_the_router)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(ClientDisconnect, of_a_client_that_left)
    for outage in (sa.exc.DBAPIError, sa.exc.TimeoutError, BlobStoreUnreachable, BlobUnusable):
        app.add_exception_handler(outage, of_an_outage)
    app.add_exception_handler(Exception, of_ours)


def _from_http(error: HTTPException, request: Request) -> ApiProblem:
    if error.status_code == 404:
        return ApiProblem("not_found", "There is nothing at this path. See /openapi.json for what there is.")
    if error.status_code == 405:
        allowed = _methods_of(request)
        return ApiProblem(
            "method_not_allowed",
            f"This path does not take {request.method}; it takes {', '.join(allowed) or 'other methods'}.",
            extra={"allowed": allowed},
            headers={"Allow": ", ".join(allowed)} if allowed else {},
        )
    if error.status_code < 500:
        return invalid("The request cannot be read.")
    return internal_problem()


def _methods_of(request: Request) -> list[str]:
    """All that a path takes; the framework names those of the first route alone.

    A path that is written out, such as `/v1/escalations/bulk`, is no id of a path with a parameter.
    """
    path = request.scope["path"]
    found = [one for one in iter_route_contexts(request.app.routes) if one.methods and one.path_regex.match(path)]
    meant = [one for one in found if one.path == path] or found
    return sorted({method for one in meant for method in one.methods or ()})


def _describe(app: FastAPI, *, keyless: bool) -> None:
    """Add the schemas that the routes refer to, once, when the description is first asked for."""
    app.description = f"{app.description}\n\n{about_access(keyless=keyless)}"
    generated = app.openapi

    def described() -> dict[str, Any]:
        document = generated()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update({**components(), **guard_components(), **webhook_components(), **decision_components()})
        schemas.update(queue_components())
        complete(document, keyless=keyless)
        return document

    app.openapi = described  # type: ignore[method-assign]
