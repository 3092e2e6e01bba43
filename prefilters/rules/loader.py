"""From a YAML file to a checked rule set. Whatever is wrong is told with file, line and rule."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml

from prefilters.errors import RuleSetInvalid
from prefilters.facts import FACT_BY_NAME, FactValue, Stage
from prefilters.rules.codes import NOTING_CODES, REFUSING_CODES, ROUTING_CODES
from prefilters.rules.engine import ConditionCompiler, ConditionInvalid
from prefilters.rules.model import Compared, Comparison, Parameter, Rule, RuleSet, content_version
from prefilters.verdict import Effect, Next

SHIPPED = "edge.yaml"

_MOST_BYTES = 256 * 1024
_MOST_RULES = 500
_MOST_WHEN_CHARS = 2_000
_REQUIRED = ("id", "stage", "when", "effect", "code", "reason", "since")
_OPTIONAL = ("kind", "compares", "next", "message")
_KINDS = ("image", "pdf", "audio", "other")
_STAGES = {stage.name.lower(): stage for stage in Stage}
_Choice = TypeVar("_Choice", bound=StrEnum)


def load_rules(path: Path | None = None) -> RuleSet:
    """The rule set of the file at `path`; the shipped one without. About 15 ms.

    Raises `RuleSetInvalid` with all that is wrong, and `OSError` where the file cannot be read.
    """
    if path is None:
        return parse_rules((resources.files("prefilters.rules") / SHIPPED).read_bytes(), name=SHIPPED)
    with open(path, "rb") as file:
        return parse_rules(file.read(_MOST_BYTES + 1), name=str(path))


def parse_rules(raw: bytes, *, name: str) -> RuleSet:
    """The rule set that `raw` says; `name` stands in the complaints. Raises `RuleSetInvalid`."""
    if len(raw) > _MOST_BYTES:
        raise RuleSetInvalid([f"{name}: larger than {_MOST_BYTES // 1024} KB"])
    root = compose_plain(raw, name)
    reader = _Reader(name)
    rule_set = reader.rule_set(root)
    if rule_set is None or reader.problems:
        raise RuleSetInvalid(reader.problems)
    return rule_set


class _PlainLoader(yaml.SafeLoader):
    """Plain YAML: an alias, with which a few lines can stand for gigabytes, is refused."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not taken here", mark)
        return super().compose_node(parent, index)


def compose_plain(raw: bytes, name: str) -> yaml.Node | None:
    """The nodes of a YAML text, with their lines; None for an empty one. Raises `RuleSetInvalid`, with the line."""
    try:
        return yaml.compose(raw.decode("utf-8"), Loader=_PlainLoader)
    except UnicodeDecodeError as exc:
        raise RuleSetInvalid([f"{name}: not UTF-8"]) from exc
    except RecursionError as exc:
        raise RuleSetInvalid([f"{name}: nested too deeply"]) from exc
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 0
        raise RuleSetInvalid([f"{name}:{line}: {exc.problem or exc.context}"]) from exc
    except yaml.YAMLError as exc:
        raise RuleSetInvalid([f"{name}: {exc}"]) from exc


@dataclass(frozen=True, slots=True)
class _Entry:
    """One mapping of the file: its values, and the line on which each stands."""

    values: Mapping[str, yaml.Node]
    line: int

    def line_of(self, key: str) -> int:
        return _line(self.values[key]) if key in self.values else self.line


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


