"""Cases of the same kind of incident: which group a case belongs to, by keys that are merged and split for good.

A case has a coarse key (profile, tool, kind of reason) and a fine one, its fingerprint (also the exact reason and the last
error code). A group has one or more of such keys. Splitting gives a fine key a group of its own, for good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.escalation import Change
from gateway.ids import new_id
from gateway.store import escalation_log as audit
from gateway.store.items import now_ms
from gateway.store.tables import escalation_group_keys as keys
from gateway.store.tables import escalation_groups as groups
from gateway.store.tables import escalations

_NO_PROGRESS = frozenset({"repeated_tool_calls", "repeated_error"})
"""A tool that gets nowhere: which detector counts to its end first depends on digits of the results."""


def kind_of(reason: str) -> str:
    """Reasons that are one kind of incident under one name."""
    return "no_progress" if reason in _NO_PROGRESS else reason


def group_key(*, profile: str, tool: str | None, reason: str) -> str:
    """What makes cases of several items one kind of incident."""
    return _digest(profile, tool or "", kind_of(reason))


def fingerprint(coarse: str, *, reason: str, packet: Mapping[str, Any]) -> str:
    """What tells kinds of incidents within such a group apart: the exact reason and the last error code."""
    errors = [call.get("error") for call in packet.get("calls") or () if isinstance(call, Mapping)]
    last_error = next((error for error in reversed(errors) if error), None)
    return _digest(coarse, reason, str(packet.get("reason_code") or ""), str(last_error or ""))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Group:
    """A kind of incident."""

    id: str
    tenant: str
    profile: str
    tool: str | None
    kind: str
    split_from: str | None
    merged_into: str | None
    created_ms: int
    updated_ms: int


def place(
    connection: Connection, *, tenant: str, profile: str, tool: str | None, reason: str, coarse: str, fine: str
) -> str:
    """The id of the group of a new case, made where there is none yet."""
    found = _of_key(connection, tenant, fine) or _of_key(connection, tenant, coarse)
    if found is not None:
        return found
    group = create(connection, tenant=tenant, profile=profile, tool=tool, kind=kind_of(reason))
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    added = connection.execute(
        make(keys).values(tenant=tenant, key=coarse, group_id=group).on_conflict_do_nothing().returning(keys.c.key)
    ).first()
    if added is None:  # somebody else was quicker
        connection.execute(groups.delete().where(groups.c.id == group))
    return _of_key(connection, tenant, coarse) or group


def create(
    connection: Connection, *, tenant: str, profile: str, tool: str | None, kind: str, split_from: str | None = None
) -> str:
    """A new group without keys; gives its id."""
    at_ms = now_ms(connection)
    group = new_id("grp", now_ms=at_ms)
    connection.execute(
        groups.insert(),
        {
            "id": group,
            "tenant": tenant,
            "profile": profile,
            "tool": tool,
            "kind": kind,
            "split_from": split_from,
            "created_ms": at_ms,
            "updated_ms": at_ms,
        },
    )
    return group


def is_split(connection: Connection, *, tenant: str, key: str) -> bool:
    """Whether cases of this fingerprint were split from their group."""
    query = sa.select(keys.c.key).where(keys.c.tenant == tenant, keys.c.key == key, keys.c.split_from.is_not(None))
    return connection.execute(query).first() is not None


def get(connection: Connection, group_id: str, *, tenant: str, lock: bool = False) -> Group | None:
    """The group; None if there is none of that id in this tenant."""
    query = sa.select(groups).where(groups.c.id == group_id, groups.c.tenant == tenant)
    if lock and connection.dialect.name == "postgresql":
        query = query.with_for_update()
    row = connection.execute(query).first()
    return None if row is None else _group(row)


def page(connection: Connection, *, tenant: str, has_open: bool, after: str | None, limit: int) -> list[Group]:
    """Up to `limit` groups that were not merged away, the newest first; with `has_open` those with undecided cases."""
    query = sa.select(groups).where(groups.c.tenant == tenant, groups.c.merged_into.is_(None))
    if has_open:
        open_case = sa.exists().where(
            escalations.c.group_id == groups.c.id, escalations.c.status.in_(["open", "claimed", "waiting_submitter"])
        )
        query = query.where(open_case)
    if after is not None:
        query = query.where(groups.c.id < after)
    rows = connection.execute(query.order_by(groups.c.id.desc()).limit(limit))
    return [_group(row) for row in rows]


def keys_of(connection: Connection, group_id: str) -> dict[str, str | None]:
    """The keys of a group, each with the group that it was split from."""
    rows = connection.execute(sa.select(keys.c.key, keys.c.split_from).where(keys.c.group_id == group_id))
    return {row.key: row.split_from for row in rows}


def merge(connection: Connection, *, source: Group, into: Group, actor: str) -> int:
    """All cases and keys of one group become another's; gives how many cases."""
    connection.execute(keys.update().where(keys.c.group_id == source.id).values(group_id=into.id))
    at_ms = now_ms(connection)
    connection.execute(groups.update().where(groups.c.id == source.id).values(merged_into=into.id, updated_ms=at_ms))
    connection.execute(groups.update().where(groups.c.id == into.id).values(updated_ms=at_ms))
    moved = _move(connection, escalations.c.group_id == source.id, into.id, actor=actor, was=source.id)
    return len(moved)


