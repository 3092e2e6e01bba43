"""Items: search, one item with all that is known of it, and the timeline of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.requests import Request
from starlette.responses import Response

from gateway import timeline
from gateway.api import trace
from gateway.api.problems import KINDS, ApiProblem, not_found
from gateway.api.render import explanation_json, item_json
from gateway.api.verbs import VerbRoutes
from gateway.console import pictures
from gateway.console.access import form_of
from gateway.console.asking import ask
from gateway.console.pages import see_other
from gateway.console.routes_queue import Link
from gateway.console.serving import Backstage
from gateway.console.visit import Visit, visit_of
from gateway.item import Item, Status
from gateway.store import escalation_rows, item_search
from gateway.store import guard_runs as run_store
from gateway.store import items as item_store
from gateway.store.escalation_rows import CaseFilter
from gateway.timeline import MOST_ROWS, Call, Timeline

PAGE = 50
_ENDED = frozenset({Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.REJECTED, Status.HALTED})
"""From these a person may start a new attempt."""
BLOCKS = 100
"""Blocks of a page: some 1,400 nodes at most."""
MOST_JSON = 64 * 1024


class ItemPages:
    """Handlers of `/console/items` and `/console/traces`."""

    def __init__(self, backstage: Backstage, verbs: VerbRoutes) -> None:
        self._backstage = backstage
        self._verbs = verbs

    def add_to(self, router: APIRouter) -> None:
        """The routes."""
        router.add_api_route("/items", self.search, methods=["GET"])
        router.add_api_route("/items/{item_id}", self.item, methods=["GET"])
        router.add_api_route("/items/{item_id}/retry", self.retry, methods=["POST"])
        router.add_api_route("/items/{item_id}/timeline", self.timeline, methods=["GET"])
        router.add_api_route("/items/{item_id}/timeline/{number}", self.calls, methods=["GET"])
        router.add_api_route("/traces/{run_id}", self.run, methods=["GET"])
        router.add_api_route("/traces/{run_id}/{number}", self.run_calls, methods=["GET"])

    async def search(self, request: Request) -> Response:
        """Items, newest first, narrowed by words and status."""
        visit, query = visit_of(request), request.query_params
        words, status = query.get("q", "").strip()[:200], query.get("status") or None
        after = _after(query.get("after", ""))

        def look(connection: Connection) -> dict[str, Any]:
            ids = item_search.search(
                connection, tenant=visit.tenant, words=words, status=status, after=after, limit=PAGE + 1
            )
            found = [item for each in ids if (item := item_store.get(connection, each)) is not None]
            by_status = item_search.counts_by_status(connection, tenant=visit.tenant)
            return {"found": found, "by_status": by_status}

        context = await self._backstage.read(look)
        page: list[Item] = context["found"][:PAGE]
        more = None
        if len(context["found"]) > PAGE:
            kept = {"q": words, "status": status or "", "after": f"{page[-1].created_ms}.{page[-1].id}"}
            more = "/console/items?" + urlencode({name: value for name, value in kept.items() if value})
        return await self._backstage.render(
            visit,
            "items.html",
            words=words,
            status_wanted=status,
            statuses=_statuses(context["by_status"], words, status, visit),
            rows=[{"item": item, "cover": pictures.cover_of(item)} for item in page],
            more=more,
        )

    async def item(self, item_id: str, request: Request) -> Response:
        """Files, checks, decision, attempts, result, history and the JSON."""
        return await self._item(visit_of(request), item_id)

    async def retry(self, item_id: str, request: Request) -> Response:
        """A new attempt at an item that ended; one that was refused wrongly is taken after all."""
        visit = visit_of(request)
        visit.require_reviewer()
        reason = form_of(request).get("reason", "").strip()[:2000]
        try:
            await ask(request, self._verbs.retry, item_id, method="POST", body={"reason": reason, "override": True})
        except ApiProblem as problem:
            return await self._item(visit, item_id, problem=problem)
        return see_other(f"/console/items/{item_id}")

    async def _item(self, visit: Visit, item_id: str, *, problem: ApiProblem | None = None) -> Response:

        def look(connection: Connection) -> dict[str, Any]:
            item = _item_of(connection, visit, item_id)
            history = item_store.history_of(connection, item_id)
            cases = escalation_rows.page(
                connection, tenant=visit.tenant, where=CaseFilter(item_id=item_id), after=None, limit=50
            )
            folded = trace.folded_run(connection, item_id)
            return {"item": item, "history": history, "cases": cases, "folded": folded}

        context = await self._backstage.read(look)
        item: Item = context["item"]
        document = item_json(item, language=visit.language)
        explained = explanation_json(item, context["history"], language=visit.language)
        shown = json.dumps(document, ensure_ascii=False, indent=2)
        return await self._backstage.render(
            visit,
            "item.html",
            status=200 if problem is None else KINDS[problem.code].status,
            problem=problem,
            can_retry=visit.can_review and item.status in _ENDED,
            document=document,
            pictures=pictures.pictures_of(item, visit.say, language=visit.language),
            checks=[step for step in explained["steps"] if step["outcome"] in {"fail", "warn"} or step["decided"]],
            passed=sum(step["outcome"] == "pass" for step in explained["steps"]),
            counterfactuals=explained["counterfactuals"],
            raw=shown[:MOST_JSON],
            is_cut=len(shown) > MOST_JSON,
            **context,
        )

    async def timeline(self, item_id: str, request: Request) -> Response:
        """The run in blocks; opens at the page where it began to repeat itself."""
        visit = visit_of(request)

        def look(connection: Connection) -> tuple[Item, Timeline]:
            return _item_of(connection, visit, item_id), trace.folded_run(connection, item_id)

        item, folded = await self._backstage.read(look)
        heading = {
            "title": item.title or item.external_id or visit.say("Untitled item"),
            "back": f"/console/items/{item_id}",
        }
        return await self._timeline(visit, folded, f"/console/items/{item_id}/timeline", heading)

    async def calls(self, item_id: str, number: int, request: Request) -> Response:
        """The calls of one block."""
        visit = visit_of(request)

        def look(connection: Connection) -> list[Call] | None:
            _item_of(connection, visit, item_id)
            return trace.calls_of_block(connection, item_id, number)

        found = await self._backstage.read(look)
        return await self._calls(visit, found, f"/console/items/{item_id}/timeline", number)

    async def run(self, run_id: str, request: Request) -> Response:
        """The run of somebody else's agent, by the guard's trace."""
        visit = visit_of(request)

        def look(connection: Connection) -> tuple[run_store.RunRow, Timeline]:
            run = run_store.get(connection, run_id, tenant=visit.tenant)
            if run is None:
                raise not_found("run of this id")
            records = run_store.records_after(connection, run_id, after=0)
            return run, timeline.fold(timeline.entries_of_records(records))

        run, folded = await self._backstage.read(look)
        back = "/console/" if run.item_id is None else f"/console/items/{run.item_id}"
        heading = {"title": f"{run.agent} · {run.external_run_id}", "back": back}
        return await self._timeline(visit, folded, f"/console/traces/{run_id}", heading)

    async def run_calls(self, run_id: str, number: int, request: Request) -> Response:
        """The calls of one block of such a run."""
        visit = visit_of(request)

        def look(connection: Connection) -> list[Call] | None:
            if run_store.get(connection, run_id, tenant=visit.tenant) is None:
                raise not_found("run of this id")
            records = run_store.records_after(connection, run_id, after=0)
            return timeline.calls_of(timeline.entries_of_records(records), number)

        found = await self._backstage.read(look)
        return await self._calls(visit, found, f"/console/traces/{run_id}", number)

    async def _timeline(self, visit: Visit, folded: Timeline, base: str, heading: Mapping[str, str]) -> Response:
        asked = visit.request.query_params.get("page", "")
        first = (folded.first_repetition or 1) - 1
        pages = max(1, -(-len(folded.blocks) // BLOCKS))
        number = int(asked) if asked.isdecimal() and len(asked) < 6 else first // BLOCKS + 1
        number = min(max(number, 1), pages)
        shown = folded.blocks[(number - 1) * BLOCKS : number * BLOCKS]
        return await self._backstage.render(
            visit,
            "timeline.html",
            folded=folded,
            blocks=shown,
            page_number=number,
            pages=pages,
            base=base,
            heading=heading,
        )

    async def _calls(self, visit: Visit, found: Sequence[Call] | None, base: str, number: int) -> Response:
        if found is None:
            raise not_found("block of this number")
        asked = visit.request.query_params.get("from", "0")
        start = min(int(asked), len(found)) if asked.isdecimal() and len(asked) < 8 else 0
        is_piece = "text/html" in visit.request.headers.get("accept", "") and "piece" in visit.request.query_params
        return await self._backstage.render(
            visit,
            "_calls.html" if is_piece else "calls.html",
            calls=found[start : start + MOST_ROWS],
            total=len(found),
            start=start,
            base=base,
            number=number,
            next_start=start + MOST_ROWS if start + MOST_ROWS < len(found) else None,
        )


def _item_of(connection: Connection, visit: Visit, item_id: str) -> Item:
    item = item_store.get(connection, item_id, tenant=visit.tenant)
    if item is None:
        raise not_found("item of this id")
    return item


def _after(text: str) -> tuple[int, str] | None:
    at, _, item_id = text.partition(".")
    return (int(at), item_id) if at.isdecimal() and len(at) < 16 and item_id else None


def _statuses(by_status: Mapping[str, int], words: str, wanted: str | None, visit: Visit) -> list[Link]:
    links = []
    for status, count in sorted(by_status.items(), key=lambda pair: -pair[1]):
        chosen = {"q": words, "status": "" if status == wanted else status}
        query = urlencode({name: value for name, value in chosen.items() if value})
        label = visit.say(status.replace("_", " "))
        links.append(Link(label, status, count, f"/console/items?{query}", status == wanted))
    return links
