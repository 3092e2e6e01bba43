"""What the OpenAPI description says about who may call: the ways to authenticate, and which of them each operation takes."""

from __future__ import annotations

from typing import Any

from gateway.api import sessions

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that need no key, wherever the service listens."""
SECURITY_SCHEMES: dict[str, dict[str, Any]] = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `sgk_…`; its scopes say which operations it may call.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": sessions.COOKIE,
        "description": "A person's login at `POST /console/login`; the role says what it may call.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": sessions.CSRF_HEADER,
        "description": "Goes with the session's cookie on every request that changes something; the login's answer has it.",
    },
    "stream_token": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "Opens one event stream within 60 seconds; made by `POST /v1/stream-tokens`.",
    },
}
_KEYLESS = "This service listens on loopback only and runs keyless: without credentials, whoever is at this machine is an admin."
_KEYED = (
    "This service asks every caller for credentials. One that listens on loopback only may run keyless: there, whoever is at "
    "the machine is an admin without any (`keyless` in `GET /v1/meta`)."
)


def about_access(*, keyless: bool) -> str:
    """A paragraph for the description of the whole service."""
    return _KEYLESS if keyless else _KEYED


def security_of(method: str, path: str, *, keyless: bool) -> list[dict[str, list[str]]]:
    """The ways to authenticate for one operation, any of which will do; an empty one where nothing need be sent."""
    if path in OPEN_PATHS:
        return []
    in_a_browser = {"session", "csrf"} if sessions.is_change(method) else {"session"}
    ways = [{"key"}, in_a_browser]
    if method == "GET" and path.endswith("/events"):
        ways.append({"stream_token"})
    if keyless:
        ways.append(set())
    return [{scheme: [] for scheme in sorted(way)} for way in ways]
