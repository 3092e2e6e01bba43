"""An item's own callback address: taken only where its origin is allowed and a secret to sign with is named."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from gateway.store import webhooks as store
from gateway.store.webhooks import Callback
from gateway.webhooks.targets import Target, TargetPolicy, UrlRefused, parse_target


class SecretMissing(Exception):
    """A callback without a secret that signs it. `public` says what to send."""

    def __init__(self, public: str) -> None:
        super().__init__(public)
        self.public = public


def checked_callback(
    connection: Connection,
    *,
    tenant: str,
    url: str,
    secret_id: str | None,
    policy: TargetPolicy,
    allowed_for_all: frozenset[str],
) -> Callback:
    """The callback that a submission asks for. Raises `UrlRefused` or `SecretMissing`."""
    target: Target = parse_target(url, policy, allow_insecure=True)
    if target.origin not in allowed_for_all and not store.is_allowed(connection, target.origin, tenant=tenant):
        raise UrlRefused(
            "origin",
            f"{target.origin} is not among the origins that may be called back. Add it at /v1/callback-origins, or leave "
            "`callback_url` out and poll the item instead.",
        )
    if secret_id is None:
        raise SecretMissing("Name the webhook endpoint (`whe_…`) whose secret signs the callback.")
    if store.get(connection, secret_id, tenant=tenant) is None:
        raise SecretMissing("There is no webhook endpoint of this id whose secret could sign the callback.")
    return Callback(url=url, origin=target.origin, endpoint_id=secret_id)
