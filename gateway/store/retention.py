"""What is kept no longer: items become tombstones, their files are removed, and old rows of other tables are deleted.

A stored file is removed in two steps, so that an upload of the same content at the same time never loses its file: in one
transaction it is marked, provided that no item names it; then it is deleted, and the mark stays for an hour. A transaction
that stores an item looks for marks of its files and refuses where it finds one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.escalation import Change
from gateway.ids import first_id
from gateway.item import TERMINAL, Status
from gateway.store import escalations as case_store
from gateway.store import events
from gateway.store import items as item_store
from gateway.store.engine import database_now_ms
from gateway.store.guard_runs import RunStatus
from gateway.store.items import now_ms
from gateway.store.tables import (
    attempts,
    decisions,
    effects,
    escalation_log,
    escalations,
    files,
    guard_decisions,
    guard_records,
    guard_runs,
    guard_snapshots,
    history,
    idempotency_keys,
    inquiries,
    items,
    removed_blobs,
    steps,
)
from gateway.store.tables import events as event_rows

_AT_WORK = (Status.INSPECTING, Status.RUNNING)
_WAITING = (Status.QUEUED, Status.HALTED, Status.AWAITING_HUMAN, Status.AWAITING_SUBMITTER)
_MARK_MS = 3600 * 1000
_KEPT_OF_RESOLUTION = ("action", "by", "at_ms", "route", "reason_code")


class BlobBeingRemoved(Exception):
    """A file of a new item is being removed, or was removed, since no item named it."""

    def __init__(self, removed: Mapping[str, bool]) -> None:
        super().__init__(", ".join(removed))
        self.removed = removed
        """By digest, whether the removal is over."""


@dataclass(frozen=True, slots=True)
class DueRow:
    """An item whose content is to go."""

    id: str
    status: Status
    is_expired: bool
    """By its retention; else somebody asked."""


@dataclass(frozen=True, slots=True)
class Entombed:
    """An item that is a tombstone now, and those of its files that nothing else names: they are marked."""

    tenant: str
    marked: tuple[str, ...]


def due(connection: Connection, *, limit: int) -> list[DueRow]:
    """Items past their retention, and those whose purge was asked for, longest first."""
    row = (items.c.id, items.c.status)
    asked = (
        sa.select(*row)
        .where(items.c.purge_asked_ms.is_not(None), items.c.purged_ms.is_(None))
        .order_by(items.c.purge_asked_ms)
        .limit(limit)
    )
    expired = (
        sa.select(*row)
        .where(items.c.purged_ms.is_(None), items.c.expires_ms < database_now_ms())
        .order_by(items.c.expires_ms)
        .limit(limit)
    )
    found = {one.id: DueRow(one.id, Status(one.status), is_expired=True) for one in connection.execute(expired)}
    found.update({one.id: DueRow(one.id, Status(one.status), is_expired=False) for one in connection.execute(asked)})
    return list(found.values())


def halted_too_long(connection: Connection, *, ttl_ms: int, limit: int) -> list[str]:
    """Items that wait for their caller for longer than that."""
    return list(
        connection.execute(
            sa.select(items.c.id)
            .where(
                items.c.status == sa.literal_column(f"'{Status.HALTED.value}'"),
                items.c.updated_ms < database_now_ms() - ttl_ms,
            )
            .order_by(items.c.updated_ms)
            .limit(limit)
        ).scalars()
    )


def ask_purge(connection: Connection, item_id: str, *, tenant: str, actor: str) -> Status | None:
    """Note that the item's content is to go, and end the item where it is not over; gives its status, None if it is not there."""
    changed = connection.execute(
        items.update()
        .where(items.c.id == item_id, items.c.tenant == tenant)
        .values(purge_asked_ms=sa.func.coalesce(items.c.purge_asked_ms, now_ms(connection)))
    )
    if changed.rowcount != 1:
        return None
    end(connection, item_id, to=Status.CANCELLED, actor=actor, reason="deleted")
    return Status(connection.execute(sa.select(items.c.status).where(items.c.id == item_id)).scalar_one())


