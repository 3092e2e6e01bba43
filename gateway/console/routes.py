"""The console's routes, gathered; and the small ones: our own files, and how a reader likes the pages."""

from __future__ import annotations

import mimetypes

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.api.changes import Changes
from gateway.api.problems import not_found
from gateway.api.sessions import safe_next
from gateway.api.verbs import VerbRoutes
from gateway.console.access import form_of
from gateway.console.lookers import Lookers
from gateway.console.pages import STATIC, see_other
from gateway.console.routes_groups import GroupPages
from gateway.console.routes_items import ItemPages
from gateway.console.routes_login import LoginPage
from gateway.console.routes_overview import OverviewPages
from gateway.console.routes_queue import QueuePages
from gateway.console.routes_review import ReviewPages
from gateway.console.routes_settings import SettingsPages
from gateway.console.serving import Backstage, ConsoleRoute
from gateway.console.visit import KEYS_COOKIE, THEME_COOKIE, THEMES
from gateway.wiring import Services

_YEAR_S = 365 * 24 * 3600


class ConsoleRoutes:
    """All pages under `/console`, beside logging in and out."""

    def __init__(self, services: Services, changes: Changes) -> None:
        self._backstage = Backstage(services)
        self._changes = changes
        self._lookers = Lookers()

    def router(self) -> APIRouter:
        """The routes; none is part of the API's description."""
        router = APIRouter(prefix="/console", include_in_schema=False, route_class=ConsoleRoute)
        router.add_api_route("", self.root, methods=["GET"])
        for name in ("keys", "webhooks"):
            router.add_api_route(f"/{name}", self.moved, methods=["GET"])
        router.add_api_route("/static/{name}", self.static, methods=["GET"])
        router.add_api_route("/preferences", self.preferences, methods=["POST"])
        QueuePages(self._backstage).add_to(router)
        ReviewPages(self._backstage, self._lookers).add_to(router)
        GroupPages(self._backstage).add_to(router)
        ItemPages(self._backstage, VerbRoutes(self._backstage.services, self._changes)).add_to(router)
        OverviewPages(self._backstage).add_to(router)
        SettingsPages(self._backstage, self._backstage.services, self._changes).add_to(router)
        LoginPage(self._backstage).add_to(router)
        return router

    async def root(self, request: Request) -> Response:
        """With the stroke at the end, since addresses on the pages build on it."""
        return RedirectResponse("/console/", status_code=307)

    async def moved(self, request: Request) -> Response:
        """What is a part of the settings has a short address too."""
        return see_other(f"/console/settings/{request.url.path.rsplit('/', 1)[1]}")

    async def static(self, name: str, request: Request) -> Response:
        """One of our own files; kept for good under the version that the pages name."""
        path = STATIC / name
        if path.parent != STATIC or not path.is_file():
            raise not_found("file of this name")
        kept = "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        media_type = "text/javascript" if name.endswith(".js") else media_type
        return Response(path.read_bytes(), media_type=media_type, headers={"Cache-Control": kept})

    async def preferences(self, request: Request) -> Response:
        """Colours, and whether single letters are commands: kept in the reader's browser."""
        form = form_of(request)
        answer = see_other(safe_next(form.get("back")))
        theme, keys = form.get("theme"), form.get("keys")
        secure = request.scope["scheme"] == "https"
        if theme in THEMES:
            answer.set_cookie(THEME_COOKIE, theme, max_age=_YEAR_S, path="/console", samesite="lax", secure=secure)
        if keys in {"on", "off"}:
            answer.set_cookie(KEYS_COOKIE, keys, max_age=_YEAR_S, path="/console", samesite="lax", secure=secure)
        return answer
