"""A halted run before a person: the case that is raised, and with which words the run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy.engine import Connection

from gateway.agent.open_calls import CallState
from gateway.escalation import UNDECIDED, Action, EscalationRecord, EscalationStatus, OnExpire
from gateway.guarding.answers import as_text
from gateway.guarding.problems import RunProblem, conflict
from gateway.guarding.requests import ResumeRequest
from gateway.profiles.loader import EscalationPolicy
from gateway.resolution import FALSE_ALARM, advice
from gateway.resolution.calls import denied_content
from gateway.resolution.goes_on import answered_content
from gateway.resolution.refusals import NotAllowed, check_tools
from gateway.review.priority import terms_of
from gateway.store import escalations
from gateway.store import guard_runs as store
from gateway.store.guard_runs import RunRow, RunStatus
from guard import Decision, EndReason, Guard, Phase, ReasonCode, record_to_json

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
        "call_id": decision.call_id,
        "detector": _detector(decision),
        "rule": None if reason is None or reason.code is not ReasonCode.RULE else reason.rule,
        "open_calls": [_open_call(decision, arguments)],
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


def _detector(decision: Decision) -> str | None:
    """The one whose count stopped the run."""
    worst = max(decision.explanation, key=lambda finding: finding.action.severity, default=None)
    return None if worst is None else worst.detector.value


def _open_call(decision: Decision, arguments: object) -> dict[str, Any]:
    """The call at which the run stopped: it may be answered, and one that needs consent approved, changed or denied."""
    if decision.end_reason is EndReason.APPROVAL_NEEDED:
        state = CallState.NEEDS_APPROVAL
    else:
        state = CallState.FAILED if decision.phase is Phase.AFTER else CallState.REFUSED
    return {"call_id": decision.call_id, "tool": decision.tool, "arguments": arguments, "state": state.value}


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
class CallAnswer:
    """What stands for the result of a call that did not run."""

    call_id: str
    tool: str
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class GrantedCall:
    """A call that may run once: as the model asked, or as a person changed it."""

    call_id: str
    tool: str
    args: Mapping[str, Any] | None
    """None where the call runs as it was asked."""
    signature: str | None
    """Of the call as asked; None for a changed one."""
    note: str | None


@dataclass(frozen=True, slots=True)
class Words:
    """With what a run goes on."""

    text: str | None
    extra_steps: int = 0
    extra_tokens: int = 0
    extra_cost: float = 0.0
    extra_seconds: float = 0.0
    ban_tools: tuple[str, ...] = ()
    forgive: tuple[str, ...] = ()
    """Signatures whose refusal was a mistake."""
    note: str | None = None
    answers: tuple[CallAnswer, ...] = ()
    """What a person gave in place of results."""
    granted: tuple[GrantedCall, ...] = ()
    """Calls that a person agreed to."""


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
    return Words(
        request.guidance,
        request.extra_steps,
        request.extra_tokens,
        request.extra_cost,
        request.extra_seconds,
        tuple(request.ban_tools),
        note=request.guidance,
    )


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
    if decided.get("action") in _ON_CALLS:
        return _words_on_a_call(record, decided)
    guidance = str(decided.get("guidance", ""))
    return Words(
        advice(guidance),
        int(decided.get("extra_steps", 0)),
        ban_tools=tuple(decided.get("ban_tools", ())),
        note=guidance,
    )


_ON_CALLS = frozenset(
    {Action.ANSWER_TOOL.value, Action.APPROVE_CALL.value, Action.EDIT_CALL.value, Action.DENY_CALL.value}
)
_CHANGED = (
    "A reviewer changed the call {call_id} before it ran. What runs instead is {tool} with {args}; your own call is not run. "
    "Do not send it again."
)


def _words_on_a_call(record: EscalationRecord, decided: Mapping[str, Any]) -> Words:
    """A person's word on a single call."""
    call = next(call for call in record.packet["open_calls"] if call["call_id"] == decided["call_id"])
    call_id, tool, message = str(call["call_id"]), str(call["tool"]), decided.get("message")
    action = Action(decided["action"])
    if action is Action.ANSWER_TOOL:
        answer = CallAnswer(call_id, tool, answered_content(tool, decided.get("result")), is_error=False)
        return Words(None, note=f"answered {tool} at {call_id}"[:2000], answers=(answer,))
    if action is Action.DENY_CALL:
        answer = CallAnswer(call_id, tool, denied_content(str(message)), is_error=True)
        return Words(None, note=f"denied {tool}: {message}"[:2000], answers=(answer,))
    if action is Action.APPROVE_CALL:
        signature = str(record.packet["signature"])
        granted = GrantedCall(call_id, tool, None, signature, message)
        return Words(None, forgive=(signature,), note="approved", granted=(granted,))
    edited = GrantedCall(call_id, str(decided.get("tool") or tool), decided["args"], None, message)
    text = _CHANGED.format(call_id=call_id, tool=edited.tool, args=json.dumps(edited.args, ensure_ascii=False))
    return Words(text if message is None else f"{text} They say: {message}", note="edited", granted=(edited,))


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
