"""Carry out a reviewer's decision: the case is flipped and its effect written in one transaction."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, TypeAdapter
from sqlalchemy.engine import Connection

from gateway.escalation import Action, EscalationRecord, EscalationStatus, allowed_actions
from gateway.item import Item, Status
from gateway.profiles import Profile, Profiles
from gateway.store import guard_runs as run_store
from gateway.store import items as item_store
from gateway.store import steps
from gateway.store.steps import StepKind
from gateway.strict_json import canonical
from guard import record_to_json
from guard.trace import Control, ControlRecord

_Text = Annotated[StrictStr, Field(min_length=1, max_length=2000)]
_Tools = Annotated[list[Annotated[StrictStr, Field(min_length=1, max_length=128)]], Field(max_length=50)]


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    lease_token: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    note: Annotated[StrictStr, Field(max_length=2000)] | None = None


class Resume(_Decision):
    """Let the agent go on, with a sentence of advice."""

    action: Literal[Action.RESUME]
    guidance: _Text
    extra_steps: Annotated[StrictInt, Field(ge=0, le=100)] = 0
    ban_tools: _Tools = Field(default_factory=list)


class Reroute(_Decision):
    """Start a new attempt on another route."""

    action: Literal[Action.REROUTE]
    route: Literal["agent", "single_look", "text_only"]
    guidance: _Text | None = None
    ban_tools: _Tools = Field(default_factory=list)


class AnswerItem(_Decision):
    """Give the copy oneself."""

    action: Literal[Action.ANSWER_ITEM]
    output: dict[str, Any]


class RejectItem(_Decision):
    """Refuse the item, with a friendly text for the submitter."""

    action: Literal[Action.REJECT_ITEM]
    reason_code: Annotated[StrictStr, Field(pattern=r"^[a-z][a-z0-9_]{0,47}$")] = "person"
    message: _Text


class Dismiss(_Decision):
    """A false alarm: let the agent go on as if it had not been stopped."""

    action: Literal[Action.DISMISS]
    reason: Literal["false_positive"] = "false_positive"


class Close(_Decision):
    """End a run of somebody else's agent, with a sentence to whoever runs it."""

    action: Literal[Action.CLOSE]
    message: _Text | None = None


AnyDecision = Resume | Reroute | AnswerItem | RejectItem | Dismiss | Close
Decision = Annotated[AnyDecision, Field(discriminator="action")]
DECISIONS: TypeAdapter[AnyDecision] = TypeAdapter(Decision)


class NotAllowed(Exception):
    """This cannot be decided on this case; `public` says why, `allowed` what can."""

    code = "action_not_allowed"
    retryable = False

    def __init__(self, public: str, allowed: tuple[Action, ...] = ()) -> None:
        super().__init__(public)
        self.public = public
        self.allowed = allowed