@dataclass(slots=True)
class _Reader:
    """Reads one file and gathers what is wrong with it."""

    name: str
    problems: list[str] = field(default_factory=list)

    def complain(self, line: int, problem: str, rule_id: str | None = None) -> None:
        about = f"rule {rule_id}: " if rule_id else ""
        self.problems.append(f"{self.name}:{line}: {about}{problem}")

    def rule_set(self, root: yaml.Node | None) -> RuleSet | None:
        top = self._entry(root)
        if top is None:
            return None
        for key in top.values.keys() - {"parameters", "rules"}:
            self.complain(top.line_of(key), f"unknown key {key!r}")
        declared = self._parameters(top.values.get("parameters"))
        parameters = {parameter.name: parameter.default for parameter in declared}
        nodes = top.values.get("rules")
        if not isinstance(nodes, yaml.SequenceNode) or not nodes.value:
            self.complain(top.line_of("rules"), "`rules` must be a list with at least one rule")
            return None
        if len(nodes.value) > _MOST_RULES:
            self.complain(_line(nodes), f"more than {_MOST_RULES} rules")
            return None
        compiler = ConditionCompiler(parameters)
        read = [found for node in nodes.value if (found := self._rule(node, compiler, parameters))]
        self._check_order(read)
        rules = tuple(rule for rule, _expression, _line_number in read)
        program = compiler.program(expression for _rule, expression, _line_number in read)
        return RuleSet(rules, declared, parameters, program, content_version(rules, parameters))

    def _entry(self, node: yaml.Node | None) -> _Entry | None:
        if not isinstance(node, yaml.MappingNode):
            self.complain(_line(node) if node else 1, "a mapping is needed here")
            return None
        values: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in values:
                self.complain(_line(key_node), f"{key!r} stands here twice")
            values[key] = value_node
        return _Entry(values, _line(node))

    def _parameters(self, node: yaml.Node | None) -> tuple[Parameter, ...]:
        if node is None:
            return ()
        entry = self._entry(node)
        found = [self._parameter(name, value) for name, value in entry.values.items()] if entry else []
        return tuple(parameter for parameter in found if parameter is not None)

    def _parameter(self, name: str, node: yaml.Node) -> Parameter | None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            self.complain(_line(node), f"parameter {name!r} is no plain name")
            return None
        one_of: tuple[FactValue, ...] = ()
        if isinstance(node, yaml.MappingNode) and (entry := self._entry(node)):
            choices = entry.values.get("one_of")
            one_of = (
                tuple(_scalar(choice) or "" for choice in choices.value)
                if isinstance(choices, yaml.SequenceNode)
                else ()
            )
            node = entry.values.get("default", node)
        value = _scalar(node)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            self.complain(_line(node), f"parameter {name!r} must be a number, a truth value or a text")
            return None
        return Parameter(name, value, one_of)

    def _rule(
        self, node: yaml.Node, compiler: ConditionCompiler, parameters: Mapping[str, FactValue]
    ) -> tuple[Rule, Any, int] | None:
        entry = self._entry(node)
        if entry is None:
            return None
        texts = {key: str(value.value) for key, value in entry.values.items() if isinstance(value, yaml.ScalarNode)}
        rule_id = texts.get("id") or "?"
        before = len(self.problems)
        self._check_keys(entry, texts, rule_id)
        if len(self.problems) > before:
            return None
        effect = self._choice(Effect, "effect", texts, entry, rule_id)
        stage = _STAGES.get(texts["stage"])
        if stage is None:
            self.complain(entry.line_of("stage"), f"no stage {texts['stage']!r}; one of {', '.join(_STAGES)}", rule_id)
        self._check_code(effect, texts["code"], entry, rule_id)
        acts = self._choice(Next, "next", texts, entry, rule_id) if "next" in texts else Next.FIX_INPUT
        if texts.get("kind", "image") not in _KINDS:
            self.complain(entry.line_of("kind"), f"no media kind {texts['kind']!r}", rule_id)
        compared = self._compared(entry, parameters, rule_id)
        condition = self._condition(texts["when"], stage, compiler, entry, rule_id)
        if len(self.problems) > before or effect is None or stage is None or acts is None or condition is None:
            return None
        rule = Rule(
            id=rule_id,
            stage=stage,
            when=" ".join(texts["when"].split()),
            effect=effect,
            code=texts["code"],
            reason=" ".join(texts["reason"].split()),
            since=texts["since"],
            message=texts.get("message", texts["code"]),
            kind=texts.get("kind"),
            compared=compared,
            next=acts,
        )
        return rule, condition, entry.line

    def _check_keys(self, entry: _Entry, texts: Mapping[str, str], rule_id: str) -> None:
        for key in entry.values.keys() - set(_REQUIRED) - set(_OPTIONAL):
            self.complain(entry.line_of(key), f"unknown key {key!r}", rule_id)
        for key in _REQUIRED:
            if not texts.get(key, "").strip():
                self.complain(entry.line_of(key), f"{key!r} is missing", rule_id)
        if len(texts.get("when", "")) > _MOST_WHEN_CHARS:
            self.complain(entry.line_of("when"), f"a condition of more than {_MOST_WHEN_CHARS} characters", rule_id)

    def _choice(
        self, choices: type[_Choice], key: str, texts: Mapping[str, str], entry: _Entry, rule_id: str
    ) -> _Choice | None:
        try:
            return choices(texts[key])
        except ValueError:
            allowed = ", ".join(choice.value for choice in choices)
            self.complain(entry.line_of(key), f"no {key} {texts[key]!r}; one of {allowed}", rule_id)
            return None

    def _check_code(self, effect: Effect | None, code: str, entry: _Entry, rule_id: str) -> None:
        allowed = {Effect.REJECT: REFUSING_CODES, Effect.NOTE: NOTING_CODES}.get(effect or Effect.NOTE, ROUTING_CODES)
        if effect is not None and code not in allowed:
            self.complain(entry.line_of("code"), f"no code {code!r} for the effect {effect.value!r}", rule_id)

    def _compared(self, entry: _Entry, parameters: Mapping[str, FactValue], rule_id: str) -> Compared | None:
        node = entry.values.get("compares")
        if node is None:
            return None
        words = str(node.value).split() if isinstance(node, yaml.ScalarNode) else []
        if len(words) != 3 or words[1] not in set(Comparison):
            self.complain(_line(node), "`compares` must read like `image.short_side >= param.min_short_side`", rule_id)
            return None
        return self._checked_comparison(words, parameters, _line(node), rule_id)

    def _checked_comparison(
        self, words: list[str], parameters: Mapping[str, FactValue], line: int, rule_id: str
    ) -> Compared | None:
        fact, comparison, right = words
        spec = FACT_BY_NAME.get(fact)
        if spec is None:
            self.complain(line, f"no fact {fact!r}{_nearest(fact, FACT_BY_NAME)}", rule_id)
            return None
        if right.startswith("param."):
            name, literal = right.removeprefix("param."), None
            if name not in parameters:
                self.complain(line, f"no parameter {name!r}{_nearest(name, parameters)}", rule_id)
                return None
            value: FactValue | None = parameters[name]
        else:
            name, literal = "", _scalar(yaml.compose(right, Loader=_PlainLoader))
            value = literal
        if type(value) is not spec.type:
            self.complain(line, f"{fact} is {spec.type.__name__}, its limit {right} is not", rule_id)
            return None
        return Compared(fact, Comparison(comparison), name or None, literal)

    def _condition(
        self, when: str, stage: Stage | None, compiler: ConditionCompiler, entry: _Entry, rule_id: str
    ) -> Any | None:
        try:
            condition = compiler.compile(when)
        except ConditionInvalid as exc:
            hint = _hint(str(exc), compiler)
            self.complain(entry.line_of("when"), f"{exc}{hint}", rule_id)
            return None
        for name in compiler.names_in(when):
            spec = FACT_BY_NAME.get(name)
            if spec is not None and stage is not None and spec.stage > stage:
                known_at = spec.stage.name.lower()
                self.complain(entry.line_of("stage"), f"{name} is known at stage {known_at} at the earliest", rule_id)
        return condition

    def _check_order(self, read: list[tuple[Rule, Any, int]]) -> None:
        seen: set[str] = set()
        reached = Stage.SNIFF
        for rule, _expression, line in read:
            if rule.id in seen:
                self.complain(line, "this id stands here twice", rule.id)
            if rule.stage < reached:
                # Else a verdict taken early could differ from the one that all the facts would give.
                self.complain(line, f"a rule of stage {rule.stage.name.lower()} stands behind a later stage's", rule.id)
            seen.add(rule.id)
            reached = max(reached, rule.stage)


def _scalar(node: yaml.Node | None) -> FactValue | None:
    """The plain value of a scalar, None for anything else (a date, a list, null)."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    try:
        value: Any = yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        return None
    return value if isinstance(value, bool | int | float | str) else None


def _hint(complaint: str, compiler: ConditionCompiler) -> str:
    unknown = re.search(r"undeclared reference to '([^']+)'", complaint)
    return _nearest(unknown[1], compiler.names) if unknown else ""


def _nearest(name: str, names: Mapping[str, Any] | frozenset[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
