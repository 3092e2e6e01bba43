"""Versions over HTTP: the ETag of an answer, and what `If-Match` and `If-None-Match` say of the version that was read."""

from __future__ import annotations

from starlette.requests import Request

from gateway.api.problems import ApiProblem

_ANY = "*"
_NO_VERSION = -1
"""What an ETag that is none of ours asks for: a version that nothing has."""


def etag(version: int | str) -> dict[str, str]:
    """The header that a change of this version has to match."""
    return {"ETag": f'"{version}"'}


def version_in(header: str | None) -> int | None:
    """The version in an `If-Match` or `If-None-Match`; None without one, and for an ETag that is none of ours."""
    tag = _tag(header or "")
    return int(tag) if tag.isascii() and tag.isdigit() and len(tag) < 10 else None


def version_matched(request: Request) -> int | None:
    """The version in the request's `If-Match`; None without one, and for anything that is no ETag of ours."""
    return version_in(request.headers.get("if-match"))


def expected_version(request: Request) -> int | None:
    """The version on which a change depends, where the last writer wins without `If-Match` or with `*`: None then."""
    header = request.headers.get("if-match")
    if header is None or header.strip() == _ANY:
        return None
    found = version_in(header)
    return _NO_VERSION if found is None else found


def required_version(request: Request, of: str) -> int:
    """The version on which a change depends. Raises a 428 without `If-Match`; `*` and what is none of ours match nothing."""
    found = version_in(_required(request, of))
    return _NO_VERSION if found is None else found


def require_match(request: Request, version: int, of: str) -> None:
    """Raise a 428 without `If-Match`, and a 412 where it names another version than this; `*` is any."""
    _required(request, of)
    refuse_mismatch(request, version, of)


def refuse_mismatch(request: Request, version: int, of: str) -> None:
    """Raise a 412 where there is an `If-Match` that names another version than this; `*` is any."""
    header = request.headers.get("if-match")
    if header is not None and header.strip() != _ANY and _tag(header) != str(version):
        raise ApiProblem(
            "conflict_version",
            f"The {of} has version {version} now. Read it again before you change it.",
            extra={"version": version},
        )


def _required(request: Request, of: str) -> str:
    header = request.headers.get("if-match")
    if header is None:
        raise ApiProblem("precondition_required", f"Send `If-Match` with the ETag of the {of} as you read it.")
    return header


def _tag(header: str) -> str:
    return header.strip().removeprefix("W/").strip('"')
