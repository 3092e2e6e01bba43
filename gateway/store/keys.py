"""API keys: shown once, stored as SHA-256, looked up by it."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.ids import new_id
from gateway.store.tables import api_keys

SCOPES = (
    "items:write",
    "items:read",
    "guard",
    "review",
    "review:delegate",
    "rules:propose",
    "rules:activate",
    "traces:export",
    "admin",
)
KEY_PREFIX = "sgk_"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it may be shown after its creation: never the secret."""

    id: str
    tenant: str
    name: str | None
    hint: str
    scopes: tuple[str, ...]
    created_ms: int
    last_used_ms: int | None
    revoked_ms: int | None


def secret_hash(secret: str) -> str:
    """SHA-256 in hex. The secrets have 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(
    connection: Connection, *, tenant: str, name: str | None, scopes: tuple[str, ...], at_ms: int
) -> tuple[KeyRecord, str]:
    """A new key and its secret, which is not kept and cannot be shown again."""
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    record = KeyRecord(
        id=new_id("key", now_ms=at_ms),
        tenant=tenant,
        name=name,
        hint=f"…{secret[-4:]}",
        scopes=scopes,
        created_ms=at_ms,
        last_used_ms=None,
        revoked_ms=None,
    )
    connection.execute(
        api_keys.insert(),
        {
            "id": record.id,
            "tenant": tenant,
            "name": name,
            "secret_hash": secret_hash(secret),
            "hint": record.hint,
            "scopes": list(scopes),
            "created_ms": at_ms,
        },
    )
    return record, secret


def find(connection: Connection, secret: str) -> KeyRecord | None:
    """The live key with this secret."""
    row = connection.execute(
        sa.select(api_keys).where(api_keys.c.secret_hash == secret_hash(secret), api_keys.c.revoked_ms.is_(None))
    ).first()
    return None if row is None else _record(row)


def all_of(connection: Connection, *, tenant: str | None = None) -> list[KeyRecord]:
    """All keys, newest last."""
    query = sa.select(api_keys).order_by(api_keys.c.created_ms)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    return [_record(row) for row in connection.execute(query)]


def revoke(connection: Connection, key_id: str, *, at_ms: int) -> bool:
    """End a key at once; False if there is no live key of that id."""
    changed = connection.execute(
        api_keys.update().where(api_keys.c.id == key_id, api_keys.c.revoked_ms.is_(None)).values(revoked_ms=at_ms)
    )
    return changed.rowcount == 1


def any_live(connection: Connection) -> bool:
    """Whether at least one key can be used."""
    return (
        connection.execute(sa.select(api_keys.c.id).where(api_keys.c.revoked_ms.is_(None)).limit(1)).first() is not None
    )


def _record(row: sa.Row[tuple[object, ...]]) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        tenant=row.tenant,
        name=row.name,
        hint=row.hint,
        scopes=tuple(row.scopes),
        created_ms=row.created_ms,
        last_used_ms=row.last_used_ms,
        revoked_ms=row.revoked_ms,
    )
