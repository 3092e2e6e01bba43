"""Accept a submission: bytes made durable first, then one transaction with item, files, idempotency key and event."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway import outcome, rule_metrics
from gateway import submission as submissions
from gateway.blobs import BlobWriter, StoredBlob
from gateway.decision import ScreenedFile, decide, is_settled_by_edge
from gateway.ids import new_id
from gateway.item import FileRecord, Item, Lease
from gateway.profiles import Profile
from gateway.store import events, idempotency, retention, webhooks
from gateway.store import items as item_store
from gateway.store.engine import is_out_of_room as is_database_full
from gateway.store.webhooks import Callback
from gateway.submission import Submission
from gateway.verbs.superseding import check_supersedable, supersede
from gateway.wiring import Services
from prefilters.facts import Stage
from prefilters.media import MediaKind
from prefilters.screen import screen

T = TypeVar("T")

DAY_MS = 24 * 3600 * 1000


class StorageFull(Exception):
    """The disk is full or read-only; nothing was stored."""

    code = "storage_full"
    retryable = True


def is_out_of_room(error: OSError) -> bool:
    """Whether an upload could not be written because the disk is full, over its quota, or closed to us."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


class DuplicateItem(Exception):
    """`on_duplicate: conflict`, and an item with the same content exists."""

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self.item_id = item_id


class FilesBeingRemoved(Exception):
    """Files of the same content were being removed while these were stored; the same again goes through."""

    code = "dependency_unavailable"
    retryable = True
    public = "An older copy of this file was just being deleted. Nothing was stored; send it again."


class KeyTaken(Exception):
    """Another request stored the same idempotency key in the meantime."""


@dataclass(frozen=True, slots=True)
class IncomingFile:
    """One file whose bytes have arrived."""

    part: str
    role: str | None
    file_name: str | None
    declared_type: str | None
    writer: BlobWriter


@dataclass(frozen=True, slots=True)
class Incoming:
    """A checked submission with its bytes, ready to be accepted."""

    tenant: str
    actor: str
    document: dict[str, Any]
    submission: Submission
    profile: Profile
    files: Sequence[IncomingFile]
    idempotency_key: str | None
    fingerprint: str
    meta_fingerprint: str
    callback: Callback | None = None
    """Checked: where the outcome is to be sent."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The item that stands for a submission, new or found."""

    item_id: str
    duplicate_of: str | None = None
    """The existing item that is reused, if it is one."""
    lease: Lease | None = None
    """Held by this process where the edge rules are to run inside the request."""
    item: Item | None = None
    """The new item as it was written, where nothing has happened to it since."""


def accept(services: Services, incoming: Incoming, *, scope: str, claim_as: str | None) -> Accepted:
    """Store a submission. Blocks for as long as the disk takes.

    Leading bytes and headers are looked at on the way; where they already refuse every file, the item is stored as
    rejected. Else, with `claim_as`, an item that has pictures is leased to that owner in the same transaction.
    Raises `StorageFull`, `DuplicateItem`, `KeyTaken`, and where a limit of the tenant's day is reached `BudgetExhausted` or
    `QuotaExceeded`; `FilesBeingRemoved`; for an item that cannot be replaced `NoSuchItem` or `StateConflict`.
    """
    _refuse_early(services, incoming)
    try:
        files = [keep(services, file, tenant=incoming.tenant, profile=incoming.profile) for file in incoming.files]
        accepted = store_naming_files(
            services,
            incoming.tenant,
            files,
            lambda connection: _store(connection, services, incoming, files, scope=scope, claim_as=claim_as),
        )
    except FileNotFoundError as error:  # an earlier copy was sound a moment ago, and was removed since
        raise FilesBeingRemoved from error
    except OSError as error:
        if is_out_of_room(error):
            raise StorageFull from error
        raise
    except sa.exc.IntegrityError as error:
        if incoming.idempotency_key is None:
            raise
        raise KeyTaken from error
    except sa.exc.DBAPIError as error:
        if is_database_full(error):
            raise StorageFull from error
        raise
    if accepted.duplicate_of is None and is_settled_by_edge(files, incoming.profile):
        rule_metrics.count(files)
    return accepted


def _refuse_early(services: Services, incoming: Incoming) -> None:
    """Say no before the bytes are stored, where the tenant's day has nothing left and the item is not known already."""
    if not services.budgets.is_limited(incoming.tenant):
        return
    with services.database.read() as connection:
        if _twin(connection, incoming, _content_key(incoming)) is None:
            services.budgets.check(connection, incoming.tenant, incoming.submission.item_mode)


def store_naming_files(
    services: Services, tenant: str, files: Sequence[ScreenedFile], store: Callable[[Connection], T]
) -> T:
    """One transaction that names files which were kept just before. Raises `FilesBeingRemoved`.

    Where one of them was removed a while ago and is there again, the transaction is run once more.
    """
    digests = {file.record.sha256 for file in files}

    def checked(connection: Connection) -> T:
        retention.check_files(connection, tenant, digests)
        return store(connection)

    try:
        return services.database.transact(checked)
    except retention.BlobBeingRemoved as error:
        removed = error.removed
        if not all(is_gone and services.blobs.holds(tenant, digest) for digest, is_gone in removed.items()):
            raise FilesBeingRemoved from error
    services.database.transact(lambda connection: retention.forget_gone(connection, tenant, removed))
    try:
        return services.database.transact(checked)
    except retention.BlobBeingRemoved as error:
        raise FilesBeingRemoved from error


