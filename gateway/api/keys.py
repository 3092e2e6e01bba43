"""Routes of API keys. Each is parse, one call, render."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import credentials
from gateway.api import paging
from gateway.api import request_values as values
from gateway.api.auth import Principal
from gateway.api.escalation_values import refuse_unknown
from gateway.api.gate import principal_of
from gateway.api.problems import ApiProblem, FieldError, invalid, not_found
from gateway.api.render import timestamp
from gateway.api.schemas import parameters, problem
from gateway.credentials import NewKey
from gateway.store import keys
from gateway.store.engine import Database
from gateway.store.keys import KeyRecord

_DEFAULT_OVERLAP_S = 24 * 3600

_KEY: dict[str, Any] = {
    "type": "object",
    "required": ["id", "name", "ends_with", "scopes", "status", "created_at"],
    "properties": {
        "id": {"type": "string"},
        "name": {"type": ["string", "null"]},
        "ends_with": {"type": "string", "description": "The end of the secret, to tell keys apart"},
        "scopes": {"type": "array", "items": {"type": "string", "enum": list(keys.SCOPES)}},
        "status": {"type": "string", "enum": ["live", "expired", "revoked"]},
        "created_at": {"type": "string", "format": "date-time"},
        "last_used_at": {"type": ["string", "null"], "format": "date-time", "description": "To the minute"},
        "expires_at": {"type": ["string", "null"], "format": "date-time"},
        "revoked_at": {"type": ["string", "null"], "format": "date-time"},
        "previous_secret_until": {"type": ["string", "null"], "format": "date-time"},
    },
}
_WITH_SECRET = {**_KEY, "properties": {**_KEY["properties"], "secret": {"type": "string", "description": "Shown once"}}}
_REFUSED: dict[int | str, dict[str, Any]] = {
    400: problem("The request is not valid"),
    401: problem("A valid API key is needed"),
    403: problem("The caller lacks the scope `admin`, or a scope that the key is to have"),
}
_MISSING: dict[int | str, dict[str, Any]] = {404: problem("No such key")}


def _body(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_CREATE = _body(
    {
        "name": {"type": ["string", "null"], "maxLength": credentials.NAME_MOST},
        "scopes": {"type": "array", "minItems": 1, "items": {"type": "string", "enum": list(keys.SCOPES)}},
        "expires_at": {"type": ["string", "null"], "format": "date-time"},
    },
    "scopes",
)
_ROTATE = _body({"overlap_s": {"type": "integer", "minimum": 0, "maximum": credentials.MOST_OVERLAP_S}})
_LIST = {
    "type": "object",
    "required": ["keys", "next_cursor"],
    "properties": {"keys": {"type": "array", "items": _KEY}, "next_cursor": {"type": ["string", "null"]}},
}


class KeyRoutes:
    """Handlers of `/v1/keys`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/keys", tags=["keys"])
        add = router.add_api_route
        add(
            "", self.list, methods=["GET"], summary="The tenant's API keys, without their secrets",
            openapi_extra={"parameters": parameters("cursor", "limit")},
            responses={200: _json("Keys, oldest first", _LIST), **_REFUSED},
        )  # fmt: skip
        add(
            "", self.create, methods=["POST"], status_code=201, summary="Make a key; its secret is shown this once",
            openapi_extra=_CREATE, responses={201: _json("The key with its secret", _WITH_SECRET), **_REFUSED},
        )  # fmt: skip
        add(
            "/{key_id}", self.get, methods=["GET"], summary="One key",
            responses={200: _json("The key", _KEY), **_REFUSED, **_MISSING},
        )  # fmt: skip
        add(
            "/{key_id}/rotate", self.rotate, methods=["POST"],
            summary="A new secret; the one before works until the overlap ends", openapi_extra=_ROTATE,
            responses={200: _json("The key with its new secret", _WITH_SECRET), **_REFUSED, **_MISSING},
        )  # fmt: skip
        add(
            "/{key_id}", self.revoke, methods=["DELETE"], status_code=204, summary="End a key, within 5 seconds",
            responses={204: {"description": "It is revoked"}, **_REFUSED, **_MISSING},
        )  # fmt: skip
        return router

    async def list(self, request: Request) -> Response:
        """Keys of the caller's tenant, ended ones too."""
        wanted = values.query(request, paging.PARAMETERS)
        asked = paging.asked_in(wanted)
        tenant = principal_of(request.scope["state"]).tenant

        def look() -> list[KeyRecord]:
            with self._database.read() as connection:
                return keys.page(connection, tenant=tenant, after=asked.after, limit=asked.enough)

        found = await run_in_threadpool(look)
        return JSONResponse(
            asked.listing("keys", found, show=key_json, place=lambda record: (record.created_ms, record.id))
        )

    async def get(self, key_id: str, request: Request) -> Response:
        """One key of the caller's tenant."""
        values.query(request, ())
        return JSONResponse(key_json(await self._record(key_id, principal_of(request.scope["state"]))))

    async def create(self, request: Request) -> Response:
        """Nobody can give a key a scope that they lack."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        body = await values.json_object(request)
        refuse_unknown(body, ("name", "scopes", "expires_at"))
        new = NewKey(
            principal.tenant,
            values.optional_text(body, "name", most=credentials.NAME_MOST),
            _scopes(body, principal),
            _expiry(body),
        )
        record, secret = await run_in_threadpool(credentials.make_key, self._database, new, by=principal.actor)
        return JSONResponse(
            {**key_json(record), "secret": secret}, status_code=201, headers={"Location": f"/v1/keys/{record.id}"}
        )

    async def rotate(self, key_id: str, request: Request) -> Response:
        """The new secret is in the answer, and nowhere else."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        body = await values.json_object(request)
        refuse_unknown(body, ("overlap_s",))
        overlap_s = _overlap(body)
        for scope in (await self._record(key_id, principal)).scopes:
            _require_grant(principal, scope)  # or a new secret would be a way to scopes that the caller lacks
        rotated = await run_in_threadpool(
            credentials.rotate_key,
            self._database,
            key_id,
            overlap_s=overlap_s,
            by=principal.actor,
            tenant=principal.tenant,
        )
        if rotated is None:
            raise not_found("live key of this id")
        return JSONResponse({**key_json(rotated[0]), "secret": rotated[1]})

    async def revoke(self, key_id: str, request: Request) -> Response:
        """Again for a key that has ended already: nothing more happens."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        record = await run_in_threadpool(
            credentials.revoke_key, self._database, key_id, by=principal.actor, tenant=principal.tenant
        )
        if record is None:
            raise not_found("key of this id")
        return Response(status_code=204)

    async def _record(self, key_id: str, principal: Principal) -> KeyRecord:
        def look() -> KeyRecord | None:
            with self._database.read() as connection:
                return keys.get(connection, key_id, tenant=principal.tenant)

        record = await run_in_threadpool(look)
        if record is None:
            raise not_found("key of this id")
        return record


def key_json(record: KeyRecord) -> dict[str, Any]:
    """A key as it may be shown."""
    is_live = record.is_live(_now_ms())
    return {
        "id": record.id,
        "name": record.name,
        "ends_with": record.hint,
        "scopes": list(record.scopes),
        "status": "revoked" if record.revoked_ms is not None else "live" if is_live else "expired",
        "created_at": timestamp(record.created_ms),
        "last_used_at": timestamp(record.last_used_ms),
        "expires_at": timestamp(record.expires_ms),
        "revoked_at": timestamp(record.revoked_ms),
        "previous_secret_until": timestamp(record.previous_until_ms),
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _scopes(body: dict[str, Any], principal: Principal) -> tuple[str, ...]:
    wanted = body.get("scopes")
    if not isinstance(wanted, list) or not wanted or not all(scope in keys.SCOPES for scope in wanted):
        detail = f"Must be a list of some of {', '.join(keys.SCOPES)}."
        raise invalid(f"`scopes` is not valid. {detail}", FieldError("/scopes", "choice", detail))
    for scope in wanted:
        _require_grant(principal, scope)
    return tuple(scope for scope in keys.SCOPES if scope in wanted)


def _require_grant(principal: Principal, scope: str) -> None:
    if not principal.may_grant(scope):
        raise ApiProblem(
            "scope_missing", f"A key cannot give what it lacks: the scope `{scope}`.", extra={"scope": scope}
        )


def _expiry(body: dict[str, Any]) -> int | None:
    text = values.optional_text(body, "expires_at", most=64)
    expires_ms = None if text is None else values.moment({"expires_at": text}, "expires_at")
    if expires_ms is not None and expires_ms <= _now_ms():
        raise invalid("`expires_at` has passed.", FieldError("/expires_at", "range", "Send a time to come."))
    return expires_ms


def _overlap(body: dict[str, Any]) -> int:
    overlap_s = body.get("overlap_s", _DEFAULT_OVERLAP_S)
    if (
        isinstance(overlap_s, bool)
        or not isinstance(overlap_s, int)
        or not 0 <= overlap_s <= credentials.MOST_OVERLAP_S
    ):
        detail = f"Must be a whole number of seconds from 0 to {credentials.MOST_OVERLAP_S:,}."
        raise invalid(f"`overlap_s` is not valid. {detail}", FieldError("/overlap_s", "range", detail))
    return overlap_s
