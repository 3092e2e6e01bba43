"""Routes of budgets: what tenants may spend on a day, and the problems that say that it is spent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import request_values as values
from gateway.api import versions
from gateway.api.gate import principal_of
from gateway.api.problems import ApiProblem, FieldError, invalid, not_found
from gateway.api.render import timestamp
from gateway.budgets import BudgetView, list_views, view
from gateway.store import budgets as store
from gateway.store.budgets import ALL, BudgetExhausted, Limits, QuotaExceeded, dollars, is_tenant_name, micros_of
from gateway.wiring import Services

_MOST = Decimal(1_000_000_000)
_TEXT = {"type": ["string", "null"]}
BUDGET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["tenant", "day", "resets_at", "limits", "used", "is_exhausted", "version"],
    "properties": {
        "tenant": {"type": "string", "description": "`*` for all tenants together"},
        "day": {"type": "string", "format": "date", "description": "The UTC day"},
        "resets_at": {"type": "string", "format": "date-time"},
        "currency": {"type": "string"},
        "limits": {
            "type": "object",
            "description": "In force; null is no limit",
            "properties": {"max_cost": _TEXT, "max_items": {"type": ["integer", "null"]}},
        },
        "own": {
            "type": "object",
            "description": "Set for this tenant; null leaves the setting in force",
            "properties": {"max_cost": _TEXT, "max_items": {"type": ["integer", "null"]}},
        },
        "used": {
            "type": "object",
            "properties": {
                "cost": {"type": "string", "description": "Spent, with what is set aside"},
                "reserved": {"type": "string", "description": "Set aside for requests whose cost is not known"},
                "model_calls": {"type": "integer"},
                "items": {"type": ["integer", "null"]},
            },
        },
        "is_exhausted": {"type": "boolean"},
        "version": {"type": "integer"},
        "changed_by": _TEXT,
        "changed_at": {"type": ["string", "null"], "format": "date-time"},
    },
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "minProperties": 1,
                    "properties": {
                        "max_cost": {
                            "type": ["string", "integer", "null"],
                            "minimum": 0,
                            "maximum": int(_MOST),
                            "pattern": r"^(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?$",
                            "description": "US dollars a UTC day as a decimal string; null: by the settings",
                        },
                        "max_items": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**31 - 1},
                    },
                }
            }
        },
    }
}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "The budget", "content": {"application/json": {"schema": BUDGET_SCHEMA}}}
}


class BudgetRoutes:
    """Handlers of `/v1/budgets`, `/v1/budget` and `/v1/tenants/{tenant}/budget`; all need the scope `admin`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1", tags=["operations"])
        add = router.add_api_route
        add("/budgets", self.index, methods=["GET"], summary="All budgets that are set or were used today")
        for path, get, put, whose in (
            ("/budget", self.get_all, self.put_all, "all tenants together"),
            ("/tenants/{tenant}/budget", self.get, self.put, "one tenant"),
        ):
            add(path, get, methods=["GET"], summary=f"Today's budget of {whose}", responses=_ANSWER)
            add(
                path,
                put,
                methods=["PUT"],
                summary=f"Set the daily budget of {whose}",
                responses=_ANSWER,
                openapi_extra=_BODY,
            )
        return router

    async def index(self, request: Request) -> Response:
        """Tenants in order, all together first."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])

        def look() -> list[BudgetView]:
            with self._services.database.read() as connection:
                return list_views(connection, self._services.budgets.defaults)

        found = await run_in_threadpool(look)
        shown = [one for one in found if principal.is_operator or one.tenant == principal.tenant]
        return JSONResponse({"budgets": [budget_json(one) for one in shown]})

    async def get_all(self, request: Request) -> Response:
        """Limits and use of today."""
        return await self._get(request, ALL)

    async def put_all(self, request: Request) -> Response:
        """The one stop for the whole deployment."""
        return await self._put(request, ALL)

    async def get(self, tenant: str, request: Request) -> Response:
        """Limits and use of today."""
        return await self._get(request, _known_form(tenant))

    async def put(self, tenant: str, request: Request) -> Response:
        """Replace what is set; what is left out or null follows the settings. In force within a second."""
        return await self._put(request, _known_form(tenant))

    async def _get(self, request: Request, tenant: str) -> Response:
        values.query(request, ())

        def look() -> BudgetView:
            with self._services.database.read() as connection:
                return view(connection, tenant, self._services.budgets.defaults)

        return _answer(await run_in_threadpool(look))

    async def _put(self, request: Request, tenant: str) -> Response:
        values.query(request, ())
        body = await values.json_object(request)
        if not body:  # an empty body is more likely a slip than the wish to be without limits
            raise invalid("Send `max_cost`, `max_items` or both.", FieldError("", "missing", "null: by the settings."))
        limits = _limits_of(body, tenant)
        expected = versions.expected_version(request)
        principal = principal_of(request.scope["state"])
        principal.require_operator()
        by = principal.actor

        def change(connection: Connection) -> BudgetView | None:
            if store.set_limits(connection, tenant, limits, by=by, expected_version=expected) is None:
                return None
            return view(connection, tenant, self._services.budgets.defaults)

        changed = await run_in_threadpool(self._services.database.transact, change)
        if changed is None:
            raise ApiProblem(
                "conflict_version", "The budget was changed since you read it. Read it again, then repeat."
            )
        self._services.budgets.forget()
        return _answer(changed)


def budget_json(found: BudgetView) -> dict[str, Any]:
    """A budget as an operator sees it."""
    row = found.row
    return {
        "tenant": found.tenant,
        "day": store.date_of(found.day),
        "resets_at": timestamp((found.day + 1) * store.DAY_MS),
        "currency": "USD",
        "limits": _limits_json(found.limits),
        "own": _limits_json(Limits() if row is None else row.limits),
        "used": {
            "cost": dollars(found.use.used_micros),
            "reserved": dollars(found.use.reserved_micros),
            "model_calls": found.use.model_calls,
            "items": found.items,
        },
        "is_exhausted": found.use.is_exhausted(found.limits),
        "version": 0 if row is None else row.version,
        "changed_by": None if row is None else row.changed_by,
        "changed_at": None if row is None else timestamp(row.changed_ms),
    }


def budget_problem(refused: BudgetExhausted) -> ApiProblem:
    """No item that needs the model is taken today any more."""
    whose = "all tenants together" if refused.scope == ALL else "this tenant"
    return ApiProblem(
        "budget_exhausted",
        f"Today's budget of {whose} is spent. Nothing was stored; send it again on the next day, or in mode `prepare`, "
        "which asks no model.",
        extra={
            "scope": "deployment" if refused.scope == ALL else "tenant",
            "limits": {"max_cost": dollars(refused.limit_micros), "currency": "USD"},
            "resets_at": timestamp(refused.resets_ms),
        },
    )


def quota_problem(refused: QuotaExceeded) -> ApiProblem:
    """The tenant has submitted enough for today."""
    left_s = max(1, (refused.resets_ms - time.time_ns() // 1_000_000) // 1000)
    return ApiProblem(
        "quota_exceeded",
        f"This tenant may submit {refused.limit:,} items a day, and has. Nothing was stored; send it again on the next day.",
        extra={"limits": {"max_items": refused.limit}, "resets_at": timestamp(refused.resets_ms)},
        retry_after_s=int(left_s),
    )


def _limits_json(limits: Limits) -> dict[str, Any]:
    cost = limits.max_cost_micros
    return {"max_cost": None if cost is None else dollars(cost), "max_items": limits.max_items}


def _answer(found: BudgetView) -> Response:
    body = budget_json(found)
    return JSONResponse(body, headers=versions.etag(body["version"]))


def _known_form(tenant: str) -> str:
    if not is_tenant_name(tenant):
        raise not_found("tenant of this name")
    return tenant


def _limits_of(body: Mapping[str, Any], tenant: str) -> Limits:
    unknown = sorted(set(body) - {"max_cost", "max_items"})
    if unknown:
        name = unknown[0][:60]
        raise invalid(f"There is no field `{name}` here.", FieldError(f"/{name}", "unknown_field", "Remove it."))
    items = body.get("max_items")
    if isinstance(items, float) and items.is_integer():  # 5.0 is a whole number to JSON
        items = int(items)
    if items is not None and (isinstance(items, bool) or not isinstance(items, int) or not 0 <= items < 2**31):
        raise _wrong("max_items", "Must be a whole number, or null.")
    if items is not None and tenant == ALL:
        raise _wrong("max_items", "Items are limited per tenant only.")
    return Limits(_micros(body.get("max_cost")), items)


def _micros(value: Any) -> int | None:
    if value is None:
        return None
    wrong = _wrong("max_cost", "Must be a decimal string such as `12.50`, or null.")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise wrong
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        raise wrong from None
    if not cost.is_finite() or not 0 <= cost <= _MOST:
        raise wrong
    return micros_of(cost)


def _wrong(name: str, detail: str) -> ApiProblem:
    return invalid(f"`{name}` is not valid. {detail}", FieldError(f"/{name}", "value", detail))
