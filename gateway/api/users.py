"""Routes of the people who use the console. Each is parse, one call, render."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import credentials, passwords
from gateway.api import paging, versions
from gateway.api import request_values as values
from gateway.api.auth import Principal
from gateway.api.escalation_values import refuse_unknown
from gateway.api.gate import principal_of
from gateway.api.problems import ApiProblem, FieldError, invalid, not_found
from gateway.api.render import timestamp
from gateway.api.schemas import parameters, problem
from gateway.credentials import Changed, CredentialRefused
from gateway.person import SCOPES_BY_ROLE, Role
from gateway.store import people
from gateway.store.engine import Database
from gateway.store.people import PersonRecord

_ROLE = {"type": "string", "enum": [role.value for role in Role]}
_PASSWORD = {"type": "string", "minLength": passwords.LEAST, "maxLength": passwords.MOST}
_USER: dict[str, Any] = {
    "type": "object",
    "required": ["id", "name", "role", "disabled", "version", "created_at"],
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "role": _ROLE,
        "disabled": {"type": "boolean"},
        "version": {"type": "integer"},
        "created_at": {"type": "string", "format": "date-time"},
        "last_login_at": {"type": ["string", "null"], "format": "date-time"},
    },
}
_LIST = {
    "type": "object",
    "required": ["users", "next_cursor"],
    "properties": {"users": {"type": "array", "items": _USER}, "next_cursor": {"type": ["string", "null"]}},
}
_REFUSED: dict[int | str, dict[str, Any]] = {
    400: problem("The request is not valid"),
    401: problem("A valid API key is needed"),
    403: problem("The caller lacks the scope `admin`, or one that the role would have"),
}
_CHANGING: dict[int | str, dict[str, Any]] = {
    404: problem("No such person"),
    412: problem("The person was changed since it was read"),
    422: problem("Nobody takes their own role away"),
    428: problem("`If-Match` is missing"),
}
_NAME = {"type": "string", "minLength": 1, "maxLength": people.NAME_MOST}


def _body(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def _user(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _USER}}}


_ADD = _body({"name": _NAME, "role": _ROLE, "password": _PASSWORD}, "name", "role", "password")
_PATCH = {
    **_body({"role": _ROLE, "password": _PASSWORD, "disabled": {"type": "boolean"}}),
    "parameters": [
        {"name": "If-Match", "in": "header", "required": True, "schema": {"type": "string"}, "description": "The ETag"}
    ],
}


class UserRoutes:
    """Handlers of `/v1/users`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/users", tags=["users"])
        add = router.add_api_route
        add(
            "", self.list, methods=["GET"], summary="The tenant's people",
            openapi_extra={"parameters": parameters("cursor", "limit")},
            responses={
                200: {"description": "People, the oldest first", "content": {"application/json": {"schema": _LIST}}},
                **_REFUSED,
            },
        )  # fmt: skip
        add(
            "", self.add, methods=["POST"], status_code=201, summary="Add somebody who can log in to the console",
            openapi_extra=_ADD, responses={201: _user("The person"), **_REFUSED},
        )  # fmt: skip
        add(
            "/{user_id}", self.get, methods=["GET"], summary="One person",
            responses={200: _user("The person"), **_REFUSED, 404: problem("No such person")},
        )  # fmt: skip
        add(
            "/{user_id}", self.change, methods=["PATCH"],
            summary="Change role or password, disable or enable; logs the person out everywhere", openapi_extra=_PATCH,
            responses={200: _user("The person"), **_REFUSED, **_CHANGING},
        )  # fmt: skip
        return router

    async def list(self, request: Request) -> Response:
        """People of the caller's tenant, disabled ones too."""
        wanted = values.query(request, paging.PARAMETERS)
        asked = paging.asked_in(wanted)
        tenant = principal_of(request.scope["state"]).tenant

        def look() -> list[PersonRecord]:
            with self._database.read() as connection:
                return people.page(connection, tenant=tenant, after=asked.after, limit=asked.enough)

        found = await run_in_threadpool(look)
        return JSONResponse(
            asked.listing("users", found, show=user_json, place=lambda person: (person.created_ms, person.id))
        )

    async def get(self, user_id: str, request: Request) -> Response:
        """One person of the caller's tenant."""
        values.query(request, ())
        return _answer(await self._person(user_id, principal_of(request.scope["state"])))

    async def add(self, request: Request) -> Response:
        """Names are unique in the whole service: one logs in by the name alone."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        body = await values.json_object(request)
        refuse_unknown(body, ("name", "role", "password"))
        name, password, role = _text(body, "name"), _text(body, "password"), _role(body)
        if name is None or password is None or role is None:
            raise invalid("A person needs `name`, `role` and `password`.")
        _require_all_of(principal, role)
        try:
            made = await run_in_threadpool(
                credentials.add_person,
                self._database,
                tenant=principal.tenant,
                name=name,
                role=role,
                password=password,
                by=principal.actor,
            )
        except CredentialRefused as error:
            raise _refused(error) from error
        return _answer(made, status=201)

    async def change(self, user_id: str, request: Request) -> Response:
        """Sessions end at once; cases that the person may decide no longer go back to the queue."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        body = await values.json_object(request)
        refuse_unknown(body, ("role", "password", "disabled"))
        role, password, is_disabled = _role(body), _text(body, "password"), _flag(body, "disabled")
        person = await self._person(user_id, principal)
        versions.require_match(request, person.version, "person")
        _require_all_of(principal, person.role)
        _require_all_of(principal, role or person.role)
        if person.actor == principal.actor and (is_disabled or role not in {None, person.role}):
            raise ApiProblem("action_not_allowed", "Nobody takes their own role away; ask another admin.")
        try:
            after = await run_in_threadpool(
                credentials.change_person,
                self._database,
                person,
                by=principal.actor,
                role=role,
                password=password,
                is_disabled=is_disabled,
            )
        except CredentialRefused as error:
            raise _refused(error) from error
        except Changed as error:
            raise ApiProblem("conflict_version", error.public) from error
        return _answer(after)

    async def _person(self, user_id: str, principal: Principal) -> PersonRecord:
        def look() -> PersonRecord | None:
            with self._database.read() as connection:
                return people.get(connection, user_id, tenant=principal.tenant)

        person = await run_in_threadpool(look)
        if person is None:
            raise not_found("person of this id")
        return person


