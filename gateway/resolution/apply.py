"""Carry out a reviewer's decision: the case is flipped and its effect written in one transaction."""

from __future__ import annotations

from typing import assert_never

from sqlalchemy.engine import Connection

from gateway.escalation import EscalationRecord, EscalationStatus, possible_actions, refusal
from gateway.item import Item
from gateway.profiles import Profile, Profiles
from gateway.resolution import calls, endings, goes_on, new_attempts, runs
from gateway.resolution.asking import ask_submitter
from gateway.resolution.decisions import (
    AnswerItem,
    AnswerTool,
    AnyDecision,
    ApproveCall,
    AskSubmitter,
    Close,
    DenyCall,
    Dismiss,
    EditCall,
    RejectItem,
    Reroute,
    Resume,
    Retry,
)
from gateway.resolution.moves import Reviewer
from gateway.resolution.recording import record_decision
from gateway.resolution.refusals import ItemMoved, NotAllowed
from gateway.store import items as item_store


def apply(
    connection: Connection,
    profiles: Profiles,
    record: EscalationRecord,
    decision: AnyDecision,
    reviewer: Reviewer,
) -> None:
    """Write the decision's effect. Raises `NotAllowed`, `ItemMoved`; the caller rolls back.

    A run of somebody else's agent goes on when its caller fetches the decision, so until then nothing changes there.
    """
    why = refusal(record, decision.action)
    if why is not None:
        public = f"`{decision.action.value}` is not possible here. {why['en']}"
        raise NotAllowed(public, possible_actions(record))
    try:
        if record.run_id is not None:
            _apply_to_run(connection, record.run_id, record, decision, reviewer)
        else:
            _apply_to_item(connection, profiles, record, decision, reviewer)
    except NotAllowed as error:
        error.allowed = error.allowed or possible_actions(record)
        raise
    record_decision(connection, record, decision, reviewer)


def status_after(record: EscalationRecord, decision: AnyDecision) -> EscalationStatus:
    """Where a decided case stands: `resolved` while the decision waits to be fetched by the caller of a run."""
    if isinstance(decision, AskSubmitter):
        return EscalationStatus.WAITING_SUBMITTER
    is_fetched_later = record.run_id is not None and not isinstance(decision, Close)
    return EscalationStatus.RESOLVED if is_fetched_later else EscalationStatus.APPLIED


def _apply_to_run(
    connection: Connection, run_id: str, record: EscalationRecord, decision: AnyDecision, reviewer: Reviewer
) -> None:
    if isinstance(decision, Close):
        endings.close(connection, run_id, reviewer, decision)
    else:
        runs.check_for_run(connection, run_id, record, decision)


def _apply_to_item(
    connection: Connection, profiles: Profiles, record: EscalationRecord, decision: AnyDecision, reviewer: Reviewer
) -> None:
    item = None if record.item_id is None else item_store.get(connection, record.item_id)
    if item is None:
        raise ItemMoved
    profile = profiles.get(item.profile)
    match decision:
        case Resume():
            goes_on.resume(connection, item, profile, reviewer, decision)
        case Dismiss():
            goes_on.dismiss(connection, item, reviewer, record, decision)
        case AnswerTool():
            goes_on.answer_tool(connection, item, reviewer, decision)
        case ApproveCall():
            calls.approve_call(connection, item, _installed(item, profile), reviewer, decision)
        case EditCall():
            calls.edit_call(connection, item, _installed(item, profile), reviewer, decision)
        case DenyCall():
            calls.deny_call(connection, item, reviewer, decision)
        case Reroute():
            new_attempts.reroute(connection, item, profile, reviewer, decision)
        case Retry():
            new_attempts.retry(connection, item, profile, reviewer, record, decision)
        case AnswerItem():
            endings.answer_item(connection, item, profile, reviewer, decision)
        case RejectItem():
            endings.reject_item(connection, item, reviewer, decision)
        case AskSubmitter():
            ask_submitter(connection, item, reviewer, record, decision)
        case Close():
            raise ItemMoved
        case _:
            assert_never(decision)


def _installed(item: Item, profile: Profile | None) -> Profile:
    if profile is None:
        raise NotAllowed(f"The profile {item.profile} is no longer installed, so its tools and policy are not known.")
    return profile
