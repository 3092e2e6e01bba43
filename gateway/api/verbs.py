"""Routes of the verbs on an item that is there already: resume, retry, info. Each is parse, one call, render."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import intake, pipeline
from gateway import submission as submissions
from gateway.api import idempotency, versions
from gateway.api import request_values as values
from gateway.api.auth import Principal
from gateway.api.body import MAX_TEXT_PART_BYTES, ReceivedBody, field_problem, media_type_of, read_body
from gateway.api.changes import Changes
from gateway.api.escalation_values import desk_of
from gateway.api.gate import principal_of
from gateway.api.problems import ApiProblem, FieldError, invalid, not_found
from gateway.api.purge import refuse_purged
from gateway.api.render import item_json, language_of
from gateway.api.review_problems import problem_of
from gateway.api.schemas import ITEM_RESPONSES, problem
from gateway.api.submit import named_files
from gateway.blobs import BlobStoreUnreachable
from gateway.decision import ScreenedFile
from gateway.item import Item, Status
from gateway.profiles import Profile
from gateway.resolution import ItemMoved, NotAllowed, Reviewer, check_tools, control, go_on
from gateway.resolution.goes_on import known_tools
from gateway.store import idempotency as keys
from gateway.store import items as item_store
from gateway.strict_json import canonical
from gateway.submission import FieldProblem, Submission
from gateway.verbs.allowed import StateConflict, allowed_verbs
from gateway.verbs.informing import Told, TooManyFiles, inform
from gateway.verbs.retrying import Retry, retry
from gateway.wiring import Services
from gateway.work.dispatch import Bulkhead

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_Tools = Annotated[list[Annotated[StrictStr, Field(min_length=1, max_length=128)]], Field(max_length=50)]
_Text = Annotated[StrictStr, Field(min_length=1, max_length=2000)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ResumeBody(_Body):
    """The body of a resume."""

    guidance: _Text
    extra_steps: Annotated[StrictInt, Field(ge=0, le=100)] = 0
    ban_tools: _Tools = Field(default_factory=list)


class BudgetBody(_Body):
    """A budget for the new attempt, in place of the submission's; the profile's stands above both."""

    max_steps: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_cost: Annotated[StrictStr, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6})?$")] | None = None
    max_seconds: Annotated[float, Field(gt=0, le=86400)] | None = None


class RetryBody(_Body):
    """The body of a retry."""

    reason: _Text
    route: Literal["agent", "single_look", "text_only"] | None = None
    ban_tools: _Tools = Field(default_factory=list)
    guidance: _Text | None = None
    budget: BudgetBody | None = None
    override: StrictBool = False

    def wanted(self) -> Retry:
        """As the domain takes it."""
        budget = None if self.budget is None else self.budget.model_dump(mode="json", exclude_none=True)
        return Retry(self.reason, self.route, tuple(self.ban_tools), self.guidance, budget, self.override)


class VerbRoutes:
    """Handlers of `/v1/items/{id}/resume`, `/retry` and `/info`."""

    def __init__(self, services: Services, changes: Changes) -> None:
        self._services = services
        self._changes = changes

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/items", tags=["items"])
        for path, handler, summary, body in (
            ("resume", self.resume, "Let a halted run go on (policy: caller decides)", ResumeBody),
            ("retry", self.retry, "A new attempt at an item that ended; `override` opens a refused one", RetryBody),
        ):
            router.add_api_route(
                f"/{{item_id}}/{path}",
                handler,
                methods=["POST"],
                summary=summary,
                responses=_RESPONSES,
                openapi_extra=_described(body),
            )
        router.add_api_route(
            "/{item_id}/info",
            self.info,
            methods=["POST"],
            summary="Answer a reviewer's question: text, attributes, new photos",
            responses=_RESPONSES,
            openapi_extra=_INFO_OPENAPI,
        )
        return router

    async def resume(self, item_id: str, request: Request) -> Response:
        """A sentence for the agent, and it goes on; only where the policy left the halt to the caller."""
        values.query(request, ())
        wanted = _model(ResumeBody, await values.json_object(request))
        principal = principal_of(request.scope["state"])

        def work(connection: Connection) -> None:
            item = self._item(connection, item_id, principal.tenant)
            versions.refuse_mismatch(request, item.version, "item")
            if item.status is not Status.HALTED:
                raise StateConflict(
                    f"The item is {item.status.value}; only a halted one can be resumed by its caller.", item
                )
            check_tools(wanted.ban_tools, known_tools(self._services.profiles.get(item.profile)))
            word = control(ban_tools=tuple(wanted.ban_tools), extra_steps=wanted.extra_steps, note=wanted.guidance)
            text = f"The caller looked at this and says: {wanted.guidance}"
            go_on(connection, item, Reviewer(principal.actor), word, text=text, expected=Status.HALTED)

        await self._change(partial(self._services.database.transact, work))
        self._services.dispatch.wake(item_id, Bulkhead.AGENT)
        return await self._answer(item_id, request, status=202)

    async def retry(self, item_id: str, request: Request) -> Response:
        """A new attempt on the same item, with a fresh budget; a refused one only with `override` and the scope `review`."""
        values.query(request, ())
        body = await values.json_object(request)
        wanted = _model(RetryBody, body)
        principal = principal_of(request.scope["state"])
        key = idempotency.parse_key(request.headers.get("idempotency-key"))
        mark = hashlib.sha256(canonical(body).encode()).hexdigest()
        actor = desk_of(request).person
        if wanted.override:
            principal.require("review")

        def work(connection: Connection) -> bool:
            item = self._item(connection, item_id, principal.tenant)
            if key is not None and self._is_replay(connection, principal, item_id, key, mark):
                return True
            versions.refuse_mismatch(request, item.version, "item")
            if item.purged_ms is not None:
                raise ApiProblem("gone", "The item's content was purged, so there is nothing left to try again.")
            profile = self._profile(item)
            who = "A reviewer says" if wanted.override else "The caller says"
            retry(connection, item, profile, wanted.wanted(), actor=actor, advised_by=who)
            return False

        is_replay = await self._change(partial(self._services.database.transact, work))
        if not is_replay:
            self._services.dispatch.wake(item_id)
        return await self._answer(item_id, request, status=202, is_replay=is_replay)

    async def info(self, item_id: str, request: Request) -> Response:
        """The submitter's answer: the item waits for the reviewer again, who is told."""
        principal = principal_of(request.scope["state"])
        item = await run_in_threadpool(self._read, item_id, principal.tenant)
        if item.status is not Status.AWAITING_SUBMITTER:
            raise _conflict(StateConflict(f"The item is {item.status.value}; nobody waits for an answer.", item))
        versions.refuse_mismatch(request, item.version, "item")
        profile = self._profile(item)
        media_type, _ = media_type_of(request.headers.get("content-type"))
        if media_type not in {"application/json", "multipart/form-data"}:
            accepted = ["application/json", "multipart/form-data"]
            detail = "Send JSON, or multipart/form-data with the part `item` and one part per new file."
            raise ApiProblem("unsupported_media_type", detail, extra={"accepted": accepted})
        async with AsyncExitStack() as stack:
            body = await self._read_answer(request, stack, profile)
            files = await run_in_threadpool(self._kept, item, profile, body)
            told = Told(body.submission.text, body.submission.attributes, files)

            def work(connection: Connection) -> None:
                inform(connection, self._item(connection, item_id, principal.tenant), told, actor=principal.actor)

            await self._change(partial(intake.store_naming_files, self._services, principal.tenant, files, work))
        return await self._answer(item_id, request, status=200)

    async def _read_answer(self, request: Request, stack: AsyncExitStack, profile: Profile) -> ReceivedBody:
        def check(document: dict[str, Any], submission: Submission) -> None:
            unknown = [name for name in document if name not in {"text", "attributes", "files"}]
            if unknown:
                detail = "An answer has `text`, `attributes` and `files`."
                raise invalid(
                    f"The field `{unknown[0][:60]}` is not known here. {detail}", _unknown(unknown[0], detail)
                )
            try:
                submissions.check_against_profile(submission, profile)
            except FieldProblem as error:
                raise field_problem(error) from error

        try:
            body = await read_body(request, self._services.blobs, stack, check)
        except OSError as error:
            if intake.is_out_of_room(error):
                raise _no_room() from error
            raise
        says = body.submission
        if not body.files and not (says.text and says.text.strip()) and not says.attributes:
            raise invalid("The answer is empty.", FieldError("", "empty", "Send `text`, `attributes` or a file."))
        return body

    def _kept(self, item: Item, profile: Profile, body: ReceivedBody) -> list[ScreenedFile]:
        """The new files, durable and judged as far as a request's time allows."""
        roles = named_files(body)
        try:
            kept = [
                intake.keep(
                    self._services,
                    intake.IncomingFile(f.part, roles.get(f.part), f.file_name, f.declared_type, f.writer),
                    tenant=item.tenant,
                    profile=profile,
                )
                for f in body.files
            ]
        except OSError as error:
            if intake.is_out_of_room(error):
                raise _no_room() from error
            raise
        except BlobStoreUnreachable as error:
            raise ApiProblem(error.code, error.public, retry_after_s=5) from error
        return [pipeline.measure_picture(self._services, item, profile, file) for file in kept]

    def _is_replay(self, connection: Connection, principal: Principal, item_id: str, key: str, mark: str) -> bool:
        """Whether this very request was carried out before; else the key is bound to it. Raises a 422 for another one."""
        at_ms = item_store.now_ms(connection)
        not_before_ms = at_ms - self._services.settings.idempotency_ttl_s * 1000
        scope = f"POST {item_id}/retry"
        found = keys.find(connection, tenant=principal.tenant, scope=scope, key=key, not_before_ms=not_before_ms)
        if found is not None:
            if found.fingerprint != mark:
                raise idempotency.reused(key)
            return True
        keys.store(
            connection,
            tenant=principal.tenant,
            scope=scope,
            key=key,
            found=keys.StoredKey(mark, mark, item_id),
            at_ms=at_ms,
            not_before_ms=not_before_ms,
        )
        return False

    def _profile(self, item: Item) -> Profile:
        profile = self._services.profiles.get(item.profile)
        if profile is None:
            raise ApiProblem("item_state_conflict", f"The profile {item.profile} is no longer installed.")
        return profile

    def _read(self, item_id: str, tenant: str) -> Item:
        with self._services.database.read() as connection:
            return self._item(connection, item_id, tenant)

    def _item(self, connection: Connection, item_id: str, tenant: str) -> Item:
        item = item_store.get(connection, item_id, tenant=tenant)
        if item is None:
            raise not_found("item of this id")
        refuse_purged(item)
        return item

    async def _change(self, change: Callable[[], T]) -> T:
        try:
            return await run_in_threadpool(change)
        except intake.FilesBeingRemoved as error:
            raise ApiProblem(error.code, error.public, retry_after_s=2) from error
        except StateConflict as error:
            raise _conflict(error) from error
        except NotAllowed as error:
            raise problem_of(error) from error
        except ItemMoved as error:
            raise ApiProblem("item_state_conflict", "The item changed at the same moment. Read it again.") from error
        except TooManyFiles as error:
            raise ApiProblem(error.code, error.public) from error

    async def _answer(self, item_id: str, request: Request, *, status: int, is_replay: bool = False) -> Response:
        for kind in ("worker", "api"):
            self._services.signals.send(kind, item_id)
        self._changes.notify(item_id)
        item = await run_in_threadpool(self._read, item_id, principal_of(request.scope["state"]).tenant)
        headers = {**versions.etag(item.version), **({"Idempotent-Replayed": "true"} if is_replay else {})}
        language = language_of(request.headers.get("accept-language"))
        return JSONResponse(item_json(item, language=language), status_code=status, headers=headers)


