"""Rows of items and their files: accept, claim, heartbeat, settle. Every change is conditional on status and fence."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.item import (
    SUSPECT_LOST_CLAIMS,
    Attempt,
    Effect,
    FileRecord,
    Item,
    Lease,
    Mode,
    Status,
    Usage,
    may_follow,
)
from gateway.store import events
from gateway.store.engine import database_now_ms
from gateway.store.tables import attempts, effects, files, history, inquiries, items

CLAIMABLE = Status.QUEUED
_IS_WAITING = items.c.status == sa.literal_column(f"'{CLAIMABLE.value}'")
"""Written out rather than bound: a plan for any value of a parameter cannot use the index of what waits."""
HANDED_ON = "inspected"
EDGE_PASSED = "edge_passed"
"""Reason of a waiting item whose files the request measured: what is left is to read them."""
MEASURED = "measured"
"""The same, measured by a worker: whoever reads them goes on with that worker's claim."""
"""The reason of a waiting item that one worker has judged and another is to write on: both together are one claim."""
WAITS_FOR_MODEL = "model_calls_paused"
"""The reason of a waiting item that was given back because all requests to the model are paused: no claim is counted for it."""
_NOT_HANDED_ON = sa.case((items.c.reason.in_([HANDED_ON, MEASURED, WAITS_FOR_MODEL]), 0), else_=1)
_NEEDS_NO_MODEL = sa.or_(items.c.route.is_(None), items.c.route == "human")
_IS_CANCELLING = items.c.status == sa.literal_column(f"'{Status.CANCELLING.value}'")


def now_ms(connection: Connection) -> int:
    """The database's clock, Unix milliseconds. SQLite's is this machine's, so it need not be asked."""
    if connection.dialect.name == "sqlite":
        return time.time_ns() // 1_000_000
    return int(connection.execute(_NOW).scalar_one())


