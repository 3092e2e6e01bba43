"""What callers send to a guard run. What a model wrote (arguments, results) may be anything; the rest is checked."""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from gateway.strict_json import text_problem
from guard import Budget, GuardPolicy, OnLoop, Outcome, PolicyError, ToolCall, ToolError, ToolTraits
from guard.call import read_keys

MAX_TOOLS = 500
MAX_BATCH = 500
_MAX_MESSAGE_CHARS = 100_000
_MAX_EXCERPT_CHARS = 2_000
UNNAMED_TOOL = "(not named)"
"""Stands for the tool of an outcome that came without a question and without a name."""


def _storable(text: str) -> str:
    problem = text_problem(text)
    if problem:
        raise ValueError(problem)
    return text


def _any_text(value: object) -> str:
    """Text that a model or a tool wrote; half surrogate pairs and NUL are taken as they are."""
    if not isinstance(value, str):
        raise ValueError("Must be a text.")  # noqa: TRY004 - pydantic turns ValueError into a field error
    return value


def _amount(value: object) -> object:
    if isinstance(value, str):
        try:
            return float(Decimal(value))
        except (InvalidOperation, ValueError, OverflowError):
            raise ValueError("Must be a decimal number.") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("Must be a number, or a decimal number as text.")  # noqa: TRY004 - as above
    try:
        return float(value)
    except OverflowError:
        raise ValueError("Must be a finite number.") from None


