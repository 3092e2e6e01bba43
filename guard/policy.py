"""The numbers of the guard, as values. The tables here are also the documentation (`docs/guard.md`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, TypeVar

from guard.finding import Detector
from guard.ladder import Ladder


class PolicyError(ValueError):
    """A policy or a tool's traits say something that the guard does not know."""

    code = "policy_invalid"
    retryable = False

    def __init__(self, public: str) -> None:
        super().__init__(public)
        self.public = public


class Effect(Enum):
    """What running a tool does to the world."""

    READ_ONLY = "read"
    MUTATING = "mutate"


class Counting(Enum):
    """What restarts a count."""

    PROGRESS = "progress"
    """A new result restarts the call's count; another call's new successful write restarts all others."""
    STRICT = "strict"
    """Nothing does: identical calls are counted over the whole task."""


class Mode(Enum):
    """Whether decisions bind."""

    ENFORCE = "enforce"
    SHADOW = "shadow"
    """Decisions are recorded, and every call runs."""


class OnLoop(Enum):
    """What follows a halt for a loop of a tool that has not failed."""

    FALLBACK = "fallback"
    """The tool is closed, and the run goes on once more without it; the next halt goes to a person."""
    HUMAN = "human"
    HALT = "halt"
    """The caller decides."""


class OnRepeatedError(Enum):
    """What follows a halt that escalates."""

    HUMAN = "human"
    ERROR = "error"


class Language(Enum):
    """The language of the texts for the model."""

    ENGLISH = "en"
    CHINESE = "zh"


class ErrorClass(Enum):
    """Whether trying again can help."""

    PERMANENT = "permanent"
    UNKNOWN = "unknown"
    TRANSIENT = "transient"


@dataclass(frozen=True, slots=True)
class LadderRow:
    """One line of the table of defaults."""

    name: str
    ladder: Ladder
    counts: str
    """What one occurrence is."""


DEFAULT_LADDERS: Final = (
    LadderRow("read_only", Ladder(2, 3, 4), "identical call of a read-only tool, while its result stays the same"),
    LadderRow(
        "mutating",
        Ladder(None, 2, 3),
        "identical call of a mutating tool, no other write having succeeded since its own last success",
    ),
    LadderRow("mutating_otherwise", Ladder(2, 3, 4), "identical call of a mutating tool in all other cases"),
    LadderRow(
        "run", Ladder(11, None, 21), "unbroken identical call, or lap of a ring of 2 to 4 calls, whatever the results"
    ),
    LadderRow("cycle", Ladder(2, 3, 4), "lap of 2 to 4 calls with the same results"),
    LadderRow("folding", Ladder(3, 4, 5), "call that differs only in spelling, with an equal result"),
    LadderRow("jitter", Ladder(3, 4, 5), "call that differs only in tuned numbers, with an equal result"),
    LadderRow(
        "tuning",
        Ladder(5, 8, 10),
        "such call in a row that ends in an error, or in a result this shape of call had before",
    ),
    LadderRow(
        "stale", Ladder(4, 5, 7), "call in a row whose result was seen since the last progress, whatever the mix"
    ),
    LadderRow(
        "permanent_error", Ladder(2, None, 3), "error of one tool with one code that cannot get better, in a row"
    ),
    LadderRow("unknown_error", Ladder(2, None, 4), "error of one tool with one code of unknown kind, in a row"),
    LadderRow("transient_error", Ladder(3, None, 5), "error of one tool with one code that may pass, in a row"),
    LadderRow("closed_tool", Ladder(None, 1, 3), "call of a tool that is banned, closed or out of its own budget"),
    LadderRow("rule", Ladder(None, 1, 3), "call that one rule refuses"),
)
"""Each detector's default ladder: warn at, block at, halt at."""

TRANSIENT_CODES: Final = frozenset({"HTTP_429", "TIMEOUT", "RATE_LIMITED", "UNAVAILABLE", "LOCKED"})
"""Codes that may pass when nobody says otherwise, beside every `HTTP_5xx`."""

