"""Idempotency keys: unique per tenant and call, stored in the transaction that stores the item."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.store.tables import idempotency_keys


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What an earlier request with the same key was."""

    meta_fingerprint: str
    fingerprint: str
    item_id: str


def find(connection: Connection, *, tenant: str, scope: str, key: str, not_before_ms: int) -> StoredKey | None:
    """The earlier request under this key, unless it is older than the keys' lifetime."""
    row = connection.execute(
        sa.select(idempotency_keys).where(
            idempotency_keys.c.tenant == tenant,
            idempotency_keys.c.scope == scope,
            idempotency_keys.c.key == key,
            idempotency_keys.c.created_ms >= not_before_ms,
        )
    ).first()
    if row is None:
        return None
    return StoredKey(row.meta_fingerprint, row.fingerprint, row.item_id)


def store(
    connection: Connection, *, tenant: str, scope: str, key: str, found: StoredKey, at_ms: int, not_before_ms: int
) -> None:
    """Bind the key to its item. Raises `sqlalchemy.exc.IntegrityError` when another request was faster."""
    connection.execute(
        idempotency_keys.delete().where(
            idempotency_keys.c.tenant == tenant,
            idempotency_keys.c.scope == scope,
            idempotency_keys.c.key == key,
            idempotency_keys.c.created_ms < not_before_ms,
        )
    )
    connection.execute(
        idempotency_keys.insert(),
        {
            "tenant": tenant,
            "scope": scope,
            "key": key,
            "meta_fingerprint": found.meta_fingerprint,
            "fingerprint": found.fingerprint,
            "item_id": found.item_id,
            "created_ms": at_ms,
        },
    )