def end(connection: Connection, item_id: str, *, to: Status, actor: str, reason: str) -> bool:
    """End an item that is not over: at once where it waits, else as soon as its worker notices."""
    for expected, after in ((_AT_WORK, Status.CANCELLING), (_WAITING, to)):
        moved = item_store.transition(
            connection,
            item_id,
            expected=expected,
            to=after,
            actor=actor,
            reason=reason,
            values={"cancel_requested_ms": now_ms(connection)} if after is Status.CANCELLING else {},
            release=after is not Status.CANCELLING,
        )
        if moved is not None:
            case_store.withdraw_of_item(connection, item_id)
            return True
    return False


def expire_halted(connection: Connection, item_id: str, *, ttl_ms: int, actor: str) -> bool:
    """A halted item that its caller left alone is over; a retry takes it up again."""
    still = sa.select(items.c.id).where(items.c.id == item_id, items.c.updated_ms < database_now_ms() - ttl_ms)
    if connection.execute(still).first() is None:
        return False
    moved = item_store.transition(
        connection, item_id, expected=(Status.HALTED,), to=Status.EXPIRED, actor=actor, reason="halted_too_long"
    )
    return moved is not None


# -- tombstones --------------------------------------------------------------------------------------------------------


def entomb(connection: Connection, item_id: str, *, actor: str) -> Entombed | None:
    """Take the content out of an item that is over; its hashes, verdicts and history stay. None where it is not over."""
    query = sa.select(
        items.c.tenant, items.c.status, items.c.version, items.c.external_id, items.c.decision, items.c.failure
    ).where(items.c.id == item_id, items.c.purged_ms.is_(None))
    row = connection.execute(query.with_for_update() if _is_postgresql(connection) else query).first()
    if row is None or Status(row.status) not in TERMINAL:
        return None
    at_ms = now_ms(connection)
    connection.execute(
        items.update()
        .where(items.c.id == item_id)
        .values(
            submission={},
            result=sa.null(),
            failure=sa.null() if row.failure is None else {"code": row.failure.get("code"), "detail": None},
            decision=_tomb_decision(row.decision),
            fence=items.c.fence + 1,
            version=row.version + 1,
            updated_ms=at_ms,
            purged_ms=at_ms,
        )
    )
    digests = list(connection.execute(sa.select(files.c.sha256).where(files.c.item_id == item_id).distinct()).scalars())
    connection.execute(files.update().where(files.c.item_id == item_id).values(file_name=None, screening=sa.null()))
    _empty(connection, item_id)
    _empty_events(connection, item_id, "item.info_requested", "question")
    _empty_overrides(connection, item_id)
    _empty_cases(connection, item_id)
    _empty_runs(connection, item_id, at_ms)
    _write_down(connection, item_id, row, actor, at_ms)
    return Entombed(row.tenant, tuple(mark_unnamed(connection, row.tenant, digests)))


