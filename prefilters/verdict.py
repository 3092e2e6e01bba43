"""What the rules decide about one file, with all that is needed to explain it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from prefilters.facts import FactValue, Stage


class Effect(StrEnum):
    """What a rule does when it matches."""

    REJECT = "reject"
    TEXT_ONLY = "text_only"
    SINGLE_LOOK = "single_look"
    ESCALATE = "escalate"
    NOTE = "note"


class VerdictKind(StrEnum):
    """The outcome for one file."""

    ACCEPT = "accept"
    TEXT_ONLY = "text_only"
    SINGLE_LOOK = "single_look"
    ESCALATE = "escalate"
    REJECT = "reject"


class Next(StrEnum):
    """Who acts next on a refusal."""

    FIX_INPUT = "fix_input"
    RETRY = "retry"
    PERSON = "person"


class CheckOutcome(StrEnum):
    """How one rule came out."""

    PASS = "pass"  # noqa: S105 - a check that passed
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    """A fact that the rule needs was not measured, so the rule did not match."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule held against the facts."""

    rule: str
    code: str
    stage: Stage
    effect: Effect
    outcome: CheckOutcome
    fact: str | None
    """The fact that was measured, if the rule compares one."""
    value: FactValue | None
    limit: FactValue | None
    passes_when: str
    """What would have passed, in words: `image.short_side >= 64`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one file. `decided` is false while dearer probes could still change it."""

    kind: VerdictKind
    decided: bool
    stage: Stage
    """The stage at which the deciding rule matched, or the last one measured."""
    ruleset: str
    """Version of the rule set: `rs_` and the first 12 hex digits of its SHA-256."""
    rule: str | None = None
    code: str | None = None
    next: Next | None = None
    reason: str = ""
    """Why the rule exists, from the rule file."""
    measured: Mapping[str, FactValue] = field(default_factory=dict)
    limit: Mapping[str, FactValue] = field(default_factory=dict)
    user_message: Mapping[str, str] = field(default_factory=dict)
    """`{"en": …, "zh": …}`, safe to show to a shopper."""
    fix: Mapping[str, str] = field(default_factory=dict)
    """What the person should do, in the same languages."""
    notes: tuple[str, ...] = ()
    """Codes of the notes, in rule order."""
    checks: tuple[Check, ...] = ()
