"""What a webhook endpoint, a delivery and an attempt are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BodyStyle(StrEnum):
    """How much an event says."""

    THIN = "thin"
    """Ids, status, reason and links."""
    FULL = "full"
    """The same and the resource as it is when it is sent; never bytes of files, never keys."""


class EndpointStatus(StrEnum):
    """Whether events are sent to an endpoint."""

    ENABLED = "enabled"
    DISABLED = "disabled"


class DisabledReason(StrEnum):
    """Why an endpoint is disabled."""

    OPERATOR = "operator"
    """Somebody asked for it."""
    GONE = "gone"
    """It answered 410."""
    FAILING = "failing"
    """Every attempt of five days failed."""


class DeliveryStatus(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    """Waits for its next attempt, or is being sent."""
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    """No attempt is left. It can be sent again by hand."""


class ErrorClass(StrEnum):
    """Why an attempt failed; a closed set, safe to show and to count."""

    TIMEOUT = "timeout"
    DNS = "dns"
    REFUSED_URL = "url_not_allowed"
    CONNECT = "connect"
    TLS = "tls"
    PROTOCOL = "protocol"
    """What came back is no HTTP, or the connection broke."""
    REDIRECT = "redirect"
    GONE = "gone"
    RATE_LIMITED = "rate_limited"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    EVENT_GONE = "event_gone"
    """The event is older than what is kept."""
    SECRET_UNREADABLE = "secret_unreadable"  # noqa: S105 - the name of an error
    ENDPOINT_DISABLED = "endpoint_disabled"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """One signing secret as the database has it."""

    sealed: str
    created_ms: int
    expires_ms: int | None
    """None for the current one; the time until which the one before still signs."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a tenant wants its events."""

    id: str
    tenant: str
    url: str
    description: str | None
    events: tuple[str, ...]
    body: BodyStyle
    allow_insecure: bool
    status: EndpointStatus
    disabled_reason: DisabledReason | None
    secrets: tuple[StoredSecret, ...]
    """Newest first, at most two."""
    cursor_seq: int
    """Events up to here have been looked at."""
    version: int
    created_ms: int
    updated_ms: int

    def live_secrets(self, now_ms: int) -> tuple[StoredSecret, ...]:
        """Those that sign now, newest first."""
        return tuple(secret for secret in self.secrets if secret.expires_ms is None or secret.expires_ms > now_ms)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one address."""

    id: str
    tenant: str
    endpoint_id: str
    lane: str
    url: str | None
    """An item's own callback address; None is the endpoint's."""
    event_id: str
    event_seq: int
    event_type: str
    resource: str
    status: DeliveryStatus
    attempts: int
    """Attempts that were begun, over all."""
    tries: int
    """Attempts that failed since it was last asked for."""
    is_test: bool
    next_attempt_ms: int | None
    leased_until_ms: int | None
    last_status: int | None
    last_error: ErrorClass | None
    created_ms: int
    updated_ms: int
    finished_ms: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One entry of the delivery log."""

    attempt: int
    at_ms: int
    status_code: int | None
    latency_ms: int
    error: ErrorClass | None
    next_attempt_ms: int | None
    response: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt came to."""

    status_code: int | None
    error: ErrorClass | None
    """None for a 2xx."""
    latency_ms: int
    response: str = ""
    """The first kilobyte of the answer, redacted."""
    retry_after_s: float | None = None

    @property
    def is_success(self) -> bool:
        """Whether the receiver has it."""
        return self.error is None