EVERY_MUTATING: Final = "mutating"
"""In `GuardPolicy.needs_approval`: every tool that changes something."""

INVALID_ARGUMENTS: Final = "INVALID_ARGUMENTS"
UNKNOWN_TOOL: Final = "UNKNOWN_TOOL"

_BY_NAME: Final = {row.name: row.ladder for row in DEFAULT_LADDERS}


@dataclass(frozen=True, slots=True)
class Ladders:
    """One ladder per detector; the defaults and their meaning stand in `DEFAULT_LADDERS`."""

    read_only: Ladder = _BY_NAME["read_only"]
    mutating: Ladder = _BY_NAME["mutating"]
    mutating_otherwise: Ladder = _BY_NAME["mutating_otherwise"]
    run: Ladder = _BY_NAME["run"]
    cycle: Ladder = _BY_NAME["cycle"]
    folding: Ladder = _BY_NAME["folding"]
    jitter: Ladder = _BY_NAME["jitter"]
    tuning: Ladder = _BY_NAME["tuning"]
    stale: Ladder = _BY_NAME["stale"]
    permanent_error: Ladder = _BY_NAME["permanent_error"]
    unknown_error: Ladder = _BY_NAME["unknown_error"]
    transient_error: Ladder = _BY_NAME["transient_error"]
    closed_tool: Ladder = _BY_NAME["closed_tool"]
    rule: Ladder = _BY_NAME["rule"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Backstops that are blind to results; None is no limit."""

    steps: int | None = None
    """Calls of the task, refused ones included."""
    calls_per_tool: int | None = None
    """Calls of each single tool."""
    tokens: int | None = None
    cost: float | None = None
    """In the caller's currency, as `Outcome.cost` and `Guard.charge` report it."""
    seconds: float | None = None
    """Between the first and the latest time handed in, pauses taken out."""


@dataclass(frozen=True, slots=True)
class ToolTraits:
    """What a tool says about itself, where it is defined."""

    effect: Effect = Effect.MUTATING
    group: str | None = None
    """Tools that look at the same thing in different ways, such as `vision`."""
    poller: bool = False
    """Waiting is its purpose: an unchanged result is no failure."""
    ignore_args: tuple[str, ...] = ()
    """Arguments (dotted paths) that make no difference, such as a request id."""
    number_args: tuple[str, ...] = ()
    """Arguments that are knobs: calls that differ only there are look-alikes."""
    volatile_result: tuple[str, ...] = ()
    """Fields (names, or dotted paths) of a JSON result that always differ."""
    retryable_codes: tuple[str, ...] = ()
    """Error codes of this tool that may pass."""
    max_calls: int | None = None
    """Calls in one task."""
    max_writes: int | None = None
    """Successful calls in one task."""
    needs_approval: bool = False
    """A person has to agree before it runs."""

    @classmethod
    def from_mapping(cls, traits: Mapping[str, object]) -> ToolTraits:
        """Traits from JSON or YAML, as the HTTP API spells them (`poll` is `poller`, effect `unknown` is mutating).

        Raises PolicyError that names the unknown or ill-typed entry.
        """
        known = dict(traits)
        known.pop("name", None)
        if "poll" in known:
            known["poller"] = known.pop("poll")
        if known.get("effect") in ("unknown", "write"):
            known["effect"] = Effect.MUTATING.value
        return _from_mapping(cls, known, "tool traits")


def number_args_of(schema: Mapping[str, object]) -> tuple[str, ...]:
    """The top-level arguments that a JSON schema calls `number` (not `integer`): knobs by declaration."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ()
    return tuple(
        str(name) for name, spec in properties.items() if isinstance(spec, Mapping) and spec.get("type") == "number"
    )


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """How a run is judged. Immutable; two equal policies judge alike."""

    ladders: Ladders = Ladders()
    counting: Counting = Counting.PROGRESS
    mode: Mode = Mode.ENFORCE
    budget: Budget = Budget()
    poller_extra: int = 8
    """Steps that every ladder starts later for a declared poller, while its result is unchanged."""
    transient_read_extra: int = 1
    """Steps that the ladder of identical reads starts later after a transient error."""
    undeclared_effect: Effect = Effect.MUTATING
    """What a tool without traits is taken for: mutating for one's own agent, read-only behind a proxy."""
    max_signatures: int = 10_000
    """Signatures that are remembered; beyond it the oldest that were seen once are forgotten."""
    vision_rule: bool = True
    """Close the vision tools after two failures in a row on a picture whose text is sparse."""
    on_loop: OnLoop = OnLoop.FALLBACK
    on_repeated_error: OnRepeatedError = OnRepeatedError.HUMAN
    language: Language = Language.ENGLISH
    off: frozenset[str] = field(default=frozenset())
    """Names of detectors that are switched off (`Detector` values)."""
    needs_approval: tuple[str, ...] = ()
    """Tools whose calls a person has to agree to before they run; `mutating` stands for every mutating tool."""

    def wants_approval(self, tool: str, effect: Effect, traits: ToolTraits) -> bool:
        """Whether a person has to agree to a call of this tool."""
        if traits.needs_approval:
            return True
        return tool in self.needs_approval or (effect is Effect.MUTATING and EVERY_MUTATING in self.needs_approval)

    @classmethod
    def from_mapping(cls, policy: Mapping[str, object]) -> GuardPolicy:
        """A policy from JSON or YAML: enums by value, ladders as `[warn, block, halt]`, the rest by name.

        Raises PolicyError that names the unknown or ill-typed entry.
        """
        return _from_mapping(cls, policy, "guard policy")

    def to_mapping(self) -> dict[str, object]:
        """This policy as JSON values that `from_mapping` reads."""
        stored: dict[str, object] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Ladders):
                ladders = {row.name: getattr(value, row.name) for row in DEFAULT_LADDERS}
                value = {name: [ladder.warn_at, ladder.block_at, ladder.halt_at] for name, ladder in ladders.items()}
            elif isinstance(value, Budget):
                value = {limit.name: getattr(value, limit.name) for limit in fields(value)}
            elif isinstance(value, frozenset):
                value = sorted(value)
            stored[entry.name] = value.value if isinstance(value, Enum) else value
        return stored

    def with_budget(self, budget: Budget) -> GuardPolicy:
        """This policy with another budget."""
        return replace(self, budget=budget)


