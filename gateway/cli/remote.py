"""A running service as the command line sees it: requests over HTTP, and what can go wrong as one line and an exit status."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8080"
KEY_VARIABLE = "SLUICEGATE_API_KEY"
_SENT_AGAIN = 2


class ExitStatus(IntEnum):
    """What a command that speaks to a service ends with."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    SOME_FAILED = 3
    """Finished, but not for all that were named."""
    REFUSED = 4
    """The service does not know the caller, or does not let them."""
    UNREACHABLE = 5
    CONFLICT = 6
    """Somebody else was quicker: lease lost, decided already, changed since it was read."""
    OUT_OF_BUDGET = 7
    INTERRUPTED = 130


class RemoteError(Exception):
    """A request that brought no answer of use."""

    def __init__(self, public: str, status: ExitStatus) -> None:
        super().__init__(public)
        self.public = public
        self.status = status


class Unreachable(RemoteError):
    """Nobody answered, or not in time."""

    def __init__(self, public: str) -> None:
        super().__init__(public, ExitStatus.UNREACHABLE)


class Refused(RemoteError):
    """A problem document, or an answer of something that is no Sluicegate."""

    def __init__(self, http_status: int, problem: Mapping[str, Any]) -> None:
        self.http_status = http_status
        self.code = str(problem.get("code", ""))
        self.problem = problem
        detail = str(problem.get("detail") or f"the service answered {http_status}")
        super().__init__(f"{detail} ({self.code or http_status})", status_of(http_status, self.code))


def status_of(http_status: int, code: str) -> ExitStatus:
    """The exit status for a refusal."""
    if code in {"budget_exhausted", "quota_exceeded"}:
        return ExitStatus.OUT_OF_BUDGET
    match http_status:
        case 401 | 403:
            return ExitStatus.REFUSED
        case 409 | 412 | 428:
            return ExitStatus.CONFLICT
        case 400 | 422:
            return ExitStatus.USAGE
        case 408 | 429 | 502 | 503 | 504:
            return ExitStatus.UNREACHABLE
        case _:
            return ExitStatus.UNEXPECTED


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said."""

    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def etag(self) -> str:
        """The version of what was read, for `If-Match`."""
        return self.headers.get("etag", "")


class Remote:
    """One service and one caller. May be used by several threads."""

    def __init__(self, url: str, *, key: str | None, timeout_s: float, on_behalf_of: str | None = None) -> None:
        headers = {"Accept": "application/json", "User-Agent": "sluicegate-cli"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if on_behalf_of is not None:
            headers["On-Behalf-Of"] = on_behalf_of
        self.url = url
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=timeout_s, trust_env=not _is_loopback(url), follow_redirects=False
        )

    def close(self) -> None:
        """End all connections."""
        self._client.close()

    def get(self, path: str, **query: str | int) -> Answer:
        """Read. Raises `Unreachable`, `Refused`."""
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        """Change; sent once more where the connection broke and an Idempotency-Key makes that safe."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        tries = _SENT_AGAIN if "Idempotency-Key" in named else 1
        while True:
            tries -= 1
            try:
                return self._ask("POST", path, json=dict(body or {}), headers=named)
            except Unreachable:
                if not tries:
                    raise

    def _ask(self, method: str, path: str, **sent: Any) -> Answer:
        try:
            response = self._client.request(method, path, **sent)
        except httpx.TimeoutException as error:
            raise Unreachable(f"{self.url} did not answer in time") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Unreachable(f"{self.url} cannot be reached: {error}") from error
        body = _json_object(response)
        if response.is_success and body is not None:
            return Answer(body, response.headers)
        raise Refused(response.status_code, body or {"detail": f"{self.url} does not answer as a Sluicegate does"})


def read_key(file: Path | None) -> str | None:
    """The caller's key, from a file (`-` is standard input) or the environment; never an argument, which others could
    read in the list of processes. Raises `RemoteError`.
    """
    if file is None:
        text = os.environ.get(KEY_VARIABLE, "")
    else:
        try:
            text = sys.stdin.readline() if str(file) == "-" else file.read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise RemoteError(
                f"--key-file {file}: {getattr(error, 'strerror', 'no text')}", ExitStatus.USAGE
            ) from error
        if not text.strip():
            raise RemoteError(f"--key-file {file}: there is no key in it", ExitStatus.USAGE)
    key = text.strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise RemoteError("the key must be one word of printable ASCII", ExitStatus.USAGE)
    return key or None


def _json_object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        body = response.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _is_loopback(url: str) -> bool:
    """Whether no proxy should stand between."""
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
