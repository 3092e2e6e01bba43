"""What the console's handlers share: reading and writing off the event loop, and refusals shown as pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.gate import refusal
from gateway.api.problems import KINDS, ApiProblem
from gateway.api.sessions import is_page
from gateway.console.pages import page
from gateway.console.visit import visit_of
from gateway.store.overview import Counts, counts
from gateway.wiring import Services

T = TypeVar("T")


class ConsoleRoute(APIRoute):
    """A route whose refusals a person reads as a page; scripts get the problem document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with its refusals turned into pages."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except ApiProblem as problem:
                return refused(request, problem)

        return handled


def refused(request: Request, problem: ApiProblem) -> Response:
    """What stands in the way, in the words of the problem."""
    if not is_page(request.scope) and "text/html" not in request.headers.get("accept", ""):
        return refusal(problem, request.scope)
    kind = KINDS[problem.code]
    visit = visit_of(request)
    status = kind.status
    return page(
        visit, "refused.html", status=status, problem=problem, title=kind.title, help=kind.help, counts=NO_COUNTS
    )


NO_COUNTS = Counts()


class Backstage:
    """The service as the console's handlers use it."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def read(self, look: Callable[[Connection], T]) -> T:
        """What `look` finds, in one transaction, in a thread."""

        def run() -> T:
            with self.services.database.read() as connection:
                return look(connection)

        return await run_in_threadpool(run)

    async def render(self, visit: Any, template: str, *, status: int = 200, **context: Any) -> Response:
        """A page with the counts that its head shows."""
        found = context.pop("counts", None) or await self.read(
            lambda c: counts(c, tenant=visit.tenant, holder=visit.holder)
        )
        return await run_in_threadpool(lambda: page(visit, template, status=status, counts=found, **context))