DEFAULT_SETTINGS: Final = (
    ("poller_extra", "steps that every ladder starts later for a declared poller, while its result is unchanged"),
    ("transient_read_extra", "steps that the ladder of identical reads starts later after a transient error"),
    ("max_signatures", "signatures remembered; beyond it the oldest that were seen once are forgotten"),
)
"""The single numbers of a policy that belong into the documentation, with their meaning."""

PRODUCT_COPY_BUDGET: Final = Budget(steps=20)
"""The budget of the shipped profile for product copy."""


def defaults_as_markdown() -> str:
    """The table of defaults that stands in `docs/guard.md`."""
    lines = ["| ladder | warn | block | halt | one occurrence |", "|---|---|---|---|---|"]
    for row in DEFAULT_LADDERS:
        rungs = (row.ladder.warn_at, row.ladder.block_at, row.ladder.halt_at)
        lines.append(
            f"| `{row.name}` | " + " | ".join("–" if r is None else str(r) for r in rungs) + f" | {row.counts} |"
        )
    lines += ["", "| setting | default | meaning |", "|---|---|---|"]
    policy = GuardPolicy()
    lines += [f"| `{name}` | {getattr(policy, name)} | {meaning} |" for name, meaning in DEFAULT_SETTINGS]
    lines += [
        "",
        "Codes that may pass when nothing else is said: `HTTP_5xx`, "
        + ", ".join(f"`{c}`" for c in sorted(TRANSIENT_CODES))
        + ".",
    ]
    return "\n".join(lines) + "\n"


