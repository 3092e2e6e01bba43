"""Routes of the guard over HTTP. Each is parse, one call, render."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api import guard_schemas as schemas
from gateway.api import request_values as values
from gateway.api.gate import principal_of, too_large
from gateway.api.guard_render import opened_json, run_json
from gateway.api.idempotency import parse_key
from gateway.api.problems import ApiProblem, FieldError, invalid
from gateway.api.render import timestamp
from gateway.guarding.problems import RunProblem
from gateway.guarding.requests import (
    BatchRequest,
    CallRequest,
    EndRequest,
    NewRunRequest,
    ReportRequest,
    ResumeRequest,
)
from gateway.guarding.runs import Answer, GuardRuns
from gateway.store.engine import Database
from gateway.switches import SwitchBoard
from guard import PolicyError

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Of one request: a result of 5 MB stays below it even where each of its characters is escaped once."""

_THREADS = 16
"""They wait for the database most of the time, and on SQLite for each other."""

_MOST_DIGITS = 4_000
"""Python prints and reads no longer integers; a model's longer ones are read as floating-point numbers."""


class GuardRunRoutes:
    """Handlers of `/v1/guard/runs`."""

    def __init__(self, database: Database, switches: SwitchBoard) -> None:
        self._runs = GuardRuns(database, switches)
        self._threads = ThreadPoolExecutor(_THREADS, "guard-runs")

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/guard/runs", tags=["guard"])
        add = router.add_api_route
        for path, handler, method, summary, description in (  # those first that are asked for most
            ("/{run_id}/before", self.before, "POST", "Whether a call may run", schemas.BEFORE),
            ("/{run_id}/after", self.after, "POST", "What follows from an outcome", schemas.AFTER),
            ("/{run_id}/before-batch", self.before_batch, "POST", "The calls of one message", schemas.BATCH),
            ("", self.open, "POST", "Open a run, or find it again", schemas.OPEN),
            ("/{run_id}", self.get, "GET", "Where a run stands", schemas.READ),
            ("/{run_id}/end", self.end, "POST", "Close a run's trace", schemas.END),
            ("/{run_id}/resume", self.resume, "POST", "Let a halted run go on", schemas.RESUME),
        ):
            add(
                path,
                handler,
                methods=[method],
                summary=summary,
                openapi_extra=description.request,
                responses=description.responses,
            )
        return router

    async def open(self, request: Request) -> Response:
        """201 for a new run, 200 for the one that this agent opened under the same id."""
        wanted = _model(NewRunRequest, await _body(request))
        row, is_new = await self._call(lambda: self._runs.open(_tenant(request), wanted))
        location = {"Location": f"/v1/guard/runs/{row.id}"}
        return JSONResponse(opened_json(row), status_code=201 if is_new else 200, headers=location)

    async def get(self, run_id: str, request: Request) -> Response:
        """Counters, epoch, ladder, status."""
        values.query(request, ())
        return JSONResponse(run_json(await self._call(lambda: self._runs.read(_tenant(request), run_id))))

    async def before(self, run_id: str, request: Request) -> Response:
        """One decision."""
        wanted = _model(CallRequest, await _body(request))
        (answer,) = await self._call(lambda: self._runs.before(_tenant(request), run_id, [wanted]))
        return _answered(answer)

    async def before_batch(self, run_id: str, request: Request) -> Response:
        """One decision for each call: a list for a list, an object for an object."""
        body = await _body(request)
        is_list = isinstance(body, list)
        wanted = _model(BatchRequest, {"calls": body} if is_list else body)
        named = [wanted.turn, *(call.message for call in wanted.calls)]
        turn = next((name for name in named if name is not None), f"#batch-{wanted.calls[0].call_id}")
        answers = await self._call(lambda: self._runs.before(_tenant(request), run_id, wanted.calls, batch_turn=turn))
        joined = f"[{','.join(answer.text for answer in answers)}]"
        is_replay = all(answer.is_replay for answer in answers)
        return _answered(Answer(joined if is_list else f'{{"decisions":{joined}}}', is_replay))

    async def after(self, run_id: str, request: Request) -> Response:
        """One decision about an outcome."""
        wanted = _model(ReportRequest, await _body(request))
        return _answered(await self._call(lambda: self._runs.after(_tenant(request), run_id, wanted)))

    async def end(self, run_id: str, request: Request) -> Response:
        """The run as it was left."""
        wanted = _model(EndRequest, await _body(request))
        return JSONResponse(run_json(await self._call(lambda: self._runs.end(_tenant(request), run_id, wanted))))

    async def resume(self, run_id: str, request: Request) -> Response:
        """With what the run goes on."""
        wanted = _model(ResumeRequest, await _body(request))
        key = parse_key(request.headers.get("idempotency-key"))
        return _answered(await self._call(lambda: self._runs.resume(_tenant(request), run_id, wanted, key=key)))

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            # A pool of its own: the way there and back costs half of the framework's, which carries a context along.
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RunProblem as problem:
            raise _api_problem(problem) from problem
        except PolicyError as error:
            detail = _shown(error.public)
            raise invalid(f"The policy is not valid. {detail}", FieldError("/policy", "policy", detail)) from error


def _tenant(request: Request) -> str:
    return principal_of(request.scope["state"]).tenant


def _answered(answer: Answer) -> Response:
    headers = {"Idempotent-Replayed": "true"} if answer.is_replay else None
    return Response(answer.text, media_type="application/json", headers=headers)


def _api_problem(problem: RunProblem) -> ApiProblem:
    extra: dict[str, Any] = dict(problem.extra)
    pointer = extra.pop("pointer", None)
    if "expires_ms" in extra:
        extra["expires_at"] = timestamp(extra.pop("expires_ms"))
    errors = () if pointer is None else (FieldError(str(pointer), "value", problem.public),)
    return ApiProblem(problem.code, problem.public, errors=errors, extra=extra, retry_after_s=problem.retry_after_s)


def _model(kind: type[M], body: Any) -> M:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        fields = [
            FieldError(
                "".join(f"/{_shown(str(part))}" for part in item["loc"]),
                str(item["type"]),
                _shown(str(item["msg"]).removeprefix("Value error, ")),
            )
            for item in error.errors(include_url=False, include_context=False, include_input=False)[:20]
        ]
        first = fields[0]
        raise invalid(f"The request is not valid at {first.pointer or '/'}: {first.detail}", *fields) from error


async def _body(request: Request) -> Any:
    """The request's JSON. What a model wrote into it may be odd (NaN, huge numbers, half surrogates), and is taken."""
    values.query(request, ())
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY_BYTES:
            raise too_large(MAX_BODY_BYTES)
    if not raw:
        return {}
    if len(raw) < 64 * 1024:
        return _parsed(bytes(raw))
    return await run_in_threadpool(_parsed, bytes(raw))


def _parsed(raw: bytes) -> Any:
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_int=_integer)
    except UnicodeDecodeError as error:
        raise _unreadable(f"Byte {error.start} is not UTF-8.") from error
    except RecursionError:
        raise _unreadable("It is nested too deeply; send arguments like these as text, in `args_raw`.") from None
    except ValueError as error:
        raise _unreadable(f"It is not JSON: {error}.") from error
    if not isinstance(value, dict | list):
        raise _unreadable("Send a JSON object.")
    return value


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _unreadable(detail: str) -> ApiProblem:
    return invalid(f"The body cannot be read. {detail}", FieldError("", "json", detail))


def _shown(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:300]
