"""What the browser of a person brings and gets: the session's cookie, the CSRF token, the headers of every console page."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, ImmutableMultiDict
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse
from starlette.types import Message, Receive, Scope

from gateway.api.body import media_type_of
from gateway.api.problems import ApiProblem
from gateway.settings import is_loopback_host

COOKIE = "sluicegate_session"
CONSOLE = "/console"
LOGIN = "/console/login"
CSRF_FIELD, CSRF_HEADER = "csrf", "X-CSRF-Token"
_STATIC = "/console/static/"
_FORM = "application/x-www-form-urlencoded"
_FORM_BYTES = 2 * 1024 * 1024
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

CONSOLE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""On every answer under `/console`, whatever its page wanted."""


_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:/@\[\]]+))(?::[0-9]*)?")


def is_loopback_authority(authority: str) -> bool:
    """Whether `host[:port]` names this machine alone."""
    match = _AUTHORITY.fullmatch(authority)
    return match is not None and is_loopback_host(match[1] or match[2])


def is_console(path: str) -> bool:
    """Whether a path belongs to the console."""
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")


def is_public(path: str) -> bool:
    """Whether the console shows this to people who are not logged in."""
    return path == LOGIN or path.startswith(_STATIC)


def is_change(method: str) -> bool:
    """Whether a request may change something."""
    return method not in _SAFE_METHODS


def session_token(headers: Headers) -> str | None:
    """The session's cookie. A browser may send several `Cookie` headers."""
    for header in headers.getlist("cookie"):
        token = cookie_parser(header).get(COOKIE)
        if token and len(token) <= 100:
            return token
    return None


def session_cookie(token: str, scope: Scope, *, lasts_s: int) -> str:
    """The `Set-Cookie` of a session; `Secure` unless this is plain HTTP on the own machine. An empty token deletes it."""
    is_local = scope["scheme"] == "http" and is_loopback_authority(Headers(scope=scope).get("host", ""))
    secure = "" if is_local else "; Secure"
    return f"{COOKIE}={token}; Path=/; Max-Age={lasts_s if token else 0}; HttpOnly; SameSite=Lax{secure}"


def is_page(scope: Scope) -> bool:
    """Whether a person is shown the answer as a page, rather than a script that asked for it."""
    headers = Headers(scope=scope)
    mode = headers.get("sec-fetch-mode", "navigate")
    return scope["method"] in {"GET", "HEAD"} and mode == "navigate" and "hx-request" not in headers


def to_login(scope: Scope, *, reason: str | None = None) -> RedirectResponse:
    """Off to the login page, and back here afterwards."""
    query = {"next": wanted_path(scope)}
    if reason is not None:
        query["error"] = reason
    return RedirectResponse(f"{LOGIN}?{urlencode(query)}", status_code=303)


def wanted_path(scope: Scope) -> str:
    """Where a request wanted to go, to be gone to after the login."""
    raw = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    query = scope.get("query_string", b"")
    return safe_next((raw + (b"?" + query if query else b"")).decode("latin-1"))


def safe_next(text: str | None) -> str:
    """A place in the console, whatever a link says: never another site."""
    if text is None or not text.isascii() or not text.isprintable() or "\\" in text or len(text) > 1000:
        return f"{CONSOLE}/"
    parts = urlsplit(text)
    if parts.scheme or parts.netloc or not is_console(parts.path) or is_public(parts.path) or ".." in parts.path:
        return f"{CONSOLE}/"
    return text


def check_query(scope: Scope) -> None:
    """Raise a 400 for a console address with a NUL character, which PostgreSQL takes in no text."""
    query = scope["query_string"]
    if b"%00" in query or b"\x00" in query:
        raise ApiProblem("invalid_request", "The address holds a NUL character. Remove it.")


def check_origin(headers: Headers) -> None:
    """Raise a 403 for a change that another site's page made the browser send."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        is_own = site in {"same-origin", "none"}
    else:
        origin = headers.get("origin")
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
    if not is_own:
        raise ApiProblem("forbidden", "Pages of other sites may not do this.", extra={"reason": "origin"})


def check_csrf(sent: str | None, expected: str) -> None:
    """Raise a 403 unless the page that sent the request had the session's token."""
    if sent is None or not hmac.compare_digest(sent.encode("utf-8", "replace"), expected.encode()):
        raise ApiProblem(
            "forbidden",
            f"The CSRF token is missing or belongs to another session: send it as `{CSRF_HEADER}`, or reload the page.",
            extra={"reason": "csrf"},
        )


@dataclass(slots=True)
class FormBody:
    """A console form, read before the page's handler runs, and given to the handler again."""

    fields: ImmutableMultiDict[str, str]
    _raw: bytes | None
    _receive: Receive

    async def __call__(self) -> Message:
        if self._raw is None:
            return await self._receive()
        message: Message = {"type": "http.request", "body": self._raw, "more_body": False}
        self._raw = None
        return message


async def read_form(scope: Scope, receive: Receive) -> FormBody | None:
    """The form in a request's body; None where the body is no form. Raises a 413 for one that is too large."""
    if media_type_of(Headers(scope=scope).get("content-type"))[0] != _FORM:
        return None
    raw = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        raw += message.get("body", b"")
        more = message.get("more_body", False)
        if len(raw) > _FORM_BYTES:
            raise ApiProblem(
                "payload_too_large", f"A form has {_FORM_BYTES:,} bytes at most.", extra={"limit_bytes": _FORM_BYTES}
            )
    try:
        pairs = parse_qsl(raw.decode("utf-8"), keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise ApiProblem("invalid_request", "The form cannot be read.") from error
    if any("\x00" in text for pair in pairs for text in pair):
        raise ApiProblem("invalid_request", "The form holds a NUL character. Remove it.")
    return FormBody(ImmutableMultiDict(pairs), bytes(raw), receive)
