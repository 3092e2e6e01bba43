"""A case for a person: the states it may pass through, and what may be decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class EscalationStatus(StrEnum):
    """Where a case stands."""

    OPEN = "open"
    CLAIMED = "claimed"
    WAITING_SUBMITTER = "waiting_submitter"
    RESOLVED = "resolved"
    """Decided; the effect is on its way."""
    APPLIED = "applied"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


UNDECIDED = frozenset({EscalationStatus.OPEN, EscalationStatus.CLAIMED, EscalationStatus.WAITING_SUBMITTER})


class Action(StrEnum):
    """What a reviewer may decide."""

    RESUME = "resume"
    REROUTE = "reroute"
    ANSWER_ITEM = "answer_item"
    REJECT_ITEM = "reject_item"
    DISMISS = "dismiss"
    CLOSE = "close"
    """Of a run of somebody else's agent: it ends here."""


CONSEQUENCES: Mapping[Action, Mapping[str, str]] = {
    Action.RESUME: {
        "en": "The agent goes on with your advice; calls that it has finished are not made again.",
        "zh": "智能体按您的建议继续;已完成的调用不会重复。",
    },
    Action.REROUTE: {
        "en": "A new attempt on the route that you choose, such as writing from text alone (no more image calls).",
        "zh": "按您选择的路线重新开始,例如只用文字撰写(不再查看图片)。",
    },
    Action.ANSWER_ITEM: {
        "en": "Your copy becomes the result of the item.",
        "zh": "您写的文案即为该商品的结果。",
    },
    Action.REJECT_ITEM: {
        "en": "The item is rejected with your message to the submitter.",
        "zh": "该商品被拒绝,您的说明会发给提交者。",
    },
    Action.DISMISS: {
        "en": "A false alarm: the agent goes on, and this call's count starts again.",
        "zh": "误报:智能体继续,该调用重新计数。",
    },
    Action.CLOSE: {
        "en": "The run ends here, with your message to whoever runs the agent.",
        "zh": "本次运行到此结束,您的说明会转给运行该智能体的一方。",
    },
}


@dataclass(frozen=True, slots=True)
class EscalationLease:
    """One reviewer's right to decide: valid while the token is the escalation's and the time has not run out."""

    token: str
    fence: int
    holder: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class EscalationRecord:
    """One row of the human queue."""

    id: str
    tenant: str
    item_id: str | None
    run_id: str | None
    """The run of somebody else's agent that stands still; None where the item's own agent does."""
    attempt: int
    profile: str
    reason: str
    tool: str | None
    group_key: str
    status: EscalationStatus
    packet: Mapping[str, Any]
    """Question, evidence, cost, resume point: what was known when it was raised."""
    occurrence_count: int
    came_back_after: str | None
    """The action after which the same incident came back, if it did."""
    priority: int
    holder: str | None
    lease_expires_ms: int | None
    fence: int
    version: int
    resolution: Mapping[str, Any] | None
    created_ms: int
    updated_ms: int
    due_ms: int
    expires_ms: int


_OF_RUNS = (Action.RESUME, Action.DISMISS, Action.CLOSE)


def allowed_actions(record: EscalationRecord) -> tuple[Action, ...]:
    """What can be decided on this case: without a halted agent there is nothing to go on with."""
    if record.status not in UNDECIDED:
        return ()
    if record.run_id is not None:
        return _OF_RUNS
    if record.packet.get("resume_point") is None:
        return (Action.REROUTE, Action.ANSWER_ITEM, Action.REJECT_ITEM)
    return tuple(action for action in Action if action is not Action.CLOSE)
