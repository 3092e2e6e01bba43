"""What the OpenAPI description adds to every operation: who may call it, and answers and refusals that its route does not name.

A route describes what it does; what any route may refuse, and what each part of the API may refuse beside that, stands
here once, so that no answer of the service is missing from the description.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.api.answer_schemas import ANSWERS
from gateway.api.problems import MEDIA_TYPE
from gateway.api.schemas import problem
from gateway.api.security_schemes import OPEN_PATHS, SECURITY_SCHEMES, security_of

_WORDS = {
    400: "The request is not valid; `errors` names each field",
    401: "A valid API key, or a login, is needed",
    403: "The caller may not do this",
    404: "There is none of this id",
    408: "The request came too slowly",
    409: "It conflicts with how things stand now",
    410: "Its content was purged; `tombstone` is what remains",
    411: "The body's length must be declared",
    412: "It has changed since it was read",
    413: "Too many bytes",
    415: "A content type that is not taken",
    422: "It cannot be done as it was asked for",
    428: "`If-Match`, or the token of a lease, is missing",
    429: "Too many requests, or a quota is used up; `Retry-After` says when",
    500: "Something is wrong with the service",
    503: "Not now; `Retry-After` says when",
    507: "No room left; nothing was stored",
}
_ANYWHERE = (400, 401, 403, 429, 500, 503)
_WITH_BODY = (408, 411, 413, 415)
_BESIDE: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("POST", "/v1/items"): (409, 422, 507),
    ("DELETE", "/v1/items/{item_id}"): (409, 410, 412),
    ("POST", "/v1/items/{item_id}/cancel"): (409, 410, 412),
    ("GET", "/v1/items/{item_id}/explanation"): (409, 410),
    ("GET", "/v1/items/{item_id}/llm-payload"): (409, 410, 422),
    ("GET", "/v1/items/{item_id}/trace"): (410,),
    ("GET", "/v1/items/{item_id}/trace/blocks/{number}"): (410,),
    ("GET", "/v1/items/{item_id}/artifacts"): (410,),
    ("GET", "/v1/items/{item_id}/artifacts/{artifact_id}"): (410,),
    ("GET", "/v1/events"): (410,),
    ("GET", "/v1/items/{item_id}/events"): (410,),
    ("POST", "/v1/guard/runs"): (409, 422),
    ("POST", "/v1/guard/runs/{run_id}/end"): (409,),
    ("POST", "/v1/keys"): (409,),
    ("POST", "/v1/keys/{key_id}/rotate"): (409,),
    ("POST", "/v1/users"): (409,),
    ("PATCH", "/v1/users/{user_id}"): (409,),
    ("PUT", "/v1/budget"): (412,),
    ("PUT", "/v1/tenants/{tenant}/budget"): (412,),
    ("POST", "/v1/webhook-endpoints"): (409,),
}


def complete(document: dict[str, Any], *, keyless: bool) -> None:
    """Add to each operation who may call it, what it answers and what it may refuse, in place."""
    document.setdefault("components", {})["securitySchemes"] = SECURITY_SCHEMES
    for path, method, operation in _operations(document):
        operation["security"] = security_of(method, path, keyless=keyless)
        _add_answers(operation["responses"], ANSWERS.get((method, path), {}))
        _add_refusals(path, method, operation)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _add_answers(responses: dict[str, Any], answers: Mapping[int, Mapping[str, Any]]) -> None:
    responses.update({str(status): answer for status, answer in answers.items()})
    if "201" in responses and _says_nothing(responses.get("200")):
        responses.pop("200", None)  # the framework's own, where the route names another success


def _says_nothing(response: Any) -> bool:
    return response is not None and response.get("content") == {"application/json": {"schema": {}}}


def _add_refusals(path: str, method: str, operation: dict[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    if not _is_ours(responses.get("422")):
        responses.pop("422", None)  # the framework's own, which this service never sends
    if path in OPEN_PATHS:
        return
    for status in _refusals(path, method):
        responses.setdefault(str(status), problem(_WORDS[status]))
    operation["responses"] = dict(sorted(responses.items()))


def _refusals(path: str, method: str) -> Iterator[int]:
    yield from _ANYWHERE
    if "{" in path:
        yield 404
    if method != "GET":
        yield from _WITH_BODY
    yield from _BESIDE.get((method, path), ())


def _is_ours(response: Any) -> bool:
    return response is not None and MEDIA_TYPE in response.get("content", {})
