"""What a reviewer needs to decide in half a minute, collected when a run stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.agent.journal import Journal
from gateway.agent.open_calls import open_calls
from gateway.item import Usage
from gateway.store.steps import StepKind
from guard import Decision, ReasonCode
from guard.results import OWN_WORDS

MAX_STRIP = 40
"""Calls that the strip shows; the rest are in the item's trace."""


def case_of(decision: Decision, journal: Journal) -> dict[str, Any]:
    """What is known of a halt by the guard when it happens: the question and what speaks for it."""
    raised = decision.escalation
    reason = decision.reason
    evidence = _evidence(decision)
    attempts = decision.counts.similar if raised is None else raised.attempts
    return {
        "question": _question(decision),
        "reason_code": None if reason is None else reason.code.value,
        "why": _why(decision, attempts, _codes(journal, evidence)),
        "tool": decision.tool,
        "arguments": None if raised is None else raised.args,
        "first_answer": _first_answer(journal, evidence) or (None if raised is None else raised.first_answer),
        "attempts": attempts,
        "signature": decision.signature,
        "call_id": decision.call_id,
        "detector": _detector(decision),
        "rule": None if reason is None or reason.code is not ReasonCode.RULE else reason.rule,
        "evidence": list(evidence),
        "halt_number": decision.halt_number,
        "resume_point": decision.step,
    }


def halt_packet(case: Mapping[str, Any], journal: Journal, usage: Usage, steps_max: int) -> dict[str, Any]:
    """The packet of such a case, with what the run has cost and called by now."""
    return {**case, **_common(journal, usage, steps_max)}


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


_WHY: Mapping[ReasonCode, str] = {
    ReasonCode.REPEATED_CALL: "{tool} was called {count} times with the same arguments; {answers}.",
    ReasonCode.JITTER: "{tool} was called {count} times with nothing but other numbers; {answers}.",
    ReasonCode.CYCLE: "The same few calls were made {count} times round; {answers}.",
    ReasonCode.STALE_RESULTS: "{count} calls in a row brought only what was known before.",
    ReasonCode.REPEATED_ERROR: "{tool} failed {count} times in a row with {code}.",
    ReasonCode.STEP_BUDGET: "The run has made all the calls that its budget allows ({steps}).",
    ReasonCode.TOOL_BUDGET: "{tool} was called more often than the run may.",
    ReasonCode.TOKEN_BUDGET: "The run has used up its tokens.",
    ReasonCode.COST_BUDGET: "The run has used up its money.",
    ReasonCode.TIME_BUDGET: "The run has used up its time.",
    ReasonCode.APPROVAL_NEEDED: "The agent wants to call {tool}, and a person has to agree before it runs.",
    ReasonCode.TOOL_BANNED: "{tool} is closed for this run, and was called {count} times all the same.",
}


def _why(decision: Decision, count: int, codes: Sequence[str | None]) -> str | None:
    """One sentence, by the reason alone."""
    if decision.reason is None:
        return None
    one_code = codes[0] if codes and len(set(codes)) == 1 else None
    template = _WHY.get(decision.reason.code, "{text}")
    return template.format(
        tool=decision.tool,
        count=count,
        steps=decision.counts.steps_max,
        code=decision.reason.rule or one_code or "an error",
        answers=f"every answer was {one_code}" if one_code else "the answers stayed the same",
        text=decision.reason.text.removeprefix(OWN_WORDS).strip(),
    )


def _outcomes(journal: Journal, evidence: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """What the executed calls among these steps brought."""
    for row in journal.current:
        if row.kind is StepKind.TOOL and row.intent["step"] in evidence and row.intent["execute"] and row.outcome:
            yield row.outcome


def _codes(journal: Journal, evidence: Sequence[int]) -> list[str | None]:
    return [outcome.get("code") for outcome in _outcomes(journal, evidence)]


def _first_answer(journal: Journal, evidence: Sequence[int]) -> str:
    """The first of them, in one line."""
    for outcome in _outcomes(journal, evidence):
        for record in outcome.get("records", ()):
            return ": ".join(filter(None, (outcome.get("code"), record.get("excerpt"))))
    return ""


def _detector(decision: Decision) -> str | None:
    """The one whose count stopped the run."""
    worst = max(decision.explanation, key=lambda finding: finding.action.severity, default=None)
    return None if worst is None else worst.detector.value


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
        "open_calls": [call.to_json() for call in open_calls(journal.current)],
    }


def call_strip(journal: Journal) -> list[dict[str, Any]]:
    """The calls of the attempt in order: step, tool, arguments (short, secrets hidden), what became of each."""
    strip = []
    for row in journal.current:
        if row.kind is not StepKind.TOOL:
            continue
        grant = row.intent.get("grant") or {}
        record = (row.intent.get("records") or [{"args": (grant.get("edited") or {}).get("arguments", "")}])[0]
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
