"""Health, facts about the service, profiles, and the help page of each problem."""

from __future__ import annotations

import html
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from gateway import __version__, metrics
from gateway.api import request_values as values
from gateway.api import versions
from gateway.api.body import ACCEPTED_TYPES
from gateway.api.broker_check import broker_problem
from gateway.api.changes import Changes
from gateway.api.problems import KINDS, not_found
from gateway.api.render import profile_json
from gateway.api.switches import switch_json
from gateway.operator_gauges import operator_gauges
from gateway.store import migrate
from gateway.submission import MAX_FILES
from gateway.wiring import Services
from prefilters import messages
from prefilters.media import supported_formats


class ServiceRoutes:
    """Handlers of everything that is not an item."""

    def __init__(self, services: Services, changes: Changes) -> None:
        self._services = services
        self._changes = changes
        operator = partial(operator_gauges, budgets=services.budgets)
        self._gauges = metrics.DatabaseGauges(services.database, operator)

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(tags=["service"])
        add = router.add_api_route
        add("/", self.root, methods=["GET"], include_in_schema=False)
        add("/healthz", self.healthz, methods=["GET"], summary="Whether the process lives")
        add("/readyz", self.readyz, methods=["GET"], summary="Whether it can take work, check by check")
        add("/metrics", self.metrics, methods=["GET"], summary="Prometheus metrics of this process and the database")
        add("/v1/meta", self.meta, methods=["GET"], summary="Version, limits, formats, rule set")
        add("/v1/profiles", self.profiles, methods=["GET"], summary="All profiles")
        add("/v1/profiles/{name}", self.profile, methods=["GET"], summary="One profile")
        add("/problems", self.problems, methods=["GET"], include_in_schema=False)
        add("/problems/{code}", self.problem, methods=["GET"], include_in_schema=False)
        return router

    async def root(self, request: Request) -> Response:
        """Where to go from here."""
        return JSONResponse(
            {
                "service": "sluicegate",
                "version": __version__,
                "links": {"openapi": "/openapi.json", "meta": "/v1/meta", "items": "/v1/items", "health": "/readyz"},
            }
        )

    async def healthz(self, request: Request) -> Response:
        """The process only."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Required parts decide the status; optional ones that are missing are named and change nothing."""
        checks = await run_in_threadpool(self._checks)
        is_ready = all(check["status"] == "ok" for check in checks.values() if check["required"])
        return JSONResponse(
            {"status": "ok" if is_ready else "unavailable", "checks": checks}, status_code=200 if is_ready else 503
        )

    def _checks(self) -> dict[str, dict[str, Any]]:
        services = self._services
        confinement = services.pool.confinement
        rules = services.rule_source.current()
        return {
            "paused": _paused(services),
            "process": _required("it is about to end" if self._changes.is_closing else None),
            "database": _required(_database_problem(services)),
            "blobs": _required(None if services.blobs.is_writable() else "the blob folder cannot be written"),
            "queue": _queue(services),
            "ruleset": _required(None, version=rules.version, kept_old_because=services.rule_source.problem),
            "profiles": _required(None, loaded=sorted(services.profiles)),
            "decoders": _optional(bool(confinement), "not started yet", confinement=dict(confinement)),
            "model": _optional(
                services.settings.model_url is not None,
                "no model is configured: the offline writer makes drafts",
                model=services.settings.model if services.settings.model_url else None,
            ),
            "transcriber": _optional(
                services.transcriber is not None,
                "none is configured: speech is accepted and noted, not transcribed",
                engine=None if services.transcriber is None else services.transcriber.name,
            ),
        }

    async def metrics(self, request: Request) -> Response:
        """In Prometheus' text format. Beyond loopback it needs a key with the scope `admin`."""
        body = await run_in_threadpool(metrics.exposition, self._gauges)
        return Response(body, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def meta(self, request: Request) -> Response:
        """What this service takes."""
        values.query(request, ())
        settings = self._services.settings
        await run_in_threadpool(self._services.switches.look)
        return JSONResponse(
            {
                "version": __version__,
                "ruleset": self._services.rule_source.current().version,
                "limits": {
                    "request_bytes": settings.max_request_bytes,
                    "files_per_item": MAX_FILES,
                    "wait_s": 30,
                    "idempotency_ttl_s": settings.idempotency_ttl_s,
                },
                "formats": list(supported_formats()),
                "accepted_content_types": list(ACCEPTED_TYPES),
                "paused": {row.switch.value: switch_json(row) for row in self._services.switches.latest.both},
                "profiles": {name: profile.version for name, profile in self._services.profiles.items()},
                "model": settings.model if settings.model_url else None,
                "prices_as_of": self._services.prices.as_of,
                "keyless": settings.is_keyless,
            }
        )

    async def profiles(self, request: Request) -> Response:
        """All kinds of work that items can be submitted for."""
        values.query(request, ())
        return JSONResponse({"profiles": [profile_json(p) for _, p in sorted(self._services.profiles.items())]})

    async def profile(self, name: str, request: Request) -> Response:
        """One kind of work."""
        values.query(request, ())
        profile = self._services.profiles.get(name)
        if profile is None:
            raise not_found("profile of this name")
        return JSONResponse(profile_json(profile), headers=versions.etag(profile.version))

    async def problems(self, request: Request) -> Response:
        """A list of all problem kinds."""
        rows = "".join(
            f'<li><a href="/problems/{kind.code}"><code>{kind.code}</code></a> {html.escape(kind.title)}</li>'
            for kind in KINDS.values()
        )
        return _page("Problems", f"<ul>{rows}</ul>")

    async def problem(self, code: str, request: Request) -> Response:
        """The help page that a problem document's `type` points to."""
        kind = KINDS.get(code)
        if kind is not None:
            return _page(
                kind.title, f"<p>{html.escape(kind.help)}</p><p>HTTP {kind.status}, code <code>{code}</code>.</p>"
            )
        if code not in messages.codes():
            raise not_found("problem of this code")
        titles = messages.title(code)
        body = "".join(f'<p lang="{language}">{html.escape(text)}</p>' for language, text in titles.items())
        return _page(
            titles["en"], f"{body}<p>File verdict code <code>{code}</code>; the file's own problem says the rest.</p>"
        )


def _required(problem: str | None, **details: Any) -> dict[str, Any]:
    return {"required": True, "status": "ok" if problem is None else "failed", "problem": problem, **details}


def _optional(is_there: bool, otherwise: str, **details: Any) -> dict[str, Any]:
    return {
        "required": False,
        "status": "ok" if is_there else "missing",
        "problem": None if is_there else otherwise,
        **details,
    }


def _queue(services: Services) -> dict[str, Any]:
    """How workers learn of items. Without a broker items are accepted all the same, so it makes nobody unready."""
    problem = broker_problem(services.settings)
    return _optional(problem is None, problem or "", dispatch=services.settings.dispatch.value)


def _paused(services: Services) -> dict[str, Any]:
    """What the operator has paused: named here, and no reason to send requests elsewhere."""
    try:
        found = services.switches.look()
    except Exception:  # noqa: BLE001 - the check of the database says it
        found = services.switches.latest
    paused = [row for row in found.both if row.is_paused]
    problem = "; ".join(f"{row.switch.value} by {row.changed_by}: {row.reason or 'no reason given'}" for row in paused)
    return {"required": False, "status": "paused" if paused else "ok", "problem": problem or None}


def _database_problem(services: Services) -> str | None:
    try:
        migrate.check(services.database)
    except migrate.SchemaMismatch as error:
        return error.public
    except Exception:  # noqa: BLE001 - whatever the driver raises means the same to a caller
        return "the database cannot be reached"
    return None


def _page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)} · Sluicegate</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<h1>{html.escape(title)}</h1>{body}</html>",
        headers={"Content-Security-Policy": "default-src 'none'"},
    )
