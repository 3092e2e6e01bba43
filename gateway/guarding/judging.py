"""What a guard run answers about one call, and what a decision means for the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gateway.guarding.answers import Given, OpenCall, as_text, decision_json
from gateway.guarding.cases import raise_case
from gateway.guarding.problems import RunProblem, conflict, reused, still_running
from gateway.guarding.requests import CallRequest, ReportRequest
from gateway.guarding.visits import Progress, Visit
from gateway.ids import new_id
from gateway.store.guard_runs import Kind, NewDecision, RunStatus, StoredDecision
from guard import Decision, Flag, Guard, Mode, NextStep, Outcome, ReasonCode, ToolCall, after_halt
from guard.call import read_keys

IDENTICAL_OPEN_MS: Final = 60_000
"""So long a call without an outcome is taken to be running; an identical one does not run beside it."""

ONE_MESSAGE_MS: Final = 2_000
"""Calls without a turn that are asked about within this time, while the first is open, are taken for one message."""

MAX_OPEN: Final = 1_000


def earlier(known: Mapping[tuple[Kind, str], StoredDecision], call: CallRequest, mark: str) -> StoredDecision | None:
    """The decision that this call id has already; None for a new one."""
    asked = known.get((Kind.BEFORE, call.call_id))
    if asked is None:
        if (Kind.AFTER, call.call_id) in known:
            raise conflict(
                f"The outcome of call {call.call_id[:60]!r} was reported already, so it cannot be asked about any more.",
                "reported",
            )
        return None
    if asked.fingerprint != mark:
        raise reused(call.call_id, "call")
    return asked


def ask(visit: Visit, request: CallRequest, mark: str, turn: str | int | None) -> str:
    """Judge one call; gives the answer as it is stored."""
    progress, guard = visit.progress, visit.guard
    call = request.call(None)
    turn, is_own = _turn_of_call(visit, call, request.message if turn is None else turn)
    decision = guard.before(replace(call, turn=turn), now=visit.now)
    progress.turn, progress.is_own_turn = turn, is_own
    progress.count("executed" if decision.execute else "not_executed")
    if decision.same_as is not None:
        progress.count("shared")
    others = [open_call for open_call in progress.open if _is_same(open_call.turn, turn)]
    if decision.execute:
        progress.open.append(OpenCall(request.call_id, request.tool, decision.signature, turn, visit.at_ms))
        del progress.open[:-MAX_OPEN]
    return _decided(visit, decision, Kind.BEFORE, mark, others=others)


def _turn_of_call(visit: Visit, call: ToolCall, named: str | int | None) -> tuple[str | int, bool]:
    """The message that a call belongs to, and whether its name is ours.

    The guard refuses an identical call within the latest message. One of another message could run beside the first: it
    has to wait. Raises `RunProblem`.
    """
    progress, guard = visit.progress, visit.guard
    running = [other for other in progress.open if visit.at_ms - other.at_ms < IDENTICAL_OPEN_MS]
    twin = _twin(guard, call, running)
    is_bound = guard.policy.mode is Mode.ENFORCE and not guard.is_halted
    if twin is not None and is_bound:
        is_of_latest = _is_same(twin.turn, progress.turn)
        if not is_of_latest or (named is not None and not _is_same(named, twin.turn)):
            raise still_running(twin, expires_ms=twin.at_ms + IDENTICAL_OPEN_MS)
        return twin.turn if twin.turn is not None else f"#{visit.next_seq}", progress.is_own_turn
    if named is not None:
        return named, False
    is_going_on = any(
        _is_same(other.turn, progress.turn) and visit.at_ms - other.at_ms < ONE_MESSAGE_MS for other in running
    )
    if progress.is_own_turn and progress.turn is not None and is_going_on:
        return progress.turn, True
    return f"#{visit.next_seq}", True


def _twin(guard: Guard, call: ToolCall, running: Sequence[OpenCall]) -> OpenCall | None:
    """The first of these calls that is identical."""
    alike = [other for other in running if other.tool == call.tool]
    if not alike:
        return None
    traits = guard.tools.get(call.tool)
    signature = read_keys(call, frozenset(() if traits is None else traits.ignore_args)).signature
    return next((other for other in alike if other.signature == signature), None)


def _is_same(one: str | int | None, other: str | int | None) -> bool:
    return type(one) is type(other) and one == other


def check_report(report: ReportRequest, asked: StoredDecision | None) -> None:
    if asked is None:
        return
    if report.decision_id is not None and report.decision_id != asked.id:
        raise RunProblem(
            "invalid_request",
            f"The decision on call {report.call_id[:60]!r} is {asked.id}, not {report.decision_id[:40]}.",
            pointer="/decision_id",
        )
    if not asked.executes:
        raise conflict(
            f"Call {report.call_id[:60]!r} was not let through, so it has no outcome; its decision holds what to send to "
            "the model.",
            "not_run",
            decision_id=asked.id,
        )


def hear(visit: Visit, report: ReportRequest, outcome: Outcome, mark: str, asked: StoredDecision | None) -> str:
    """Judge an outcome; gives the answer as it is stored. `asked` is the decision before the call, if there was one."""
    if asked is None:
        decision = visit.guard.after(report.unasked_call(), outcome, now=visit.now)
        visit.progress.count("unasked")
    else:
        call = ToolCall(asked.tool, call_id=report.call_id)
        decision = visit.guard.after(call, outcome, step=asked.step, now=visit.now)
    visit.progress.count("reports")
    summary = {
        "status": report.status,
        "code": None if outcome.error is None else outcome.error.code,
        "ms": report.ms,
        "metrics": report.metrics,
    }
    others = _close_open(visit.progress, report)
    return _decided(visit, decision, Kind.AFTER, mark, others=others, report=summary)


def _close_open(progress: Progress, report: ReportRequest) -> list[OpenCall]:
    """Take the call out of those that are open; gives the others of its message."""
    mine = next((call for call in progress.open if call.call_id == report.call_id), None)
    if mine is None:
        return []
    progress.open.remove(mine)
    return [call for call in progress.open if _is_same(call.turn, mine.turn)]


def _decided(
    visit: Visit,
    decision: Decision,
    kind: Kind,
    mark: str,
    *,
    others: Sequence[OpenCall],
    report: Mapping[str, Any] | None = None,
) -> str:
    """Carry out what a decision means for the run, and keep the answer."""
    visit.progress.count(decision.action.value)
    visit.judged.append(decision)
    decision_id = new_id("dec", now_ms=visit.at_ms)
    next_step = None
    is_halt = decision.ends_turn and Flag.ENDED not in decision.flags
    if is_halt:
        next_step = after_halt(visit.guard.policy, decision, visit.guard.halts)
        decision = _halted(visit, decision, next_step, decision_id, others)
    language = visit.guard.policy.language
    given = Given(
        decision_id=decision_id,
        seq=visit.next_seq,
        run_id=visit.row.id,
        policy_id=visit.row.policy_id,
        escalation_id=visit.escalation_id,
        next_step=next_step,
        to_close=others if is_halt else (),
    )
    text = as_text(decision_json(decision, given, language))
    visit.decisions.append(
        NewDecision(
            seq=given.seq,
            id=decision_id,
            kind=kind,
            call_id=decision.call_id,
            step=decision.step,
            tool=decision.tool,
            fingerprint=mark,
            executes=decision.execute,
            body=text,
            report=report,
        )
    )
    return text


def _told(decision: Decision, text: str | None) -> Decision:
    """`decision` in other words."""
    if text is None or decision.reason is None:
        return decision
    result = decision.tool_result
    return replace(
        decision,
        reason=replace(decision.reason, text=text),
        append=None if decision.append is None else text,
        tool_result=None if result is None else replace(result, text=text),
    )


def _halted(
    visit: Visit, decision: Decision, next_step: NextStep, decision_id: str, others: Sequence[OpenCall]
) -> Decision:
    """What the policy wants after a halt: a person is asked, the tool is closed, or the caller decides."""
    if next_step is NextStep.FALLBACK:
        gone_on = visit.guard.fall_back(now=visit.now)
        return _told(replace(decision, banned_tools=visit.guard.closed_tools), gone_on.text)
    reason = decision.reason
    if reason is not None and reason.code is ReasonCode.RUN_CANCELLED:
        return decision
    visit.status = RunStatus.HALTED
    if next_step is NextStep.HUMAN:
        visit.status = RunStatus.AWAITING_HUMAN
        visit.escalation_id = raise_case(visit.connection, visit.row, visit.guard, decision)
    visit.halt = {
        "decision_id": decision_id,
        "call_id": decision.call_id,
        "tool": decision.tool,
        "step": decision.step,
        "reason": None if reason is None else reason.code.value,
        "end_reason": None if decision.end_reason is None else decision.end_reason.value,
        "next": next_step.value,
        "signature": decision.signature,
        "open_calls": [call.call_id for call in others],
    }
    return decision
