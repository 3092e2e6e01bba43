"""Routes of the operator's two switches: pause and resume new work, or all requests to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import request_values as values
from gateway.api.gate import principal_of
from gateway.api.problems import FieldError, invalid
from gateway.api.render import timestamp
from gateway.store import switches as store
from gateway.store.switches import Switch, Switches, SwitchRow
from gateway.wiring import Services

_MOST_REASON = 500
_ROW_SCHEMA = {
    "type": "object",
    "required": ["is_paused", "reason", "changed_by", "changed_at"],
    "properties": {
        "is_paused": {"type": "boolean"},
        "reason": {"type": ["string", "null"]},
        "changed_by": {"type": ["string", "null"]},
        "changed_at": {"type": ["string", "null"], "format": "date-time"},
    },
}
SWITCHES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": [switch.value for switch in Switch],
    "properties": {switch.value: _ROW_SCHEMA for switch in Switch},
}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "Both switches", "content": {"application/json": {"schema": SWITCHES_SCHEMA}}}
}
_SETTING = {
    "type": "object",
    "required": ["is_paused"],
    "additionalProperties": False,
    "properties": {
        "is_paused": {"type": "boolean"},
        "reason": {"type": ["string", "null"], "maxLength": _MOST_REASON, "description": "Shown to callers"},
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
                    "properties": {switch.value: _SETTING for switch in Switch},
                }
            }
        },
    }
}


class SwitchRoutes:
    """Handlers of `/v1/switches`; both need the scope `admin`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/switches", tags=["operations"])
        add = router.add_api_route
        add("", self.get, methods=["GET"], summary="What is paused", responses=_ANSWER)
        add(
            "",
            self.put,
            methods=["PUT"],
            summary="Pause or resume new work, or all requests to the model",
            responses=_ANSWER,
            openapi_extra=_BODY,
        )
        return router

    async def get(self, request: Request) -> Response:
        """Both, with who set them and why."""
        values.query(request, ())

        def look() -> Switches:
            with self._services.database.read() as connection:
                return store.read(connection)

        return JSONResponse(switches_json(await run_in_threadpool(look)))

    async def put(self, request: Request) -> Response:
        """Set those that are named; the others stay. In force on every process within two seconds."""
        values.query(request, ())
        wanted = _wanted(await values.json_object(request))
        principal = principal_of(request.scope["state"])
        principal.require_operator()
        by = principal.actor

        def change(connection: Connection) -> Switches:
            for switch, (is_paused, reason) in wanted.items():
                store.turn(connection, switch, is_paused=is_paused, reason=reason, by=by)
            return store.read(connection)

        found = await run_in_threadpool(self._services.database.transact, change)
        self._services.switches.forget()
        self._services.signals.send("worker", "switches")
        return JSONResponse(switches_json(found))


def switches_json(found: Switches) -> dict[str, Any]:
    """Both switches as an operator sees them."""
    return {row.switch.value: switch_json(row) for row in found.both}


def switch_json(row: SwitchRow) -> dict[str, Any]:
    """One switch."""
    return {
        "is_paused": row.is_paused,
        "reason": row.reason,
        "changed_by": row.changed_by,
        "changed_at": timestamp(row.changed_ms),
    }


def _wanted(body: Mapping[str, Any]) -> dict[Switch, tuple[bool, str | None]]:
    known = {switch.value: switch for switch in Switch}
    if not body:
        raise _wrong("", "required", f"Name a switch: {', '.join(known)}.")
    wanted = {}
    for name, setting in body.items():
        if name not in known:
            raise _wrong(name[:60], "unknown_field", f"There is no such switch; there are {', '.join(known)}.")
        if not isinstance(setting, dict) or not isinstance(setting.get("is_paused"), bool):
            raise _wrong(name, "type", 'Must be an object such as {"is_paused": true, "reason": "…"}.')
        unknown = sorted(set(setting) - {"is_paused", "reason"})
        if unknown:
            raise _wrong(f"{name}/{unknown[0][:60]}", "unknown_field", "Remove it.")
        reason = values.optional_text(setting, "reason", most=_MOST_REASON)
        wanted[known[name]] = (setting["is_paused"], reason)
    return wanted


def _wrong(name: str, code: str, detail: str) -> Exception:
    return invalid(f"`{name or 'the body'}` is not valid. {detail}", FieldError(f"/{name}", code, detail))
