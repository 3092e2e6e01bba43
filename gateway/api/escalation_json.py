"""Cases, leases, audits and groups of the human queue as JSON, in the words of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.api.render import timestamp
from gateway.escalation import (
    CONSEQUENCES,
    Action,
    EscalationLease,
    EscalationRecord,
    allowed_actions,
    needs_override,
    refused_actions,
)
from gateway.review.bulk import BulkAnswer, Fate
from gateway.review.groups import GroupView
from gateway.review.queue import Claimed
from gateway.review.suggestion import Past, Suggestion
from gateway.settings import money
from gateway.store.escalation_figures import QueueFigures
from gateway.store.escalation_leases import QueueState
from gateway.store.escalation_log import LogEntry


def escalation_json(record: EscalationRecord) -> dict[str, Any]:
    """A case for a person, with all that is needed to decide, and what each decision would do."""
    packet = record.packet
    return {
        "id": record.id,
        "status": record.status.value,
        "version": record.version,
        "item": record.item_id,
        "run": record.run_id,
        "attempt": record.attempt,
        "profile": record.profile,
        "reason": record.reason,
        "tool": record.tool,
        "question": packet.get("question"),
        "why": packet.get("why"),
        "arguments": packet.get("arguments"),
        "first_answer": packet.get("first_answer"),
        "attempts": packet.get("attempts"),
        "evidence": packet.get("evidence", []),
        "halt_number": packet.get("halt_number"),
        "resume_point": packet.get("resume_point"),
        "cost": packet.get("cost"),
        "steps": packet.get("steps"),
        "usage": packet.get("usage"),
        "calls": packet.get("calls", []),
        "occurrence_count": record.occurrence_count,
        "came_back_after": record.came_back_after,
        "reopen_count": record.reopen_count,
        "reopens": record.reopens,
        "group": record.group_id,
        "fingerprint": record.fingerprint,
        "priority": record.priority,
        "holder": record.holder,
        "lease_expires_at": timestamp(record.lease_expires_ms),
        "fence": record.fence,
        "inquiries": packet.get("inquiries") or [],
        "preferred": packet.get("preferred"),
        "open_calls": [_open_call_json(call) for call in packet.get("open_calls") or ()],
        "allowed_actions": [offer_json(record, action) for action in allowed_actions(record)],
        "refused_actions": [{"action": action.value, "why": dict(why)} for action, why in refused_actions(record)],
        "resolution": None if record.resolution is None else resolution_json(record),
        "apply_at": timestamp(record.apply_ms),
        "apply_problem": record.apply_problem,
        "links": case_links(record),
        "created_at": timestamp(record.created_ms),
        "updated_at": timestamp(record.updated_ms),
        "due_at": timestamp(record.due_ms),
        "expires_at": timestamp(record.expires_ms),
        "on_expire": record.on_expire,
    }


def offer_json(record: EscalationRecord, action: Action) -> dict[str, Any]:
    """An action that is possible, what it does in plain words, and what it needs beside its payload."""
    why = needs_override(record) if action is Action.RETRY else None
    needs = {} if why is None else {"needs": {"override": dict(why)}}
    return {"action": action.value, "consequence": dict(CONSEQUENCES[action]), **needs}


def _open_call_json(call: Mapping[str, Any]) -> dict[str, Any]:
    return {name: call.get(name) for name in ("call_id", "tool", "arguments", "state")}


def case_links(record: EscalationRecord) -> dict[str, str]:
    """Where the case, its item and its run are read."""
    links = {"self": f"/v1/escalations/{record.id}", "audit": f"/v1/escalations/{record.id}/audit"}
    if record.item_id is not None:
        links["item"] = f"/v1/items/{record.item_id}"
    if record.run_id is not None:
        links["run"] = f"/v1/guard/runs/{record.run_id}"
    if record.group_id is not None:
        links["group"] = f"/v1/escalation-groups/{record.group_id}"
    return links


def resolution_json(record: EscalationRecord) -> dict[str, Any]:
    """What was decided, by whom and when."""
    stored = dict(record.resolution or {})
    stored["at"] = timestamp(stored.pop("at_ms", None))
    return stored


def resolved_json(record: EscalationRecord) -> dict[str, Any]:
    """The answer to a decision: the same for the same decision, however often it is sent."""
    return {
        "id": record.id,
        "status": record.status.value,
        "item": record.item_id,
        "run": record.run_id,
        "resolution": resolution_json(record),
        "apply_at": timestamp(record.apply_ms),
        "links": case_links(record),
    }


def lease_json(lease: EscalationLease) -> dict[str, Any]:
    """A lease with its token, for its holder alone."""
    return {"token": lease.token, "fence": lease.fence, "expires_at": timestamp(lease.expires_ms)}


def claimed_json(claimed: Claimed) -> dict[str, Any]:
    """A case with the lease on it."""
    return {"escalation": escalation_json(claimed.record), "lease": lease_json(claimed.lease)}


def empty_json(state: QueueState) -> dict[str, Any]:
    """Why nothing was handed out: nothing open, all held by others, or hidden by the filter."""
    return {
        "empty": True,
        "why": why_empty(state),
        "open": state.open,
        "claimed_by_others": state.claimed,
        "hidden_by_filter": state.open - state.matching,
        "next_expiry": timestamp(state.next_expiry_ms),
    }


def why_empty(state: QueueState) -> str | None:
    """One word for it; None while there is something for this filter."""
    if state.matching:
        return None
    if state.open:
        return "hidden_by_filter"
    return "all_claimed" if state.claimed else "nothing_open"


def entry_json(entry: LogEntry) -> dict[str, Any]:
    """One line of an audit."""
    return {
        "at": timestamp(entry.at_ms),
        "what": entry.what.value,
        "actor": entry.actor,
        "from": entry.from_status,
        "to": entry.to_status,
        "version": entry.version,
        "fence": entry.fence,
        "note": entry.note,
        "detail": entry.detail,
    }


def suggestion_json(suggestion: Suggestion | None) -> dict[str, Any] | None:
    """A pre-selected action with its reason."""
    if suggestion is None:
        return None
    return {
        "action": suggestion.action.value,
        "route": suggestion.route,
        "basis": suggestion.basis.value,
        "reason": dict(suggestion.reason),
    }


def past_json(past: Sequence[Past]) -> list[dict[str, Any]]:
    """The last decisions of a group, the newest first, each with what became of it."""
    return [
        {
            "escalation": one.case_id,
            "action": one.action,
            "route": one.route,
            "by": one.by,
            "at": timestamp(one.at_ms),
            "outcome": one.status,
            "came_back": one.came_back,
        }
        for one in past
    ]


def group_json(view: GroupView) -> dict[str, Any]:
    """A kind of incident with what waits, what it cost, and how it was decided before."""
    group, figures = view.group, view.figures
    return {
        "id": group.id,
        "profile": group.profile,
        "tool": group.tool,
        "kind": group.kind,
        "open": figures.open,
        "claimed": figures.claimed,
        "waiting_submitter": figures.waiting_submitter,
        "to_decide": figures.to_decide,
        "cases": figures.cases,
        "oldest_at": timestamp(figures.oldest_ms),
        "burnt": [
            {"amount": money(amount), "currency": currency} for currency, amount in sorted(figures.burnt.items())
        ],
        "last": past_json(view.last),
        "suggestion": suggestion_json(view.suggestion),
        "split_from": group.split_from,
        "fingerprints": [{"key": key, "split_from": origin} for key, origin in sorted(view.fingerprints.items())],
        "links": {
            "self": f"/v1/escalation-groups/{group.id}",
            "escalations": f"/v1/escalations?group={group.id}",
        },
        "created_at": timestamp(group.created_ms),
        "updated_at": timestamp(group.updated_ms),
    }


def bulk_json(answer: BulkAnswer) -> dict[str, Any]:
    """What became of each case of a bulk decision."""
    return {
        "dry_run": answer.dry_run,
        "counts": {fate.value: answer.count(fate) for fate in Fate if answer.count(fate)},
        "results": [{**asdict(one), "result": one.result.value} for one in answer.results],
        "skipped": [
            {"id": one.id, "holder": one.holder} for one in answer.results if one.result is Fate.CLAIMED_BY_OTHERS
        ],
    }


def stats_json(figures: QueueFigures) -> dict[str, Any]:
    """How the queue stands, and how quickly people decide."""
    state = QueueState(figures.open, figures.claimed, figures.open, figures.next_lease_expiry_ms)
    return {
        "open": figures.open,
        "claimed": figures.claimed,
        "waiting_submitter": figures.waiting_submitter,
        "pending": figures.pending,
        "overdue": figures.overdue,
        "on_hold": figures.on_hold,
        "why_empty": why_empty(state),
        "oldest_age_s": None if figures.oldest_ms is None else max(figures.at_ms - figures.oldest_ms, 0) / 1000,
        "next_lease_expiry": timestamp(figures.next_lease_expiry_ms),
        "by_reason": figures.by_reason,
        "by_assignee": figures.by_assignee,
        "time_to_claim": asdict(figures.time_to_claim),
        "time_to_resolve": asdict(figures.time_to_resolve),
        "decisions": figures.decisions,
        "timeouts": figures.timeouts,
        "window_s": 7 * 24 * 3600,
    }
