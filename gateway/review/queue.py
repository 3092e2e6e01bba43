"""Work at the queue: look, take, keep, give back, hand over, note. Raises the errors of `gateway.review.errors`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy.engine import Connection

from gateway import metrics
from gateway.escalation import UNDECIDED, Change, EscalationLease, EscalationRecord, EscalationStatus
from gateway.review.desk import Desk
from gateway.review.errors import (
    AlreadyClaimed,
    AlreadyResolved,
    Forbidden,
    LeaseLost,
    NoSuchCase,
    ReviewError,
    Withdrawn,
)
from gateway.store import escalation_leases as leases
from gateway.store import escalation_log as audit
from gateway.store import escalation_rows as rows
from gateway.store.escalation_leases import QueueState
from gateway.store.escalation_log import LogEntry
from gateway.store.escalation_rows import CaseFilter, Place
from gateway.wiring import Services

T = TypeVar("T")

DEFAULT_LEASE_MS = 300_000
_MOST_LOOKS = 20
_ENDS_A_LEASE = (
    Change.CLAIMED, Change.ASSIGNED, Change.RELEASED, Change.LEASE_EXPIRED, Change.WITHDRAWN, Change.RESOLVED,
    Change.EXPIRED, Change.UNDONE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claimed:
    """A case in somebody's hands."""

    record: EscalationRecord
    lease: EscalationLease


def listed(
    services: Services, desk: Desk, *, where: CaseFilter, after: Place | None = None, limit: int = 50
) -> list[EscalationRecord]:
    """Up to `limit` cases, the soonest due first, then by priority."""
    with services.database.read() as connection:
        return rows.page(connection, tenant=desk.tenant, where=where, after=after, limit=limit)


def case(services: Services, desk: Desk, case_id: str) -> EscalationRecord:
    """One case. Raises `NoSuchCase`."""
    with services.database.read() as connection:
        return case_in(connection, desk, case_id)


def state(services: Services, desk: Desk, *, where: CaseFilter) -> QueueState:
    """Nothing open, all held, or hidden by the filter: how many of each."""
    with services.database.read() as connection:
        return leases.queue_state(connection, tenant=desk.tenant, where=where)


def claim(services: Services, desk: Desk, case_id: str, *, lease_ms: int = DEFAULT_LEASE_MS) -> Claimed:
    """Take a case, or renew one's own lease. Raises `NoSuchCase`, `AlreadyClaimed`, `AlreadyResolved`, `Withdrawn`."""

    def work(connection: Connection) -> Claimed:
        before = case_in(connection, desk, case_id)
        lease = leases.claim(connection, case_id, tenant=desk.tenant, holder=desk.person, lease_ms=lease_ms)
        record = case_in(connection, desk, case_id)
        if lease is None:
            raise not_claimable(record)
        _observe_claim(before, record)
        return Claimed(record, lease)

    return services.database.transact(work)


def claim_next(
    services: Services, desk: Desk, *, where: CaseFilter, lease_ms: int = DEFAULT_LEASE_MS
) -> Claimed | QueueState:
    """The soonest due case that nobody holds; else how many are open, held, and hidden by the filter."""

    def take(connection: Connection, *, waits: bool) -> Claimed | None:
        taken = leases.claim_next(
            connection, tenant=desk.tenant, where=where, holder=desk.person, lease_ms=lease_ms, waits=waits
        )
        if taken is None:
            return None
        record = case_in(connection, desk, taken[0])
        if record.fence == 1 and record.claimed_ms is not None:
            metrics.claim_seconds.observe((record.claimed_ms - record.created_ms) / 1000)
        return Claimed(record, taken[1])

    claimed = services.database.transact(partial(take, waits=False))
    for _ in range(_MOST_LOOKS):
        if claimed is not None:
            return claimed
        found = state(services, desk, where=where)
        if not found.matching:
            return found
        # What was there was being written on, or has come since: look again, and wait for whoever writes.
        claimed = services.database.transact(partial(take, waits=True))
    return claimed or state(services, desk, where=where)


def heartbeat(
    services: Services, desk: Desk, case_id: str, *, token: str, lease_ms: int = DEFAULT_LEASE_MS
) -> EscalationLease:
    """Keep one's own lease. Raises `NoSuchCase`, `LeaseLost`, `Withdrawn`."""

    def work(connection: Connection) -> EscalationLease:
        lease = leases.heartbeat(
            connection, case_id, tenant=desk.tenant, token=token, holder=desk.person, lease_ms=lease_ms
        )
        if lease is None:
            raise lease_lost(connection, case_in(connection, desk, case_id))
        return lease

    return transact(services, work)


