"""Guard runs as JSON, in the words of the contract. Decisions are stored as they are sent, so they are not made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.render import timestamp
from gateway.guarding.answers import budget_json
from gateway.guarding.runs import RunView
from gateway.store.guard_runs import RunRow

_COUNTERS = ("allow", "warn", "block", "halt", "executed", "not_executed", "shared", "reports", "unasked")
_SHOWN_SIGNATURES = 20


def opened_json(row: RunRow) -> dict[str, Any]:
    """A run as the one who opens it needs it."""
    return {
        "run_id": row.id,
        "agent": row.agent,
        "external_run_id": row.external_run_id,
        "item_id": row.item_id,
        "status": row.status.value,
        "epoch": row.epoch,
        "policy": row.policy_id,
        "banned_tools": list(row.progress.get("banned", ())),
        "links": {"self": f"/v1/guard/runs/{row.id}"},
    }


def run_json(view: RunView) -> dict[str, Any]:
    """A run with its counters, where it stands, and which signatures stand on a ladder."""
    row, progress = view.row, view.progress
    return {
        **opened_json(row),
        "counters": {
            **{name: progress.counts.get(name, 0) for name in _COUNTERS},
            "decisions": row.decisions,
            "halts": progress.halts,
        },
        "budget": budget_json(progress.spent, view.definition["policy"]["budget"]),
        "ladder": _ladder_json(view.latest),
        "halt": row.halt,
        "escalation_id": row.escalation_id,
        "open_calls": [{"call_id": call.call_id, "tool": call.tool, "turn": call.turn} for call in progress.open],
        "tools": view.definition["tools"],
        "policy_values": view.definition["policy"],
        "outcome": row.outcome,
        "created_at": timestamp(row.created_ms),
        "updated_at": timestamp(row.updated_ms),
        "ended_at": timestamp(row.ended_ms),
    }


def _ladder_json(latest: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The signatures of the latest calls that stand above the first rung, the latest first."""
    seen: dict[str, dict[str, Any]] = {}
    for body in latest:
        counts = body["counts"]
        if body["signature"] not in seen:
            seen[body["signature"]] = {
                "tool": body["tool"],
                "signature": body["signature"],
                "call_id": body["call_id"],
                "action": body["action"],
                "reason": None if body["reason"] is None else body["reason"]["code"],
                "same": counts["same"],
                "similar": counts["similar"],
                "errors_same_code": counts["errors_same_code"],
            }
    raised = [entry for entry in seen.values() if max(entry["same"], entry["similar"], entry["errors_same_code"]) > 1]
    return raised[:_SHOWN_SIGNATURES]
