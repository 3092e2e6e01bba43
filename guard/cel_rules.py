"""Meta-rules as expressions: YAML files with CEL conditions over the call, its history and the item's facts.

    rules = load_rules(Path("rules.yaml"))
    guard = Guard(policy, facts=facts, rules=rules)

Conditions are compiled and type-checked when the file is read; whatever is wrong is told with file, line and rule.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml

from guard.finding import RuleEffect
from guard.metarules import Facts, History, RuleCall, Ruling
from prefilters.errors import RuleSetInvalid
from prefilters.facts import FACT_BY_NAME
from prefilters.rules.engine import CelProgram, ConditionCompiler, ConditionInvalid
from prefilters.rules.loader import compose_plain

_MOST_BYTES: Final = 256 * 1024
_MOST_RULES: Final = 500
_KEYS: Final = ("id", "when", "effect", "reason", "since")
_OPTIONAL: Final = ("reason_zh",)

RUN_FACTS: Final[Mapping[str, type[bool] | type[int] | type[float] | type[str]]] = {
    "call.tool": str,
    "call.group": str,
    "call.effect": str,
    "call.step": int,
    "history.steps": int,
    "history.same_call": int,
    "history.tool_errors_in_row": int,
    "history.group_failures_in_row": int,
    "history.distinct_results_in_group": int,
    "history.last_error_code": str,
    "history.cost": float,
}
"""What a condition may say about the run, beside the item's facts of `docs/facts.md`."""


class Origin(Enum):
    """Who wrote a rule. A learnt one may close, re-route or escalate, but never reject."""

    HAND_WRITTEN = "hand_written"
    LEARNT = "learnt"


@dataclass(frozen=True, slots=True)
class CelRule:
    """One compiled rule; a `guard.metarules.Rule`."""

    id: str
    when: str
    effect: RuleEffect
    reason: str
    since: str
    program: CelProgram
    names: tuple[str, ...]
    """The facts that `when` mentions."""
    reason_zh: str = ""

    def __call__(self, call: RuleCall, history: History, facts: Facts) -> Ruling | None:
        """The ruling when the condition is true; a fact that is unknown, or of another type, makes it not hold."""
        bound = {name: value for name in self.names if (value := _value_of(name, call, history, facts)) is not None}
        if len(bound) == len(self.names) and self.program.ask(bound, {})(0) is True:
            return Ruling(self.reason, self.effect, self.reason_zh)
        return None


def load_rules(path: Path, origin: Origin = Origin.HAND_WRITTEN) -> tuple[CelRule, ...]:
    """The rules of a file. Raises RuleSetInvalid with all that is wrong, and OSError where it cannot be read."""
    with open(path, "rb") as file:
        return parse_rules(file.read(_MOST_BYTES + 1), name=str(path), origin=origin)


@cache
def shipped_rules() -> tuple[CelRule, ...]:
    """The rules that every guard has that knows an item's facts."""
    return parse_rules((resources.files("guard") / "rules.yaml").read_bytes(), name="rules.yaml")


def parse_rules(raw: bytes, *, name: str, origin: Origin = Origin.HAND_WRITTEN) -> tuple[CelRule, ...]:
    """The rules that `raw` says; `name` stands in the complaints. Raises RuleSetInvalid."""
    if len(raw) > _MOST_BYTES:
        raise RuleSetInvalid([f"{name}: larger than {_MOST_BYTES // 1024} KB"])
    root = compose_plain(raw, name)
    listed = _entries(root).get("rules")
    if not isinstance(listed, yaml.SequenceNode) or len(_entries(root)) != 1 or len(listed.value) > _MOST_RULES:
        raise RuleSetInvalid([f"{name}:1: one list `rules` is needed here, of at most {_MOST_RULES} rules"])
    compiler, problems, rules = ConditionCompiler({}, RUN_FACTS), [], []
    for node in listed.value:
        rule = _read_rule(node, compiler, origin, name)
        if isinstance(rule, CelRule):
            rules.append(rule)
        else:
            problems += rule
    for rule_id in {rule.id for rule in rules if [other.id for other in rules].count(rule.id) > 1}:
        problems.append(f"{name}: rule {rule_id}: the id stands here twice")
    if problems:
        raise RuleSetInvalid(problems)
    return tuple(rules)


def _read_rule(node: yaml.Node, compiler: ConditionCompiler, origin: Origin, name: str) -> CelRule | list[str]:
    """The rule, or what is wrong with it."""
    entries = _entries(node)
    texts = {key: " ".join(str(value.value).split()) for key, value in entries.items() if _is_text(value)}
    about = f"rule {texts.get('id', '?')}"
    problems = [f"{name}:{_line(node)}: {about}: {key!r} is missing" for key in _KEYS if not texts.get(key)]
    problems += [
        f"{name}:{_line(value)}: {about}: unknown key {key!r}{_near(key, (*_KEYS, *_OPTIONAL))}"
        for key, value in entries.items()
        if key not in (*_KEYS, *_OPTIONAL)
    ]
    if problems:
        return problems
    effects = {effect.value: effect for effect in RuleEffect}
    effect = effects.get(texts["effect"])
    if effect is None:
        line, hint = _line(entries["effect"]), _near(texts["effect"], tuple(effects))
        return [f"{name}:{line}: {about}: no effect {texts['effect']!r}{hint}; there are {', '.join(effects)}"]
    if effect is RuleEffect.REJECT and origin is Origin.LEARNT:
        return [f"{name}:{_line(entries['effect'])}: {about}: only a rule written by hand may reject"]
    try:
        expression = compiler.compile(texts["when"])
    except ConditionInvalid as exc:
        hint = _misspelt(texts["when"], compiler)
        return [f"{name}:{_line(entries['when'])}: {about}: {exc}{hint}"]
    names = tuple(dict.fromkeys(compiler.names_in(texts["when"])))
    program = compiler.program([expression])
    reason_zh = texts.get("reason_zh", "")
    return CelRule(texts["id"], texts["when"], effect, texts["reason"], texts["since"], program, names, reason_zh)


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _near(word: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _misspelt(when: str, compiler: ConditionCompiler) -> str:
    """A hint for the first dotted name that is no fact."""
    without_texts = re.sub(r"'[^']*'|\"[^\"]*\"", "", when)
    for word in re.findall(r"[A-Za-z_]\w*(?:\.\w+)+", without_texts):
        if word not in compiler.names:
            return _near(word, tuple(sorted(compiler.names)))
    return ""


def _value_of(name: str, call: RuleCall, history: History, facts: Facts) -> Any:
    """The value under a declared name; None when it is unknown or not of the declared type."""
    scope, _, field = name.partition(".")
    if scope == "call":
        return call.effect.value if field == "effect" else getattr(call, field)
    if scope == "history":
        return getattr(history, field)
    value, kind = facts.get(name), FACT_BY_NAME[name].type
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else None
