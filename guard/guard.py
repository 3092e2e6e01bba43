"""The guard of one run: it is asked before and after each tool call, and keeps no state but the trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from guard import approval, capabilities, guidance, metarules
from guard.answer import decide_after, decide_before, verdict_of
from guard.call import NO_IGNORED, ToolCall, leaf_text, read_call, read_keys
from guard.decision import Decision, Flag
from guard.detectors import budget, cycle, error_codes, folding, jitter, repeat, run, stale, tuning
from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction
from guard.metarules import Facts, Rule, RuleCall
from guard.policy import INVALID_ARGUMENTS, UNKNOWN_TOOL, Budget, GuardPolicy, Mode, ToolTraits, classify_error
from guard.redact import redacted_args
from guard.results import Outcome, digest_of, excerpt_of
from guard.snapshot import dump, load
from guard.state import (
    GuardState,
    empty_state,
    find_open,
    observe,
    observe_call,
    observe_control,
    observe_outcome,
    observe_verdict_after,
    open_turn,
)
from guard.trace import CallRecord, CallView, Control, ControlRecord, OutcomeRecord, Record, Trace

SNAPSHOT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a run stands after a person, or the fallback, let it go on."""

    epoch: int
    halts: int
    """Halts of the run so far."""
    steps: int
    steps_max: int | None
    banned_tools: tuple[str, ...]
    text: str | None = None
    """After a fallback what the model is told: that these tools are closed, and to go on without them."""
    unknown_tools: tuple[str, ...] = ()
    """Tools that were just banned though the guard, which knows `Guard.known_tools`, has not heard of them: misspelt?"""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used of its budget."""

    steps: int
    steps_max: int | None
    tokens: int
    cost: float
    seconds: float


class Guard:
    """Judges the tool calls of one run of one task.

    Does no I/O and reads no clock: `now` is seconds from any clock that goes forward, always the same one, and may be
    left out where neither the time budget nor announced waits matter. Not safe for use by several threads at once.
    """

    def __init__(
        self,
        policy: GuardPolicy | None = None,
        *,
        tools: Mapping[str, ToolTraits] | None = None,
        facts: Facts | None = None,
        rules: Iterable[Rule] | None = None,
        keep_trace: bool = True,
    ) -> None:
        """A guard for a task that has not begun.

        `tools` are the traits that tools declare, `facts` the item's facts for meta-rules. Without `keep_trace` only
        `last_record` is kept, so that memory stays bounded; the caller then stores each record itself.
        """
        self.policy = policy or GuardPolicy()
        self.tools: dict[str, ToolTraits] = dict(tools or {})
        self.facts: Facts = dict(facts or {})
        self.trace = Trace()
        self.last_record: Record | None = None
        self._rules = metarules.default_rules(self.policy, self.facts) if rules is None else tuple(rules)
        self._keep_trace = keep_trace
        self._records = 0
        self._state = empty_state(self.policy)
        self._undeclared = ToolTraits(effect=self.policy.undeclared_effect)

    @classmethod
    def from_trace(
        cls,
        trace: Trace,
        policy: GuardPolicy | None = None,
        *,
        tools: Mapping[str, ToolTraits] | None = None,
        facts: Facts | None = None,
        rules: Iterable[Rule] | None = None,
        keep_trace: bool = True,
        snapshot: Mapping[str, Any] | None = None,
    ) -> Guard:
        """The guard exactly as it was after the last record of `trace`.

        With a `snapshot` only the records after it are folded in. Raises ValueError, TypeError or KeyError when the
        snapshot is not one of this version.
        """
        guard = cls(policy, tools=tools, facts=facts, rules=rules, keep_trace=keep_trace)
        records = trace.records
        if snapshot is not None:
            if snapshot["version"] != SNAPSHOT_VERSION:
                raise ValueError(f"snapshot version {snapshot['version']!r} is not {SNAPSHOT_VERSION}")
            guard._state = load(GuardState, snapshot["state"])
        skipped = 0 if snapshot is None else int(snapshot["records"])
        guard.follow(records[skipped:])
        if keep_trace:
            guard.trace.records[:] = records
        guard._records = max(len(records), skipped)
        guard.last_record = records[-1] if records else None
        return guard

    def follow(self, records: Iterable[Record]) -> None:
        """Fold in what was added to this run's trace elsewhere: by another process that judged its next calls."""
        for record in records:
            observe(self._state, record, self.policy)
            self._append(record)

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON values, with the number of records and steps that it stands for. A cache: never needed."""
        return {
            "version": SNAPSHOT_VERSION,
            "records": self._records,
            "step": self._state.marks.step,
            "state": dump(self._state),
        }

    def declare(self, tool: str, traits: ToolTraits) -> None:
        """Say what `tool` does; its earlier calls keep what they were taken for."""
        self.tools[tool] = traits

    def register_rule(self, rule: Rule) -> Rule:
        """Add a meta-rule to this guard; returns it, for use as a decorator."""
        self._rules = (*self._rules, rule)
        return rule

    @property
    def is_halted(self) -> bool:
        """Whether the run stands still until `resume` or `fall_back`."""
        return self._state.marks.halted is not None or self._state.marks.cancelled

    @property
    def is_paused(self) -> bool:
        """Whether calls are refused until `unpause`."""
        return self._state.marks.paused

    @property
    def halts(self) -> int:
        """Halts of this run so far."""
        return self._state.marks.halts

    @property
    def steps(self) -> int:
        """Calls of this run so far, refused ones included."""
        return self._state.marks.step

    @property
    def epoch(self) -> int:
        """How often this run was resumed."""
        return self._state.marks.epoch

    @property
    def spent(self) -> Spent:
        """What this run has used so far."""
        memory = self._state.budget
        return Spent(
            self._state.marks.step,
            budget.steps_max(memory, self.policy),
            memory.tokens,
            memory.cost,
            budget.seconds_spent(memory),
        )

    @property
    def limits(self) -> Budget:
        """What this run may use: the policy's budget, with what `resume` added to it."""
        return budget.limits(self._state.budget, self.policy)

    @property
    def closed_tools(self) -> tuple[str, ...]:
        """Tools that this run can no longer reach."""
        return self._state.closed.names()

    @property
    def known_tools(self) -> tuple[str, ...]:
        """The tools that were declared, and those that were called."""
        return tuple(dict.fromkeys([*self.tools, *(name for name, _ in self._state.budget.tools.items())]))

    def before(self, call: ToolCall, *, now: float | None = None) -> Decision:
        """Whether `call` may run. Never raises, whatever the model sent.

        The calls of one message are judged in order; each must be asked about before it runs.
        """
        now = _finite(now)
        turn_key = call.turn if call.turn is None or isinstance(call.turn, (str, int)) else str(call.turn)
        open_turn(self._state, turn_key, now, self.policy)
        traits = self.tools.get(call.tool, self._undeclared)
        view, canonical = self._view_of(call, traits, now)
        ended = self._find_end() if self._state.marks.stands_still else None
        is_sticky = ended is not None
        findings, rule_errors = self._judge(view, traits) if ended is None else ((ended,), 0)
        flags = _flags(view, is_sticky=is_sticky, rule_errors=rule_errors)
        decision = decide_before(self._state, self.policy, view, call, findings, flags)
        is_silent = view.keys.is_json or self.policy.mode is Mode.SHADOW or decision.append is not None
        if decision.execute and not is_silent:
            decision = replace(
                decision, append=guidance.hint(INVALID_ARGUMENTS, self.policy.language, self._state.marks.spoken)
            )
        args = redacted_args(call, canonical)
        if not findings and not rule_errors and self.policy.mode is Mode.ENFORCE:
            record = CallRecord(view, turn_key, args, decision.action, decision.execute, now, text=decision.append)
            record.same_as = decision.same_as
        else:
            record = self._call_record(
                decision, view, args, turn_key, now, is_sticky=is_sticky, rule_errors=rule_errors
            )
        observe_call(self._state, record, self.policy)
        self._append(record)
        return decision

    def before_batch(self, calls: Iterable[ToolCall], *, now: float | None = None) -> list[Decision]:
        """One decision for each call of one model message, in order. Calls without a turn are taken for one message."""
        turn = f"batch-{self._records}"
        return [self.before(call if call.turn is not None else replace(call, turn=turn), now=now) for call in calls]

    def after(self, call: ToolCall, outcome: Outcome, *, step: int | None = None, now: float | None = None) -> Decision:
        """What to add to the result of `call`, or that the turn ends. Never raises.

        `step` (from the decision before) names the call where ids repeat or are missing. An outcome without a question
        before is counted and flagged; one of a call that was not let through is flagged and is no evidence.
        """
        now = _finite(now)
        traits = self.tools.get(call.tool, self._undeclared)
        view, flags = self._find_call(call, step, traits, now)
        is_ignored = bool(flags) and (Flag.NOT_EXECUTED in flags or Flag.KNOWN_OUTCOME in flags)
        record = _outcome_record(view, outcome, traits, now, is_ignored=is_ignored)
        observe_outcome(self._state, record, self.policy)
        findings = () if is_ignored else self._judge_after(view, record)
        decision = decide_after(self._state, self.policy, view, call, findings, flags, record)
        if record.code == UNKNOWN_TOOL:
            is_silent = self.policy.mode is Mode.SHADOW or decision.append is not None or is_ignored
            if not decision.ends_turn and not is_silent:
                text = guidance.hint(UNKNOWN_TOOL, self.policy.language, self._state.marks.spoken)
                decision = replace(decision, append=text)
        if decision.append is not None or decision.explanation:
            record = replace(record, **verdict_of(decision))
            observe_verdict_after(self._state, record, self.policy)
        self._append(record)
        return decision

    def charge(self, *, tokens: int = 0, cost: float = 0.0, now: float | None = None) -> None:
        """Count what was spent outside tool calls, such as model calls."""
        self._control(ControlRecord(Control.CHARGE, _finite(now), tokens=max(tokens, 0), cost=_amount(cost)))

    def resume(
        self,
        *,
        extra_steps: int = 0,
        extra_tokens: int = 0,
        extra_cost: float = 0.0,
        extra_seconds: float = 0.0,
        ban_tools: Iterable[str] = (),
        forgive: Iterable[str] = (),
        approve: Iterable[str] = (),
        note: str | None = None,
        now: float | None = None,
    ) -> Resumption:
        """Let a halted run go on, by a person's word: a new epoch.

        Signatures of before start at Block until something new happens; all else is re-armed. What is `extra_…` adds to
        a budget that the policy limits: without it a run that has spent one halts again at once. `forgive` names
        signatures whose refusal was a mistake, `approve` those of calls that a person agreed to: each runs once. Tools
        that the fallback closed are open again unless banned. The time since the last event is no part of the time budget.
        Any name can be banned; `unknown_tools` of the answer are those that no tool of this run has.
        """
        known = frozenset(self.known_tools)
        banned = _names(ban_tools)
        record = ControlRecord(
            Control.RESUME,
            _finite(now),
            banned,
            max(extra_steps, 0),
            max(extra_tokens, 0),
            _amount(extra_cost),
            _amount(extra_seconds),
            _names(forgive),
            _names(approve),
            note=note,
        )
        self._control(record)
        return replace(self._resumption(), unknown_tools=tuple([name for name in banned if name not in known]))

    def fall_back(self, tools: Iterable[str] | None = None, *, now: float | None = None) -> Resumption:
        """Let a halted run go on without `tools` (default: the one that it halted at): the fallback of `on_loop`.

        `text` of the answer belongs into the transcript, in place of the halt's own words.
        """
        halted = self._state.marks.halted_tool
        names = _names(tools) if tools is not None else () if halted is None else (halted,)
        last = self.last_record
        said = None if last is None or isinstance(last, ControlRecord) else last.text
        self._control(ControlRecord(Control.FALL_BACK, _finite(now), names))
        if not names:
            return self._resumption()
        told = guidance.without_tools(said, names, self.policy.language, self._state.marks.spoken)
        return replace(self._resumption(), text=told)

    def cancel(self, *, now: float | None = None) -> None:
        """Refuse every further call of this run."""
        self._control(ControlRecord(Control.CANCEL, _finite(now)))

    def pause(self, *, now: float | None = None) -> None:
        """Refuse calls until `unpause`; they are no evidence and the time does not count."""
        self._control(ControlRecord(Control.PAUSE, _finite(now)))

    def unpause(self, *, now: float | None = None) -> None:
        """Undo `pause`."""
        self._control(ControlRecord(Control.UNPAUSE, _finite(now)))

    # -- judging -------------------------------------------------------------------------------------------------------

    def _view_of(self, call: ToolCall, traits: ToolTraits, now: float | None) -> tuple[CallView, str | None]:
        keys, canonical = read_call(call, frozenset(traits.ignore_args) if traits.ignore_args else NO_IGNORED)
        step = self._state.marks.step + 1
        view = CallView(
            step,
            f"step-{step}" if call.call_id is None else call.call_id,
            call.tool,
            keys,
            traits.effect,
            self._state.marks.turn,
            traits.group,
            traits.poller,
            tuple([path for path in keys.paths if _is_declared(path, traits.number_args)])
            if traits.number_args
            else (),
            now is not None and error_codes.kept_wait(self._state.errors, call.tool, now),
        )
        return view, canonical

    def _judge(self, call: CallView, traits: ToolTraits) -> tuple[tuple[Finding, ...], int]:
        """What every detector sees before the call, in the order in which equal findings win; and rules that raised."""
        state, policy = self._state, self.policy
        marks = state.marks
        is_spent = budget.is_tool_spent(state.budget, call.tool, policy, traits)
        closed = state.closed
        repeated = repeat.find(state.repeat, call, marks, policy)
        ruled, rule_errors = self._find_rule(call, repeated)
        alike = jitter.look_alikes(state.jitter, call, marks)
        found = (
            capabilities.find(closed, call.tool, marks, policy, is_spent=is_spent)
            if is_spent or closed.banned or closed.fallen_back
            else None,
            budget.find(state.budget, marks, policy),
            ruled,
            repeated,
            run.find(state.run, call, policy),
            cycle.find(state.cycle, call, policy),
            folding.find(state.folding, call, marks, policy),
            jitter.find(alike, call, policy),
            tuning.find(alike, call, policy),
            stale.find(state.stale, state.repeat.seen.get(call.keys.signature), call, marks, policy),
        )
        findings = self._switched_on(call, found)
        if (policy.needs_approval or traits.needs_approval) and not any(f.action.refuses for f in findings):
            wanted = approval.find(state.repeat, call, marks, policy, traits)
            findings = findings if wanted is None else (wanted, *findings)
        return findings, rule_errors

    def _judge_after(self, call: CallView, record: OutcomeRecord) -> tuple[Finding, ...]:
        state, policy, marks = self._state, self.policy, self._state.marks
        alike = jitter.look_alikes(state.jitter, call, marks)
        found = (
            repeat.find_after(state.repeat, call, marks, policy),
            cycle.find_after(state.cycle, call, policy),
            folding.find_after(state.folding, call, marks, policy),
            jitter.find_after(alike, call, policy),
            tuning.find_after(alike, call, policy),
            stale.find_after(state.stale, call, marks, policy) if state.stale.last_was_stale else None,
            None if record.code is None else error_codes.find_after(state.errors, call, record, marks, policy),
        )
        return self._switched_on(call, found)

    def _switched_on(self, call: CallView, found: tuple[Finding | None, ...]) -> tuple[Finding, ...]:
        if not any(found):
            return ()
        off = self.policy.off
        findings = [f for f in found if f is not None and (not off or f.detector.value not in off)]
        return tuple(findings if call.keys.is_json else [_of_broken_arguments(f) for f in findings])

    def _find_end(self) -> Finding | None:
        marks = self._state.marks
        if marks.cancelled:
            return Finding(Detector.CONTROL, ReasonCode.RUN_CANCELLED, 1, GuardAction.HALT)
        if marks.paused:
            return Finding(Detector.CONTROL, ReasonCode.RUN_PAUSED, 1, GuardAction.BLOCK)
        if marks.halted is not None:
            return Finding(Detector.CONTROL, marks.halted, 1, GuardAction.HALT)
        return None

    def _find_rule(self, call: CallView, repeated: Finding | None) -> tuple[Finding | None, int]:
        if not self._rules:
            return None, 0
        state = self._state
        history = metarules.history_of(
            state.rules,
            call,
            state.marks,
            same_call=0 if repeated is None else repeated.occurrence - 1,
            cost=state.budget.cost,
        )
        seen = RuleCall(call.tool, call.group, call.effect, call.step)
        return metarules.find(state.rules, self._rules, seen, history, self.facts, state.marks, self.policy)

    def _find_call(
        self, call: ToolCall, step: int | None, traits: ToolTraits, now: float | None
    ) -> tuple[CallView, tuple[Flag, ...]]:
        """The open call that an outcome belongs to; when there is none, one is made up and flagged."""
        state = self._state
        if step is not None:
            for view in state.open.get(f"step-{step}" if call.call_id is None else call.call_id, ()):
                if view.step == step:
                    return view, ()
        else:
            keys = read_keys(call, frozenset(traits.ignore_args)) if call.call_id is None else None
            open_call = find_open(state, call.call_id, call.tool, "" if keys is None else keys.signature)
            if open_call is not None:
                return open_call, ()
        call_id = call.call_id if call.call_id is not None else "" if step is None else f"step-{step}"
        made_up, canonical = self._view_of(call, traits, now)
        for ids, flag in ((state.refused_ids, Flag.NOT_EXECUTED), (state.settled_ids, Flag.KNOWN_OUTCOME)):
            known = ids.get(call_id)
            if known is not None and (step is None or step == known):
                return replace(made_up, step=known), (flag,)
        turn_key = call.turn if call.turn is None or isinstance(call.turn, (str, int)) else str(call.turn)
        open_turn(state, turn_key, now, self.policy)
        made_up, canonical = self._view_of(call, traits, now)
        record = CallRecord(
            made_up, turn_key, redacted_args(call, canonical), GuardAction.ALLOW, execute=True, now=now, unasked=True
        )
        observe_call(state, record, self.policy)
        self._append(record)
        return made_up, (Flag.UNASKED,)

    # -- recording -----------------------------------------------------------------------------------------------------

    def _call_record(
        self,
        decision: Decision,
        view: CallView,
        args: str,
        turn_key: str | int | None,
        now: float | None,
        *,
        is_sticky: bool,
        rule_errors: int,
    ) -> CallRecord:
        is_withheld = self.policy.mode is Mode.SHADOW and (
            (decision.shadow_action or GuardAction.ALLOW).refuses
            or view.keys.signature in self._state.repeat.turn_calls
        )
        return CallRecord(
            view,
            turn_key,
            args,
            execute=decision.execute,
            now=now,
            same_as=decision.same_as,
            sticky=is_sticky,
            withheld=is_withheld,
            rule_errors=rule_errors,
            **verdict_of(decision),
        )

    def _control(self, record: ControlRecord) -> None:
        observe_control(self._state, record)
        self._append(record)

    def _append(self, record: Record) -> None:
        self._records += 1
        self.last_record = record
        if self._keep_trace:
            self.trace.append(record)

    def _resumption(self) -> Resumption:
        marks = self._state.marks
        return Resumption(
            marks.epoch,
            marks.halts,
            marks.step,
            budget.steps_max(self._state.budget, self.policy),
            self._state.closed.names(),
        )