def _tomb_decision(decision: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What was decided and by which rule; names of files and a person's words are content."""
    if decision is None:
        return None
    kept = dict(decision)
    for name in ("problem", "reason"):
        if kept.get(name):
            kept[name] = {**kept[name], "file_name": None}
            if kept.get("stage") == "person":
                kept[name].update(user_message={"en": "", "zh": ""}, fix={"en": "", "zh": ""})
    if kept.get("overridden"):
        kept["overridden"] = _tomb_override(kept["overridden"])
    return kept


def _tomb_override(overridden: Mapping[str, Any]) -> dict[str, Any]:
    """Who used what a rule refuses, and which rule; why is their own words."""
    kept = {**overridden, "reason": ""}
    if kept.get("problem"):
        kept["problem"] = {**kept["problem"], "file_name": None}
    return kept


def _empty_overrides(connection: Connection, item_id: str) -> None:
    query = sa.select(files.c.id, files.c.overridden).where(files.c.item_id == item_id)
    for file in connection.execute(query).all():
        if file.overridden is not None:
            connection.execute(
                files.update().where(files.c.id == file.id).values(overridden=_tomb_override(file.overridden))
            )


def _empty(connection: Connection, item_id: str) -> None:
    """Its callbacks go when they have been told: see `webhook_deliveries.fan_out`."""
    for table in (steps, effects):
        connection.execute(table.delete().where(table.c.item_id == item_id))
    connection.execute(inquiries.update().where(inquiries.c.item_id == item_id).values(question="", answer=sa.null()))
    connection.execute(attempts.update().where(attempts.c.item_id == item_id).values(reason=None))
    connection.execute(decisions.update().where(decisions.c.item_id == item_id).values(body={}))


def _empty_cases(connection: Connection, item_id: str) -> None:
    query = sa.select(escalations.c.id, escalations.c.resolution).where(escalations.c.item_id == item_id)
    for case in connection.execute(query).all():
        kept = {name: value for name, value in (case.resolution or {}).items() if name in _KEPT_OF_RESOLUTION}
        connection.execute(
            escalations.update()
            .where(escalations.c.id == case.id)
            .values(
                packet={"purged": True},
                resolution=sa.null() if case.resolution is None else kept,
                apply_problem=sa.null(),
            )
        )
        connection.execute(
            escalation_log.update().where(escalation_log.c.escalation_id == case.id).values(note=None, detail=sa.null())
        )
        _empty_events(connection, case.id, f"escalation.{Change.APPLY_FAILED.value}", "why")


def _empty_events(connection: Connection, resource: str, kind: str, content: str) -> None:
    """Take what people wrote out of the log of events; the events stay."""
    told = sa.and_(event_rows.c.resource == resource, event_rows.c.type == kind)
    for event in connection.execute(sa.select(event_rows.c.seq, event_rows.c.data).where(told)).all():
        kept = {name: value for name, value in event.data.items() if name != content}
        connection.execute(event_rows.update().where(event_rows.c.seq == event.seq).values(data=kept))


def _empty_runs(connection: Connection, item_id: str, at_ms: int) -> None:
    """Runs of callers' agents on the item: they end, and their traces go."""
    ids = list(connection.execute(sa.select(guard_runs.c.id).where(guard_runs.c.item_id == item_id)).scalars())
    if not ids:
        return
    connection.execute(
        guard_runs.update()
        .where(guard_runs.c.id.in_(ids), guard_runs.c.status != RunStatus.ENDED.value)
        .values(
            status=RunStatus.ENDED.value,
            outcome={"outcome": "purged"},
            version=guard_runs.c.version + 1,
            updated_ms=at_ms,
            ended_ms=at_ms,
        )
    )
    for table in (guard_records, guard_snapshots, guard_decisions):
        connection.execute(table.delete().where(table.c.run_id.in_(ids)))


def _write_down(connection: Connection, item_id: str, row: Any, actor: str, at_ms: int) -> None:
    connection.execute(
        history.insert(),
        {
            "item_id": item_id,
            "at_ms": at_ms,
            "from_status": row.status,
            "to_status": row.status,
            "version": row.version + 1,
            "fence": 0,
            "actor": actor,
            "reason": "purged",
        },
    )
    events.append(
        connection,
        tenant=row.tenant,
        kind="item.purged",
        resource=item_id,
        version=row.version + 1,
        at_ms=at_ms,
        body={"status": row.status, "external_id": row.external_id, "by": actor},
    )


# -- files -------------------------------------------------------------------------------------------------------------


def mark_unnamed(connection: Connection, tenant: str, digests: Collection[str]) -> list[str]:
    """Mark those of these files that nothing names, for removal; gives them."""
    if not digests:
        return []
    _lock_files(connection, tenant, is_shared=False)
    found = sorted(unnamed(connection, tenant, digests))
    at_ms = now_ms(connection)
    make = postgresql.insert if _is_postgresql(connection) else sqlite.insert
    for digest in found:
        values = {"is_gone": False, "at_ms": at_ms}
        statement = make(removed_blobs).values(tenant=tenant, sha256=digest, **values)
        connection.execute(statement.on_conflict_do_update(index_elements=["tenant", "sha256"], set_=values))
    return found


def unnamed(connection: Connection, tenant: str, digests: Collection[str]) -> set[str]:
    """Those of these files that no item names, tombstones left aside."""
    return set(digests) - _named(connection, tenant, digests)


def check_files(connection: Connection, tenant: str, digests: Collection[str]) -> None:
    """To be called by whoever is about to name files. Raises `BlobBeingRemoved`."""
    if not digests:
        return
    _lock_files(connection, tenant, is_shared=True)
    rows = connection.execute(
        sa.select(removed_blobs.c.sha256, removed_blobs.c.is_gone).where(
            removed_blobs.c.tenant == tenant, removed_blobs.c.sha256.in_(list(digests))
        )
    )
    removed = {row.sha256: row.is_gone for row in rows}
    if removed:
        raise BlobBeingRemoved(removed)


def note_gone(connection: Connection, tenant: str, digests: Iterable[str]) -> None:
    """These marked files are deleted."""
    connection.execute(
        removed_blobs.update()
        .where(removed_blobs.c.tenant == tenant, removed_blobs.c.sha256.in_(list(digests)))
        .values(is_gone=True, at_ms=now_ms(connection))
    )


def forget_gone(connection: Connection, tenant: str, digests: Iterable[str]) -> None:
    """These files were deleted and are there again."""
    connection.execute(
        removed_blobs.delete().where(
            removed_blobs.c.tenant == tenant,
            removed_blobs.c.sha256.in_(list(digests)),
            removed_blobs.c.is_gone.is_(True),
        )
    )


def left_marked(connection: Connection, *, older_ms: int, limit: int) -> list[tuple[str, str]]:
    """Marked files whose removal was not completed, since a process died or a store did not answer: (tenant, digest)."""
    rows = connection.execute(
        sa.select(removed_blobs.c.tenant, removed_blobs.c.sha256)
        .where(removed_blobs.c.is_gone.is_(False), removed_blobs.c.at_ms < now_ms(connection) - older_ms)
        .limit(limit)
    )
    return [(row.tenant, row.sha256) for row in rows]


def drop_old_marks(connection: Connection) -> None:
    """Marks of removals that no upload can still be racing with."""
    connection.execute(
        removed_blobs.delete().where(
            removed_blobs.c.is_gone.is_(True), removed_blobs.c.at_ms < now_ms(connection) - _MARK_MS
        )
    )


def _named(connection: Connection, tenant: str, digests: Collection[str]) -> set[str]:
    rows = connection.execute(
        sa.select(files.c.sha256)
        .join(items, items.c.id == files.c.item_id)
        .where(files.c.tenant == tenant, files.c.sha256.in_(list(digests)), items.c.purged_ms.is_(None))
        .distinct()
    )
    return set(rows.scalars())


def _lock_files(connection: Connection, tenant: str, *, is_shared: bool) -> None:
    """Marking a tenant's files and naming them exclude each other; SQLite has one writer at a time anyway."""
    if _is_postgresql(connection):
        key = int.from_bytes(hashlib.sha256(f"files\x00{tenant}".encode()).digest()[:8], signed=True)
        lock = sa.func.pg_advisory_xact_lock_shared if is_shared else sa.func.pg_advisory_xact_lock
        connection.execute(sa.select(lock(key)))


# -- other tables ------------------------------------------------------------------------------------------------------


def drop_old_keys(connection: Connection, *, ttl_ms: int, limit: int) -> int:
    """Idempotency keys past their lifetime; gives how many."""
    old = (
        sa.select(idempotency_keys.c.tenant, idempotency_keys.c.scope, idempotency_keys.c.key)
        .where(idempotency_keys.c.created_ms < now_ms(connection) - ttl_ms)
        .order_by(idempotency_keys.c.created_ms)
        .limit(limit)
    )
    key = sa.tuple_(idempotency_keys.c.tenant, idempotency_keys.c.scope, idempotency_keys.c.key)
    return connection.execute(idempotency_keys.delete().where(key.in_(old))).rowcount


def drop_old_events(connection: Connection, *, ttl_ms: int, limit: int) -> int:
    """The oldest events past their retention; gives how many."""
    return events.forget_before(connection, at_ms=now_ms(connection) - ttl_ms, most=limit)


def drop_old_runs(connection: Connection, *, ttl_ms: int, limit: int) -> int:
    """Guard runs that ended long ago, or were left open long ago, with all their rows; gives how many."""
    before_ms = now_ms(connection) - ttl_ms
    ended = (
        sa.select(guard_runs.c.id)
        .where(guard_runs.c.ended_ms.is_not(None), guard_runs.c.ended_ms < before_ms)
        .order_by(guard_runs.c.ended_ms)
        .limit(limit)
    )
    ids = list(connection.execute(ended).scalars())
    left = (  # ids sort by time, so only runs that began so long ago are looked at
        sa.select(guard_runs.c.id)
        .where(guard_runs.c.id < first_id("run", before_ms), guard_runs.c.ended_ms.is_(None))
        .where(guard_runs.c.updated_ms < before_ms)
        .order_by(guard_runs.c.id)
        .limit(limit)
    )
    ids.extend(connection.execute(left).scalars())
    if ids:
        connection.execute(guard_runs.delete().where(guard_runs.c.id.in_(ids)))
    return len(ids)


def _is_postgresql(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"
