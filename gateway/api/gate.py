"""What is decided before a body is read: who calls, what they may do, what they announce. Pure ASGI, outside of FastAPI.

A FastAPI dependency would come too late: on a route with an upload it runs only after the whole body was received.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import __version__, metrics
from gateway.admission import Admission, Admitted, Overload
from gateway.api import sessions
from gateway.api.auth import Authenticator, Principal, Session
from gateway.api.body import ACCEPTED_TYPES, is_accepted, media_type_of
from gateway.api.idempotency import parse_key
from gateway.api.outages import outage_of
from gateway.api.problems import KINDS, MEDIA_TYPE, ApiProblem, not_found, problem_body
from gateway.api.request_log import log_request
from gateway.ids import new_id
from gateway.store.switches import SwitchRow
from gateway.switches import SwitchBoard

log = structlog.get_logger()

_DRAIN_BYTES = 256 * 1024 * 1024
_DRAIN_S = 5.0


class Gate:
    """The outermost layer of the service."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        admission: Admission,
        switches: SwitchBoard,
        max_bytes: int,
        pace: Pace,
        keyless: bool,
        on_shutdown: Callable[[], None],
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._admission = admission
        self._switches = switches
        self._max_bytes = max_bytes
        self._pace = pace
        self._keyless = keyless
        self._looking: asyncio.Task[None] | None = None
        self.begin_shutdown = on_shutdown
        """Call when the process is asked to end: readiness turns red, and who waits gets an answer at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = IncomingBody(receive, Headers(scope=scope), self._max_bytes, self._pace)
        request_id = new_id("req")
        scope.setdefault("state", {}).update(request_id=request_id, body=body)
        answer = _Answer(send, request_id, sessions.CONSOLE_HEADERS if sessions.is_console(scope["path"]) else {})
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            started = time.monotonic()
            await self._serve(scope, body, answer)
            log_request(scope, answer.status, time.monotonic() - started)

    async def _serve(self, scope: Scope, body: IncomingBody, answer: _Answer) -> None:
        try:
            instead, incoming = await self._check(scope, body)
            await (instead or self._app)(scope, incoming, answer.send)
        except ApiProblem as problem:
            await refusal(problem, scope)(scope, body, answer.send)
        except ClientDisconnect:
            log.info("request.client_left", path=scope["path"])
        except asyncio.CancelledError:  # only the server does this: it ends, and has waited for long enough
            log.warning("request.cut_off", path=scope["path"])
            if answer.started:
                raise
            body.abandon()
            await refusal(_ending(), scope)(scope, body, answer.send)
        except Exception as error:
            log.exception("request.failed", path=scope["path"])
            if not answer.started:
                await refusal(outage_of(error) or internal_problem(), scope)(scope, body, answer.send)
        finally:
            admitted = scope["state"].get("admitted")
            if admitted is not None:
                self._admission.settle(admitted)

    async def _check(self, scope: Scope, body: IncomingBody) -> tuple[ASGIApp | None, Receive]:
        """Raise for what must not pass; gives what is to be answered instead, and the body from which to go on reading."""
        path: str = scope["path"]
        if "\x00" in path:  # which PostgreSQL takes in no text at all
            raise not_found("path with a NUL character")
        if sessions.is_console(path):
            return await self._check_console(scope, body)
        if path.startswith("/v1/") or path == "/metrics":
            await self._check_api(scope)
        return None, body

    async def _check_api(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        principal = await self._principal(scope, headers)
        scope["state"]["principal"] = principal
        principal.require(_needed_scope(method, path))
        if path.startswith(_OF_THE_OPERATOR):
            principal.require_operator()
        if method in {"POST", "PUT", "PATCH"}:
            self._check_length(headers)
        if method == "POST" and path.rstrip("/") == "/v1/items":
            _check_submission_headers(headers)
            scope["state"]["admitted"] = await self._admit(principal, headers, is_new=True)
        elif method == "POST" and _brings_files(path, headers):
            scope["state"]["admitted"] = await self._admit(principal, headers, is_new=False)

    async def _check_console(self, scope: Scope, body: IncomingBody) -> tuple[ASGIApp | None, Receive]:
        """Who is not logged in sees the login page alone; a change needs the session's CSRF token, whichever page it is of."""
        headers = Headers(scope=scope)
        sessions.check_query(scope)
        is_public = sessions.is_public(scope["path"])
        is_change = sessions.is_change(scope["method"])
        if is_change:
            sessions.check_origin(headers)
            self._check_length(headers)
        try:
            session = await self._session(headers, is_asked_for=not is_public)
        except ApiProblem as problem:
            if is_public:
                session = None
            elif sessions.is_page(scope):
                return sessions.to_login(scope, reason=problem.extra.get("reason")), body
            else:
                raise
        if session is not None:
            scope["state"].update(principal=session.principal, person=session.person)
        if not is_change:
            return None, body
        form = await sessions.read_form(scope, body)
        if session is not None and not is_public:
            in_form = None if form is None else form.fields.get(sessions.CSRF_FIELD)
            sessions.check_csrf(headers.get(sessions.CSRF_HEADER) or in_form, session.person.csrf)
        if form is None:
            return None, body
        scope["state"]["form"] = form.fields
        return None, form

    async def _session(self, headers: Headers, *, is_asked_for: bool) -> Session | None:
        """Who looks at the console. Where a session is asked for, raises a 401 if nobody is logged in."""
        token = sessions.session_token(headers)
        found = None if token is None else await run_in_threadpool(self._authenticator.session, token)
        if found is not None or not is_asked_for:
            return found
        if self._keyless:
            _check_is_local(headers)
        return await run_in_threadpool(self._authenticator.keyless)

    async def _admit(self, principal: Principal, headers: Headers, *, is_new: bool) -> Admitted:
        """Refuse an upload while new work is paused, too much waits or the disk runs low, before its body is read.

        Files for an item that was accepted before (not `is_new`) are refused for the disk alone.
        One that is let in must be settled when its request ends.
        """
        if is_new and not self._switches.is_fresh:
            await run_in_threadpool(self._switches.look)
        if is_new and self._switches.latest.new_work.is_paused:
            raise _paused(self._switches.latest.new_work)
        if not self._admission.is_usable:
            await run_in_threadpool(self._admission.look)
        elif not self._admission.is_fresh and self._looking is None:  # for those who come after
            self._looking = asyncio.create_task(run_in_threadpool(self._admission.look))
            self._looking.add_done_callback(self._looked)
        declared = headers.get("content-length", "")
        announced = int(declared) if declared.isdigit() else self._max_bytes  # without a length it may be any
        answer = self._admission.admit(principal.tenant, announced_bytes=announced, is_new=is_new)
        if isinstance(answer, Admitted):
            return answer
        metrics.refused_uploads.labels(answer.reason.value).inc()
        code, detail = _OVERLOAD[answer.reason]
        raise ApiProblem(code, detail, retry_after_s=answer.retry_after_s)

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._looking = None
        if not look.cancelled() and look.exception() is not None:  # who must look gets its error as an answer
            log.warning("admission.look_failed", error=type(look.exception()).__name__)

    async def _principal(self, scope: Scope, headers: Headers) -> Principal:
        header = headers.get("authorization")
        if header is None and _is_event_stream(scope):
            token = _stream_token(scope)
            if token is not None:
                return await run_in_threadpool(self._authenticator.ticket, token)
        if header is None:
            person = await self._person(scope, headers)
            if person is not None:
                return person
        if header is None and self._keyless:
            _check_is_local(headers)
        principal = self._authenticator.known(header)
        if principal is None:
            assert header is not None
            principal = await run_in_threadpool(self._authenticator.look_up, header)
        return principal

    async def _person(self, scope: Scope, headers: Headers) -> Principal | None:
        """The person whose browser asks, by the session's cookie; a change needs the CSRF token too."""
        token = sessions.session_token(headers)
        session = None if token is None else await run_in_threadpool(self._authenticator.session, token)
        if session is None:
            return None
        if sessions.is_change(scope["method"]):
            sessions.check_origin(headers)
            sessions.check_csrf(headers.get(sessions.CSRF_HEADER), session.person.csrf)
        scope["state"]["person"] = session.person
        return session.principal

    def _check_length(self, headers: Headers) -> None:
        declared = headers.get("content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._max_bytes:
            raise too_large(self._max_bytes)


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly a body may come: a connection that trickles must not hold its place for ever."""

    idle_s: float
    """Seconds without a byte."""
    least_rate: int
    """Bytes per second on average, once `grace_s` have passed."""
    grace_s: float


_OVERLOAD = {
    Overload.TENANT_FULL: (
        "quota_exceeded",
        "Too many of your items wait to be worked on. Nothing was stored; send this one again later.",
    ),
    Overload.QUEUE_FULL: ("queue_full", "Too much waits to be worked on. Nothing was stored; send it again later."),
    Overload.WAIT_TOO_LONG: (
        "queue_full",
        "What waits to be worked on has waited too long already. Nothing was stored; send it again later.",
    ),
    Overload.DISK_LOW: ("storage_full", "There is too little room left to store uploads. Nothing was stored."),
}


_PAUSED_RETRY_S = 30


def _paused(row: SwitchRow) -> ApiProblem:
    metrics.refused_uploads.labels("paused").inc()
    reason = "" if not row.reason else f": {row.reason}"
    return ApiProblem(
        "paused",
        f"New work is paused{reason}. Nothing was stored; send it again later.",
        extra={"reason": row.reason},
        retry_after_s=_PAUSED_RETRY_S,
    )


def too_large(limit: int) -> ApiProblem:
    """A 413 that names the limit."""
    return ApiProblem(
        "payload_too_large",
        f"The request has more than {limit:,} bytes. Send fewer or smaller files.",
        extra={"limit_bytes": limit},
    )


def _brings_files(path: str, headers: Headers) -> bool:
    """Whether this is a submitter's answer with files."""
    media_type, _ = media_type_of(headers.get("content-type"))
    return path.startswith("/v1/items/") and path.endswith("/info") and media_type == "multipart/form-data"


def _check_submission_headers(headers: Headers) -> None:
    media_type, _ = media_type_of(headers.get("content-type"))
    if not is_accepted(media_type):
        raise ApiProblem(
            "unsupported_media_type",
            f"The content type {media_type[:80] or '(none)'} is not taken here. Send multipart/form-data with one part per "
            "file, or the bytes of one file with its own content type.",
            extra={"accepted": list(ACCEPTED_TYPES)},
            headers={"Accept-Post": ", ".join(ACCEPTED_TYPES)},
        )
    parse_key(headers.get("idempotency-key"))


_OF_THE_OPERATOR = ("/v1/budget", "/v1/tenants/", "/v1/switches")
"""What concerns all tenants: the admins of one alone decide nothing there."""
_OF_ADMINS = (
    "/v1/budget",
    "/v1/tenants/",
    "/v1/switches",
    "/v1/keys",
    "/v1/users",
    "/v1/webhook-",
    "/v1/callback-origins",
)


def _needed_scope(method: str, path: str) -> str:
    if path == "/metrics" or path.startswith(_OF_ADMINS):
        return "admin"
    if path == "/v1/stream-tokens":
        return "items:read"
    if path.startswith(("/v1/escalation", "/v1/decisions")):
        return "review"
    if path.startswith("/v1/guard/"):
        return "guard"
    return "items:read" if method in {"GET", "HEAD", "OPTIONS"} else "items:write"


def _is_event_stream(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] == "GET" and path.startswith("/v1/") and path.endswith("/events")


def _stream_token(scope: Scope) -> str | None:
    """The token in the query: the one credential that may stand there, since it is good for one request and a minute."""
    values = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    return values.get("token")


def _check_is_local(headers: Headers) -> None:
    """Without a key only this machine's own programs may call: not a web page that a browser here happens to show.

    A page can make a browser post to 127.0.0.1, or give its own host name that address (DNS rebinding).
    """
    host = headers.get("host", "")
    origin = headers.get("origin")
    if not sessions.is_loopback_authority(host):
        raise ApiProblem(
            "forbidden",
            f"Without an API key the service is reached as 127.0.0.1 or localhost only, not as {host[:80] or 'an empty host'}. "
            "Send a key made by `sluicegate keys create`.",
        )
    if origin is not None and not sessions.is_loopback_authority(origin.partition("://")[2]):
        raise ApiProblem("forbidden", "Web pages of other sites may not call a service without an API key.")


class IncomingBody:
    """A request's `receive`: ends the request with a 413 once more than `limit` bytes have come, declared or not."""

    def __init__(self, receive: Receive, headers: Headers, limit: int, pace: Pace) -> None:
        self._receive = receive
        self._limit = limit
        self._pace = pace
        self._started: float | None = None
        self._received = 0
        self._is_refused = False
        waits = "100-continue" in headers.get("expect", "").lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self._is_complete = not has_body
        self._is_expected = has_body and not waits

    async def __call__(self) -> Message:
        message = await (self._receive() if self._is_complete else self._receive_in_time())
        if message["type"] != "http.request":
            self._is_complete = True
            return message
        self._is_expected = True
        self._is_complete = self._is_complete or not message.get("more_body", False)
        self._received += len(message.get("body", b""))
        if self._received > self._limit and not self._is_refused:
            self._is_refused = True
            raise too_large(self._limit)
        return message

    async def _receive_in_time(self) -> Message:
        now = time.monotonic()
        if self._started is None:
            self._started = now
        taken_s = now - self._started
        is_trickling = taken_s > self._pace.grace_s and self._received < self._pace.least_rate * taken_s
        if not is_trickling:
            try:
                async with asyncio.timeout(self._pace.idle_s):
                    return await self._receive()
            except TimeoutError:
                pass
        self.abandon()
        raise ApiProblem(
            "request_timeout",
            "The body came too slowly, so it was not waited for any longer. Nothing was stored; send it again.",
            headers={"Connection": "close"},
        )

    @property
    def is_unread(self) -> bool:
        """Whether the client is still sending: not when all has come, nor when it waits for `100 Continue`."""
        return self._is_expected and not self._is_complete

    def abandon(self) -> None:
        """Wait for nothing more: the connection is closed."""
        self._is_expected = False

    async def drain(self) -> None:
        """Take and forget what is still coming, within bounds."""
        most = self._received + _DRAIN_BYTES

        async def take() -> None:
            while not self._is_complete and self._received < most:
                await self()

        try:
            await asyncio.wait_for(take(), _DRAIN_S)
        except (TimeoutError, ClientDisconnect, ApiProblem):
            return


class Refusal(JSONResponse):
    """A problem that may be sent while its request's body is still arriving.

    The whole answer goes out at once; then what the client is still sending is taken and forgotten. Closing a connection
    with unread bytes resets it, and the reset can overtake the answer.
    """

    media_type = MEDIA_TYPE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = scope["state"]["body"]
        if not body.is_unread:
            await super().__call__(scope, receive, send)
            return
        headers = [*self.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await body.drain()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def refusal(problem: ApiProblem, scope: Scope) -> Refusal:
    """The HTTP answer to a problem."""
    headers = dict(problem.headers)
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    document = problem_body(
        problem.code,
        problem.detail,
        instance=printable_path(scope["path"]),
        request_id=scope["state"]["request_id"],
        errors=problem.errors,
        retry_after_s=problem.retry_after_s,
        extra=problem.extra,
    )
    return Refusal(document, status_code=KINDS[problem.code].status, headers=headers)


def printable_path(path: str) -> str:
    """A request's path as it may stand in an answer, whatever bytes it was made of."""
    return path.encode("utf-8", "replace").decode()[:500]


def _ending() -> ApiProblem:
    return ApiProblem(
        "dependency_unavailable",
        "This process of the service ends, and the request was not over in time. Repeat it with the same Idempotency-Key.",
        headers={"Connection": "close"},
        retry_after_s=1,
    )


def internal_problem() -> ApiProblem:
    """What a caller learns of a fault on our side."""
    return ApiProblem(
        "internal", "Something went wrong on our side; the request may be repeated with the same Idempotency-Key."
    )


class _Answer:
    """One request's `send`: adds the headers that all answers have, and knows whether the answer has begun."""

    def __init__(self, send: Send, request_id: str, always: Mapping[str, str]) -> None:
        self._send = send
        self._request_id = request_id
        self._always = always
        self.status: int | None = None

    @property
    def started(self) -> bool:
        """Whether the answer has begun."""
        return self.status is not None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message["headers"])
            headers["Request-Id"] = self._request_id
            headers["Sluicegate-Version"] = __version__
            for name, value in self._always.items():
                headers[name] = value
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


def principal_of(scope_state: Mapping[str, Any]) -> Principal:
    """The caller that the gate found for this request."""
    principal = scope_state["principal"]
    assert isinstance(principal, Principal)
    return principal