def _flags(view: CallView, *, is_sticky: bool, rule_errors: int) -> tuple[Flag, ...]:
    if view.keys.is_json and not is_sticky and not rule_errors:
        return ()
    flags = (
        (Flag.INVALID_ARGUMENTS, not view.keys.is_json),
        (Flag.ENDED, is_sticky),
        (Flag.RULE_FAILED, rule_errors > 0),
    )
    return tuple([flag for flag, is_set in flags if is_set])


def _outcome_record(
    view: CallView, outcome: Outcome, traits: ToolTraits, now: float | None, *, is_ignored: bool
) -> OutcomeRecord:
    error = outcome.error
    if error is not None and (type(error.code) is not str or type(error.message) is not str):
        # A status number for a code, or no message: no type checker ran over this tool, and the agent shall not die of it.
        error = replace(error, code=_text(error.code), message=_text(error.message))
        outcome = replace(outcome, error=error)
    code = None if error is None else (error.code if view.keys.is_json else INVALID_ARGUMENTS)
    if error is not None and not view.keys.is_json:
        # What a parser says about broken JSON names another position each time; the code says it all.
        digest = digest_of(Outcome.failed(INVALID_ARGUMENTS))
    else:
        digest = digest_of(outcome, traits.volatile_result)
    return OutcomeRecord(
        view.step,
        view.call_id,
        view.tool,
        digest,
        code,
        None if error is None or code is None else classify_error(code, error.retryable, traits),
        excerpt_of(outcome) or code or "",
        None if error is None else _finite(error.retry_after_s),
        max(outcome.tokens, 0) if outcome.tokens else 0,
        _amount(outcome.cost) if outcome.cost else 0.0,
        None if outcome.ms is None else _finite(outcome.ms),
        now,
        ignored=is_ignored,
    )


def _of_broken_arguments(finding: Finding) -> Finding:
    """Repeating arguments that are no JSON is repeating an error."""
    if finding.reason is not ReasonCode.REPEATED_CALL:
        return finding
    return replace(finding, reason=ReasonCode.REPEATED_ERROR, rule=INVALID_ARGUMENTS)


def _is_declared(path: str, number_args: tuple[str, ...]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in number_args)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    """A single name is what was meant by a text, not its letters."""
    return (names,) if isinstance(names, str) else tuple(names)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else leaf_text(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _amount(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0
