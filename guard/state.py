"""The fold: what a trace comes to, record by record. A cache of the trace and nothing else."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from guard import capabilities, metarules
from guard.capabilities import ClosedTools
from guard.detectors import budget, cycle, error_codes, folding, jitter, repeat, run, stale
from guard.detectors.budget import BudgetMemory
from guard.detectors.cycle import CycleMemory
from guard.detectors.error_codes import ErrorMemory
from guard.detectors.folding import FoldingMemory
from guard.detectors.jitter import JitterMemory
from guard.detectors.repeat import RepeatMemory
from guard.detectors.run import RunMemory
from guard.detectors.stale import StaleMemory
from guard.finding import Detector, ReasonCode
from guard.ladder import GuardAction
from guard.marks import Marks, Write
from guard.memory import BoundedMap
from guard.metarules import RuleMemory
from guard.policy import Counting, Effect, GuardPolicy, Mode
from guard.trace import CallRecord, CallView, Control, ControlRecord, OutcomeRecord, Record

MAX_OPEN: Final = 10_000
"""Calls that may be open at once; the oldest are forgotten first."""

MAX_OPEN_PER_ID: Final = 1_000
"""Calls that may be open under one repeated id."""

MAX_CLOSED_IDS: Final = 1_000
"""Ids of finished and refused calls that are remembered, to recognise an outcome that comes twice."""


@dataclass(slots=True)
class GuardState:
    """All that detectors remember of one run."""

    marks: Marks = field(default_factory=Marks)
    repeat: RepeatMemory = field(default_factory=RepeatMemory)
    run: RunMemory = field(default_factory=RunMemory)
    cycle: CycleMemory = field(default_factory=CycleMemory)
    folding: FoldingMemory = field(default_factory=FoldingMemory)
    jitter: JitterMemory = field(default_factory=JitterMemory)
    stale: StaleMemory = field(default_factory=StaleMemory)
    errors: ErrorMemory = field(default_factory=ErrorMemory)
    budget: BudgetMemory = field(default_factory=BudgetMemory)
    rules: RuleMemory = field(default_factory=RuleMemory)
    closed: ClosedTools = field(default_factory=ClosedTools)
    open: dict[str, list[CallView]] = field(default_factory=dict)
    """Calls that were let through and have no outcome yet, by id; several under one id when ids repeat."""
    refused_ids: OrderedDict[str, int] = field(default_factory=OrderedDict)
    settled_ids: OrderedDict[str, int] = field(default_factory=OrderedDict)
    written: BoundedMap[int] = field(default_factory=BoundedMap)
    """Results of successful writes, by signature and digest."""
    answered: BoundedMap[int] = field(default_factory=BoundedMap)
    """Results of each tool, by tool and digest."""
    has_news: bool = False
    """The current message brought something new after a resume."""


def empty_state(policy: GuardPolicy) -> GuardState:
    """The state of a task that has not begun."""
    state = GuardState()
    limit = policy.max_signatures
    for memory in (
        state.repeat.seen, state.folding.classes, state.jitter.shapes, state.written, state.answered,
        state.errors.rows, state.errors.first, state.errors.codes, state.errors.waits, state.errors.failed_at, state.jitter.knobs,
        state.budget.tools, state.rules.tool_errors, state.rules.groups, state.rules.refusals,
    ):  # fmt: skip
        memory.limit = limit
    return state


def open_turn(state: GuardState, turn_key: str | int | None, now: float | None, policy: GuardPolicy) -> None:
    """Fold in that a call of message `turn_key` is about to be judged; None is a message of its own."""
    budget.observe_now(state.budget, now)
    marks = state.marks
    if turn_key is not None and type(turn_key) is type(marks.turn_key) and turn_key == marks.turn_key:
        return
    _commit_progress(state, policy)
    if state.has_news:
        marks.resumed, state.has_news = False, False
    marks.turn += 1
    marks.turn_key = turn_key
    state.repeat.turn_calls.clear()


def observe(state: GuardState, record: Record, policy: GuardPolicy) -> None:
    """Fold one record of a trace in."""
    if isinstance(record, CallRecord):
        open_turn(state, record.turn_key, record.now, policy)
        observe_call(state, record, policy)
    elif isinstance(record, OutcomeRecord):
        observe_outcome(state, record, policy)
        observe_verdict_after(state, record, policy)
    else:
        observe_control(state, record)


def observe_call(state: GuardState, record: CallRecord, policy: GuardPolicy) -> None:
    """Fold a judged call in; `open_turn` has been called for it."""
    marks, call = state.marks, record.view
    executes = record.execute and not record.withheld
    state.rules.errors += record.rule_errors
    if not record.sticky:
        if call.kept_wait:
            error_codes.observe_call(state.errors, call, marks)
        repeat.observe_call(state.repeat, call, executes, marks, policy)
        run.observe_call(state.run, call)
        cycle.observe_call(state.cycle, call, executes)
        if not executes or call.kept_wait:
            folding.observe_call(state.folding, call, executes, marks)
            stale.observe_call(state.stale, call, executes, marks)
        if call.keys.shape is not None:
            jitter.observe_call(state.jitter, call, executes, marks)
        budget.observe_call(state.budget, call)
        if record.reason is not None:
            _observe_refusal(state, record)
    marks.step = call.step
    if executes:
        if marks.approved and call.keys.signature in marks.approved:
            marks.approved.remove(call.keys.signature)
        _remember_open(state, call)
    else:
        _remember_id(state.refused_ids, call)
    _observe_verdict(state, call.tool, record, policy)


def _observe_refusal(state: GuardState, record: CallRecord) -> None:
    marks, call = state.marks, record.view
    if record.action.refuses and record.reason in (ReasonCode.TOOL_BANNED, ReasonCode.TOOL_BUDGET):
        capabilities.observe_refusal(state.closed, call.tool, marks, call.step)
    if record.detector is Detector.RULE and record.rule is not None:
        metarules.observe_refusal(state.rules, record.rule, marks, call.step)


def observe_outcome(state: GuardState, record: OutcomeRecord, policy: GuardPolicy) -> None:
    """Fold an outcome in, without what was decided about it."""
    marks = state.marks
    budget.observe_now(state.budget, record.now)
    call = None if record.ignored else pop_open(state, record.call_id, record.step)
    if call is None:
        budget.charge(state.budget, record.tokens, record.cost)
        return
    _remember_id(state.settled_ids, call)
    is_write = record.code is None and call.effect is Effect.MUTATING
    if is_write:
        marks.writes += 1
    repeat.observe_outcome(state.repeat, call, record, marks, policy)
    if not call.poller:
        cycle.observe_outcome(state.cycle, call, record)
    folding.observe_outcome(state.folding, call, record, marks)
    if call.keys.shape is not None:
        jitter.observe_outcome(state.jitter, call, record)
    stale.observe_outcome(state.stale, state.repeat.seen.get(call.keys.signature), call, record, marks)
    error_codes.observe_outcome(state.errors, call, record, marks)
    budget.observe_outcome(state.budget, call, record)
    metarules.observe_outcome(state.rules, call, record, marks)
    if record.code is None:
        _observe_success(state, call, record, policy, is_write=is_write)


def observe_verdict_after(state: GuardState, record: OutcomeRecord, policy: GuardPolicy) -> None:
    """Fold in what was decided about an outcome."""
    if not record.ignored:
        _observe_verdict(state, record.tool, record, policy)


def observe_control(state: GuardState, record: ControlRecord) -> None:
    """Fold in what happened to the run from outside."""
    marks = state.marks
    match record.control:
        case Control.RESUME:
            _resume(state, record)
        case Control.FALL_BACK:
            state.closed.fallen_back.extend(t for t in record.tools if t not in state.closed.fallen_back)
            marks.halted = None
        case Control.CHARGE:
            budget.observe_now(state.budget, record.now)
            budget.charge(state.budget, record.tokens, record.cost)
        case Control.CANCEL:
            marks.cancelled = True
        case Control.PAUSE:
            budget.observe_now(state.budget, record.now)
            marks.paused = True
        case Control.UNPAUSE:
            _skip_time(state, record.now)
            marks.paused = False


def find_open(state: GuardState, call_id: str | None, tool: str, signature: str) -> CallView | None:
    """The oldest open call with this id; without an id, the oldest open one with this signature."""
    if call_id is not None:
        same_id = state.open.get(call_id)
        return same_id[0] if same_id else None
    twins = (v for views in state.open.values() for v in views if v.tool == tool and v.keys.signature == signature)
    return min(twins, key=lambda view: view.step, default=None)


def pop_open(state: GuardState, call_id: str, step: int) -> CallView | None:
    """Take the open call of this id and step out, or None when there is none."""
    views = state.open.get(call_id) or []
    for place, view in enumerate(views):
        if view.step == step:
            if len(views) == 1:
                del state.open[call_id]
            else:
                del views[place]
            return view
    return None


def _remember_id(ids: OrderedDict[str, int], call: CallView) -> None:
    ids[call.call_id] = call.step
    if len(ids) > MAX_CLOSED_IDS:
        ids.popitem(last=False)


def _remember_open(state: GuardState, call: CallView) -> None:
    state.refused_ids.pop(call.call_id, None)
    state.settled_ids.pop(call.call_id, None)
    views = state.open.get(call.call_id)
    if views is None:
        state.open[call.call_id] = [call]
    else:
        views.append(call)
        if len(views) > MAX_OPEN_PER_ID:
            del views[0]
    if len(state.open) > MAX_OPEN:
        del state.open[next(iter(state.open))]


def _observe_success(
    state: GuardState, call: CallView, record: OutcomeRecord, policy: GuardPolicy, *, is_write: bool
) -> None:
    marks, keys = state.marks, call.keys
    answer = f"{call.tool}\n{record.digest}"
    if state.answered.get(answer) is None:
        state.has_news = marks.resumed
        state.answered.put(answer, call.step)
    if not is_write:
        return
    written = f"{keys.signature} {record.digest}"
    if state.written.get(written) is None:
        state.has_news = marks.resumed
        if policy.counting is Counting.PROGRESS:
            marks.pending.append(Write(call.tool, keys.signature, keys.folded, keys.shape, keys.numbers, record.digest))
    state.written.put(written, call.step)


def _commit_progress(state: GuardState, policy: GuardPolicy) -> None:
    """New writes restart all counts but their own. Where one message made several, each restarts the others'."""
    marks = state.marks
    if not marks.pending:
        return
    marks.progress += 1
    last, progress = marks.pending[-1], marks.progress
    if all(write.signature == last.signature for write in marks.pending):
        repeat.keep_own(state.repeat, last.signature, progress)
        stale.keep_own(state.repeat.seen.get(last.signature), last.digest, progress)
    if all(write.folded == last.folded for write in marks.pending):
        folding.keep_own(state.folding, last.folded, progress)
    if last.shape is not None and all(write.shape == last.shape for write in marks.pending):
        jitter.keep_own(state.jitter, last.tool, last.shape, last.numbers, progress)
    marks.pending.clear()