def split(connection: Connection, *, group: Group, case_ids: Collection[str], actor: str) -> tuple[str, list[str]]:
    """Cases in a group of their own, with all that are and will be like them; gives its id and the moved cases.

    Where some cases of a fingerprint stay, those that go get a fingerprint of their own, which the same item or run keeps.
    """
    chosen = sa.and_(escalations.c.group_id == group.id, escalations.c.id.in_(list(case_ids)))
    rows = connection.execute(sa.select(escalations.c.id, escalations.c.fingerprint).where(chosen)).all()
    new = create(
        connection, tenant=group.tenant, profile=group.profile, tool=group.tool, kind=group.kind, split_from=group.id
    )
    moved: list[str] = []
    for fine in sorted({str(row.fingerprint) for row in rows}):
        ids = [row.id for row in rows if row.fingerprint == fine]
        key = fine if _count(connection, group.id, fine) == len(ids) else _own_fingerprint(connection, ids, fine, new)
        connection.execute(keys.delete().where(keys.c.tenant == group.tenant, keys.c.key == key))
        connection.execute(keys.insert().values(tenant=group.tenant, key=key, group_id=new, split_from=group.id))
        moved += _move(connection, escalations.c.id.in_(ids), new, actor=actor, was=group.id)
    return new, moved


def _count(connection: Connection, group_id: str, fine: str) -> int:
    query = sa.select(sa.func.count()).select_from(escalations)
    of_kind = query.where(escalations.c.group_id == group_id, escalations.c.fingerprint == fine)
    return int(connection.execute(of_kind).scalar_one())


def _own_fingerprint(connection: Connection, ids: Sequence[str], fine: str, new: str) -> str:
    key = _digest(fine, new)
    connection.execute(escalations.update().where(escalations.c.id.in_(ids)).values(fingerprint=key))
    return key


def _move(connection: Connection, where: sa.ColumnElement[bool], to: str, *, actor: str, was: str) -> list[str]:
    rows = connection.execute(
        escalations.update().where(where).values(group_id=to).returning(escalations.c.id, escalations.c.status)
    ).all()
    for row in rows:
        detail = {"from": was, "to": to}
        audit.write(connection, row.id, Change.REGROUPED, actor=actor, before=row.status, detail=detail)
    return [row.id for row in rows]


def _of_key(connection: Connection, tenant: str, key: str) -> str | None:
    row = connection.execute(sa.select(keys.c.group_id).where(keys.c.tenant == tenant, keys.c.key == key)).first()
    return None if row is None else str(row.group_id)


def _group(row: sa.Row[Any]) -> Group:
    return Group(
        id=row.id,
        tenant=row.tenant,
        profile=row.profile,
        tool=row.tool,
        kind=row.kind,
        split_from=row.split_from,
        merged_into=row.merged_into,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
    )
