"""The page before all others, for people who are not logged in."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.sessions import safe_next
from gateway.console.access import has_people, visitor_of
from gateway.console.pages import page_for_strangers, see_other
from gateway.console.serving import Backstage


class LoginPage:
    """Handler of `GET /console/login`."""

    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage

    def add_to(self, router: APIRouter) -> None:
        """The route."""
        router.add_api_route("/login", self.show, methods=["GET"])

    async def show(self, request: Request) -> Response:
        """The form, with what went wrong the last time; straight on for who is logged in already."""
        query = request.query_params
        back = safe_next(query.get("next"))
        if visitor_of(request) is not None:
            return see_other(back)
        anybody = await run_in_threadpool(has_people, self._backstage.services.database)
        return page_for_strangers(
            request, "login.html", back=back, error=query.get("error"), wait=query.get("wait", ""), anybody=anybody
        )
