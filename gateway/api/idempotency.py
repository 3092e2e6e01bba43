"""The Idempotency-Key header, and the requests that are being received right now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.api.problems import ApiProblem

SCOPE_CREATE_ITEM = "POST /v1/items"


def parse_key(header: str | None) -> str | None:
    """The key, bare or quoted. Raises `ApiProblem` unless it has 1 to 255 printable ASCII characters."""
    if header is None:
        return None
    key = header.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not 1 <= len(key) <= 255 or not all(" " <= char <= "~" for char in key):
        raise ApiProblem(
            "idempotency_key_invalid",
            f"The Idempotency-Key must have 1 to 255 printable ASCII characters; this one has {len(key)}.",
        )
    return key


def reused(key: str) -> ApiProblem:
    """The answer to a key that comes with other content."""
    return ApiProblem(
        "idempotency_key_reused",
        f"The Idempotency-Key {key[:60]!r} was sent before with different content. Use a fresh key for a new request.",
    )


def in_progress() -> ApiProblem:
    """The answer while the first request's body is still arriving."""
    return ApiProblem(
        "idempotency_in_progress",
        "A request with this Idempotency-Key is still being received. Repeat this one after a second.",
        retry_after_s=1,
    )


@dataclass(slots=True)
class Arrival:
    """A first request under a key, from its item part until its item is stored or refused."""

    meta_fingerprint: str
    body_complete: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)


class Arrivals:
    """First requests under each key in this process. The database's unique key decides between processes."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], Arrival] = {}

    def enter(self, tenant: str, key: str, meta_fingerprint: str) -> Arrival | None:
        """Announce a request. None if it is the first; else the first one's arrival.

        Raises `ApiProblem` (422) at once when the first one's item part differs, whatever its state.
        """
        first = self._by_key.get((tenant, key))
        if first is None:
            self._by_key[tenant, key] = Arrival(meta_fingerprint)
            return None
        if first.meta_fingerprint != meta_fingerprint:
            raise reused(key)
        return first

    def complete_body(self, tenant: str, key: str) -> None:
        """The first request's body is here: from now on others wait for its outcome instead of being sent away."""
        self._by_key[tenant, key].body_complete = True

    def leave(self, tenant: str, key: str) -> None:
        """The first request is over, stored or refused."""
        arrival = self._by_key.pop((tenant, key), None)
        if arrival is not None:
            arrival.finished.set()
