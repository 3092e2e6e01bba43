"""Standard Webhooks 1.0: secrets, signatures, and how a receiver checks them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105 - how secrets begin, not one
SECRET_BYTES = 32
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 24, 64
TOLERANCE_S = 300
"""How far a receiver's clock and the attempt's time may be apart, in both directions."""


class NotVerified(Exception):
    """A request that did not come from the service, or came too late. `code` says which."""

    def __init__(self, code: str, public: str) -> None:
        super().__init__(public)
        self.code = code
        self.public = public


def new_secret() -> str:
    """`whsec_` and 32 random bytes."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The bytes of a secret. Raises `ValueError` for what is none."""
    if not secret.startswith(SECRET_PREFIX):
        raise ValueError("a webhook secret begins with whsec_")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a webhook secret is base64 after whsec_") from None
    if not LEAST_SECRET_BYTES <= len(key) <= MOST_SECRET_BYTES:
        raise ValueError(f"a webhook secret has {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} bytes")
    return key


def signature(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """One `v1,…` over id, time and the exact bytes."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key_of(secret), signed, hashlib.sha256)).decode()


def headers(live_secrets: Sequence[str], *, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt; `timestamp` is the attempt's own, in Unix seconds."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            signature(secret, message_id=message_id, timestamp=timestamp, body=body) for secret in live_secrets
        ),
    }


def verify(secret: str, received: Mapping[str, str], body: bytes, *, now: float) -> None:
    """Raise `NotVerified` unless the request was signed with this secret within five minutes of `now` (Unix seconds)."""
    given = {name.lower(): value for name, value in received.items()}
    message_id, sent_at, signatures = (
        given.get(f"webhook-{name}", "").strip() for name in ("id", "timestamp", "signature")
    )
    if not (message_id and signatures and sent_at.isascii() and sent_at.isdigit() and len(sent_at) < 16):
        raise NotVerified("headers", "webhook-id, webhook-timestamp or webhook-signature is missing or no such thing")
    age_s = now - int(sent_at)
    if age_s > TOLERANCE_S:
        raise NotVerified(
            "too_old", f"the attempt was {age_s:.0f} s ago, more than {TOLERANCE_S} s: a replay, or clocks differ"
        )
    if age_s < -TOLERANCE_S:
        raise NotVerified(
            "too_new", f"the attempt is {-age_s:.0f} s in the future: this clock is slow, or the sender's fast"
        )
    expected = signature(secret, message_id=message_id, timestamp=int(sent_at), body=body)
    if not any(hmac.compare_digest(expected.encode(), one.encode()) for one in signatures.split()):
        raise NotVerified("signature", "no signature fits: another secret, or the body is not the bytes that were sent")
