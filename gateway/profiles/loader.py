"""Read profiles from the shipped folder and the user's own; a broken one is refused by name, file and field."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from guard.policy import EVERY_MUTATING
from prefilters.limits import DecodeLimits

_SHIPPED = Path(__file__).parent
_MAX_PROFILE_BYTES = 256 * 1024


class ProfileInvalid(Exception):
    """A profile cannot be used. `problems` is safe to show to an operator."""

    code = "profile_invalid"
    retryable = False

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextLimits(_Part):
    """How much text one submission may carry; more is refused, never cut."""

    title_chars: Annotated[int, Field(gt=0)] = 300
    text_chars: Annotated[int, Field(gt=0)] = 20_000
    attributes: Annotated[int, Field(gt=0)] = 100
    attribute_name_chars: Annotated[int, Field(gt=0)] = 100
    attribute_value_chars: Annotated[int, Field(gt=0)] = 2_000


class Budget(_Part):
    """What one item may cost."""

    max_steps: Annotated[int, Field(gt=0, le=1000)] = 20
    max_tokens: Annotated[int, Field(gt=0)] = 60_000
    max_cost: Annotated[Decimal, Field(ge=0)] = Decimal("0.15")
    max_seconds: Annotated[float, Field(gt=0)] = 120.0


class TypicalRun(_Part):
    """What the agent needs for one item of this profile, by which savings are stated: judgement, not measurement."""

    model_requests: Annotated[int, Field(gt=0)] = 4
    prompt_tokens: Annotated[int, Field(ge=0)] = 900
    """Tokens of each request without its pictures."""
    output_tokens: Annotated[int, Field(ge=0)] = 250
    """Tokens of each answer."""


class EscalationPolicy(_Part):
    """When a waiting case is due, when it ends by itself, and what happens then."""

    due_s: Annotated[float, Field(gt=0)] = 4 * 3600
    expires_s: Annotated[float, Field(gt=0)] = 72 * 3600
    on_expire: Literal["reroute_text_only", "reject", "hold"] = "reroute_text_only"
    priority: Annotated[int, Field(ge=0, le=3)] = 1
    """How urgent this kind of work is beside others: 0 to 3, larger first."""


class MarketplaceMinimum(_Part):
    """What one marketplace asks of a picture, as published on a day. A smaller one is noted, never refused."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    label: Annotated[str, Field(min_length=1, max_length=200)]
    """As a person reads it."""
    short_side: Annotated[int, Field(gt=0)] | None = None
    long_side: Annotated[int, Field(gt=0)] | None = None
    """Pixels."""
    as_of: date
    """The day on which somebody last looked it up."""


