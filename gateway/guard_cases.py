"""A halted run before a person: the case that is raised, and with which words the run goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy.engine import Connection

from gateway.escalation import UNDECIDED, Action, EscalationRecord, EscalationStatus, OnExpire
from gateway.guard_answers import as_text
from gateway.guard_problems import RunProblem, conflict
from gateway.guard_requests import ResumeRequest
from gateway.profiles.loader import EscalationPolicy
from gateway.resolution import FALSE_ALARM, advice
from gateway.resolution.refusals import NotAllowed, check_tools
from gateway.review.priority import terms_of
from gateway.store import escalations
from gateway.store import guard_runs as store
from gateway.store.guard_runs import RunRow, RunStatus
from guard import Decision, Guard, record_to_json

_STRIP_CALLS: Final = 40


def raise_case(connection: Connection, row: RunRow, guard: Guard, decision: Decision) -> str:
    """Put a halt before a person; gives the case's id."""
    packet = json.loads(as_text(_packet(connection, row, guard, decision)))
    return escalations.raise_case(
        connection,
        escalations.NewEscalation(
            tenant=row.tenant,
            item_id=row.item_id,
            run_id=row.id,
            attempt=guard.epoch + 1,
            profile=f"agent:{row.agent}"[:64],
            reason="halt" if decision.end_reason is None else decision.end_reason.value,
            tool=decision.tool,
            packet=packet,
            **terms_of(EscalationPolicy(), packet),
        ),
    )


def _packet(connection: Connection, row: RunRow, guard: Guard, decision: Decision) -> dict[str, Any]:
    """What a reviewer needs to decide."""
    raised, reason, spent = decision.escalation, decision.reason, guard.spent
    strip = _call_strip(connection, row, guard)
    arguments = next((call["arguments"] for call in strip if call["step"] == decision.step), None)
    text = "" if reason is None else f" {reason.text}"
    return {
        "question": f"The agent was stopped at {decision.tool}.{text}" if raised is None else raised.question,
        "reason_code": None if reason is None else reason.code.value,
        "why": None if reason is None else reason.text,
        "tool": decision.tool,
        "arguments": arguments,
        "first_answer": None if raised is None else raised.first_answer,
        "attempts": decision.counts.similar if raised is None else raised.attempts,
        "signature": decision.signature,
        "evidence": [] if raised is None else list(raised.evidence),
        "halt_number": decision.halt_number,
        "resume_point": decision.step,
        "cost": {"spent": spent.cost, "currency": None},
        "steps": {"taken": spent.steps, "of": spent.steps_max},
        "usage": asdict(spent),
        "calls": [{**call, "arguments": str(call["arguments"])[:300]} for call in strip],
        "agent": row.agent,
        "external_run_id": row.external_run_id,
    }


def _call_strip(connection: Connection, row: RunRow, guard: Guard) -> list[dict[str, Any]]:
    """The latest calls in order: step, tool, arguments (short, secrets hidden), what became of each."""
    stored = store.records_after(connection, row.id, after=max(0, row.records - 2 * _STRIP_CALLS))
    fresh = [record_to_json(record) for record in guard.trace.records]
    return _strip([*stored, *fresh])[-_STRIP_CALLS:]


def _strip(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    strip: dict[int, dict[str, Any]] = {}
    for record in records:
        if record["type"] == "call":
            view = record["view"]
            strip[view["step"]] = {
                "step": view["step"],
                "tool": view["tool"],
                "arguments": record["args"],
                "executed": record["execute"],
                "action": record["action"],
                "error": None,
            }
        elif record["type"] == "outcome" and record["step"] in strip:
            call = strip[record["step"]]
            call["error"] = record["code"]
            call["action"] = record["action"] if record["action"] != "allow" else call["action"]
    return list(strip.values())


@dataclass(frozen=True, slots=True)
class Words:
    """With what a run goes on."""

    text: str | None
    extra_steps: int = 0
    ban_tools: tuple[str, ...] = ()
    forgive: tuple[str, ...] = ()
    """Signatures whose refusal was a mistake."""
    note: str | None = None


def own_words(connection: Connection, row: RunRow, request: ResumeRequest) -> Words:
    """The caller's own, where the policy leaves a halt to it. Raises `RunProblem`."""
    if row.status is not RunStatus.HALTED:
        hint = " Send the `escalation_id` once it is decided." if row.status is RunStatus.AWAITING_HUMAN else ""
        raise conflict(f"The run is {row.status.value}.{hint}", row.status.value, escalation_id=row.escalation_id)
    try:
        check_tools(request.ban_tools, store.known_tools(connection, row.id))
    except NotAllowed as refused:
        (field,) = refused.fields
        raise RunProblem("invalid_request", field.detail, pointer=field.pointer) from refused
    return Words(request.guidance, request.extra_steps, tuple(request.ban_tools), note=request.guidance)


def decided_words(connection: Connection, row: RunRow, escalation_id: str) -> Words:
    """Those of the person who decided. Raises `RunProblem` while nobody has, and where the run does not wait for it."""
    record = escalations.get(connection, escalation_id, tenant=row.tenant)
    if record is None or record.run_id != row.id:
        raise RunProblem("not_found", "There is no escalation of this id in this run.")
    if record.status in UNDECIDED or record.is_pending:
        raise conflict("Nobody has decided yet; ask again later.", record.status.value, escalation_id=record.id)
    if record.status is EscalationStatus.WITHDRAWN:
        raise RunProblem("escalation_withdrawn", "This case was withdrawn; nothing was decided.")
    if row.status is RunStatus.ENDED or row.escalation_id != record.id:
        raise conflict(
            f"The run is {row.status.value} and does not wait for this decision.", row.status.value, outcome=row.outcome
        )
    return _words_of(record)


def _words_of(record: EscalationRecord) -> Words:
    decided = record.resolution or {}
    if record.status is EscalationStatus.EXPIRED:
        return _words_of_the_clock(record)
    if decided.get("action") == Action.DISMISS.value:
        signature = record.packet.get("signature")
        return Words(FALSE_ALARM, forgive=(str(signature),) if signature else (), note="false alarm")
    guidance = str(decided.get("guidance", ""))
    return Words(
        advice(guidance), int(decided.get("extra_steps", 0)), tuple(decided.get("ban_tools", ())), note=guidance
    )


_WITHOUT = "Nobody answered in time. Go on without {tool}, with what you know; say plainly what you could not find out."


def _words_of_the_clock(record: EscalationRecord) -> Words:
    """Those of a case that nobody answered in time. Raises `RunProblem` where the run is to wait on."""
    if (record.resolution or {}).get("action") == OnExpire.HOLD.value:
        raise conflict(
            "Nobody answered in time; the case is on hold until somebody reopens it.",
            record.status.value,
            escalation_id=record.id,
        )
    tools = () if record.tool is None else (record.tool,)
    return Words(_WITHOUT.format(tool=record.tool or "it"), ban_tools=tools, note="nobody answered in time")