def user_json(person: PersonRecord) -> dict[str, Any]:
    """A person as they may be shown."""
    return {
        "id": person.id,
        "name": person.name,
        "role": person.role.value,
        "disabled": person.disabled_ms is not None,
        "version": person.version,
        "created_at": timestamp(person.created_ms),
        "last_login_at": timestamp(person.last_login_ms),
    }


def _answer(person: PersonRecord, *, status: int = 200) -> Response:
    headers = versions.etag(person.version)
    if status == 201:
        headers["Location"] = f"/v1/users/{person.id}"
    return JSONResponse(user_json(person), status_code=status, headers=headers)


def _require_all_of(principal: Principal, role: Role) -> None:
    """Nobody gives a role, or takes over the account of one, that may do more than they."""
    for scope in sorted(SCOPES_BY_ROLE[role]):
        if not principal.may_grant(scope):
            raise ApiProblem(
                "scope_missing",
                f"The role {role.value} includes the scope `{scope}`, which the caller lacks.",
                extra={"scope": scope},
            )


def _text(body: dict[str, Any], name: str) -> str | None:
    return values.optional_text(body, name, most=passwords.MOST)


def _role(body: dict[str, Any]) -> Role | None:
    value = body.get("role")
    if value is None:
        return None
    if not isinstance(value, str) or value not in set(Role):
        detail = f"Must be one of {', '.join(Role)}."
        raise invalid(f"`role` is not valid. {detail}", FieldError("/role", "choice", detail))
    return Role(value)


def _flag(body: dict[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"`{name}` is not valid.", FieldError(f"/{name}", "type", "Send true or false."))
    return value


def _refused(error: CredentialRefused) -> ApiProblem:
    return invalid(error.public, FieldError(f"/{error.field}", "not_taken", error.public))