def conflict_of(item: Item, detail: str) -> ApiProblem:
    """A 409 that says where the item stands and what can be done instead."""
    return ApiProblem(
        "item_state_conflict", detail, extra={"item_status": item.status.value, "allowed": list(allowed_verbs(item))}
    )


def _conflict(error: StateConflict) -> ApiProblem:
    extra = {"item_status": error.status.value, "allowed": list(error.allowed)}
    return ApiProblem(error.code, error.public, extra=extra)


def _model(kind: type[M], body: Mapping[str, Any]) -> M:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        fields = [
            FieldError("/" + "/".join(map(str, item["loc"])), str(item["type"]), str(item["msg"]))
            for item in error.errors(include_url=False, include_context=False, include_input=False)[:20]
        ]
        raise invalid(f"The body is not valid at {fields[0].pointer}: {fields[0].detail}.", *fields) from error


def _unknown(name: str, detail: str) -> FieldError:
    return FieldError(f"/{name[:60]}", "unknown_field", detail)


def _no_room() -> ApiProblem:
    return ApiProblem("storage_full", "There is no room to store the files; nothing was kept.", retry_after_s=30)


def _described(body: type[BaseModel]) -> dict[str, Any]:
    schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    for part in schema.get("properties", {}).values():
        _inline(part, definitions)
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "parameters": _HEADERS,
    }


