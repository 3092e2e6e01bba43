"""When nobody answers: the profile's policy decides, in the name of the clock and never in that of a person."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, assert_never

import structlog
from sqlalchemy.engine import Connection

from gateway.escalation import TIMEOUT_ACTOR, EscalationRecord, OnExpire
from gateway.item import Item, Status
from gateway.profiles.loader import EscalationPolicy
from gateway.resolution import ItemMoved, Reviewer, begin_attempt
from gateway.review.deciding import tell
from gateway.store import escalation_clock as clock
from gateway.store import escalation_decisions as decisions
from gateway.store import guard_runs as run_store
from gateway.store import items as item_store
from gateway.wiring import Services

log = structlog.get_logger()

NO_ANSWER = "no_answer"
"""The code of an item that ended because nobody answered."""
GOES_ON_ALONE = (
    "Nobody answered in time, so this goes on without a reviewer. Write from the text and attributes alone; "
    "leave out what they do not say."
)
_ENDED = {
    "en": "Nobody could look at this item in time, so it was closed. It may be sent again as it is.",
    "zh": "未能在期限内安排人工查看，因此该商品已关闭。可原样重新提交。",
}
_CLOCK = Reviewer(TIMEOUT_ACTOR)


def expire_due(services: Services) -> list[EscalationRecord]:
    """Close the cases whose time is over, each with its policy's effect in the same transaction; gives them."""
    with services.database.read() as connection:
        due = clock.expired(connection)
    closed: list[EscalationRecord] = []
    for record in due:
        try:
            is_closed = services.database.transact(partial(_expire, services=services, record=record))
        except ItemMoved:
            continue  # it went on elsewhere meanwhile, and its case is withdrawn
        except Exception:  # one case that cannot be closed holds up no other
            log.exception("escalation.expiry_failed", escalation_id=record.id)
            continue
        if is_closed:
            log.info("escalation.expired", escalation_id=record.id, policy=policy_of(services, record).value)
            closed.append(record)
            tell(services, record)
    return closed


def policy_of(services: Services, record: EscalationRecord) -> OnExpire:
    """The policy under which the case was raised, else that of its profile now."""
    if record.on_expire is not None:
        return OnExpire(record.on_expire)
    profile = services.profiles.get(record.profile)
    return OnExpire((EscalationPolicy() if profile is None else profile.escalation).on_expire)


def _expire(connection: Connection, services: Services, record: EscalationRecord) -> bool:
    policy = policy_of(services, record)
    at_ms = item_store.now_ms(connection)
    resolution = {"action": policy.value, "by": TIMEOUT_ACTOR, "at_ms": at_ms, "note": "Nobody answered in time."}
    if not decisions.expire(connection, record, resolution=resolution):
        return False
    if record.run_id is not None:
        _end_run(connection, record.run_id, policy)
        return True
    item = None if record.item_id is None else item_store.get(connection, record.item_id)
    if item is not None and item.status is Status.AWAITING_HUMAN:
        _act(connection, item, policy)
    return True


def _act(connection: Connection, item: Item, policy: OnExpire) -> None:
    match policy:
        case OnExpire.REROUTE_TEXT_ONLY:
            begin_attempt(
                connection,
                item,
                _CLOCK,
                action="reroute",
                route="text_only",
                reason=NO_ANSWER,
                moved_because="timeout:text_only",
                guidance=GOES_ON_ALONE,
            )
        case OnExpire.REJECT:
            _reject(connection, item)
        case OnExpire.HOLD:
            return
        case _:
            assert_never(policy)


def _reject(connection: Connection, item: Item) -> None:
    problem: Mapping[str, Any] = {
        "type": "/problems/rule",
        "code": NO_ANSWER,
        "title": "Nobody answered in time",
        "user_message": _ENDED,
        "file": None,
        "part": None,
        "file_name": None,
        "measured": {},
        "limit": {},
        "rule": None,
        "next": "retry",
        "fix": _ENDED,
    }
    decided = {**(item.decision or {}), "verdict": "reject", "stage": "timeout", "problem": problem, "reason": None}
    before = item_store.transition(
        connection,
        item.id,
        expected=(Status.AWAITING_HUMAN,),
        to=Status.REJECTED,
        actor=TIMEOUT_ACTOR,
        fence=item.fence,
        reason=NO_ANSWER,
        values={"decision": decided},
    )
    if before is None:
        raise ItemMoved


def _end_run(connection: Connection, run_id: str, policy: OnExpire) -> None:
    """A run of somebody else's agent is ended, or goes on by itself once its caller asks."""
    if policy is OnExpire.REJECT:
        run_store.close(connection, run_id, outcome={"outcome": "expired", "by": TIMEOUT_ACTOR, "message": NO_ANSWER})
