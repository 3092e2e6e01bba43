"""What a reviewer may send: one frozen model per action, each field checked and named when it is wrong."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
)

from gateway.escalation import Action
from gateway.strict_json import canonical, text_problem


def _worded(text: str) -> str:
    problem = text_problem(text) or ("Say something." if not text.strip() else None)
    if problem:
        raise ValueError(problem)
    return text


def _moment(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("Send an RFC 3339 time with its offset, such as 2026-12-01T09:00:00Z.")  # noqa: TRY004 - a field error
    return value


Text = Annotated[StrictStr, Field(min_length=1, max_length=2000), AfterValidator(_worded)]
Tools = Annotated[list[Annotated[StrictStr, Field(min_length=1, max_length=128)]], Field(max_length=50)]
Route = Literal["agent", "single_look", "text_only"]
CallId = Annotated[StrictStr, Field(min_length=1, max_length=200)]
Moment = Annotated[AwareDatetime, BeforeValidator(_moment, json_schema_input_type=datetime)]


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    lease_token: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    note: Annotated[StrictStr, Field(max_length=2000)] | None = None


class Resume(_Decision):
    """Let the agent go on, with a sentence of advice."""

    action: Literal[Action.RESUME]
    guidance: Text
    extra_steps: Annotated[StrictInt, Field(ge=0, le=100)] = 0
    ban_tools: Tools = Field(default_factory=list)


class AnswerTool(_Decision):
    """Give the result of a call that got none; the tool is not run."""

    action: Literal[Action.ANSWER_TOOL]
    call_id: CallId
    result: Any


class ApproveCall(_Decision):
    """Let the call that waits for consent run as it stands."""

    action: Literal[Action.APPROVE_CALL]
    call_id: CallId
    message: Text | None = None


class EditCall(_Decision):
    """Let another call run in place of the one that waits for consent."""

    action: Literal[Action.EDIT_CALL]
    call_id: CallId
    args: dict[str, Any]
    tool: Annotated[StrictStr, Field(min_length=1, max_length=128)] | None = None
    message: Text | None = None


class DenyCall(_Decision):
    """The call that waits for consent does not run; the agent is told why."""

    action: Literal[Action.DENY_CALL]
    call_id: CallId
    message: Text


class Reroute(_Decision):
    """Start a new attempt on another route."""

    action: Literal[Action.REROUTE]
    route: Route
    guidance: Text | None = None
    ban_tools: Tools = Field(default_factory=list)


class Retry(_Decision):
    """Start a new attempt on the same route."""

    action: Literal[Action.RETRY]
    reason: Text
    override: StrictBool = False


class AnswerItem(_Decision):
    """Give the copy oneself."""

    action: Literal[Action.ANSWER_ITEM]
    output: dict[str, Any]


class Message(BaseModel):
    """What the submitter is told, in both languages of the service."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    en: Text
    zh: Text


def _in_both(value: object) -> object:
    return {"en": value, "zh": value} if isinstance(value, str) else value


class RejectItem(_Decision):
    """Refuse the item, with a friendly text for the submitter: in both languages, or one text for both."""

    action: Literal[Action.REJECT_ITEM]
    reason_code: Annotated[StrictStr, Field(pattern=r"^[a-z][a-z0-9_]{0,47}$")] = "person"
    message: Annotated[Message, BeforeValidator(_in_both, json_schema_input_type=str | Message)]


class AskSubmitter(_Decision):
    """Ask whoever sent the item; the clock stands still until they answer or the time is over."""

    action: Literal[Action.ASK_SUBMITTER]
    question: Text
    until: Moment


class Dismiss(_Decision):
    """A false alarm: let the agent go on as if it had not been stopped."""

    action: Literal[Action.DISMISS]
    reason: Literal["false_positive"] = "false_positive"


class Close(_Decision):
    """End a run of somebody else's agent, with a sentence to whoever runs it."""

    action: Literal[Action.CLOSE]
    message: Text | None = None


AnyDecision = (
    Resume
    | AnswerTool
    | ApproveCall
    | EditCall
    | DenyCall
    | Reroute
    | Retry
    | AnswerItem
    | RejectItem
    | AskSubmitter
    | Dismiss
    | Close
)
CallDecision = ApproveCall | EditCall | DenyCall
Decision = Annotated[AnyDecision, Field(discriminator="action")]
DECISIONS: TypeAdapter[AnyDecision] = TypeAdapter(Decision)


def fingerprint(escalation_id: str, decision: BaseModel) -> str:
    """What makes two requests the same decision: all but the lease token."""
    stable = decision.model_dump(mode="json", exclude={"lease_token"})
    return hashlib.sha256(canonical([escalation_id, stable]).encode()).hexdigest()