def _observe_verdict(state: GuardState, tool: str, record: CallRecord | OutcomeRecord, policy: GuardPolicy) -> None:
    marks = state.marks
    if record.text is not None:
        marks.spoken += 1
    if record.reason is None:
        return
    is_sticky = isinstance(record, CallRecord) and record.sticky
    if record.action is not GuardAction.HALT or is_sticky or policy.mode is Mode.SHADOW:
        return
    incident = incident_of(tool, record.reason)
    if record.reason is not ReasonCode.APPROVAL_NEEDED:  # nothing went wrong
        marks.halts += 1
    marks.halted = record.reason
    marks.halted_tool = tool
    marks.incidents[incident] = marks.incidents.get(incident, 0) + 1
    if record.escalates:
        marks.escalated.append(incident)


def incident_of(tool: str, reason: ReasonCode) -> str:
    """The key under which halts of this tool for this reason are counted."""
    return f"{tool}\n{reason.value}"


def _resume(state: GuardState, record: ControlRecord) -> None:
    marks = state.marks
    _skip_time(state, record.now)
    marks.epoch += 1
    marks.progress += 1
    marks.resumed, marks.halted, marks.halted_tool, marks.turn_key, marks.paused = True, None, None, None, False
    marks.pending.clear()
    marks.escalated.clear()
    state.has_news = False
    state.repeat.turn_calls.clear()
    run.rearm(state.run)
    cycle.rearm(state.cycle)
    state.budget.extra_steps += record.extra_steps
    state.budget.extra_tokens += record.extra_tokens
    state.budget.extra_cost += record.extra_cost
    state.budget.extra_seconds += record.extra_seconds
    state.closed.fallen_back.clear()
    state.closed.asked.clear()
    state.closed.banned.extend(tool for tool in record.tools if tool not in state.closed.banned)
    for signature in record.forgiven:
        repeat.forgive(state.repeat, signature, marks)
    marks.approved = list(record.approved)


def _skip_time(state: GuardState, now: float | None) -> None:
    """The time since the last event was a pause: it is no part of the time budget."""
    memory = state.budget
    if now is not None and memory.latest is not None and now > memory.latest:
        memory.paused_s += now - memory.latest
        memory.latest = now
