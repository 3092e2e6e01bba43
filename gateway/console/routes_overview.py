"""The overview, the audit, and what became of one's own decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.requests import Request
from starlette.responses import Response

from gateway.console import auditing, choices, plots
from gateway.console.auditing import Place
from gateway.console.serving import Backstage
from gateway.console.visit import Visit, visit_of
from gateway.escalation import EscalationRecord
from gateway.item import Item
from gateway.store import decisions as decision_store
from gateway.store import escalation_rows, overview, switches
from gateway.store import items as item_store
from gateway.store.decisions import DecisionFilter, DecisionRecord, Outcome
from gateway.store.escalation_rows import CaseFilter

_DAY_MS = 86_400_000
_SPANS = (1, 7, 14, 30)
PAGE = 100


class OverviewPages:
    """Handlers of `/console/overview`, `/console/audit` and `/console/decisions`."""

    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage

    def add_to(self, router: APIRouter) -> None:
        """The routes."""
        router.add_api_route("/overview", self.overview, methods=["GET"])
        router.add_api_route("/audit", self.audit, methods=["GET"])
        router.add_api_route("/decisions", self.decisions, methods=["GET"])

    async def overview(self, request: Request) -> Response:
        """What was avoided, what was refused, how long people take."""
        visit = visit_of(request)
        asked = request.query_params.get("days", "")
        days = int(asked) if asked in {str(span) for span in _SPANS} else 14

        def look(connection: Connection) -> dict[str, Any]:
            since_ms = item_store.now_ms(connection) - (days - 1) * _DAY_MS
            since_ms -= since_ms % _DAY_MS
            tenant = visit.tenant
            return {
                "avoided": overview.avoided(connection, tenant=tenant, since_ms=since_ms),
                "refusals": overview.refusals(connection, tenant=tenant, since_ms=since_ms),
                "stops": overview.stops(connection, tenant=tenant, since_ms=since_ms),
                "ages": overview.open_ages(connection, tenant=tenant),
                "decided": overview.decisions(connection, tenant=tenant, since_ms=since_ms),
                "by_day": overview.days(connection, tenant=tenant, since_ms=since_ms),
                "switches": switches.read(connection),
            }

        found = await self._backstage.read(look)
        decided = found["decided"]
        return await self._backstage.render(
            visit,
            "overview.html",
            days=days,
            spans=_SPANS,
            day_plot=plots.of_days(found["by_day"], visit.say),
            age_plot=plots.of_ages(found["ages"], visit.say),
            to_claim=plots.middle(decided.to_claim_ms),
            to_decide=plots.middle(decided.to_decide_ms),
            slow_decide=plots.middle(decided.to_decide_ms, 0.9),
            actions=[(_name(facet.value, visit), facet.count) for facet in decided.by_action],
            **found,
        )

    async def audit(self, request: Request) -> Response:
        """Who did what, newest first."""
        visit = visit_of(request)
        place = Place(_number(request, "before"), _number(request, "before_event"))
        lines, then = await self._backstage.read(lambda connection: auditing.page(connection, visit, place, limit=PAGE))
        more = None
        if then is not None:
            query = {"before": then.case_line, "before_event": then.event}
            more = "/console/audit?" + urlencode({name: at for name, at in query.items() if at is not None})
        return await self._backstage.render(visit, "audit.html", lines=lines, more=more)

    async def decisions(self, request: Request) -> Response:
        """The reader's own decisions with what became of each."""
        visit = visit_of(request)
        mine = DecisionFilter(actor=visit.holder)
        waiting = CaseFilter(resolved_by=visit.holder, status=("resolved",))

        def look(connection: Connection) -> tuple[list[EscalationRecord], list[Own]]:
            pending = escalation_rows.page(connection, tenant=visit.tenant, where=waiting, after=None, limit=PAGE)
            found = decision_store.page(connection, tenant=visit.tenant, where=mine, after=None, limit=PAGE)
            return pending, [_own(connection, record, outcome, visit) for record, outcome in found]

        pending, rows = await self._backstage.read(look)
        named = [(case, _name(_value(case.resolution or {}), visit)) for case in pending]
        return await self._backstage.render(visit, "decisions.html", rows=rows, pending=named)


@dataclass(frozen=True, slots=True)
class Own:
    """One decision of the reader, with where its item stands."""

    record: DecisionRecord
    outcome: Outcome
    item: Item | None
    name: str


def _number(request: Request, name: str) -> int | None:
    asked = request.query_params.get(name, "")
    return int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 18 else None


def _own(connection: Connection, record: DecisionRecord, outcome: Outcome, visit: Visit) -> Own:
    item = None if record.item_id is None else item_store.get(connection, record.item_id, tenant=visit.tenant)
    return Own(record, outcome, item, _name(_value({**record.body, "action": record.action}), visit))


def _value(decision: Mapping[str, Any]) -> str:
    is_reroute = decision.get("action") == "reroute"
    return str(decision.get("route") if is_reroute else decision.get("action"))


def _name(value: str, visit: Visit) -> str:
    choice = choices.known(value)
    return visit.say(choice.label) if choice is not None else value.replace("_", " ")
