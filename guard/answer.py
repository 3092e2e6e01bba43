"""From findings to a decision: the hardest finding wins, and everything that follows from it is filled in here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from guard import guidance
from guard.call import ToolCall
from guard.decision import Counts, Decision, Flag, Phase, Reason, SeenBefore, ToolResult
from guard.detectors import budget, error_codes, repeat
from guard.escalation import Escalation
from guard.finding import END_REASONS, Detector, Finding, ReasonCode, RuleEffect
from guard.ladder import GuardAction
from guard.policy import INVALID_ARGUMENTS, Effect, GuardPolicy, Mode
from guard.redact import redacted_args
from guard.state import GuardState, incident_of
from guard.trace import CallView, OutcomeRecord

_LOOK_ALIKE: Final = frozenset({Detector.REPEAT, Detector.FOLDING, Detector.JITTER, Detector.TUNING})
_MAX_TOOL_CHARS: Final = 128


def decide_before(
    state: GuardState,
    policy: GuardPolicy,
    call: CallView,
    asked: ToolCall,
    findings: tuple[Finding, ...],
    flags: tuple[Flag, ...],
) -> Decision:
    """The answer before a call; `asked` is what the model sent."""
    if not findings and policy.mode is Mode.ENFORCE and call.keys.signature not in state.repeat.turn_calls:
        return _decision(Phase.BEFORE, state, policy, call, (), flags, GuardAction.ALLOW, True, None)
    chosen = worst(findings)
    action = GuardAction.ALLOW if chosen is None else chosen.action
    has_ended = Flag.ENDED in flags
    is_shadow = policy.mode is Mode.SHADOW and not has_ended
    decision = _decision(Phase.BEFORE, state, policy, call, findings, flags, action, not action.refuses, None)
    if chosen is not None and action is not GuardAction.ALLOW:
        decision = _with_reason(decision, state, policy, call, asked, chosen, None)
    if is_shadow:
        return _as_shadow(decision)
    twin = None if has_ended else state.repeat.turn_calls.get(call.keys.signature)
    # An identical call of the same message is not run: it shares the first one's result.
    return decision if twin is None else replace(decision, execute=False, same_as=twin.call_id)


def decide_after(
    state: GuardState,
    policy: GuardPolicy,
    call: CallView,
    asked: ToolCall,
    findings: tuple[Finding, ...],
    flags: tuple[Flag, ...],
    outcome: OutcomeRecord,
) -> Decision:
    """The answer after an outcome, which the state has already observed."""
    if not findings and not flags and policy.mode is Mode.ENFORCE:
        return _decision(Phase.AFTER, state, policy, call, (), flags, GuardAction.ALLOW, True, outcome)
    chosen = worst(findings)
    action = GuardAction.ALLOW if chosen is None else chosen.action
    is_shadow = policy.mode is Mode.SHADOW
    has_run = is_shadow or Flag.NOT_EXECUTED not in flags
    decision = _decision(Phase.AFTER, state, policy, call, findings, flags, action, has_run, outcome)
    if chosen is not None and action is not GuardAction.ALLOW:
        decision = _with_reason(decision, state, policy, call, asked, chosen, outcome)
    return _as_shadow(decision) if is_shadow else decision


def worst(findings: tuple[Finding, ...]) -> Finding | None:
    """The hardest finding; the first of those that are equally hard."""
    hardest: Finding | None = None
    for finding in findings:
        if hardest is None or finding.action.severity > hardest.action.severity:
            hardest = finding
    return hardest


def verdict_of(decision: Decision) -> dict[str, Any]:
    """The fields that a record keeps of a decision."""
    reason = decision.reason
    chosen = None if reason is None else worst(decision.explanation)
    return {
        "action": decision.shadow_action or decision.action,
        "reason": None if reason is None else reason.code,
        "detector": None if chosen is None else chosen.detector,
        "occurrence": 0 if chosen is None else chosen.occurrence,
        "rule": None if reason is None else reason.rule,
        "text": reason.text if reason is not None else decision.append,
        "escalates": decision.escalates,
        "explanation": decision.explanation,
    }


def _decision(
    phase: Phase,
    state: GuardState,
    policy: GuardPolicy,
    call: CallView,
    findings: tuple[Finding, ...],
    flags: tuple[Flag, ...],
    action: GuardAction,
    executes: bool,
    outcome: OutcomeRecord | None,
) -> Decision:
    decision = Decision(
        phase,
        call.step,
        state.marks.epoch,
        call.call_id,
        call.tool,
        call.keys.signature,
        action,
        executes,
        _counts(state, policy, call, findings, outcome),
    )
    if state.closed.banned or state.closed.fallen_back:
        decision.banned_tools = state.closed.names()
    decision.explanation = findings
    decision.flags = flags
    return decision


def _counts(
    state: GuardState,
    policy: GuardPolicy,
    call: CallView,
    findings: tuple[Finding, ...],
    outcome: OutcomeRecord | None,
) -> Counts:
    same = similar = 1
    for finding in findings:
        if finding.detector is Detector.REPEAT:
            same = finding.occurrence
        if finding.detector in _LOOK_ALIKE and finding.occurrence > similar:
            similar = finding.occurrence
    code = outcome.code if outcome is not None else state.rules.last_error_code
    errors = 0 if code is None else error_codes.errors_in_row(state.errors, call.tool, code, state.marks)
    steps = state.marks.step if state.marks.step > call.step else call.step
    return Counts(same, similar, errors, steps, budget.steps_max(state.budget, policy))


def _with_reason(
    decision: Decision,
    state: GuardState,
    policy: GuardPolicy,
    call: CallView,
    asked: ToolCall,
    chosen: Finding,
    outcome: OutcomeRecord | None,
) -> Decision:
    """`decision` with its reason, texts and consequences."""
    marks, action, has_ended = state.marks, decision.action, Flag.ENDED in decision.flags
    is_halt = action is GuardAction.HALT
    is_refusal = action.refuses and decision.phase is Phase.BEFORE
    seen = state.repeat.seen.get(call.keys.signature)
    is_new_halt = not has_ended and chosen.reason is not ReasonCode.APPROVAL_NEEDED
    said = _said(state, call, chosen, seen, outcome, marks.halts + is_new_halt if is_halt else 0)
    is_done = is_refusal and chosen.detector is Detector.REPEAT and _done_at(call, seen) is not None
    if has_ended and chosen.reason not in (ReasonCode.RUN_CANCELLED, ReasonCode.RUN_PAUSED):
        text = guidance.ended(policy.language, marks.spoken)
    else:
        text = guidance.guidance(chosen, action, said, policy.language, marks.spoken, done=is_done)
    return replace(
        decision,
        reason=Reason(chosen.reason, text, call.keys.signature, chosen.rule),
        append=None if is_refusal else text,
        tool_result=ToolResult(text, _seen_before(seen, chosen)) if is_refusal else None,
        ends_turn=is_halt,
        end_reason=END_REASONS[chosen.reason] if is_halt else None,
        escalates=is_halt and not has_ended and _needs_person(state, call, chosen),
        escalation=_escalation(state, policy, call, asked, chosen, said) if is_halt and not has_ended else None,
        halt_number=said.halt_number,
    )


def _needs_person(state: GuardState, call: CallView, chosen: Finding) -> bool:
    """Any halt of a tool that failed since the last progress escalates, once per tool and reason."""
    has_failed = error_codes.has_failed(state.errors, call.tool, state.marks)
    is_new = incident_of(call.tool, chosen.reason) not in state.marks.escalated
    if chosen.effect is not None:
        return is_new and chosen.effect is RuleEffect.ESCALATE
    return is_new and (has_failed or chosen.detector is Detector.ERROR_CODES)


def _said(
    state: GuardState,
    call: CallView,
    chosen: Finding,
    seen: repeat.Seen | None,
    outcome: OutcomeRecord | None,
    halt_number: int,
) -> guidance.Said:
    first_step = call.step if seen is None else _done_at(call, seen) or seen.first_step
    if chosen.detector is Detector.FOLDING and chosen.evidence:  # the first was spelt otherwise
        first_step = chosen.evidence[0]
    code = chosen.rule or "" if chosen.reason is ReasonCode.REPEATED_ERROR else ""
    if chosen.detector is Detector.ERROR_CODES:
        excerpt = error_codes.first_error(state.errors, call.tool, code)
    else:
        excerpt = seen.excerpt if seen is not None and seen.excerpt else "" if outcome is None else outcome.excerpt
    tool = call.tool[:_MAX_TOOL_CHARS].encode("utf-8", "replace").decode("utf-8")
    return guidance.Said(
        tool,
        chosen.occurrence,
        first_step,
        excerpt,
        code[:_MAX_TOOL_CHARS],
        chosen.detail or "",
        halt_number,
        _to_mend(state, call, chosen, outcome),
        call.keys.is_json,
    )


def _to_mend(state: GuardState, call: CallView, chosen: Finding, outcome: OutcomeRecord | None) -> str:
    """The code of an identical call's error that only another call can avoid."""
    if chosen.detector is not Detector.REPEAT:
        return ""
    if outcome is not None:
        return outcome.code or ""
    is_misfit = error_codes.errors_in_row(state.errors, call.tool, INVALID_ARGUMENTS, state.marks) > 0
    return INVALID_ARGUMENTS if is_misfit else ""


