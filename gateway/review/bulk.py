"""One decision on many cases: each by itself first-writer-wins, none that somebody else holds, and all told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy.engine import Connection

from gateway.resolution import AnyDecision, NotAllowed
from gateway.review import groups
from gateway.review.deciding import decide_in, observe, tell
from gateway.review.desk import Desk
from gateway.review.errors import (
    AlreadyClaimed,
    AlreadyResolved,
    GroupChanged,
    KeyReused,
    NoSuchCase,
    ReviewError,
    StillRunning,
    Withdrawn,
)
from gateway.review.queue import case_in, not_claimable
from gateway.store import escalation_figures as figures
from gateway.store import escalation_leases as leases
from gateway.store import review_requests as requests
from gateway.strict_json import canonical
from gateway.wiring import Services

MOST_IDS = 200
_LEASE_MS = 60_000


class Fate(StrEnum):
    """What became of one case of a bulk decision."""

    DECIDED = "decided"
    WOULD_BE_DECIDED = "would_be_decided"
    CLAIMED_BY_OTHERS = "claimed_by_others"
    ALREADY_RESOLVED = "already_resolved"
    WITHDRAWN = "withdrawn"
    NOT_FOUND = "not_found"
    NOT_ALLOWED = "not_allowed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CaseFate:
    """One case of a bulk decision."""

    id: str
    result: Fate
    code: str | None = None
    detail: str | None = None
    holder: str | None = None
    item: str | None = None


@dataclass(frozen=True, slots=True)
class BulkAnswer:
    """What became of all of them."""

    results: Sequence[CaseFate]
    dry_run: bool
    is_replay: bool = False

    def count(self, fate: Fate) -> int:
        """How many ended so."""
        return sum(one.result is fate for one in self.results)


def decide_many(
    services: Services,
    desk: Desk,
    case_ids: Sequence[str],
    wanted: AnyDecision,
    *,
    key: str | None = None,
    dry_run: bool = False,
    undo_ms: int = 0,
) -> BulkAnswer:
    """Decide on each of these cases alike; its lease token is of no account. Raises `KeyReused`, `StillRunning`.

    What others hold is left alone. With `dry_run` nothing changes, and the answer says what would. The same request under
    the same key gets the same answer, and each case is decided once whatever happens in between.
    """
    ids = list(dict.fromkeys(case_ids))
    return _once(services, desk, ["ids", sorted(ids)], wanted, key, dry_run, undo_ms, lambda: ids)


def decide_group(
    services: Services,
    desk: Desk,
    group_id: str,
    wanted: AnyDecision,
    *,
    expected_count: int,
    key: str | None = None,
    dry_run: bool = False,
    undo_ms: int = 0,
) -> BulkAnswer:
    """Decide on all cases of a group that wait for a reviewer, if there are as many as the caller has seen.

    Raises `NoSuchGroup`, `GroupChanged` with the real count, `KeyReused`, `StillRunning`.
    """

    def find() -> list[str]:
        with services.database.read() as connection:
            ids = figures.to_decide(connection, groups.find(connection, desk, group_id).id)
        if len(ids) != expected_count:
            raise GroupChanged(expected_count, len(ids))
        return ids

    return _once(services, desk, ["group", group_id, expected_count], wanted, key, dry_run, undo_ms, find)


def _once(
    services: Services,
    desk: Desk,
    target: list[Any],
    wanted: AnyDecision,
    key: str | None,
    dry_run: bool,
    undo_ms: int,
    find: Callable[[], list[str]],
) -> BulkAnswer:
    if key is None or dry_run:
        return _all(services, desk, find(), wanted, None, dry_run, undo_ms)
    said = [target, wanted.model_dump(mode="json", exclude={"lease_token"}), undo_ms, desk.person]
    mark = hashlib.sha256(canonical(said).encode()).hexdigest()
    earlier = services.database.transact(
        lambda connection: requests.begin(connection, tenant=desk.tenant, key=key, fingerprint=mark)
    )
    if earlier is not None:
        if earlier.fingerprint != mark:
            raise KeyReused(key)
        if earlier.answer is None:
            raise StillRunning
        return _from_json(earlier.answer)
    try:
        answer = _all(services, desk, find(), wanted, key, dry_run, undo_ms)
    except ReviewError:
        services.database.transact(lambda connection: requests.forget(connection, tenant=desk.tenant, key=key))
        raise
    services.database.transact(
        lambda connection: requests.finish(connection, tenant=desk.tenant, key=key, answer=_to_json(answer))
    )
    return answer


def _all(
    services: Services,
    desk: Desk,
    ids: Sequence[str],
    wanted: AnyDecision,
    key: str | None,
    dry_run: bool,
    undo_ms: int,
) -> BulkAnswer:
    own_key = None if key is None else f"bulk:{key}"[:255]
    results = [_one(services, desk, case_id, wanted, own_key, dry_run, undo_ms) for case_id in ids]
    return BulkAnswer(results, dry_run)


class _Trial(Exception):
    """Ends a dry run's transaction, so that nothing of it stays."""

    code = "dry_run"
    retryable = False