def release(services: Services, desk: Desk, case_id: str, *, token: str, note: str | None = None) -> EscalationRecord:
    """Give a case back, with a note for the next one. Raises `NoSuchCase`, `LeaseLost`, `Withdrawn`."""

    def work(connection: Connection) -> EscalationRecord:
        is_released = leases.release(
            connection, case_id, tenant=desk.tenant, token=token, holder=desk.person, note=note
        )
        record = case_in(connection, desk, case_id)
        if not is_released:
            raise lease_lost(connection, record)
        return record

    return transact(services, work)


def assign(
    services: Services,
    desk: Desk,
    case_id: str,
    *,
    to: str,
    lease_ms: int = DEFAULT_LEASE_MS,
    note: str | None = None,
) -> Claimed:
    """Hand a case to a person, or take it over oneself: the lease before is worth nothing from then on.

    A lead may do so with any case, whoever holds one may hand it on. Raises `NoSuchCase`, `Forbidden`, `AlreadyResolved`,
    `Withdrawn`.
    """

    def work(connection: Connection) -> Claimed:
        before = case_in(connection, desk, case_id)
        if not desk.is_lead and before.holder != desk.person:
            raise Forbidden("Only a lead hands out cases, or takes over what others hold; you can claim what is open.")
        lease = leases.assign(
            connection, case_id, tenant=desk.tenant, to=to, actor=desk.person, lease_ms=lease_ms, note=note
        )
        record = case_in(connection, desk, case_id)
        if lease is None:
            raise not_claimable(record)
        _observe_claim(before, record)
        return Claimed(record, lease)

    return services.database.transact(work)


def add_note(services: Services, desk: Desk, case_id: str, *, text: str) -> LogEntry:
    """Say something about a case, for good. Raises `NoSuchCase`."""

    def work(connection: Connection) -> LogEntry:
        record = case_in(connection, desk, case_id)
        audit.write(connection, case_id, Change.NOTED, actor=desk.person, before=record.status.value, note=text)
        entry = audit.latest(connection, case_id, of=(Change.NOTED,))
        assert entry is not None
        return entry

    return services.database.transact(work)


def audit_of(services: Services, desk: Desk, case_id: str) -> list[LogEntry]:
    """All that happened to a case, oldest first: who, when, what. Raises `NoSuchCase`."""
    with services.database.read() as connection:
        case_in(connection, desk, case_id)
        return audit.all_of(connection, case_id)


def release_all_of(services: Services, *, tenant: str, holder: str, actor: str, why: str = "role_revoked") -> list[str]:
    """Give back all that a person holds, since they may no longer review; gives the ids of the cases."""
    return services.database.transact(
        lambda connection: leases.free_all_of(connection, tenant=tenant, holder=holder, actor=actor, why=why)
    )


# --- for the other modules of this package ---------------------------------------------------------------------------


def transact(services: Services, work: Callable[[Connection], T]) -> T:
    """One writing transaction; a lease that turns out to be lost is counted."""
    try:
        return services.database.transact(work)
    except LeaseLost:
        metrics.review_leases_lost.inc()
        raise


def case_in(connection: Connection, desk: Desk, case_id: str) -> EscalationRecord:
    """One case within a transaction. Raises `NoSuchCase`."""
    record = rows.get(connection, case_id, tenant=desk.tenant)
    if record is None:
        raise NoSuchCase
    return record


def not_claimable(record: EscalationRecord) -> ReviewError:
    """Why a case cannot be taken."""
    if record.status in UNDECIDED:
        return AlreadyClaimed(record)
    return Withdrawn(record) if record.status is EscalationStatus.WITHDRAWN else AlreadyResolved(record)


def lease_lost(connection: Connection, record: EscalationRecord) -> ReviewError:
    """Why a lease is worth nothing any more."""
    if record.status is EscalationStatus.WITHDRAWN:
        return Withdrawn(record)
    return LeaseLost(record, audit.latest(connection, record.id, of=_ENDS_A_LEASE))


def _observe_claim(before: EscalationRecord, record: EscalationRecord) -> None:
    if before.claimed_ms is None and record.claimed_ms is not None:
        metrics.claim_seconds.observe((record.claimed_ms - record.created_ms) / 1000)
