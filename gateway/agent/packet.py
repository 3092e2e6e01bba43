"""What a reviewer needs to decide in half a minute, collected when a run stops."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gateway.agent.journal import Journal
from gateway.item import Usage
from gateway.store.steps import StepKind
from guard import Decision

MAX_STRIP = 40
"""Calls that the strip shows; the rest are in the item's trace."""


def halt_packet(
    decision: Decision, journal: Journal, usage: Usage, steps_max: int, *, signature: str
) -> dict[str, Any]:
    """The packet of a halt by the guard."""
    raised = decision.escalation
    reason = decision.reason
    return {
        "question": _question(decision),
        "reason_code": None if reason is None else reason.code.value,
        "why": None if reason is None else reason.text,
        "tool": decision.tool,
        "arguments": None if raised is None else raised.args,
        "first_answer": None if raised is None else raised.first_answer,
        "attempts": decision.counts.similar if raised is None else raised.attempts,
        "signature": signature,
        "evidence": list(_evidence(decision)),
        "halt_number": decision.halt_number,
        "resume_point": decision.step,
        **_common(journal, usage, steps_max),
    }


def stop_packet(sentence: str, journal: Journal, usage: Usage, steps_max: int) -> dict[str, Any]:
    """The packet of a run that ended without the guard: the model failed, or never came to an end."""
    return {
        "question": f"{sentence} How should this item go on?",
        "reason_code": None,
        "why": sentence,
        "tool": None,
        "arguments": None,
        "first_answer": None,
        "attempts": None,
        "signature": None,
        "evidence": [],
        "halt_number": None,
        "resume_point": usage.steps,
        **_common(journal, usage, steps_max),
    }


def _question(decision: Decision) -> str:
    if decision.escalation is not None:
        return decision.escalation.question
    text = "" if decision.reason is None else f" {decision.reason.text}"
    return f"The agent was stopped at {decision.tool}.{text} How should this item go on?"


def _evidence(decision: Decision) -> tuple[int, ...]:
    if decision.escalation is not None:
        return decision.escalation.evidence
    worst = max(decision.explanation, key=lambda finding: finding.action.severity, default=None)
    return () if worst is None else worst.evidence


def _common(journal: Journal, usage: Usage, steps_max: int) -> dict[str, Any]:
    return {
        "cost": {"spent": usage.cost, "currency": usage.currency},
        "steps": {"taken": usage.steps, "of": steps_max},
        "usage": asdict(usage),
        "calls": call_strip(journal),
    }


def call_strip(journal: Journal) -> list[dict[str, Any]]:
    """The calls of the attempt in order: step, tool, arguments (short, secrets hidden), what became of each."""
    strip = []
    for row in journal.current:
        if row.kind is not StepKind.TOOL:
            continue
        record = (row.intent.get("records") or [{}])[0]
        outcome = row.outcome or {}
        strip.append(
            {
                "step": row.intent["step"],
                "tool": row.intent["tool"],
                "arguments": str(record.get("args", ""))[:300],
                "executed": bool(row.intent["execute"]),
                "action": outcome.get("action") or row.intent["action"],
                "error": outcome.get("code"),
            }
        )
    return strip[-MAX_STRIP:]
