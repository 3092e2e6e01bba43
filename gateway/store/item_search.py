"""Items found by what people have at hand: a SKU, a title, an id, the hash of a file."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.store.tables import files, items

_LEAST_HASH = 8
_HEX = frozenset("0123456789abcdef")


def search(
    connection: Connection,
    *,
    tenant: str,
    words: str,
    status: str | None,
    after: tuple[int, str] | None,
    limit: int,
) -> list[str]:
    """Ids of up to `limit` items, newest first; `after` is the (created_ms, id) of the last one of the page before."""
    columns = items.c
    query = sa.select(columns.id).where(columns.tenant == tenant)
    if status is not None:
        query = query.where(columns.status == status)
    if words:
        query = query.where(_matches(tenant, words))
    if after is not None:
        query = query.where(sa.tuple_(columns.created_ms, columns.id) < sa.tuple_(*map(sa.literal, after)))
    query = query.order_by(columns.created_ms.desc(), columns.id.desc()).limit(limit)
    return [str(found) for found in connection.execute(query).scalars()]


def _matches(tenant: str, words: str) -> sa.ColumnElement[bool]:
    text = words.strip()
    pattern = "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    title = items.c.submission["title"].as_string()
    ways = [
        items.c.id == text,
        items.c.external_id.ilike(pattern, escape="\\"),
        title.ilike(pattern, escape="\\"),
        items.c.submission["text"].as_string().ilike(pattern, escape="\\"),
    ]
    lowered = text.lower()
    if len(lowered) >= _LEAST_HASH and set(lowered) <= _HEX:
        of_hash = sa.select(files.c.item_id).where(files.c.tenant == tenant, files.c.sha256.startswith(lowered))
        ways.append(items.c.id.in_(of_hash))
    return sa.or_(*ways)


def counts_by_status(connection: Connection, *, tenant: str) -> dict[str, int]:
    """How many items stand where."""
    rows = connection.execute(
        sa.select(items.c.status, sa.func.count()).where(items.c.tenant == tenant).group_by(items.c.status)
    )
    return {str(status): int(count) for status, count in rows}