def classify_error(code: str, retryable: bool | None, traits: ToolTraits) -> ErrorClass:
    """Whether an error may pass: by its own word, else by the tool's codes, else by the table."""
    if retryable is not None:
        return ErrorClass.TRANSIENT if retryable else ErrorClass.PERMANENT
    if code in traits.retryable_codes or code in TRANSIENT_CODES:
        return ErrorClass.TRANSIENT
    if len(code) == 8 and code.startswith("HTTP_5") and code[6:].isdigit():
        return ErrorClass.TRANSIENT
    return ErrorClass.UNKNOWN


_T = TypeVar("_T", bound="ToolTraits | Budget | Ladders | GuardPolicy")
_ENUMS: Final[dict[str, type[Enum]]] = {
    "counting": Counting,
    "mode": Mode,
    "undeclared_effect": Effect,
    "effect": Effect,
    "on_loop": OnLoop,
    "on_repeated_error": OnRepeatedError,
    "language": Language,
}
_TUPLES: Final = frozenset({"ignore_args", "number_args", "volatile_result", "retryable_codes"})


def _from_mapping(kind: type[_T], entries: Mapping[str, object], what: str) -> _T:
    names = [f.name for f in fields(kind)]
    values: dict[str, Any] = {}
    for name, entry in entries.items():
        if name not in names:
            near = get_close_matches(str(name), names, 1)
            raise PolicyError(
                f"{what}: unknown entry {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(names)}")
            )
        values[name] = _read_entry(name, entry, what)
    return kind(**values)


def _read_entry(name: str, entry: object, what: str) -> object:
    try:
        if name in _ENUMS:
            return entry if isinstance(entry, Enum) else _ENUMS[name](entry)
        if name == "ladders" and isinstance(entry, Mapping):
            return _from_mapping(Ladders, entry, f"{what}.ladders")
        if name == "budget" and isinstance(entry, Mapping):
            return _from_mapping(Budget, entry, f"{what}.budget")
        if name in _BY_NAME and isinstance(entry, (list, tuple)):
            return Ladder(*entry)
    except PolicyError:
        raise
    except (TypeError, ValueError) as exc:
        raise PolicyError(f"{what}.{name}: {exc}") from exc
    return _read_plain(name, entry, what)


def _detector_name(name: str, what: str) -> str:
    known = [detector.value for detector in Detector]
    if name not in known:
        near = get_close_matches(name, known, 1)
        raise PolicyError(f"{what}.off: unknown detector {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return name


def _read_plain(name: str, entry: object, what: str) -> object:
    wrong = PolicyError(f"{what}.{name}: {entry!r} is of the wrong type")
    if name in _TUPLES or name == "off":
        if not isinstance(entry, (list, tuple, frozenset, set)) or not all(isinstance(e, str) for e in entry):
            raise wrong
        if name == "off":
            return frozenset(_detector_name(str(e), what) for e in entry)
        return tuple(entry)
    if name == "needs_approval" and what == "guard policy":
        if not isinstance(entry, (list, tuple)) or not all(isinstance(e, str) for e in entry):
            raise wrong
        return tuple(entry)
    if name in ("poller", "vision_rule", "needs_approval"):
        if not isinstance(entry, bool):
            raise wrong
        return entry
    if name == "group":
        if entry is not None and not isinstance(entry, str):
            raise wrong
        return entry
    if isinstance(entry, (Ladder, Ladders, Budget)):
        return entry
    optional = name in ("steps", "calls_per_tool", "tokens", "cost", "seconds", "max_calls", "max_writes")
    if entry is None and optional:
        return None
    kinds = (int, float) if name in ("cost", "seconds") else (int,)
    if isinstance(entry, kinds) and not isinstance(entry, bool) and entry >= 0:
        return entry
    raise wrong
