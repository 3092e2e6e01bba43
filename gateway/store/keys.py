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
_USED_EVERY_MS = 60_000


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
    expires_ms: int | None = None
    previous_until_ms: int | None = None
    """Until when the secret before the last rotation works too."""

    def is_unseen(self, at_ms: int) -> bool:
        """Whether its last use is due to be written: not at every request."""
        return self.last_used_ms is None or self.last_used_ms <= at_ms - _USED_EVERY_MS

    def is_live(self, at_ms: int) -> bool:
        """Whether it can be used."""
        return self.revoked_ms is None and (self.expires_ms is None or self.expires_ms > at_ms)


def secret_hash(secret: str) -> str:
    """SHA-256 in hex. The secrets have 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(
    connection: Connection,
    *,
    tenant: str,
    name: str | None,
    scopes: tuple[str, ...],
    at_ms: int,
    expires_ms: int | None = None,
) -> tuple[KeyRecord, str]:
    """A new key and its secret, which is not kept and cannot be shown again."""
    secret = _new_secret()
    record = KeyRecord(
        id=new_id("key", now_ms=at_ms),
        tenant=tenant,
        name=name,
        hint=_hint(secret),
        scopes=scopes,
        created_ms=at_ms,
        last_used_ms=None,
        revoked_ms=None,
        expires_ms=expires_ms,
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
            "expires_ms": expires_ms,
        },
    )
    return record, secret


def find(connection: Connection, secret: str, *, at_ms: int) -> KeyRecord | None:
    """The live key with this secret, be it the one before a rotation whose overlap has not ended."""
    hashed = secret_hash(secret)
    row = connection.execute(sa.select(api_keys).where(api_keys.c.secret_hash == hashed, _live(at_ms))).first()
    if row is None:
        is_previous = sa.and_(api_keys.c.previous_hash == hashed, api_keys.c.previous_until_ms > at_ms)
        row = connection.execute(sa.select(api_keys).where(is_previous, _live(at_ms))).first()
    return None if row is None else _record(row)


def get(connection: Connection, key_id: str, *, tenant: str | None = None) -> KeyRecord | None:
    """One key, live or not."""
    query = sa.select(api_keys).where(api_keys.c.id == key_id)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    row = connection.execute(query).first()
    return None if row is None else _record(row)


def page(
    connection: Connection, *, tenant: str | None = None, after: tuple[int, str] | None = None, limit: int = 1000
) -> list[KeyRecord]:
    """Keys of a tenant, or of all, newest last."""
    query = sa.select(api_keys).order_by(api_keys.c.created_ms, api_keys.c.id).limit(limit)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    if after is not None:
        query = query.where(sa.tuple_(api_keys.c.created_ms, api_keys.c.id) > sa.tuple_(*map(sa.literal, after)))
    return [_record(row) for row in connection.execute(query)]


def rotate(connection: Connection, key_id: str, *, overlap_ms: int, at_ms: int) -> tuple[KeyRecord, str] | None:
    """A new secret for a live key; the one before works until the overlap ends, the one before that no longer.

    None if there is no live key of that id.
    """
    secret = _new_secret()
    changed = connection.execute(
        api_keys.update()
        .where(api_keys.c.id == key_id, _live(at_ms))
        .values(
            previous_hash=api_keys.c.secret_hash,
            previous_until_ms=at_ms + overlap_ms,
            secret_hash=secret_hash(secret),
            hint=_hint(secret),
        )
    )
    record = get(connection, key_id)
    return None if changed.rowcount != 1 or record is None else (record, secret)


def revoke(connection: Connection, key_id: str, *, at_ms: int) -> bool:
    """End a key at once; False if there is no live key of that id."""
    changed = connection.execute(
        api_keys.update().where(api_keys.c.id == key_id, api_keys.c.revoked_ms.is_(None)).values(revoked_ms=at_ms)
    )
    return changed.rowcount == 1


def mark_used(connection: Connection, key_id: str, *, at_ms: int) -> None:
    """Write that it is in use."""
    connection.execute(
        api_keys.update()
        .where(
            api_keys.c.id == key_id,
            sa.or_(api_keys.c.last_used_ms.is_(None), api_keys.c.last_used_ms <= at_ms - _USED_EVERY_MS),
        )
        .values(last_used_ms=at_ms)
    )


def is_live(connection: Connection, key_id: str, *, at_ms: int) -> bool:
    """Whether a key can be used."""
    return connection.execute(sa.select(api_keys.c.id).where(api_keys.c.id == key_id, _live(at_ms))).first() is not None


def any_live(connection: Connection, *, at_ms: int) -> bool:
    """Whether at least one key can be used."""
    return connection.execute(sa.select(api_keys.c.id).where(_live(at_ms)).limit(1)).first() is not None


def _live(at_ms: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        api_keys.c.revoked_ms.is_(None), sa.or_(api_keys.c.expires_ms.is_(None), api_keys.c.expires_ms > at_ms)
    )


def _new_secret() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def _hint(secret: str) -> str:
    return f"…{secret[-4:]}"


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
        expires_ms=row.expires_ms,
        previous_until_ms=row.previous_until_ms,
    )
