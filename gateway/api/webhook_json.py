"""Endpoints, deliveries and origins as JSON. No secret is in any of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.api.render import timestamp
from gateway.store.webhooks import AllowedOrigin
from gateway.webhooks.model import Attempt, Delivery, Endpoint
from gateway.webhooks.schedule import Health


def endpoint_json(endpoint: Endpoint, health: Health) -> dict[str, Any]:
    """An endpoint and how it has answered of late."""
    return {
        "id": endpoint.id,
        "url": endpoint.url,
        "description": endpoint.description,
        "events": list(endpoint.events),
        "body": endpoint.body.value,
        "allow_insecure": endpoint.allow_insecure,
        "status": endpoint.status.value,
        "disabled_reason": endpoint.disabled_reason,
        "secrets": [
            {"created_at": timestamp(secret.created_ms), "expires_at": timestamp(secret.expires_ms)}
            for secret in endpoint.secrets
        ],
        "health": {
            "failures_in_row": health.failures,
            "failing_since": timestamp(health.failing_since_ms),
            "paused_until": timestamp(health.paused_until_ms),
            "last_success_at": timestamp(health.last_success_ms),
            "last_failure_at": timestamp(health.last_failure_ms),
        },
        "cursor_seq": endpoint.cursor_seq,
        "version": endpoint.version,
        "created_at": timestamp(endpoint.created_ms),
        "updated_at": timestamp(endpoint.updated_ms),
    }


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    """One event on its way to one address."""
    return {
        "id": delivery.id,
        "endpoint": delivery.endpoint_id,
        "callback_url": delivery.url,
        "event": delivery.event_id,
        "event_type": delivery.event_type,
        "seq": delivery.event_seq,
        "resource": delivery.resource,
        "status": delivery.status.value,
        "is_test": delivery.is_test,
        "attempts": delivery.attempts,
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
        "next_attempt_at": timestamp(delivery.next_attempt_ms),
        "created_at": timestamp(delivery.created_ms),
        "updated_at": timestamp(delivery.updated_ms),
        "finished_at": timestamp(delivery.finished_ms),
    }


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """One line of the log."""
    return {
        "attempt": attempt.attempt,
        "at": timestamp(attempt.at_ms),
        "status": attempt.status_code,
        "latency_ms": attempt.latency_ms,
        "error": attempt.error,
        "next_attempt_at": timestamp(attempt.next_attempt_ms),
        "response": attempt.response,
    }


def test_json(delivery: Delivery, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """What a test may tell: the class of the status and the time it took, never the answer itself."""
    last = attempts[-1] if attempts else None
    return {
        "delivery": delivery.id,
        "status": delivery.status.value,
        "status_class": None if last is None or last.status_code is None else f"{last.status_code // 100}xx",
        "latency_ms": None if last is None else last.latency_ms,
        "error": None if last is None else last.error,
    }


def origin_json(origin: AllowedOrigin) -> dict[str, Any]:
    """An origin on a tenant's list."""
    return {
        "id": origin.id,
        "origin": origin.origin,
        "created_by": origin.created_by,
        "created_at": timestamp(origin.created_ms),
    }
