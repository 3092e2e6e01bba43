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


_LISTS: Final = frozenset({"ignore_args", "number_args", "volatile_result", "retryable_codes"})
_FLAGS: Final = frozenset({"poller", "vision_rule", "needs_approval"})
_FRACTIONS: Final = frozenset({"cost", "seconds"})
_LIMITS: Final = frozenset({"steps", "calls_per_tool", "tokens", "cost", "seconds", "max_calls", "max_writes"})


def _wanted(name: str, what: str) -> str:
    if name == "off" or name in _LISTS or (name == "needs_approval" and what == "guard policy"):
        return "give a list of names"
    if name in _FLAGS:
        return "it is true or false"
    if name == "group":
        return "give a name"
    return f"give a {'' if name in _FRACTIONS else 'whole '}number, {_least(name)} or more"


def _is_amount(name: str, entry: object) -> bool:
    if entry is None:
        return name in _LIMITS
    kinds = (int, float) if name in _FRACTIONS else (int,)
    return isinstance(entry, kinds) and not isinstance(entry, bool) and entry >= _least(name)


def _least(name: str) -> int:
    return 1 if name == "max_signatures" else 0  # a guard that remembers nothing guards nothing


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

    def __post_init__(self) -> None:
        """Raises PolicyError for what is no limit: it would fail at the first call."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not _is_amount(entry.name, value):
                raise PolicyError(f"budget.{entry.name}: {value!r} does not fit; {_wanted(entry.name, 'budget')}")


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

    def __post_init__(self) -> None:
        """Raises PolicyError where a text stands for an effect or a list: it would be read as something else."""
        _check_kinds(self, "tool traits")

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

    def __post_init__(self) -> None:
        """Raises PolicyError where a text stands for an enum or a list: it would be read as something else."""
        _check_kinds(self, "guard policy")

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
_GROUPS: Final[dict[str, type[Ladders] | type[Budget]]] = {"ladders": Ladders, "budget": Budget}


def _check_kinds(entries: ToolTraits | GuardPolicy, what: str) -> None:
    """Where values are given in Python, and nobody but a type checker would notice."""
    for entry in fields(entries):
        name, value = entry.name, getattr(entries, entry.name)
        wanted = _ENUMS.get(name)
        if wanted is not None and not isinstance(value, wanted):
            raise PolicyError(f"{what}.{name}: {value!r} is no {wanted.__name__}; {_choices(value, wanted, True)}")
        group = _GROUPS.get(name)
        if group is not None and not isinstance(value, group):
            raise PolicyError(f"{what}.{name}: {value!r} is no {group.__name__}")
        if isinstance(value, str) and (name in _LISTS or name in ("off", "needs_approval")):
            raise PolicyError(f"{what}.{name}: {value!r} is one text; give a list of names")


def _choices(value: object, kind: type[Enum], as_python: bool = False) -> str:
    """The values of an enum, the nearest first where the given one is misspelt."""
    known = [str(one.value) for one in kind]
    near = get_close_matches(str(value), known, 1)
    if as_python:
        return f"there are {', '.join(f'{kind.__name__}.{one.name}' for one in kind)}"
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


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
    if name in _ENUMS:
        return _read_enum(name, entry, what)
    if name in _GROUPS:
        return _read_group(name, entry, what)
    if name in _BY_NAME:
        return entry if isinstance(entry, Ladder) else _read_ladder(name, entry, what)
    wrong = PolicyError(f"{what}.{name}: {entry!r} does not fit; {_wanted(name, what)}")
    if name == "off":
        return frozenset(_detector_name(each, what) for each in _texts(entry, wrong))
    if name in _LISTS or (name == "needs_approval" and what == "guard policy"):
        return tuple(_texts(entry, wrong))
    if name in _FLAGS:
        is_right = isinstance(entry, bool)
    elif name == "group":
        is_right = entry is None or isinstance(entry, str)
    else:
        is_right = _is_amount(name, entry)
    if not is_right:
        raise wrong
    return entry


def _texts(entry: object, wrong: PolicyError) -> list[str]:
    if not isinstance(entry, (list, tuple, frozenset, set)) or not all(isinstance(each, str) for each in entry):
        raise wrong
    return list(entry)


def _read_enum(name: str, entry: object, what: str) -> Enum:
    kind = _ENUMS[name]
    try:
        return entry if isinstance(entry, kind) else kind(entry)
    except ValueError:
        raise PolicyError(f"{what}.{name}: unknown value {entry!r}; {_choices(entry, kind)}") from None


def _read_group(name: str, entry: object, what: str) -> object:
    kind: Any = _GROUPS[name]
    if isinstance(entry, kind):
        return entry
    if not isinstance(entry, Mapping):
        raise PolicyError(f"{what}.{name}: {entry!r} does not fit; give a mapping of names to values")
    return _from_mapping(kind, entry, f"{what}.{name}")


def _read_ladder(name: str, entry: object, what: str) -> Ladder:
    rungs = list(entry) if isinstance(entry, (list, tuple)) else []
    if len(rungs) != 3 or not all(rung is None or type(rung) is int for rung in rungs):
        raise PolicyError(
            f"{what}.{name}: {entry!r} does not fit; give [warn, block, halt], each a whole number or null"
        )
    try:
        return Ladder(*rungs)
    except ValueError as exc:
        raise PolicyError(f"{what}.{name}: {exc}") from exc


def _detector_name(name: str, what: str) -> str:
    known = [detector.value for detector in Detector]
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise PolicyError(f"{what}.off: unknown detector {name!r}; {hint}")
    return name
