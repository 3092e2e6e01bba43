"""Query parameters and small JSON bodies, read strictly: a typo is an error, never a wider answer."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from gateway.api.problems import FieldError, invalid
from gateway.strict_json import JsonRefused, loads, text_problem

_MAX_BODY_BYTES = 1024 * 1024


def query(request: Request, allowed: Collection[str]) -> dict[str, str]:
    """The query parameters; one that is unknown, or comes twice, is a 400."""
    values: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        shown = name.encode("utf-8", "replace").decode()[:60]
        if name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise invalid(
                f"The query parameter `{shown}` is not known here; there are: {known}.",
                FieldError(shown, "unknown_parameter", "Remove it or correct its name."),
            )
        if name in values:
            raise invalid(
                f"The query parameter `{shown}` comes twice.", FieldError(shown, "duplicate", "Send it once.")
            )
        problem = text_problem(value)
        if problem:
            raise invalid(f"The query parameter `{shown}` is not valid. {problem}", FieldError(shown, "text", problem))
        values[name] = value
    return values


def integer(values: dict[str, str], name: str, *, default: int, least: int, most: int) -> int:
    """A whole number within bounds."""
    text = values.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not least <= int(text) <= most:
        detail = f"Must be a whole number from {least:,} to {most:,}."
        raise invalid(f"`{name}` is not valid. {detail}", FieldError(name, "range", detail))
    return int(text)


def choice(values: dict[str, str], name: str, allowed: Collection[str], default: str) -> str:
    """One of a closed set."""
    value = values.get(name, default)
    if value not in allowed:
        detail = f"Must be one of {', '.join(sorted(allowed))}."
        raise invalid(f"`{name}` is not valid. {detail}", FieldError(name, "choice", detail))
    return value


def moment(values: dict[str, str], name: str) -> int | None:
    """An RFC 3339 time as Unix milliseconds."""
    text = values.get(name)
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        detail = "Must be an RFC 3339 time such as 2026-11-30T12:00:00Z."
        raise invalid(f"`{name}` is not valid. {detail}", FieldError(name, "time", detail)) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(at.timestamp() * 1000)


async def json_object(request: Request) -> dict[str, Any]:
    """The request's JSON object; an empty body is an empty object."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MAX_BODY_BYTES:
            raise invalid(f"The body may have {_MAX_BODY_BYTES:,} bytes at most.")
    if not raw:
        return {}
    try:
        value = loads(bytes(raw))
    except JsonRefused as error:
        raise invalid(f"The body cannot be read. {error}", FieldError(error.pointer, "json", str(error))) from error
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.", FieldError("", "type", "Send a JSON object."))
    return value


def optional_text(document: dict[str, Any], name: str, *, most: int) -> str | None:
    """A text field of a small body."""
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > most:
        detail = f"Must be a text of at most {most:,} characters."
        raise invalid(f"`{name}` is not valid. {detail}", FieldError(f"/{name}", "type", detail))
    return value