def _code(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[StrictStr, Field(min_length=1, max_length=128), AfterValidator(_storable)]
CallId = Annotated[StrictStr, Field(min_length=1, max_length=200), AfterValidator(_storable)]
Amount = Annotated[
    float,
    BeforeValidator(_amount, json_schema_input_type=float | str),
    Field(ge=0, le=1_000_000_000, allow_inf_nan=False),
]
Seconds = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
Turn = (
    Annotated[StrictStr, Field(max_length=200), AfterValidator(_storable)]
    | Annotated[StrictInt, Field(ge=-(2**53), le=2**53)]
)
AnyText = Annotated[str, PlainValidator(_any_text), WithJsonSchema({"type": "string"})]
AnyJson = Annotated[Any, WithJsonSchema({})]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ToolDeclaration(_Request):
    """One tool with the traits that it declares."""

    name: Name
    effect: Literal["read", "mutate", "unknown"] = "unknown"
    """`unknown` is taken for `mutate`."""
    group: Name | None = None
    poll: StrictBool = False
    ignore_args: list[StrictStr] = Field(default_factory=list, max_length=100)
    number_args: list[StrictStr] = Field(default_factory=list, max_length=100)
    volatile_result: list[StrictStr] = Field(default_factory=list, max_length=100)
    retryable_codes: list[StrictStr] = Field(default_factory=list, max_length=100)
    max_calls: Annotated[StrictInt, Field(ge=0)] | None = None
    max_writes: Annotated[StrictInt, Field(ge=0)] | None = None
    needs_approval: StrictBool = False
    """A person has to agree to each call before it runs."""

    def traits(self) -> dict[str, Any]:
        """These traits as `ToolTraits.from_mapping` reads them."""
        return self.model_dump(exclude={"name"})


class BudgetRequest(_Request):
    """Backstops of a run; None is no limit. A misspelt one is refused, since it would limit nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: Annotated[StrictInt, Field(ge=0)] | None = None
    max_calls_per_tool: Annotated[StrictInt, Field(ge=0)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    max_cost: Amount | None = None
    max_seconds: Seconds | None = None

    def over(self, base: Budget) -> Budget:
        """`base` with the limits that are given here."""
        given = {name.removeprefix("max_"): value for name, value in self.model_dump(exclude_unset=True).items()}
        limits = {name: getattr(base, name) for name in ("steps", "calls_per_tool", "tokens", "cost", "seconds")}
        return Budget(**{**limits, **given})


class NewRunRequest(_Request):
    """Opens a run, or finds the one that this agent opened under the same id."""

    agent: Name
    external_run_id: Annotated[StrictStr, Field(min_length=1, max_length=255), AfterValidator(_storable)]
    item_id: Annotated[StrictStr, Field(max_length=40)] | None = None
    tools: list[ToolDeclaration] = Field(default_factory=list, max_length=MAX_TOOLS)
    budget: BudgetRequest | None = None
    policy: dict[str, Any] | None = None
    """As `GuardPolicy.from_mapping` reads it; a misspelt entry is refused. `on_loop` is `halt` unless said otherwise."""

    @model_validator(mode="after")
    def _names_once(self) -> NewRunRequest:
        names = [tool.name for tool in self.tools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"The tool {name[:60]!r} is declared twice.")
        return self

    def guard_policy(self) -> GuardPolicy:
        """The policy of the run. Raises PolicyError that names the entry."""
        policy = GuardPolicy.from_mapping({"on_loop": OnLoop.HALT.value, **(self.policy or {})})
        limits = (policy.budget.cost, policy.budget.seconds)
        if not all(limit is None or math.isfinite(limit) for limit in limits):
            raise PolicyError("guard policy.budget: a limit must be finite; leave it out for no limit")
        return policy if self.budget is None else policy.with_budget(self.budget.over(policy.budget))

    def tool_traits(self) -> dict[str, ToolTraits]:
        """The declared traits by tool name."""
        return {tool.name: ToolTraits.from_mapping(tool.traits()) for tool in self.tools}


class CallRequest(_Request):
    """A call that the model wants to make. Its arguments may be anything: what is no JSON is judged, not refused."""

    call_id: CallId
    tool: Name
    args: AnyJson = None
    args_raw: AnyText | None = None
    turn: Turn | None = None
    parallel_group: Turn | None = None

    @property
    def message(self) -> str | int | None:
        """What names the model message, if anything does."""
        return self.turn if self.turn is not None else self.parallel_group

    def call(self, turn: str | int | None) -> ToolCall:
        """The call as the guard sees it."""
        return ToolCall(self.tool, self.args, self.args_raw, self.call_id, turn)

    def fingerprint(self) -> str:
        """Equal for the same question sent again; key order and number forms make no difference."""
        call = self.call(None)
        keys = read_keys(call)
        raw = "" if keys.is_json else self.args_raw if self.args_raw is not None else str(self.args)
        return _fingerprint(self.tool, keys.signature, raw, self.message)


class BatchRequest(_Request):
    """The calls of one model message, in order."""

    calls: list[CallRequest] = Field(min_length=1, max_length=MAX_BATCH)
    turn: Turn | None = None

    @model_validator(mode="after")
    def _ids_once(self) -> BatchRequest:
        ids = [call.call_id for call in self.calls]
        if len(set(ids)) != len(ids):
            raise ValueError("Each call of a message needs a `call_id` of its own.")
        return self


class ErrorReport(_Request):
    """An error as the tool protocol gave it."""

    code: Annotated[Name, BeforeValidator(_code)]
    message: AnyText | None = None
    retryable: StrictBool | None = None
    retry_after_s: Seconds | None = None


class ReportRequest(_Request):
    """What running a call brought. `tool`, `args` and `turn` matter only where nobody asked before."""

    call_id: CallId
    decision_id: Annotated[StrictStr, Field(max_length=40)] | None = None
    status: Literal["ok", "error"]
    error: ErrorReport | None = None
    result: AnyJson = None
    result_digest: Annotated[StrictStr, Field(max_length=200), AfterValidator(_storable)] | None = None
    result_excerpt: AnyText | None = None
    metrics: dict[str, Annotated[float, Field(allow_inf_nan=False)]] | None = Field(default=None, max_length=20)
    tokens: Annotated[StrictInt, Field(ge=0, le=2**53)] | None = None
    cost: Amount | None = None
    ms: Seconds | None = None
    tool: Name | None = None
    args: AnyJson = None
    args_raw: AnyText | None = None
    turn: Turn | None = None

    @model_validator(mode="after")
    def _agrees(self) -> ReportRequest:
        if self.status == "ok" and self.error is not None:
            raise ValueError("`error` belongs to status `error`.")
        return self

    def outcome(self) -> Outcome:
        """The outcome as the guard compares it."""
        error = None
        if self.status == "error":
            given = self.error or ErrorReport(code="ERROR")
            message = (given.message or "")[:_MAX_MESSAGE_CHARS]
            error = ToolError(given.code, message, given.retryable, given.retry_after_s)
        excerpt = None if self.result_excerpt is None else self.result_excerpt[:_MAX_EXCERPT_CHARS]
        return Outcome(
            _result_text(self.result),
            error,
            self.result_digest,
            excerpt,
            tokens=self.tokens or 0,
            cost=self.cost or 0.0,
            ms=self.ms,
        )

    def unasked_call(self) -> ToolCall:
        """The call behind an outcome that nobody asked about. Without a name and arguments it is like no other."""
        if self.tool is None:
            return ToolCall(UNNAMED_TOOL, {"call_id": self.call_id}, call_id=self.call_id, turn=self.turn)
        return ToolCall(self.tool, self.args, self.args_raw, self.call_id, self.turn)

    def fingerprint(self) -> str:
        """Equal for the same report sent again."""
        error = self.error
        result = self.result_digest if self.result_digest is not None else _result_text(self.result)
        return _fingerprint(self.status, "" if error is None else error.code, result or "", None)


class EndRequest(_Request):
    """The run is over."""

    outcome: Annotated[StrictStr, Field(min_length=1, max_length=64), AfterValidator(_storable)] = "done"
    output_digest: Annotated[StrictStr, Field(max_length=200), AfterValidator(_storable)] | None = None
    error: Annotated[StrictStr, Field(max_length=2000), AfterValidator(_storable)] | None = None


class ResumeRequest(_Request):
    """Go on: with the decision on an escalation, or, where the policy leaves it to the caller, by the caller's word."""

    escalation_id: Annotated[StrictStr, Field(max_length=40)] | None = None
    guidance: Annotated[StrictStr, Field(min_length=1, max_length=2000), AfterValidator(_storable)] | None = None
    extra_steps: Annotated[StrictInt, Field(ge=0, le=1000)] = 0
    extra_tokens: Annotated[StrictInt, Field(ge=0, le=2**53)] = 0
    extra_cost: Amount = 0.0
    extra_seconds: Annotated[float, Field(ge=0, le=1_000_000_000, strict=True, allow_inf_nan=False)] = 0.0
    ban_tools: list[Name] = Field(default_factory=list, max_length=50)


def policy_id(policy: GuardPolicy) -> str:
    """A short name of a policy: two that judge alike have the same one."""
    text = json.dumps(policy.to_mapping(), sort_keys=True)
    return f"pol_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def read_definition(definition: Mapping[str, Any]) -> tuple[GuardPolicy, dict[str, ToolTraits]]:
    """Policy and traits of a stored run."""
    policy = GuardPolicy.from_mapping(definition["policy"])
    return policy, {name: ToolTraits.from_mapping(traits) for name, traits in definition["tools"].items()}


def _result_text(result: object) -> str | None:
    """JSON results as text: keys sorted, whole numbers in one form. None and null are the empty result."""
    if result is None or isinstance(result, str):
        return result
    try:
        text = json.dumps(_plain(result), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        text = repr(type(result))
    return unicodedata.normalize("NFC", text)


def _plain(value: object) -> object:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _fingerprint(*parts: object) -> str:
    text = json.dumps(parts)
    return hashlib.sha256(text.encode()).hexdigest()
