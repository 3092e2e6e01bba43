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
    RETRY = "retry"
    ANSWER_TOOL = "answer_tool"
    APPROVE_CALL = "approve_call"
    EDIT_CALL = "edit_call"
    DENY_CALL = "deny_call"
    ASK_SUBMITTER = "ask_submitter"
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
    Action.RETRY: {
        "en": "The whole item is tried once more from the start, on the same route and with a fresh budget.",
        "zh": "整个商品按原路线从头再试一次，预算重新计算。",
    },
    Action.ANSWER_TOOL: {
        "en": "Your result stands for the tool's: the tool is not run, and the agent goes on with what you wrote.",
        "zh": "以您填写的结果代替工具的结果：工具不再运行，智能体据此继续。",
    },
    Action.APPROVE_CALL: {
        "en": "The call runs once, exactly as it stands, and the agent goes on.",
        "zh": "该调用将按原样执行一次，然后智能体继续。",
    },
    Action.EDIT_CALL: {
        "en": "Your version of the call runs once in its place; the agent is told that you changed it.",
        "zh": "改为执行您修改后的调用（一次）；智能体会被告知您做了修改。",
    },
    Action.DENY_CALL: {
        "en": "The call is not run; the agent is told why and goes on without it.",
        "zh": "该调用不会执行；智能体会被告知原因，并在没有它的情况下继续。",
    },
    Action.ASK_SUBMITTER: {
        "en": "The submitter gets your question; the clock stands still until they answer or the time is over.",
        "zh": "您的问题会发给提交者；在对方答复或到期之前，计时暂停。",
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
    group_id: str | None = None
    fingerprint: str | None = None
    """What tells kinds of incidents within a group apart; see `gateway.store.escalation_groups`."""
    on_expire: str | None = None
    profile_priority: int = 1
    burnt_percent: int = 0
    """How much of the budget was spent when it was raised."""
    claimed_ms: int | None = None
    """When somebody took it first."""
    decided_by: str | None = None
    decided_action: str | None = None
    decided_ms: int | None = None
    apply_ms: int | None = None
    """Until when the decision can be taken back; None once it has taken effect, or where it does so at once."""
    apply_problem: Mapping[str, Any] | None = None
    """Why the last decision could not take effect."""
    reopen_count: int = 0
    reopens: str | None = None
    """The decided case that this one takes up again."""

    @property
    def is_pending(self) -> bool:
        """Whether it is decided, and the decision can still be taken back."""
        return self.status is EscalationStatus.RESOLVED and self.apply_ms is not None


class Change(StrEnum):
    """What may happen to a case, as its audit names it."""

    OPENED = "opened"
    REPEATED = "repeated"
    """The same incident again while the case was undecided."""
    CLAIMED = "claimed"
    RELEASED = "released"
    LEASE_EXPIRED = "lease_expired"
    ASSIGNED = "assigned"
    NOTED = "noted"
    ASKED = "asked"
    """The submitter is asked; the clock stands still."""
    INFORMED = "informed"
    RESOLVED = "resolved"
    UNDONE = "undone"
    APPLIED = "applied"
    APPLY_FAILED = "apply_failed"
    WITHDRAWN = "withdrawn"
    DUE_SOON = "due_soon"
    EXPIRED = "expired"
    REOPENED = "reopened"
    REGROUPED = "regrouped"


TIMEOUT_ACTOR = "system:timeout"
"""Who decides when nobody did: never counted or told as a person."""


class OnExpire(StrEnum):
    """What becomes of an item, or a run, when nobody answers in time."""

    REROUTE_TEXT_ONLY = "reroute_text_only"
    """A run of somebody else's agent goes on without the tool that it stopped at."""
    REJECT = "reject"
    HOLD = "hold"
    """It stays where it is until somebody reopens the case."""


_IF_RESUMABLE = (Action.RESUME, Action.ANSWER_TOOL, Action.DISMISS)
_OF_CALLS = (Action.APPROVE_CALL, Action.EDIT_CALL, Action.DENY_CALL)
_OF_RUNS = (Action.RESUME, Action.ANSWER_TOOL, *_OF_CALLS, Action.DISMISS, Action.CLOSE)
_OF_ITEMS = tuple(action for action in Action if action is not Action.CLOSE)

APPROVAL_NEEDED = "approval_needed"
"""The reason of a case that asks for consent: nothing went wrong."""

_NO_RUN = {
    "en": "No agent's run stands still that could go on.",
    "zh": "没有可以继续的智能体运行。",
}
_NO_CALL = {
    "en": "No call of the run waits for a result.",
    "zh": "没有等待结果的调用。",
}
_NO_CONSENT = {
    "en": "No call waits for your consent.",
    "zh": "没有等待您同意的调用。",
}
_NO_ALARM = {
    "en": "The run was not stopped by an alarm: a call waits for your consent.",
    "zh": "本次运行并非因告警而停止，而是有调用在等待您同意。",
}
_NOT_OURS = {
    "en": "This run belongs to somebody else's agent: only its caller can start it again, answer for it or ask the submitter.",
    "zh": "该运行属于外部智能体：只有其调用方才能重新开始、代为作答或询问提交者。",
}
_NOT_A_RUN = {
    "en": "Only a run of a caller's own agent is closed; an item is rejected.",
    "zh": "只有外部智能体的运行才能关闭；商品请用拒绝。",
}
_WOULD_HALT_AGAIN = {
    "en": "Nothing has changed since it stopped, so it would stop at the same place: choose `override` to try all the same.",
    "zh": "停止之后没有任何变化，很可能在同一处再次停止；如仍要重试，请选择 override。",
}
_DECIDED = {"en": "This case is decided or closed.", "zh": "该事项已决定或已关闭。"}
_ASKED = {
    "en": "The submitter was asked; nothing is decided until they answer.",
    "zh": "已询问提交者，答复之前不能作出决定。",
}
_DECIDABLE = frozenset({EscalationStatus.OPEN, EscalationStatus.CLAIMED})

_STOPS_AGAIN = frozenset({"repeated_tool_calls", "repeated_error", "budget", "rule"})
"""Why a run stopped by rule: under the same rules it would again."""


def refusal(record: EscalationRecord, action: Action) -> Mapping[str, str] | None:
    """Why `action` is not possible on this case, whatever its status; None where it is."""
    packet = record.packet
    if record.run_id is not None and action not in _OF_RUNS:
        return _NOT_OURS
    if record.run_id is None and action is Action.CLOSE:
        return _NOT_A_RUN
    if action in (*_IF_RESUMABLE, *_OF_CALLS) and packet.get("resume_point") is None:
        return _NO_RUN
    if action in _OF_CALLS and record.reason != APPROVAL_NEEDED:
        return _NO_CONSENT
    if action is Action.ANSWER_TOOL and not packet.get("open_calls"):
        return _NO_CALL
    if action is Action.DISMISS and record.reason == APPROVAL_NEEDED:
        return _NO_ALARM
    return None


def needs_override(record: EscalationRecord) -> Mapping[str, str] | None:
    """Why a retry on the same route has to be wanted expressly, unless the rules have changed meanwhile."""
    return _WOULD_HALT_AGAIN if record.reason in _STOPS_AGAIN else None


def possible_actions(record: EscalationRecord) -> tuple[Action, ...]:
    """What can be decided on a case of this kind, whatever its status."""
    return tuple(action for action in Action if refusal(record, action) is None)


def allowed_actions(record: EscalationRecord) -> tuple[Action, ...]:
    """What can be decided on this case now."""
    return possible_actions(record) if record.status in _DECIDABLE else ()


def refused_actions(record: EscalationRecord) -> tuple[tuple[Action, Mapping[str, str]], ...]:
    """What cannot be decided on this case now, each with the reason in words."""
    if record.status not in _DECIDABLE:
        why_none = _ASKED if record.status is EscalationStatus.WAITING_SUBMITTER else _DECIDED
        return tuple((action, why_none) for action in Action)
    known = _OF_ITEMS if record.run_id is None else _OF_RUNS
    refused = ((action, refusal(record, action)) for action in known)
    return tuple((action, why) for action, why in refused if why is not None)
