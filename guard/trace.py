"""The trace: what was asked, decided and answered, in the order in which it happened.

It is the only state that a guard needs. Records never hold argument texts beyond a short redacted excerpt; what the
detectors compare are the keys in `CallView`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from guard.call import CallKeys
from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction
from guard.policy import Effect, ErrorClass
from guard.snapshot import dump, load

TRACE_VERSION: Final = 1


class TraceError(ValueError):
    """A trace cannot be read."""

    code = "trace_invalid"
    retryable = False

    def __init__(self, public: str) -> None:
        super().__init__(public)
        self.public = public


@dataclass(slots=True)
class CallView:
    """A call as the detectors see it."""

    step: int
    """1 for the first call of the task."""
    call_id: str
    tool: str
    keys: CallKeys
    effect: Effect
    turn: int
    """Running number of the model message; equal for the calls of one message."""
    group: str | None = None
    poller: bool = False
    knobs: tuple[str, ...] = ()
    """Number positions of this call that the tool declared to be knobs."""
    kept_wait: bool = False
    """The tool had announced a wait, and it was kept."""


@dataclass(slots=True)
class CallRecord:
    """A call was asked for, and judged."""

    view: CallView
    turn_key: str | int | None
    """The caller's own name of the message."""
    args: str
    """Up to 2 KB, secrets redacted."""
    action: GuardAction
    execute: bool
    now: float | None = None
    reason: ReasonCode | None = None
    detector: Detector | None = None
    occurrence: int = 0
    rule: str | None = None
    text: str | None = None
    explanation: tuple[Finding, ...] = ()
    """What each detector saw."""
    same_as: str | None = None
    escalates: bool = False
    sticky: bool = False
    """Refused only because the run had ended before."""
    withheld: bool = False
    """Shadow mode: the call ran though it would have been refused; its outcome is no evidence."""
    unasked: bool = False
    """The outcome came without a question before."""
    rule_errors: int = 0


@dataclass(slots=True)
class OutcomeRecord:
    """A call that ran came back."""

    step: int
    call_id: str
    tool: str
    digest: str
    code: str | None = None
    """The error's code; None for a success."""
    error_class: ErrorClass | None = None
    excerpt: str = ""
    retry_after_s: float | None = None
    tokens: int = 0
    cost: float = 0.0
    ms: float | None = None
    now: float | None = None
    action: GuardAction = GuardAction.ALLOW
    reason: ReasonCode | None = None
    detector: Detector | None = None
    occurrence: int = 0
    rule: str | None = None
    text: str | None = None
    explanation: tuple[Finding, ...] = ()
    """What each detector saw."""
    escalates: bool = False
    ignored: bool = False
    """No evidence: the call had not been let through, or its outcome was already known."""


class Control(Enum):
    """What happened to the run from outside."""

    RESUME = "resume"
    FALL_BACK = "fall_back"
    CHARGE = "charge"
    CANCEL = "cancel"
    PAUSE = "pause"
    UNPAUSE = "unpause"


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """Something happened to the run that was no call."""

    control: Control
    now: float | None = None
    tools: tuple[str, ...] = ()
    """Banned (resume) or closed (fall back)."""
    extra_steps: int = 0
    extra_tokens: int = 0
    extra_cost: float = 0.0
    extra_seconds: float = 0.0
    forgiven: tuple[str, ...] = ()
    """Signatures that start afresh, because refusing them was a mistake."""
    approved: tuple[str, ...] = ()
    """Signatures that a person agreed to: each runs once."""
    tokens: int = 0
    cost: float = 0.0
    note: str | None = None


Record = CallRecord | OutcomeRecord | ControlRecord
_KINDS: Final[dict[str, type[CallRecord] | type[OutcomeRecord] | type[ControlRecord]]] = {
    "call": CallRecord,
    "outcome": OutcomeRecord,
    "control": ControlRecord,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """One call with what became of it."""

    call: CallRecord
    outcome: OutcomeRecord | None

    @property
    def number(self) -> int:
        """1 for the first call of the task."""
        return self.call.view.step

    @property
    def executed(self) -> bool:
        """Whether the call was let through and ran."""
        return self.call.execute


@dataclass(slots=True)
class Trace:
    """All records of one task, oldest first."""

    records: list[Record] = field(default_factory=list)

    def append(self, record: Record) -> None:
        """Add the newest record."""
        self.records.append(record)

    def steps(self) -> Iterator[Step]:
        """The calls in order, each with its outcome where there is one."""
        outcomes = {r.step: r for r in reversed(self.records) if isinstance(r, OutcomeRecord) and not r.ignored}
        for record in self.records:
            if isinstance(record, CallRecord):
                yield Step(record, outcomes.get(record.view.step))

    def to_jsonl(self) -> str:
        """One JSON object a line, the first saying the version."""
        head = json.dumps({"type": "trace", "version": TRACE_VERSION})
        return "\n".join([head, *(json.dumps(record_to_json(r)) for r in self.records)]) + "\n"

    @classmethod
    def from_jsonl(cls, lines: str | Iterable[str]) -> Trace:
        """The trace that `to_jsonl` wrote. Raises TraceError that names the line."""
        trace = cls()
        for number, line in enumerate(lines_of(lines) if isinstance(lines, str) else lines, 1):
            if not line.strip():
                continue
            try:
                stored = json.loads(line)
                if not isinstance(stored, dict) or "type" not in stored:
                    raise TraceError(f"line {number}: not a record of a trace: it is no JSON object with a `type`")
                if stored["type"] == "trace":
                    if stored.get("version") != TRACE_VERSION:
                        raise TraceError(f"line {number}: version {stored.get('version')!r} is not {TRACE_VERSION}")
                    continue
                trace.append(record_from_json(stored))
            except TraceError:
                raise
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
                raise TraceError(f"line {number}: not a record of a trace: {why(exc)}") from exc
        return trace


def record_to_json(record: Record) -> dict[str, object]:
    """One record as a JSON object, its kind under `type`."""
    return {"type": _NAMES[type(record)], **dump(record)}


def record_from_json(stored: dict[str, object]) -> Record:
    """The record that `record_to_json` wrote. Raises ValueError, TypeError or KeyError for anything else."""
    kind = _KINDS.get(str(stored["type"]))
    if kind is None:
        raise ValueError(f"unknown type {stored['type']!r}; there are {', '.join(_KINDS)}")
    return load(kind, stored)


def lines_of(text: str) -> list[str]:
    """The lines of a JSON-lines text: only a line feed ends one, while JSON texts may hold other line separators."""
    return text.split("\n")


def why(exc: Exception) -> str:
    """What is wrong with a line that could not be read, in words."""
    if isinstance(exc, json.JSONDecodeError):
        return f"it is not JSON: {exc.msg} at column {exc.colno}"
    if isinstance(exc, KeyError):
        return f"{exc.args[0]!r} is missing" if exc.args else "an entry is missing"
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    return str(exc) if isinstance(exc, ValueError) else "an entry is of the wrong type"
