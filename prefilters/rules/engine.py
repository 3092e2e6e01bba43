"""Judging: facts and rules in, verdict out. The only place that knows CEL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from cel_expr_python import cel

from prefilters.facts import FACTS, Facts, FactValue, Stage
from prefilters.rules.model import Rule, RuleSet
from prefilters.verdict import Check, CheckOutcome, Effect, Verdict, VerdictKind

_CEL_TYPES = {bool: cel.Type.BOOL, int: cel.Type.INT, float: cel.Type.DOUBLE, str: cel.Type.STRING}
_LAST_STAGE = max(Stage)

_KIND_BY_EFFECT: Mapping[Effect, VerdictKind] = {
    Effect.REJECT: VerdictKind.REJECT,
    Effect.TEXT_ONLY: VerdictKind.TEXT_ONLY,
    Effect.SINGLE_LOOK: VerdictKind.SINGLE_LOOK,
    Effect.ESCALATE: VerdictKind.ESCALATE,
}


class ConditionInvalid(Exception):
    """An expression that does not compile, or whose result is no truth value."""


@dataclass(frozen=True, slots=True)
class CelProgram:
    """The compiled conditions of a rule set, in its order."""

    env: cel.Env
    expressions: tuple[cel.Expression, ...]

    def ask(self, facts: Facts, parameters: Mapping[str, FactValue]) -> Callable[[int], bool | None]:
        """A function that says whether the condition of that number holds; None where it needs an unknown fact."""
        bound = self.env.Activation({**facts, **{f"param.{name}": value for name, value in parameters.items()}})

        def holds(number: int) -> bool | None:
            outcome = self.expressions[number].eval(bound).plain_value()
            # A missing fact comes back as an error text, which Python would take for true.
            return outcome if type(outcome) is bool else None

        return holds


class ConditionCompiler:
    """Compiles conditions over the table of facts, the given parameters and `more` names, all of them typed."""

    def __init__(self, parameters: Mapping[str, FactValue], more: Mapping[str, type[FactValue]] | None = None) -> None:
        variables = {spec.name: _CEL_TYPES[spec.type] for spec in FACTS}
        variables |= {name: _CEL_TYPES[kind] for name, kind in (more or {}).items()}
        variables |= {f"param.{name}": _CEL_TYPES[type(value)] for name, value in parameters.items()}
        self.names = frozenset(variables)
        self._env = cel.NewEnv(variables=variables)

    def program(self, expressions: Iterable[cel.Expression]) -> CelProgram:
        """What `evaluate` runs."""
        return CelProgram(self._env, tuple(expressions))

    def compile(self, when: str) -> cel.Expression:
        """The condition that `when` says. Raises `ConditionInvalid`."""
        try:
            expression = self._env.compile(when)
        except (RuntimeError, ValueError) as exc:
            raise ConditionInvalid(_compiler_says(str(exc))) from exc
        if expression.return_type() != cel.Type.BOOL:
            raise ConditionInvalid(f"the condition gives {expression.return_type().name().lower()}, not true or false")
        return expression

    def names_in(self, when: str) -> Iterator[str]:
        """The facts and parameters that `when` mentions."""
        without_texts = re.sub(r"'[^']*'|\"[^\"]*\"", "", when)
        yield from (name for name in re.findall(r"[A-Za-z_][\w.]*", without_texts) if name in self.names)


def _compiler_says(message: str) -> str:
    """The first complaint, without the compiler's drawing of the place."""
    first = message.splitlines()[0]
    return re.sub(r"^.*?ERROR: <input>:\d+:(\d+): ", r"column \1: ", first).replace(" (in container '')", "")


def evaluate(facts: Facts, rules: RuleSet, *, through: Stage) -> Verdict:
    """The verdict of `rules` on `facts`: the first rule that matches and is no note decides.

    Only rules up to stage `through` are asked; `decided` is false where a later one might still match. Pure, about
    0.1 ms for the shipped rules.
    """
    checks: list[Check] = []
    holds = rules.program.ask(facts, rules.parameters)
    for number, rule in enumerate(rules.rules):
        if rule.stage > through or not _is_about(rule, facts):
            continue
        matched = holds(number)
        checks.append(_check(rule, matched, facts, rules))
        if matched and rule.effect is not Effect.NOTE:
            return _decision(rule, checks, rules)
    return Verdict(
        kind=VerdictKind.ACCEPT,
        decided=through >= _LAST_STAGE,
        stage=through,
        ruleset=rules.version,
        notes=_notes(checks),
        checks=tuple(checks),
    )


def _is_about(rule: Rule, facts: Facts) -> bool:
    return rule.kind is None or facts.get("media.kind") == rule.kind


def _decision(rule: Rule, checks: list[Check], rules: RuleSet) -> Verdict:
    check = checks[-1]
    has_value = check.fact is not None and check.value is not None
    return Verdict(
        kind=_KIND_BY_EFFECT[rule.effect],
        decided=True,
        stage=rule.stage,
        ruleset=rules.version,
        rule=rule.id,
        code=rule.code,
        next=rule.next,
        reason=rule.reason,
        measured={check.fact: check.value} if has_value and check.fact and check.value is not None else {},
        limit={check.fact: check.limit} if check.fact and check.limit is not None else {},
        notes=_notes(checks),
        checks=tuple(checks),
    )


def _notes(checks: list[Check]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(check.code for check in checks if check.outcome is CheckOutcome.WARN))


def _check(rule: Rule, matched: bool | None, facts: Facts, rules: RuleSet) -> Check:
    compared = rule.compared
    limit = compared.limit(rules.parameters) if compared else None
    return Check(
        rule=rule.id,
        code=rule.code,
        stage=rule.stage,
        effect=rule.effect,
        outcome=_outcome(rule, matched),
        fact=compared.fact if compared else None,
        value=facts.get(compared.fact) if compared else None,
        limit=limit,
        passes_when=f"{compared.fact} {compared.passes} {_as_written(limit)}" if compared else f"not ({rule.when})",
    )


def _as_written(value: FactValue | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _outcome(rule: Rule, matched: bool | None) -> CheckOutcome:
    if matched is None:
        return CheckOutcome.UNKNOWN
    if not matched:
        return CheckOutcome.PASS
    return CheckOutcome.WARN if rule.effect is Effect.NOTE else CheckOutcome.FAIL
