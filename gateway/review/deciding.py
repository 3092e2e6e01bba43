"""Decide a case: the first valid writer wins, the effect is written once, and until then it can be taken back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sqlalchemy as sa
import structlog
from sqlalchemy.engine import Connection

from gateway import metrics, resolution
from gateway.escalation import EscalationRecord, EscalationStatus
from gateway.resolution import AnyDecision, ItemMoved
from gateway.review.desk import Desk
from gateway.review.errors import (
    AlreadyResolved,
    Forbidden,
    KeyReused,
    PreconditionMissing,
    StaleVersion,
    Withdrawn,
)
from gateway.review.queue import DEFAULT_LEASE_MS, Claimed, case_in, lease_lost, not_claimable, transact
from gateway.store import escalation_decisions as decisions
from gateway.store import escalation_leases as leases
from gateway.store import items as item_store
from gateway.wiring import Services
from gateway.work.dispatch import Bulkhead

log = structlog.get_logger()

MOST_UNDO_MS = 60_000


@dataclass(frozen=True, slots=True)
class Decided:
    """A case after its decision."""

    record: EscalationRecord
    is_replay: bool = False
    """The same request came before, and this is its answer."""


def decide(
    services: Services,
    desk: Desk,
    case_id: str,
    wanted: AnyDecision,
    *,
    version: int | None,
    key: str | None = None,
    undo_ms: int = 0,
) -> Decided:
    """Decide on the case that was read at `version`, under one's own lease, whose token the decision carries.

    With `undo_ms` the effect waits that long, in which `undo` takes the decision back. Raises `NoSuchCase`,
    `AlreadyResolved`, `Withdrawn`, `PreconditionMissing`, `LeaseLost`, `StaleVersion`, `KeyReused`, and what
    `gateway.resolution.apply` raises.
    """

    def work(connection: Connection) -> Decided:
        return decide_in(connection, services, desk, case_id, wanted, version=version, key=key, undo_ms=undo_ms)

    done = transact(services, work)
    if not done.is_replay:
        observe(done.record)
        tell(services, done.record)
    return done


def decide_in(
    connection: Connection,
    services: Services,
    desk: Desk,
    case_id: str,
    wanted: AnyDecision,
    *,
    version: int | None,
    key: str | None,
    undo_ms: int = 0,
) -> Decided:
    """`decide` within a transaction; the caller calls `observe` and `tell` once it is committed."""
    record = case_in(connection, desk, case_id)
    mark = resolution.fingerprint(case_id, wanted)
    if record.resolution is not None and record.status is not EscalationStatus.WITHDRAWN:
        return _replayed(connection, record, key, mark)
    if record.status is EscalationStatus.WITHDRAWN:
        raise Withdrawn(record)
    if record.status is EscalationStatus.WAITING_SUBMITTER and key is not None:
        return _replayed(connection, record, key, mark)
    if version is None:
        raise PreconditionMissing
    if not leases.holds(connection, case_id, token=wanted.lease_token, holder=desk.person):
        raise lease_lost(connection, record)
    if record.version != version:
        raise StaleVersion(record)
    is_first = decisions.resolve(
        connection,
        case_id,
        token=wanted.lease_token,
        version=version,
        resolution=resolution.resolution_of(wanted, desk.reviewer, item_store.now_ms(connection)),
        key=key,
        fingerprint=mark,
        status=EscalationStatus.RESOLVED if undo_ms else resolution.status_after(record, wanted),
        undo_ms=undo_ms,
    )
    if not is_first:  # another transaction was quicker since we looked
        latest = case_in(connection, desk, case_id)
        if latest.resolution is not None and latest.status is not EscalationStatus.WITHDRAWN:
            return _replayed(connection, latest, key, mark)
        raise lease_lost(connection, latest)
    try:
        if undo_ms:
            check(connection, services, record, wanted, desk)
        else:
            resolution.apply(connection, services.profiles, record, wanted, desk.reviewer)
    except ItemMoved as error:
        raise Withdrawn(record) from error
    return Decided(case_in(connection, desk, case_id))


def _replayed(connection: Connection, record: EscalationRecord, key: str | None, mark: str) -> Decided:
    won_key, won_mark = decisions.resolved_by(connection, record.id)
    if key is None or key != won_key:
        raise AlreadyResolved(record)
    if mark != won_mark:
        raise KeyReused(key)
    return Decided(record, is_replay=True)


def check(
    connection: Connection, services: Services, record: EscalationRecord, wanted: AnyDecision, desk: Desk
) -> None:
    """Raise what applying the decision would raise now, and change nothing."""
    with connection.begin_nested() as trial:
        resolution.apply(connection, services.profiles, record, wanted, desk.reviewer)
        trial.rollback()


def undo(services: Services, desk: Desk, case_id: str, *, lease_ms: int = DEFAULT_LEASE_MS) -> Claimed:
    """Take back one's own decision before it takes effect (a lead: anybody's); the case is in one's hands again.

    Raises `NoSuchCase`, `Forbidden`, `AlreadyResolved` when it is too late, `Withdrawn`.
    """

    def work(connection: Connection) -> Claimed:
        record = case_in(connection, desk, case_id)
        check_may_take_back(record, desk)
        lease = decisions.undo(connection, case_id, tenant=desk.tenant, person=desk.person, lease_ms=lease_ms)
        if lease is None:
            raise not_claimable(record)
        return Claimed(case_in(connection, desk, case_id), lease)

    return services.database.transact(work)


def may_take_back(record: EscalationRecord, desk: Desk) -> bool:
    """Whether a decision that has not taken effect is theirs to take back: their own; a lead's, anybody's."""
    return not record.is_pending or record.decided_by == desk.person or desk.is_lead


def check_may_take_back(record: EscalationRecord, desk: Desk) -> None:
    """Raise `Forbidden` where a colleague's decision has not taken effect yet."""
    if not may_take_back(record, desk):
        raise Forbidden(
            f"{record.decided_by} decided this; until it takes effect only they or a lead can take it back."
        )