def _one(
    services: Services,
    desk: Desk,
    case_id: str,
    wanted: AnyDecision,
    key: str | None,
    dry_run: bool,
    undo_ms: int,
) -> CaseFate:
    def work(connection: Connection) -> CaseFate:
        case_in(connection, desk, case_id)
        lease = leases.claim(connection, case_id, tenant=desk.tenant, holder=desk.person, lease_ms=_LEASE_MS)
        record = case_in(connection, desk, case_id)
        if lease is None and record.resolution is None:
            raise not_claimable(record)
        mine = wanted if lease is None else wanted.model_copy(update={"lease_token": lease.token})
        done = decide_in(connection, services, desk, case_id, mine, version=record.version, key=key, undo_ms=undo_ms)
        if dry_run:
            raise _Trial
        if not done.is_replay:
            decided.append(done.record)
        return CaseFate(case_id, Fate.DECIDED, item=done.record.item_id)

    decided: list[Any] = []
    try:
        fate = services.database.transact(work)
    except _Trial:
        return CaseFate(case_id, Fate.WOULD_BE_DECIDED)
    except (ReviewError, NotAllowed) as error:
        return _fate_of(case_id, error)
    for record in decided[-1:]:  # a transaction that was repeated has decided in its last run
        observe(record)
        tell(services, record)
    return fate


def _fate_of(case_id: str, error: ReviewError | NotAllowed) -> CaseFate:
    match error:
        case AlreadyClaimed(record=record):
            return CaseFate(case_id, Fate.CLAIMED_BY_OTHERS, error.code, error.public, holder=record.holder)
        case AlreadyResolved(record=record):
            words = f"Decided before: {record.decided_action} by {record.decided_by}."
            return CaseFate(case_id, Fate.ALREADY_RESOLVED, error.code, words, item=record.item_id)
        case Withdrawn():
            return CaseFate(case_id, Fate.WITHDRAWN, error.code, error.public)
        case NoSuchCase():
            return CaseFate(case_id, Fate.NOT_FOUND, error.code, error.public)
        case NotAllowed():
            return CaseFate(case_id, Fate.NOT_ALLOWED, error.code, error.public)
        case _:
            return CaseFate(case_id, Fate.FAILED, error.code, error.public)


def _to_json(answer: BulkAnswer) -> dict[str, Any]:
    return {"results": [{**asdict(one), "result": one.result.value} for one in answer.results]}


def _from_json(stored: Mapping[str, Any]) -> BulkAnswer:
    results = [CaseFate(**{**one, "result": Fate(one["result"])}) for one in stored["results"]]
    return BulkAnswer(results, dry_run=False, is_replay=True)