class Profile(_Part):
    """One kind of work. `version` is `pv_` and the first 12 hex digits of the file's SHA-256."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    version: str
    description: str = ""
    edge: Mapping[str, bool | int | float | str] = Field(default_factory=dict)
    limits: Mapping[str, int | float] = Field(default_factory=dict)
    require_all_files: bool = False
    marketplace_minimums: tuple[MarketplaceMinimum, ...] = ()
    languages: tuple[str, ...] = ("en",)
    default_language: str = "en"
    text_limits: TextLimits = TextLimits()
    tools: tuple[str, ...] = ()
    budget: Budget = Budget()
    typical_run: TypicalRun = TypicalRun()
    guard: Mapping[str, Any] = Field(default_factory=dict)
    on_loop: Literal["fallback", "human", "halt"] = "fallback"
    on_repeated_error: Literal["human", "error"] = "human"
    escalation: EscalationPolicy = EscalationPolicy()
    retention_days: Annotated[int, Field(gt=0, le=3650)] | None = None
    """None leaves it to the deployment's setting."""
    prompt: str
    output_schema: Mapping[str, Any]

    @field_validator("limits")
    @classmethod
    def _known_limits(cls, value: Mapping[str, int | float]) -> Mapping[str, int | float]:
        known = {field.name for field in fields(DecodeLimits)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise ValueError(f"unknown limit {unknown[0]!r}; there are {', '.join(sorted(known))}")
        return value

    @field_validator("output_schema")
    @classmethod
    def _is_schema(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            Draft202012Validator.check_schema(value)
        except SchemaError as error:
            raise ValueError(f"not a JSON Schema: {error.message}") from error
        return value

    @model_validator(mode="after")
    def _asks_before_known_tools(self) -> Profile:
        """A misspelt name would let a call through that was meant to be asked about."""
        named = self.guard.get("needs_approval", ())
        known = {*self.tools, "save_copy", EVERY_MUTATING}
        unknown = [name for name in named if name not in known] if isinstance(named, list | tuple) else []
        if unknown:
            raise ValueError(f"guard.needs_approval names {unknown[0]!r}; there are {', '.join(sorted(known))}")
        return self

    @property
    def decode_limits(self) -> DecodeLimits:
        """The decode limits with this profile's own values."""
        values: dict[str, Any] = dict(self.limits)
        return DecodeLimits(**values)

    def with_decode_wall(self, seconds: float) -> Profile:
        """The same profile with at most this much wall-clock time for one decode."""
        wall_s = min(seconds, self.decode_limits.decode_wall_s)
        return self.model_copy(update={"limits": {**self.limits, "decode_wall_s": wall_s}})

    def output_errors(self, output: object) -> list[str]:
        """What is wrong with a piece of copy by this profile's schema, a sentence each; empty when it is right."""
        return [
            f"{pointer.strip('/') or 'the output'}: {detail}"[:300] for pointer, detail in self.output_problems(output)
        ]

    def output_problems(self, output: object) -> list[tuple[str, str]]:
        """The same as JSON pointer and sentence each."""
        errors = sorted(Draft202012Validator(self.output_schema).iter_errors(output), key=lambda e: list(e.path))
        return [("".join(f"/{part}" for part in error.path), error.message[:300]) for error in errors[:20]]


class Profiles(Mapping[str, Profile]):
    """All profiles by name."""

    def __init__(self, by_name: Mapping[str, Profile]) -> None:
        self._by_name = dict(by_name)

    def __getitem__(self, name: str) -> Profile:
        return self._by_name[name]

    def __iter__(self) -> Any:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


def load_profiles(own_folder: Path | None = None) -> Profiles:
    """The shipped profiles and those in `own_folder`, where one of the same name replaces the shipped one.

    Raises `ProfileInvalid` naming every file and field that is wrong.
    """
    problems: list[str] = []
    by_name: dict[str, Profile] = {}
    for folder in (_SHIPPED, own_folder):
        if folder is None:
            continue
        if not folder.is_dir():
            raise ProfileInvalid([f"SLUICEGATE_PROFILES_DIR is {folder}, which is not a folder"])
        for path in sorted(folder.glob("*.yaml")):
            try:
                profile = load_profile(path)
            except ProfileInvalid as error:
                problems.extend(error.problems)
            else:
                by_name[profile.name] = profile
    if problems:
        raise ProfileInvalid(problems)
    return Profiles(by_name)


def load_profile(path: Path) -> Profile:
    """One profile from its file. Raises `ProfileInvalid`."""
    raw = path.read_bytes()
    if len(raw) > _MAX_PROFILE_BYTES:
        raise ProfileInvalid([f"{path.name}: has {len(raw)} bytes, at most {_MAX_PROFILE_BYTES} are read"])
    try:
        document = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ProfileInvalid([f"{path.name}: not YAML: {str(error).splitlines()[0]}"]) from error
    if not isinstance(document, dict):
        raise ProfileInvalid([f"{path.name}: must be a mapping of settings"])
    version = f"pv_{hashlib.sha256(raw).hexdigest()[:12]}"
    try:
        return Profile.model_validate({**document, "version": version})
    except ValidationError as error:
        raise ProfileInvalid(
            [f"{path.name}: {'.'.join(map(str, e['loc'])) or 'profile'}: {e['msg']}" for e in error.errors()]
        ) from error
