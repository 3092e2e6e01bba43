"""What a rule set is, once it has been read and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Protocol

from prefilters.errors import RuleSetInvalid
from prefilters.facts import Facts, FactValue, Stage
from prefilters.limits import DecodeLimits
from prefilters.verdict import Effect, Next


class Program(Protocol):
    """The compiled conditions of a rule set."""

    def ask(self, facts: Facts, parameters: Mapping[str, FactValue]) -> Callable[[int], bool | None]:
        """A function from a rule's number to whether it holds; None where a fact that it needs is unknown."""


class Comparison(StrEnum):
    """How a measured value is held against its limit."""

    AT_LEAST = ">="
    AT_MOST = "<="
    ABOVE = ">"
    BELOW = "<"
    EQUAL = "=="
    UNEQUAL = "!="


@dataclass(frozen=True, slots=True)
class Compared:
    """The measured value and the limit that explain a rule to a person. It passes when `fact` `passes` the limit."""

    fact: str
    passes: Comparison
    parameter: str | None
    """Name of the parameter that holds the limit; None where `literal` is it."""
    literal: FactValue | None

    def limit(self, parameters: Mapping[str, FactValue]) -> FactValue | None:
        return self.literal if self.parameter is None else parameters[self.parameter]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A threshold that a profile may override. Its default fixes its type."""

    name: str
    default: FactValue
    one_of: tuple[FactValue, ...] = ()
    """The values allowed; any value of the type where this is empty."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the rule file: under which condition which effect follows, and why."""

    id: str
    stage: Stage
    """The first stage at which its facts can be known."""
    when: str
    effect: Effect
    code: str
    """One of the file verdict codes."""
    reason: str
    since: str
    message: str
    """Key of its words in the locales; the code unless the rule says otherwise."""
    kind: str | None = None
    """The media kind that it is about; None for all."""
    compared: Compared | None = None
    next: Next = Next.FIX_INPUT


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order, the parameters in force and the compiled conditions. `load_rules` makes one."""

    rules: tuple[Rule, ...]
    declared: tuple[Parameter, ...]
    parameters: Mapping[str, FactValue]
    program: Program
    """Their conditions, compiled, in the same order."""
    version: str
    """`rs_` and 12 hex digits of the SHA-256 over rules and parameters in force; comments and layout do not count."""

    def with_parameters(self, overrides: Mapping[str, FactValue]) -> RuleSet:
        """The same rules under other thresholds; nothing is compiled again.

        Raises `RuleSetInvalid` on an unknown name, a value of the wrong type or one that is not allowed.
        """
        declared = {parameter.name: parameter for parameter in self.declared}
        problems = [
            problem for name, value in overrides.items() if (problem := _problem(declared.get(name), name, value))
        ]
        if problems:
            raise RuleSetInvalid(problems)
        values = {name: as_typed(declared[name].default, value) for name, value in overrides.items()}
        parameters = {**self.parameters, **values}
        return replace(self, parameters=parameters, version=content_version(self.rules, parameters))

    def with_limits(self, limits: DecodeLimits) -> RuleSet:
        """The same rules, each parameter that has a decode limit's name set to that limit."""
        names = {field.name for field in fields(limits)} & set(self.parameters)
        return self.with_parameters({name: getattr(limits, name) for name in sorted(names)})

    def rule(self, rule_id: str) -> Rule:
        """The rule of that id. Raises `KeyError`."""
        for rule in self.rules:
            if rule.id == rule_id:
                return rule
        raise KeyError(rule_id)


def content_version(rules: tuple[Rule, ...], parameters: Mapping[str, FactValue]) -> str:
    """The version of a rule set by what it says."""
    content = {"rules": [asdict(rule) for rule in rules], "parameters": dict(parameters)}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "rs_" + hashlib.sha256(canonical.encode()).hexdigest()[:12]


def as_typed(default: FactValue, value: FactValue) -> FactValue:
    """`value` in the type of `default`: a whole number stands for a float too."""
    return float(value) if type(default) is float and type(value) is int else value


def _problem(parameter: Parameter | None, name: str, value: FactValue) -> str | None:
    if parameter is None:
        return f"unknown parameter {name!r}"
    if type(as_typed(parameter.default, value)) is not type(parameter.default):
        return f"parameter {name!r} must be {type(parameter.default).__name__}, not {value!r}"
    if value != value or value in (float("inf"), float("-inf")):
        return f"parameter {name!r} must be a finite number"
    if parameter.one_of and value not in parameter.one_of:
        return f"parameter {name!r} must be one of {', '.join(map(str, parameter.one_of))}, not {value!r}"
    return None