def apply_pending(services: Services) -> list[EscalationRecord]:
    """Let the decisions take effect whose time to be taken back is over; gives the cases that changed.

    One that cannot take effect is open again and says why: nothing is resolved without having happened.
    """
    with services.database.read() as connection:
        due = decisions.due_to_apply(connection)
    changed: list[EscalationRecord] = []
    for record in due:
        if _apply_one(services, record):
            changed.append(record)
            tell(services, record)
    return changed


def _apply_one(services: Services, record: EscalationRecord) -> bool:
    desk = Desk(record.tenant, record.decided_by or "")

    def work(connection: Connection) -> bool:
        wanted = stored_decision(record)
        if not decisions.begin_effect(connection, record, status=resolution.status_after(record, wanted)):
            return False
        resolution.apply(connection, services.profiles, _undecided(record), wanted, desk.reviewer)
        return True

    try:
        return services.database.transact(work)
    except sa.exc.OperationalError:
        log.exception("escalation.apply_put_off", escalation_id=record.id)
        return False  # the database was away or busy: the next round tries again
    except Exception as error:
        log.warning("escalation.apply_failed", escalation_id=record.id, action=record.decided_action, exc_info=error)
        problem = {
            "code": getattr(error, "code", "internal"),
            "detail": _why_it_failed(error),
            "action": record.decided_action,
            "by": record.decided_by,
        }
        return services.database.transact(
            lambda connection: decisions.reject_effect(connection, record, problem=problem)
        )


def _why_it_failed(error: Exception) -> str:
    """In words for the reviewer."""
    if isinstance(error, ItemMoved):
        return "The item was no longer where it was when this was decided."
    public: str | None = getattr(error, "public", None)
    return public or "It could not be carried out. Decide again; if it stays, tell the operator."


def stored_decision(record: EscalationRecord) -> AnyDecision:
    """The decision as it was sent, from what was kept of it."""
    kept = {name: value for name, value in (record.resolution or {}).items() if name not in {"by", "at_ms"}}
    return resolution.DECISIONS.validate_python({**kept, "lease_token": "kept"})


def _undecided(record: EscalationRecord) -> EscalationRecord:
    """The case as it was decided on: what may be decided depends on its being undecided."""
    return replace(record, status=EscalationStatus.CLAIMED)


def observe(record: EscalationRecord) -> None:
    """Count a person's decision."""
    metrics.review_decisions.labels(record.decided_action or "").inc()
    if record.decided_ms is not None:
        metrics.resolve_seconds.observe((record.decided_ms - record.created_ms) / 1000)


def tell(services: Services, record: EscalationRecord) -> None:
    """Wake whoever waits for the item; to be called once the change is committed."""
    if record.run_id is None and record.item_id is not None:
        services.dispatch.wake(record.item_id, Bulkhead.AGENT)
        services.signals.send("api", record.item_id)
