"""Let a page ask the API's own handlers, so that each rule is checked in one place and in the same words."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

Handler = Callable[..., Awaitable[Response]]


async def ask(
    request: Request,
    handler: Handler,
    *path: str,
    method: str = "GET",
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, str] | None = None,
    version: object = None,
) -> dict[str, Any]:
    """The JSON that the handler answers for the person who asked for the page. Raises what the handler raises."""
    headers = [(b"content-type", b"application/json")]
    if version is not None:
        headers.append((b"if-match", f'"{version}"'.encode()))
    scope = {
        **request.scope,
        "method": method,
        "headers": headers,
        "query_string": urlencode(query or {}).encode(),
    }
    scope.pop("_query_params", None)
    raw = json.dumps(body if body is not None else {}).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": raw, "more_body": False}

    answer = await handler(*path, Request(scope, receive))
    text = bytes(answer.body)
    return json.loads(text) if text else {}