def _inline(part: dict[str, Any], definitions: Mapping[str, Any]) -> None:
    """Put small models where they are named, so that the description needs no names for them."""
    for option in (part, *part.get("anyOf", ())):
        reference = option.pop("$ref", None)
        if reference is not None:
            option.update(definitions[reference.rsplit("/", 1)[1]])


_HEADERS: list[dict[str, Any]] = [
    {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": text}
    for name, text in (
        ("If-Match", "The ETag of the item that was read; another version is a 412"),
        ("Idempotency-Key", "The same request again gets the item as it is now"),
    )
]
_INFO_OPENAPI: dict[str, Any] = {
    "parameters": _HEADERS[:1],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string", "maxLength": MAX_TEXT_PART_BYTES},
                        "attributes": {"type": "object"},
                    },
                    "additionalProperties": False,
                }
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"item": {"type": "object"}, "p1": {"type": "string", "format": "binary"}},
                },
                "encoding": {"item": {"contentType": "application/json"}},
            },
        },
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    **{status: ITEM_RESPONSES[status] for status in (200, 202, 400, 401, 404, 409, 413, 415, 507)},
    403: problem("A scope is missing"),
    410: problem("The content was purged"),
    412: problem("The item has changed since it was read"),
    422: problem("The Idempotency-Key was reused"),
}
