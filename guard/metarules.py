"""Rules over a call, its history and the item's facts, written as Python functions."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from guard import guidance
from guard.finding import Detector, Finding, ReasonCode, RuleEffect
from guard.ladder import GuardAction, action_for
from guard.marks import Marks
from guard.memory import BoundedMap
from guard.policy import Effect, GuardPolicy, Language
from guard.streak import Streak, count, restart, standing
from guard.trace import CallView, OutcomeRecord

Facts = Mapping[str, object]
"""The item's facts under their dotted names (`text.tokens`); a missing fact is unknown."""

_MAX_RESULTS: Final = 256
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuleCall:
    """The call as rules see it (`call.…`)."""

    tool: str
    group: str | None
    effect: Effect
    step: int


@dataclass(frozen=True, slots=True)
class History:
    """What led to the call, as rules see it (`history.…`). Counts are since the last progress unless said otherwise."""

    steps: int
    """Calls of the whole task so far."""
    same_call: int
    """Identical calls before this one, while their result stayed the same."""
    tool_errors_in_row: int
    """Failures of this tool in a row, whatever the code."""
    group_failures_in_row: int
    """Failures of the call's group in a row; 0 without a group."""
    distinct_results_in_group: int
    """Different results of the call's group in the whole task, as far as remembered (256); 0 without a group."""
    last_error_code: str | None
    """Of the whole task."""
    cost: float
    """Of the whole task, in the caller's currency."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule says about a call that it holds for."""

    reason: str
    effect: RuleEffect = RuleEffect.CLOSE_GROUP
    reason_zh: str = ""
    """The same in Chinese, for policies whose language that is; without it `reason` serves for all."""

    def reason_in(self, language: Language) -> str:
        """The reason as the model reads it."""
        return self.reason_zh if self.reason_zh and language is Language.CHINESE else self.reason


Rule = Callable[[RuleCall, History, Facts], str | Ruling | None]
"""Returns a ruling, or only the reason for refusing the call; None where the rule does not hold.

Anything else is a mistake in the rule, and counts as one that raises.
"""


@dataclass(slots=True)
class GroupMemory:
    """Failures and results of the tools of one group."""

    failures: Streak = field(default_factory=Streak)
    results: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Digests of the latest different results, each with the step that last brought it."""


@dataclass(slots=True)
class RuleMemory:
    """What rules look at, and how often each refused."""

    tool_errors: BoundedMap[Streak] = field(default_factory=BoundedMap)
    groups: BoundedMap[GroupMemory] = field(default_factory=BoundedMap)
    last_error_code: str | None = None
    refusals: BoundedMap[Streak] = field(default_factory=BoundedMap)
    errors: int = 0
    """Times that a rule raised."""


_registered: list[Rule] = []


def register_rule(rule: Rule) -> Rule:
    """Add `rule` to every guard that is built from now on without rules of its own.

    Returns it, for use as a decorator.
    """
    if rule not in _registered:
        _registered.append(rule)
    return rule


def unregister_rule(rule: Rule) -> None:
    """Take back what `register_rule` did; guards that were built meanwhile keep the rule."""
    if rule in _registered:
        _registered.remove(rule)


def default_rules(policy: GuardPolicy, facts: Facts) -> tuple[Rule, ...]:
    """The rules of a guard that was given none: the shipped ones where an item's facts are known, and those registered.

    The shipped rules are expressions in `rules.yaml`. They are read when they are first needed, so that the guard itself
    needs nothing but the standard library.
    """
    if not policy.vision_rule or not facts:
        return tuple(_registered)
    from guard.cel_rules import shipped_rules

    return (*shipped_rules(), *_registered)


def rule_name(rule: Rule) -> str:
    """The name under which a rule's refusals are counted and shown."""
    return str(getattr(rule, "id", None) or getattr(rule, "__qualname__", None) or type(rule).__qualname__)


def find(
    memory: RuleMemory,
    rules: tuple[Rule, ...],
    call: RuleCall,
    history: History,
    facts: Facts,
    marks: Marks,
    policy: GuardPolicy,
) -> tuple[Finding | None, int]:
    """The first refusal, and how many rules raised.

    A rule that raises leaves a read-only call to the other detectors, and refuses a mutating one; what it raised is logged.
    """
    errors = 0
    for rule in rules:
        try:
            ruling = _ruling_of(rule(call, history, facts))
        except Exception:  # noqa: BLE001 - whatever a rule raises, the agent must neither die of it nor go unguarded
            _log.warning("rule %s could not be evaluated", rule_name(rule), exc_info=True)
            errors += 1
            ruling = Ruling(guidance.rule_failed(policy.language)) if call.effect is Effect.MUTATING else None
        if ruling is not None:
            name = rule_name(rule)
            occurrence = standing(memory.refusals.get(name), marks) + 1
            closes = ruling.effect is RuleEffect.CLOSE_GROUP
            action = action_for(policy.ladders.rule, occurrence) if closes else GuardAction.HALT
            finding = Finding(
                Detector.RULE,
                ReasonCode.RULE,
                occurrence,
                action,
                (),
                name,
                ruling.reason_in(policy.language),
                ruling.effect,
            )
            return finding, errors
    return None, errors


def _ruling_of(answer: object) -> Ruling | None:
    if isinstance(answer, Ruling):
        return answer
    if isinstance(answer, str):
        return Ruling(answer) if answer else None
    if answer is None or answer is False:
        return None
    raise TypeError(f"a rule returns a reason, a Ruling or None, not {type(answer).__name__}")


def history_of(memory: RuleMemory, call: CallView, marks: Marks, *, same_call: int, cost: float) -> History:
    """What rules see of the run so far."""
    group = None if call.group is None else memory.groups.get(call.group)
    return History(
        steps=marks.step,
        same_call=same_call,
        tool_errors_in_row=standing(memory.tool_errors.get(call.tool), marks),
        group_failures_in_row=0 if group is None else standing(group.failures, marks),
        distinct_results_in_group=0 if group is None else len(group.results),
        last_error_code=memory.last_error_code,
        cost=cost,
    )


def observe_refusal(memory: RuleMemory, rule: str, marks: Marks, step: int) -> None:
    """Fold in that a rule refused a call."""
    row = memory.refusals.get(rule) or Streak()
    count(row, marks, step)
    memory.refusals.put(rule, row)


def observe_outcome(memory: RuleMemory, call: CallView, outcome: OutcomeRecord, marks: Marks) -> None:
    """Fold an outcome in."""
    row = memory.tool_errors.get(call.tool)
    if outcome.code is not None:
        memory.last_error_code = outcome.code
        row = row or Streak()
        count(row, marks, call.step)
        memory.tool_errors.put(call.tool, row)
    elif row is not None:
        restart(row, marks, 0)
    if call.group is None:
        return
    group = memory.groups.get(call.group)
    if group is None:
        group = GroupMemory()
        memory.groups.put(call.group, group)
    else:
        memory.groups.touch(call.group)
    if outcome.code is not None:
        count(group.failures, marks, call.step)
    else:
        restart(group.failures, marks, 0)
    results = group.results
    results[outcome.digest] = call.step
    if len(results) > _MAX_RESULTS:
        results.popitem(last=False)
