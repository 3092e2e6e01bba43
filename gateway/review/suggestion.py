"""What to decide, suggested: by what became of the last decisions on the same kind of incident, else by its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gateway.escalation import Action

LOOKS_BACK = 5
_ENOUGH = 2
"""Decisions that worked, before history alone is a reason."""


@dataclass(frozen=True, slots=True)
class Past:
    """One decision on the same kind of incident, and what became of it."""

    case_id: str
    action: str
    route: str | None
    """Of a new attempt."""
    by: str
    at_ms: int
    status: str | None
    """Where the item or run came to rest after it; None while it has not."""
    came_back: bool


class Basis(StrEnum):
    """On what a suggestion rests."""

    HISTORY = "history"
    REASON = "reason"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A pre-selected action, with its reason in words for a person."""

    action: Action
    route: str | None
    basis: Basis
    reason: Mapping[str, str]


def suggest(
    past: Sequence[Past],
    *,
    allowed: Collection[Action],
    reason: str,
    came_back_after: str | None = None,
) -> Suggestion | None:
    """The action that worked most often in the last five decisions, if any did twice; else what its reason speaks for.

    `past` is the newest first. Nothing is suggested after which this very incident came back. None where nothing speaks
    for one action more than for another.
    """
    recent = past[:LOOKS_BACK]
    return _by_history(recent, allowed, came_back_after) or _by_reason(allowed, reason, came_back_after, recent)


def _by_history(past: Sequence[Past], allowed: Collection[Action], came_back_after: str | None) -> Suggestion | None:
    worked = Counter(
        (one.action, one.route) for one in past if not one.came_back and one.status not in {None, "failed"}
    )
    failed = {one.action for one in past if one.came_back}
    for (action, route), count in worked.most_common():
        if count < _ENOUGH or action not in set(allowed) or action in {came_back_after, *failed}:
            continue
        words = {
            "en": f"{count} of the last {len(past)} in this group were decided so, and none of them came back.",
            "zh": f"本组最近 {len(past)} 项中有 {count} 项如此处理，均未再次出现。",
        }
        return Suggestion(Action(action), route, Basis.HISTORY, words)
    return None


_TEXT_ONLY = (Action.REROUTE, "text_only")
_BY_REASON: Mapping[str, tuple[Action, str | None, Mapping[str, str]]] = {
    "repeated_tool_calls": (
        *_TEXT_ONLY,
        {
            "en": "The tool kept giving the same answer, so the pictures have no more to say: write from the text.",
            "zh": "工具反复给出相同结果，图片已无更多信息：请改为仅用文字撰写。",
        },
    ),
    "repeated_error": (
        *_TEXT_ONLY,
        {
            "en": "The tool keeps failing, so going on with it would only cost more: write from the text.",
            "zh": "工具一直失败，继续只会增加费用：请改为仅用文字撰写。",
        },
    ),
    "worker_lost": (
        *_TEXT_ONLY,
        {
            "en": "A file ends the workers that open it: leave the files out and write from the text.",
            "zh": "某个文件会使处理进程崩溃：请跳过文件，仅用文字撰写。",
        },
    ),
    "budget": (
        *_TEXT_ONLY,
        {
            "en": "The budget is used up; writing from the text costs one more request.",
            "zh": "预算已用完；仅用文字撰写只需再发一次请求。",
        },
    ),
}


def _by_reason(
    allowed: Collection[Action], reason: str, came_back_after: str | None, past: Sequence[Past]
) -> Suggestion | None:
    known = _BY_REASON.get(reason)
    if known is None:
        return None
    action, route, words = known
    has_failed = any(one.came_back and one.action == action.value for one in past)
    if action not in allowed or action.value == came_back_after or has_failed:
        return None
    return Suggestion(action, route, Basis.REASON, words)