class ItemMoved(Exception):
    """The item is no longer waiting for this decision."""

    code = "escalation_withdrawn"
    retryable = False


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Who decides, as the history and the audit name them."""

    name: str


def fingerprint(escalation_id: str, decision: BaseModel) -> str:
    """What makes two requests the same decision: all but the lease token."""
    stable = decision.model_dump(mode="json", exclude={"lease_token"})
    return hashlib.sha256(canonical([escalation_id, stable]).encode()).hexdigest()


def resolution_of(decision: BaseModel, reviewer: Reviewer, at_ms: int) -> dict[str, Any]:
    """The decision as it is stored and shown to those who came too late."""
    body = decision.model_dump(mode="json", exclude={"lease_token"})
    return {**body, "by": reviewer.name, "at_ms": at_ms}


def apply(
    connection: Connection,
    profiles: Profiles,
    record: EscalationRecord,
    decision: AnyDecision,
    reviewer: Reviewer,
) -> None:
    """Write the decision's effect. Raises `NotAllowed`, `ItemMoved`; the caller rolls back.

    A run of somebody else's agent goes on when its caller fetches the decision, so until then nothing changes there.
    """
    allowed = allowed_actions(record)
    if decision.action not in allowed:
        raise NotAllowed(
            f"`{decision.action.value}` is not possible here: no agent's run stands still that could go on."
            if decision.action in {Action.RESUME, Action.DISMISS}
            else f"`{decision.action.value}` is not possible in this state.",
            allowed,
        )
    if record.run_id is not None:
        if isinstance(decision, Close):
            _close(connection, record.run_id, reviewer, decision)
        return
    item = None if record.item_id is None else item_store.get(connection, record.item_id)
    if item is None:
        raise ItemMoved
    profile = profiles.get(item.profile)
    match decision:
        case Resume():
            control = ControlRecord(
                Control.RESUME, time.time(), tuple(decision.ban_tools), decision.extra_steps, note=decision.guidance
            )
            go_on(connection, item, reviewer, control, text=advice(decision.guidance))
        case Dismiss():
            signature = record.packet.get("signature")
            forgiven = (str(signature),) if signature else ()
            control = ControlRecord(Control.RESUME, time.time(), forgiven=forgiven, note="false alarm")
            go_on(connection, item, reviewer, control, text=FALSE_ALARM)
        case Reroute():
            _reroute(connection, item, reviewer, decision)
        case AnswerItem():
            _answer(connection, item, reviewer, decision, profile)
        case RejectItem():
            _reject(connection, item, reviewer, decision)
        case Close():
            raise NotAllowed("Only a run of a caller's own agent is closed; an item is rejected.", allowed)


def status_after(record: EscalationRecord, decision: AnyDecision) -> EscalationStatus:
    """Where a decided case stands: `resolved` while the decision waits to be fetched by the caller of a run."""
    is_fetched_later = record.run_id is not None and not isinstance(decision, Close)
    return EscalationStatus.RESOLVED if is_fetched_later else EscalationStatus.APPLIED


def _close(connection: Connection, run_id: str, reviewer: Reviewer, decision: Close) -> None:
    outcome = {"outcome": "closed", "by": reviewer.name, "message": decision.message}
    if not run_store.close(connection, run_id, outcome=outcome):
        raise ItemMoved


FALSE_ALARM = "A reviewer looked at this and found that you were not repeating yourself. Go on."


def advice(guidance: str) -> str:
    """What the agent is told that a reviewer said."""
    return f"A reviewer looked at this and says: {guidance}"


def go_on(
    connection: Connection,
    item: Item,
    reviewer: Reviewer,
    control: ControlRecord,
    *,
    text: str,
    expected: Status = Status.AWAITING_HUMAN,
) -> None:
    """Let the same attempt go on in a new epoch. Raises `ItemMoved`."""
    at_ms = item_store.now_ms(connection)
    steps.insert(
        connection,
        item.id,
        seq=steps.next_seq(connection, item.id),
        attempt=item.attempt,
        kind=StepKind.CONTROL,
        fence=item.fence,
        intent={"control": "resume", "by": reviewer.name, "text": text, "records": [record_to_json(control)]},
        outcome={},
        at_ms=at_ms,
    )
    _move(
        connection,
        item,
        reviewer,
        Status.QUEUED,
        reason="resumed",
        values={
            "epoch": item.epoch + 1,
            "lost_claims": 0,
            "failure": None,
            "escalation_id": None,
            "available_ms": at_ms,
        },
        expected=expected,
    )


def _reroute(connection: Connection, item: Item, reviewer: Reviewer, decision: Reroute) -> None:
    at_ms = item_store.now_ms(connection)
    attempt = item.attempt + 1
    if decision.guidance or decision.ban_tools:
        ban = ControlRecord(Control.RESUME, time.time(), tuple(decision.ban_tools), note=decision.guidance)
        steps.insert(
            connection,
            item.id,
            seq=steps.next_seq(connection, item.id),
            attempt=attempt,
            kind=StepKind.CONTROL,
            fence=item.fence,
            intent={
                "control": "reroute",
                "by": reviewer.name,
                "text": advice(decision.guidance) if decision.guidance else None,
                "records": [record_to_json(ban)],
            },
            outcome={},
            at_ms=at_ms,
        )
    _move(
        connection,
        item,
        reviewer,
        Status.QUEUED,
        reason=f"rerouted:{decision.route}",
        values={
            "attempt": attempt,
            "epoch": 0,
            "lost_claims": 0,
            "route": decision.route,
            "escalation_id": None,
            "available_ms": at_ms,
        },
    )


def _answer(
    connection: Connection, item: Item, reviewer: Reviewer, decision: AnswerItem, profile: Profile | None
) -> None:
    if profile is None:
        raise NotAllowed(f"The profile {item.profile} is no longer installed, so the copy cannot be checked.")
    output = {name: value for name, value in decision.output.items() if name != "produced_by"}
    problems = profile.output_errors(output)
    if problems:
        raise NotAllowed("The copy is not valid by the profile's schema: " + "; ".join(problems[:10]))
    _move(
        connection,
        item,
        reviewer,
        Status.SUCCEEDED,
        reason=None,
        values={"result": {**output, "produced_by": "human"}, "failure": None},
    )


def _reject(connection: Connection, item: Item, reviewer: Reviewer, decision: RejectItem) -> None:
    problem = {
        "type": "/problems/rule",
        "code": decision.reason_code,
        "title": "Rejected by a reviewer",
        "user_message": {"en": decision.message, "zh": decision.message},
        "file": None,
        "part": None,
        "file_name": None,
        "measured": {},
        "limit": {},
        "rule": None,
        "next": "fix_input",
        "fix": {"en": decision.message, "zh": decision.message},
    }
    decided = {**(item.decision or {}), "verdict": "reject", "stage": "person", "problem": problem, "reason": None}
    _move(connection, item, reviewer, Status.REJECTED, reason=decision.reason_code, values={"decision": decided})


def _move(
    connection: Connection,
    item: Item,
    reviewer: Reviewer,
    to: Status,
    *,
    reason: str | None,
    values: Mapping[str, Any],
    expected: Status = Status.AWAITING_HUMAN,
) -> None:
    before = item_store.transition(
        connection,
        item.id,
        expected=(expected,),
        to=to,
        actor=reviewer.name,
        fence=item.fence,
        reason=reason,
        values=values,
    )
    if before is None:
        raise ItemMoved