def _done_at(call: CallView, seen: repeat.Seen | None) -> int | None:
    """The step at which this write last succeeded."""
    return None if seen is None or call.effect is not Effect.MUTATING else seen.success_step


def _seen_before(seen: repeat.Seen | None, chosen: Finding) -> SeenBefore | None:
    if seen is None or chosen.detector in (Detector.CONTROL, Detector.BUDGET, Detector.RULE):
        return None
    return SeenBefore(seen.first_call_id, seen.first_step, seen.result, seen.excerpt)


def _escalation(
    state: GuardState, policy: GuardPolicy, call: CallView, asked: ToolCall, chosen: Finding, said: guidance.Said
) -> Escalation:
    marks, spent = state.marks, state.budget
    steps = max(marks.step, call.step)
    return Escalation(
        question=guidance.question(chosen, said, policy.language),
        tool=call.tool,
        reason=chosen.reason,
        args=redacted_args(asked),
        first_answer=said.excerpt,
        attempts=chosen.occurrence,
        evidence=tuple(dict.fromkeys([*chosen.evidence, call.step])),
        resume_point=steps,
        steps=steps,
        tokens=spent.tokens,
        cost=spent.cost,
        occurrence=marks.incidents.get(incident_of(call.tool, chosen.reason), 0) + 1,
        halt_number=said.halt_number,
    )


def _as_shadow(decision: Decision) -> Decision:
    """What shadow mode answers: the call passes, and `shadow_action` tells what would have been done."""
    return replace(
        decision,
        action=GuardAction.ALLOW,
        execute=True,
        append=None,
        tool_result=None,
        ends_turn=False,
        escalates=False,
        escalation=None,
        end_reason=None,
        halt_number=0,
        shadow_action=decision.action,
    )
