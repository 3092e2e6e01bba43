"""Decisions of a guard run as JSON, with tool results that are ready for a provider's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gateway.settings import money
from guard import Decision, Language, NextStep, SeenBefore
from guard.decision import BLOCKED_CODE

_CLOSED_WITH = {
    Language.ENGLISH: (
        "[guard] The run stopped at another call of this message ({tool}), without waiting for this one.",
        "[guard] Not waited for: a call of {tool} in the same message ended the turn.",
    ),
    Language.CHINESE: (
        "[guard] 运行在同一消息的另一个调用（{tool}）处停止；没有等待本次调用的结果。",
        "[guard] 同一消息中对 {tool} 的调用结束了本轮，没有再等本次调用。",
    ),
}
"""By turns, so that the model never reads the same words twice in a row."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that was let through and has no outcome yet."""

    call_id: str
    tool: str
    signature: str
    turn: str | int | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Given:
    """What a decision says beside what the guard found."""

    decision_id: str
    seq: int
    run_id: str
    policy_id: str
    escalation_id: str | None
    next_step: NextStep | None
    """What the run's policy wants after this halt."""
    to_close: Sequence[OpenCall] = ()
    """The other open calls of the message, at a halt."""


def decision_json(decision: Decision, given: Given, language: Language) -> dict[str, Any]:
    """A decision in the words of the contract."""
    reason = decision.reason
    goes_on = given.next_step is NextStep.FALLBACK
    return {
        "decision_id": given.decision_id,
        "run_id": given.run_id,
        "seq": given.seq,
        "phase": decision.phase.value,
        "call_id": decision.call_id,
        "tool": decision.tool,
        "step": decision.step,
        "epoch": decision.epoch,
        "action": decision.action.value,
        "execute": decision.execute,
        "same_as": decision.same_as,
        "reason": None
        if reason is None
        else {"code": reason.code.value, "text": reason.text, "signature": reason.signature, "rule": reason.rule},
        "signature": decision.signature,
        "counts": {
            "same": decision.counts.same,
            "similar": decision.counts.similar,
            "errors_same_code": decision.counts.errors_same_code,
            "steps": decision.counts.steps,
            "steps_max": decision.counts.steps_max,
        },
        "append": decision.append,
        "tool_result": _result_of(decision),
        "also_close": closing_results(given.to_close, decision.tool, language),
        "turn": {
            "end": decision.ends_turn and not goes_on,
            "resumable": decision.is_resumable,
        },
        "end_reason": None if decision.end_reason is None or goes_on else decision.end_reason.value,
        "next": None if given.next_step is None else given.next_step.value,
        "banned_tools": list(decision.banned_tools),
        "escalation_id": given.escalation_id,
        "policy": given.policy_id,
        "shadow_action": None if decision.shadow_action is None else decision.shadow_action.value,
        "flags": [flag.value for flag in decision.flags],
    }


def _result_of(decision: Decision) -> dict[str, Any] | None:
    result = decision.tool_result
    if result is None:
        return None
    return tool_result(decision.call_id, result.text, code=result.code, seen_before=result.seen_before)


def tool_result(
    call_id: str,
    text: str,
    *,
    code: str | None = BLOCKED_CODE,
    seen_before: SeenBefore | None = None,
    is_error: bool = True,
) -> dict[str, Any]:
    """A synthetic result that closes a call, an error as a rule, as it stands in three providers' messages."""
    return {
        "is_error": is_error,
        "code": code,
        "text": text,
        "seen_before": None
        if seen_before is None
        else {
            "call_id": seen_before.call_id,
            "step": seen_before.step,
            "digest": seen_before.digest,
            "excerpt": seen_before.excerpt,
        },
        "as": {
            "openai.chat": {"role": "tool", "tool_call_id": call_id, "content": text},
            "openai.responses": {"type": "function_call_output", "call_id": call_id, "output": text},
            "anthropic": {"type": "tool_result", "tool_use_id": call_id, "is_error": is_error, "content": text},
        },
    }


def closing_results(calls: Sequence[OpenCall], halted_tool: str, language: Language) -> list[dict[str, Any]]:
    """For each open call of a message that was halted: the result that closes it, should the caller not run it."""
    wordings = _CLOSED_WITH[language]
    texts = [wordings[place % len(wordings)].format(tool=halted_tool) for place in range(len(calls))]
    return [
        {"call_id": call.call_id, "tool": call.tool, "tool_result": tool_result(call.call_id, text)}
        for call, text in zip(calls, texts, strict=True)
    ]


def as_text(answer: Mapping[str, Any]) -> str:
    """An answer as it is stored and sent: JSON that any database and any client can read."""
    return _encode(answer).encode("utf-8", "replace").decode()


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _money(amount: float) -> str:
    return money(Decimal(str(amount)))


def budget_json(spent: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has used, beside what it may use; None is no limit. `spent` knows what was added to `limits`."""
    return {
        "steps": spent.get("steps", 0),
        "steps_max": spent.get("steps_max"),
        "tokens": spent.get("tokens", 0),
        "tokens_max": spent.get("tokens_max", limits["tokens"]),
        "cost": _money(spent.get("cost", 0.0)),
        "cost_max": None if limits["cost"] is None else _money(spent.get("cost_max", limits["cost"])),
        "seconds": round(spent.get("seconds", 0.0), 3),
        "seconds_max": spent.get("seconds_max", limits["seconds"]),
        "calls_per_tool_max": limits["calls_per_tool"],
    }