# Statements of the hot path are built once: building costs more than running them.
_NOW = sa.select(database_now_ms())
_INSERT_ITEM = items.insert()
_INSERT_FILES = files.insert()
_INSERT_HISTORY = history.insert()
_TWIN = (
    sa.select(items.c.id, items.c.status, items.c.version)
    .where(
        items.c.tenant == sa.bindparam("tenant"),
        items.c.content_key == sa.bindparam("content_key"),
        items.c.purge_asked_ms.is_(None),
        items.c.purged_ms.is_(None),
        items.c.status.not_in(
            [
                status.value
                for status in Status
                if status.name in {"REJECTED", "FAILED", "CANCELLED", "CANCELLING", "EXPIRED"}
            ]
        ),
    )
    .order_by(items.c.created_ms.desc(), items.c.id.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class NewItem:
    """All that is known of an item when it is accepted."""

    id: str
    tenant: str
    external_id: str | None
    mode: Mode
    profile: str
    profile_version: str
    ruleset: str
    submission: Mapping[str, Any]
    notes: tuple[str, ...]
    content_key: str
    duplicate_of: str | None
    retention_ms: int
    files: tuple[FileRecord, ...]
    supersedes: str | None = None


def insert(connection: Connection, new: NewItem, *, actor: str, at_ms: int) -> Item:
    """Write the item with its files as `queued`, with its first history row and event; gives it as it was written."""
    connection.execute(
        _INSERT_ITEM,
        {
            "id": new.id,
            "tenant": new.tenant,
            "external_id": new.external_id,
            "mode": new.mode.value,
            "profile": new.profile,
            "profile_version": new.profile_version,
            "ruleset": new.ruleset,
            "status": Status.QUEUED.value,
            "available_ms": at_ms,
            "hinted_ms": at_ms,
            "submission": dict(new.submission),
            "notes": list(new.notes),
            "usage": asdict(Usage()),
            "upload_bytes": sum(record.bytes for record in new.files),
            "content_key": new.content_key,
            "duplicate_of": new.duplicate_of,
            "created_ms": at_ms,
            "updated_ms": at_ms,
            "expires_ms": at_ms + new.retention_ms,
            "supersedes": new.supersedes,
        },
    )
    if new.files:
        connection.execute(
            _INSERT_FILES,
            [_file_row(record, new, position) for position, record in enumerate(new.files)],
        )
    _record(connection, new.id, None, Status.QUEUED, version=1, fence=0, actor=actor, reason=None, at_ms=at_ms)
    events.append(
        connection, tenant=new.tenant, kind="item.queued", resource=new.id, version=1, at_ms=at_ms,
        body={"status": Status.QUEUED.value, "external_id": new.external_id},
    )  # fmt: skip
    return Item(
        id=new.id,
        tenant=new.tenant,
        external_id=new.external_id,
        mode=new.mode,
        profile=new.profile,
        profile_version=new.profile_version,
        ruleset=new.ruleset,
        status=Status.QUEUED,
        reason=None,
        route=None,
        attempt=1,
        epoch=0,
        claims=0,
        lost_claims=0,
        fence=0,
        version=1,
        submission=new.submission,
        notes=new.notes,
        decision=None,
        result=None,
        failure=None,
        usage=Usage(),
        duplicate_of=new.duplicate_of,
        escalation_id=None,
        created_ms=at_ms,
        updated_ms=at_ms,
        expires_ms=at_ms + new.retention_ms,
        files=new.files,
        supersedes=new.supersedes,
    )


def _file_row(record: FileRecord, new: NewItem, position: int) -> dict[str, Any]:
    return {**_file_values(record), "item_id": new.id, "tenant": new.tenant, "position": position}


def _file_values(record: FileRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "part": record.part,
        "role": record.role,
        "file_name": record.file_name,
        "declared_type": record.declared_type,
        "sha256": record.sha256,
        "bytes": record.bytes,
        "media_type": record.media_type,
        "verdict": record.verdict,
        "screening": record.screening,
    }


def claim(
    connection: Connection,
    item_id: str,
    *,
    owner: str,
    lease_ms: int,
    is_counted: bool = True,
) -> Lease | None:
    """Take a waiting item: raises its fence and counts the claim before any work. None if it is not there to be taken.

    A request that looks at its own upload is not counted: `claims` are those of workers.
    """
    return _claim_where(connection, items.c.id == item_id, owner=owner, lease_ms=lease_ms, is_counted=is_counted)


def claim_next(
    connection: Connection, *, owner: str, lease_ms: int, is_alone: bool = True, may_write: bool = True
) -> Lease | None:
    """Take the item that has waited longest; None when nothing waits.

    A worker that has others in hand (not `is_alone`) does not get an item that has to be worked on alone. Without
    `may_write` items that are judged and wait for the model stay where they are.
    """
    oldest = (
        sa.select(items.c.id)
        .where(_IS_WAITING, items.c.available_ms <= database_now_ms())
        .order_by(items.c.available_ms, items.c.id)
        .limit(1)
    )
    if not is_alone:
        oldest = oldest.where(items.c.lost_claims < SUSPECT_LOST_CLAIMS)
    if not may_write:
        oldest = oldest.where(_NEEDS_NO_MODEL)
    if connection.dialect.name == "postgresql":
        oldest = oldest.with_for_update(skip_locked=True)
    return _claim_where(
        connection, items.c.id == oldest.scalar_subquery(), owner=owner, lease_ms=lease_ms, is_counted=True
    )


def _claim_where(
    connection: Connection, where: sa.ColumnElement[bool], *, owner: str, lease_ms: int, is_counted: bool
) -> Lease | None:
    row = connection.execute(
        items.update()
        .where(where, _IS_WAITING)
        .values(
            status=Status.INSPECTING.value,
            fence=items.c.fence + 1,
            claims=items.c.claims + (_NOT_HANDED_ON if is_counted else 0),
            version=items.c.version + 1,
            lease_owner=owner,
            lease_expires_ms=database_now_ms() + lease_ms,
            updated_ms=database_now_ms(),
        )
        .returning(items.c.id, items.c.fence, items.c.version, items.c.updated_ms, items.c.lost_claims)
    ).first()
    if row is None:
        return None
    _record(
        connection, row.id, CLAIMABLE, Status.INSPECTING, version=row.version, fence=row.fence, actor=owner, reason="claimed",
        at_ms=row.updated_ms,
    )  # fmt: skip
    return Lease(row.id, row.fence, owner, is_suspect=row.lost_claims >= SUSPECT_LOST_CLAIMS)


def heartbeat(connection: Connection, leases: Iterable[Lease], *, lease_ms: int) -> dict[str, bool]:
    """Renew leases. Per item id: whether its cancellation was asked for; a lease that was lost is absent."""
    kept: dict[str, bool] = {}
    for lease in leases:
        row = connection.execute(
            items.update()
            .where(items.c.id == lease.item_id, items.c.fence == lease.fence, items.c.lease_owner == lease.owner)
            .values(lease_expires_ms=database_now_ms() + lease_ms)
            .returning(items.c.cancel_requested_ms)
        ).first()
        if row is not None:
            kept[lease.item_id] = row.cancel_requested_ms is not None
    return kept


def transition(
    connection: Connection,
    item_id: str,
    *,
    expected: Collection[Status],
    to: Status,
    actor: str,
    fence: int | None = None,
    reason: str | None = None,
    values: Mapping[str, Any] | None = None,
    release: bool = True,
    event_body: Mapping[str, Any] | None = None,
) -> Status | None:
    """Move an item to another status, if it still is in an expected one (and, where given, under this fence).

    Writes the history row and the event in the same transaction. Gives the status before, or None if the condition did
    not hold: a stale fence or a change by somebody else, and then nothing was written. With `release` the lease ends.
    """
    before = connection.execute(_for_update(connection, item_id)).first()
    if before is None or Status(before.status) not in expected or (fence is not None and before.fence != fence):
        return None
    status = Status(before.status)
    if status is not to and not may_follow(status, to):
        raise ValueError(f"an item never goes from {status.value} to {to.value}")
    at_ms = now_ms(connection)
    changes: dict[str, Any] = {"status": to.value, "version": before.version + 1, "updated_ms": at_ms, "reason": reason}
    if to is CLAIMABLE:
        changes["hinted_ms"] = at_ms
    if release:
        changes.update(lease_owner=None, lease_expires_ms=None)
    changes.update(values or {})
    changed = connection.execute(
        items.update()
        .where(items.c.id == item_id, items.c.version == before.version, items.c.fence == before.fence)
        .values(**changes)
    )
    if changed.rowcount != 1:
        return None
    _record(
        connection, item_id, status, to, version=before.version + 1, fence=before.fence, actor=actor, reason=reason,
        at_ms=at_ms,
    )  # fmt: skip
    events.append(
        connection,
        tenant=before.tenant,
        kind=f"item.{to.value}",
        resource=item_id,
        version=before.version + 1,
        at_ms=at_ms,
        body={"status": to.value, "external_id": before.external_id, "reason": reason, **(event_body or {})},
    )
    return status


def _for_update(connection: Connection, item_id: str) -> sa.Select[Any]:
    query = sa.select(
        items.c.status, items.c.fence, items.c.version, items.c.tenant, items.c.external_id
    ).where(items.c.id == item_id)  # fmt: skip
    return query.with_for_update() if connection.dialect.name == "postgresql" else query


def set_screening(
    connection: Connection, lease: Lease, file_id: str, *, verdict: str, screening: Mapping[str, Any]
) -> bool:
    """Keep what was measured of one file, so that no later stage measures it again; False if the lease is stale."""
    holder = sa.exists().where(items.c.id == files.c.item_id, items.c.id == lease.item_id, items.c.fence == lease.fence)
    changed = connection.execute(
        files.update().where(files.c.id == file_id, holder).values(verdict=verdict, screening=dict(screening))
    )
    return changed.rowcount == 1


def override_file(connection: Connection, file_id: str, overridden: Mapping[str, Any]) -> None:
    """Keep that a person uses a file although a rule refuses it; the rule's verdict stays beside it."""
    connection.execute(files.update().where(files.c.id == file_id).values(overridden=dict(overridden)))


def add_files(connection: Connection, item: Item, records: Iterable[FileRecord]) -> None:
    """Write files that came later, after those of the submission."""
    rows = [
        {**_file_values(record), "item_id": item.id, "tenant": item.tenant, "position": position}
        for position, record in enumerate(records, len(item.files))
    ]
    if rows:
        connection.execute(_INSERT_FILES, rows)
        added = sum(row["bytes"] for row in rows)
        connection.execute(
            items.update().where(items.c.id == item.id).values(upload_bytes=items.c.upload_bytes + added)
        )


def set_submission(connection: Connection, item_id: str, submission: Mapping[str, Any]) -> None:
    """Write what the submitter has said by now; the caller moves the item in the same transaction."""
    connection.execute(items.update().where(items.c.id == item_id).values(submission=dict(submission)))


def link_superseding(connection: Connection, old: Item, new_id: str, *, actor: str) -> bool:
    """Write at an item that is over which one replaces it; False if it has changed since it was read."""
    at_ms = now_ms(connection)
    changed = connection.execute(
        items.update()
        .where(items.c.id == old.id, items.c.version == old.version)
        .values(superseded_by=new_id, version=old.version + 1, updated_ms=at_ms)
    )
    if changed.rowcount != 1:
        return False
    _record(
        connection, old.id, old.status, old.status, version=old.version + 1, fence=old.fence, actor=actor,
        reason=f"superseded by {new_id}", at_ms=at_ms,
    )  # fmt: skip
    events.append(
        connection, tenant=old.tenant, kind="item.superseded", resource=old.id, version=old.version + 1, at_ms=at_ms,
        body={"status": old.status.value, "external_id": old.external_id, "superseded_by": new_id},
    )  # fmt: skip
    return True


def holds(connection: Connection, lease: Lease) -> bool:
    """Whether the lease is still the item's, and somebody is at work on it."""
    query = sa.select(items.c.id).where(
        items.c.id == lease.item_id,
        items.c.fence == lease.fence,
        items.c.status.in_([Status.INSPECTING.value, Status.RUNNING.value]),
    )
    if connection.dialect.name == "postgresql":
        query = query.with_for_update()
    return connection.execute(query).first() is not None


@dataclass(frozen=True, slots=True)
class LapsedRow:
    """An item whose holder has not renewed its lease in time."""

    id: str
    tenant: str
    fence: int
    status: str
    claims: int
    lost_claims: int


def lapsed(connection: Connection, *, limit: int = 100) -> list[LapsedRow]:
    """Items whose lease has run out, longest ago first."""
    rows = connection.execute(
        sa.select(items.c.id, items.c.tenant, items.c.fence, items.c.status, items.c.claims, items.c.lost_claims)
        .where(items.c.lease_expires_ms.is_not(None), items.c.lease_expires_ms < database_now_ms())
        .order_by(items.c.lease_expires_ms)
        .limit(limit)
    )
    return [LapsedRow(**row._mapping) for row in rows]


def is_lapsed(connection: Connection, item_id: str, *, fence: int) -> bool:
    """Whether this lease, and not a newer one, has run out and was not renewed meanwhile.

    A row that somebody is writing on just now has not lapsed: whoever writes is alive.
    """
    query = sa.select(items.c.id).where(
        items.c.id == item_id, items.c.fence == fence, items.c.lease_expires_ms < database_now_ms()
    )
    if connection.dialect.name == "postgresql":
        query = query.with_for_update(skip_locked=True)
    return connection.execute(query).first() is not None


def overdue_cancels(connection: Connection, *, grace_ms: int, limit: int = 100) -> list[str]:
    """Items that are being cancelled for longer than the grace."""
    rows = connection.execute(
        sa.select(items.c.id)
        .where(
            _IS_CANCELLING,
            items.c.cancel_requested_ms < database_now_ms() - grace_ms,
        )
        .limit(limit)
    )
    return [row.id for row in rows]


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """An item that waits although workers were told of it."""

    id: str
    route: str | None
    reason: str | None


def take_unheard(connection: Connection, *, patience_ms: int, limit: int = 200) -> list[WaitingRow]:
    """Waiting items of which workers were last told longer ago than that, longest first; they count as told now.

    So several sweepers that look at the same time share them, and each is told of once in `patience_ms` at most.
    """
    unheard = (
        sa.select(items.c.id)
        .where(_IS_WAITING, items.c.hinted_ms < database_now_ms() - patience_ms)
        .where(items.c.available_ms <= database_now_ms())
        .order_by(items.c.hinted_ms)
        .limit(limit)
    )
    if connection.dialect.name == "postgresql":
        unheard = unheard.with_for_update(skip_locked=True)
    rows = connection.execute(
        items.update()
        .where(items.c.id.in_(unheard), _IS_WAITING)
        .values(hinted_ms=database_now_ms())
        .returning(items.c.id, items.c.route, items.c.reason)
    )
    return [WaitingRow(row.id, row.route, row.reason) for row in rows]


def lock_content(connection: Connection, *, tenant: str, content_key: str) -> None:
    """Make submissions of the same content wait for each other until the transaction ends; to be called first in it.

    SQLite has one writer at a time, so there they do anyway.
    """
    if connection.dialect.name == "postgresql":
        key = int.from_bytes(hashlib.sha256(f"{tenant}\x00{content_key}".encode()).digest()[:8], signed=True)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def get(connection: Connection, item_id: str, *, tenant: str | None = None) -> Item | None:
    """The item with its files; None if there is none of that id (in this tenant, where one is given)."""
    query = sa.select(items).where(items.c.id == item_id)
    if tenant is not None:
        query = query.where(items.c.tenant == tenant)
    row = connection.execute(query).first()
    if row is None:
        return None
    item = _item(row, _files_of(connection, [item_id]).get(item_id, ()))
    if item.attempt > 1:
        item = replace(item, attempts=_attempts_of(connection, item_id))
    if item.status is Status.AWAITING_SUBMITTER:
        item = replace(item, inquiry=_inquiry_of(connection, item_id))
    return replace(item, effects=_effects_of(connection, item_id)) if item.usage.tool_calls else item


def version_and_status(connection: Connection, item_id: str) -> tuple[int, Status] | None:
    """The two cheap columns that a waiting caller looks at."""
    row = connection.execute(sa.select(items.c.version, items.c.status).where(items.c.id == item_id)).first()
    return None if row is None else (row.version, Status(row.status))


@dataclass(frozen=True, slots=True)
class Claimable:
    """What a worker needs to know of a waiting item before it claims it."""

    route: str | None
    reason: str | None
    is_suspect: bool


def claimable(connection: Connection, item_id: str) -> Claimable | None:
    """The item, if it waits for a worker."""
    row = connection.execute(
        sa.select(items.c.route, items.c.reason, items.c.lost_claims).where(items.c.id == item_id, _IS_WAITING)
    ).first()
    return None if row is None else Claimable(row.route, row.reason, row.lost_claims >= SUSPECT_LOST_CLAIMS)


@dataclass(frozen=True, slots=True)
class Twin:
    """An item whose content is that of a new submission."""

    id: str
    status: Status
    version: int


def newest_with_content(connection: Connection, *, tenant: str, content_key: str) -> Twin | None:
    """The newest item with the same content that is in flight, ready or succeeded; those that ended otherwise never block."""
    row = connection.execute(_TWIN, {"tenant": tenant, "content_key": content_key}).first()
    return None if row is None else Twin(row.id, Status(row.status), row.version)


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """What a list of items is narrowed by; None means any."""

    status: tuple[str, ...] | None = None
    profile: str | None = None
    external_id: str | None = None
    route: str | None = None
    reason: str | None = None
    created_after_ms: int | None = None


def page(
    connection: Connection, *, tenant: str, where: ItemFilter, after: tuple[int, str] | None, limit: int
) -> list[Item]:
    """Up to `limit` items, newest first; `after` is the (created_ms, id) of the last one of the page before."""
    query = sa.select(items).where(items.c.tenant == tenant)
    for column, value in (
        (items.c.profile, where.profile),
        (items.c.external_id, where.external_id),
        (items.c.route, where.route),
        (items.c.reason, where.reason),
    ):
        if value is not None:
            query = query.where(column == value)
    if where.status is not None:
        query = query.where(items.c.status.in_(where.status))
    if where.created_after_ms is not None:
        query = query.where(items.c.created_ms > where.created_after_ms)
    if after is not None:
        query = query.where(sa.tuple_(items.c.created_ms, items.c.id) < sa.tuple_(*map(sa.literal, after)))
    query = query.order_by(items.c.created_ms.desc(), items.c.id.desc()).limit(limit)
    rows = connection.execute(query).all()
    by_item = _files_of(connection, [row.id for row in rows])
    return [_item(row, by_item.get(row.id, ())) for row in rows]


def history_of(connection: Connection, item_id: str) -> list[sa.Row[Any]]:
    """All transitions of an item, oldest first."""
    return list(connection.execute(sa.select(history).where(history.c.item_id == item_id).order_by(history.c.id)))


def waited_ms(connection: Connection, item_id: str, *, since_ms: int) -> int:
    """How long an item has waited in the queue since then, all times together: nobody was at work on it meanwhile."""
    waited, queued_ms = 0, None
    for row in history_of(connection, item_id):
        if queued_ms is not None:
            waited += row.at_ms - queued_ms
        is_waiting = row.to_status == CLAIMABLE.value and row.at_ms >= since_ms
        queued_ms = row.at_ms if is_waiting else None
    return waited


def _record(
    connection: Connection,
    item_id: str,
    before: Status | None,
    after: Status,
    *,
    version: int,
    fence: int,
    actor: str,
    reason: str | None,
    at_ms: int,
) -> None:
    connection.execute(
        _INSERT_HISTORY,
        {
            "item_id": item_id,
            "at_ms": at_ms,
            "from_status": None if before is None else before.value,
            "to_status": after.value,
            "version": version,
            "fence": fence,
            "actor": actor,
            "reason": reason,
        },
    )


def _files_of(connection: Connection, ids: list[str]) -> dict[str, tuple[FileRecord, ...]]:
    if not ids:
        return {}
    rows = connection.execute(
        sa.select(files).where(files.c.item_id.in_(ids)).order_by(files.c.item_id, files.c.position)
    )
    grouped: dict[str, list[FileRecord]] = {}
    for row in rows:
        grouped.setdefault(row.item_id, []).append(
            FileRecord(
                id=row.id,
                part=row.part,
                role=row.role,
                file_name=row.file_name,
                declared_type=row.declared_type,
                sha256=row.sha256,
                bytes=row.bytes,
                media_type=row.media_type,
                verdict=row.verdict,
                screening=row.screening,
                overridden=row.overridden,
            )
        )
    return {item_id: tuple(records) for item_id, records in grouped.items()}


def _item(row: sa.Row[Any], records: tuple[FileRecord, ...]) -> Item:
    return Item(
        id=row.id,
        tenant=row.tenant,
        external_id=row.external_id,
        mode=Mode(row.mode),
        profile=row.profile,
        profile_version=row.profile_version,
        ruleset=row.ruleset,
        status=Status(row.status),
        reason=row.reason,
        route=row.route,
        attempt=row.attempt,
        epoch=row.epoch,
        claims=row.claims,
        lost_claims=row.lost_claims,
        fence=row.fence,
        version=row.version,
        submission=row.submission,
        notes=tuple(row.notes),
        decision=row.decision,
        result=row.result,
        failure=row.failure,
        usage=Usage(**row.usage),
        duplicate_of=row.duplicate_of,
        escalation_id=row.escalation_id,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        expires_ms=row.expires_ms,
        files=records,
        supersedes=row.supersedes,
        superseded_by=row.superseded_by,
        purged_ms=row.purged_ms,
    )


def _attempts_of(connection: Connection, item_id: str) -> tuple[Attempt, ...]:
    rows = connection.execute(sa.select(attempts).where(attempts.c.item_id == item_id).order_by(attempts.c.number))
    return tuple(
        Attempt(
            number=row.number,
            action=row.action,
            actor=row.actor,
            reason=row.reason,
            route=row.route,
            budget=row.budget,
            before=row.before,
            started_ms=row.started_ms,
        )
        for row in rows
    )


def _inquiry_of(connection: Connection, item_id: str) -> Mapping[str, Any] | None:
    row = connection.execute(
        sa.select(inquiries.c.question, inquiries.c.until_ms).where(
            inquiries.c.item_id == item_id, inquiries.c.ended.is_(None)
        )
    ).first()
    return None if row is None else {"question": row.question, "until_ms": row.until_ms}


def _effects_of(connection: Connection, item_id: str) -> tuple[Effect, ...]:
    rows = connection.execute(
        sa.select(effects).where(effects.c.item_id == item_id).order_by(effects.c.seq, effects.c.key)
    )
    return tuple(Effect(row.seq, row.tool, row.arguments, row.at_ms) for row in rows)