def keep(services: Services, file: IncomingFile, *, tenant: str, profile: Profile) -> ScreenedFile:
    """Make a file's bytes durable, and look at its leading bytes and headers. Raises `OSError` when there is no room."""
    blob: StoredBlob = file.writer.finish()
    path = services.blobs.keep(tenant, blob)
    screening = screen(
        path,
        rules=services.rules_for(profile),
        pool=services.pool,
        limits=profile.decode_limits,
        declared_type=file.declared_type,
        file_name=file.file_name,
        through=Stage.HEADER,
    )
    record = FileRecord(
        id=new_id("fil"),
        part=file.part,
        role=file.role,
        file_name=file.file_name,
        declared_type=file.declared_type,
        sha256=blob.sha256,
        bytes=blob.bytes,
        media_type=screening.media.mime,
        verdict=None,
        screening=None,
    )
    if screening.verdict.decided:
        record = replace(record, verdict=screening.verdict.kind.value, screening=screening.to_json())
    return ScreenedFile(record, screening)  # headers that decide nothing are cheaper read again than stored


def _store(
    connection: Connection,
    services: Services,
    incoming: Incoming,
    files: Sequence[ScreenedFile],
    *,
    scope: str,
    claim_as: str | None,
) -> Accepted:
    at_ms = item_store.now_ms(connection)
    old = None
    if incoming.submission.supersedes is not None:
        old = check_supersedable(connection, incoming.submission.supersedes, tenant=incoming.tenant)
    content_key = _content_key(incoming)
    item_store.lock_content(connection, tenant=incoming.tenant, content_key=content_key)
    twin = _twin(connection, incoming, content_key)
    item_id = twin.id if twin is not None else new_id("itm", now_ms=at_ms)
    item = None
    if twin is None:
        services.budgets.admit(connection, incoming.tenant, incoming.submission.item_mode)
        item = _insert(connection, services, incoming, files, item_id=item_id, content_key=content_key, at_ms=at_ms)
    if incoming.idempotency_key is not None:
        idempotency.store(
            connection,
            tenant=incoming.tenant,
            scope=scope,
            key=incoming.idempotency_key,
            found=idempotency.StoredKey(incoming.meta_fingerprint, incoming.fingerprint, item_id),
            at_ms=at_ms,
            not_before_ms=at_ms - services.settings.idempotency_ttl_s * 1000,
        )
    if incoming.callback is not None:
        webhooks.add_callback(connection, item_id, incoming.callback)
    if old is not None and twin is None:
        supersede(connection, old, item_id, actor=incoming.actor)
    if twin is not None:
        events.append(
            connection, tenant=incoming.tenant, kind="item.duplicate", resource=twin.id, version=twin.version, at_ms=at_ms,
            body={"status": twin.status.value, "external_id": incoming.submission.external_id},
        )  # fmt: skip
        return Accepted(item_id, duplicate_of=item_id)
    if is_settled_by_edge(files, incoming.profile):
        _reject(connection, services, incoming, files, item_id)
        return Accepted(item_id)
    has_pictures = any(file.screening.media.kind is MediaKind.IMAGE and not file.is_decided for file in files)
    if claim_as is None or not has_pictures:
        return Accepted(item_id, item=item)
    lease_ms = int(services.settings.lease_s * 1000)
    lease = item_store.claim(connection, item_id, owner=claim_as, lease_ms=lease_ms, is_counted=False)
    return Accepted(item_id, lease=lease)


def _content_key(incoming: Incoming) -> str:
    return submissions.content_key(
        tenant=incoming.tenant,
        profile_version=incoming.profile.version,
        fingerprint_hex=incoming.fingerprint,
    )


def _twin(connection: Connection, incoming: Incoming, content_key: str) -> item_store.Twin | None:
    if incoming.submission.on_duplicate == "new":
        return None
    found = item_store.newest_with_content(connection, tenant=incoming.tenant, content_key=content_key)
    if found is not None and incoming.submission.on_duplicate == "conflict":
        raise DuplicateItem(found.id)
    return found


def _reject(
    connection: Connection, services: Services, incoming: Incoming, files: Sequence[ScreenedFile], item_id: str
) -> None:
    """Headers refuse every file: the item is stored as rejected."""
    lease_ms = int(services.settings.lease_s * 1000)
    lease = item_store.claim(connection, item_id, owner=incoming.actor, lease_ms=lease_ms, is_counted=False)
    assert lease is not None
    ruleset = services.rules_for(incoming.profile).version
    outcome.rejected(connection, lease, decide(files, incoming.profile, services.prices, ruleset=ruleset))


def _insert(
    connection: Connection,
    services: Services,
    incoming: Incoming,
    files: Sequence[ScreenedFile],
    *,
    item_id: str,
    content_key: str,
    at_ms: int,
) -> Item:
    submission, profile = incoming.submission, incoming.profile
    days = submission.retention_days or profile.retention_days or services.settings.retention_days
    return item_store.insert(
        connection,
        item_store.NewItem(
            id=item_id,
            tenant=incoming.tenant,
            external_id=submission.external_id,
            mode=submission.item_mode,
            profile=profile.name,
            profile_version=profile.version,
            ruleset=services.rules_for(profile).version,
            submission=submission.model_dump(mode="json", exclude={"files", "on_duplicate"}),
            notes=() if submission.title and submission.title.strip() else ("missing_title",),
            content_key=content_key,
            duplicate_of=None,
            retention_ms=days * DAY_MS,
            files=tuple(file.record for file in files),
            supersedes=submission.supersedes,
        ),
        actor=incoming.actor,
        at_ms=at_ms,
    )
