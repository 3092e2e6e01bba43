"""What reviewers decide: the decisions, whether a case allows them, and how each takes effect."""

from __future__ import annotations

from gateway.resolution.apply import apply, status_after
from gateway.resolution.decisions import (
    DECISIONS,
    AnswerItem,
    AnswerTool,
    AnyDecision,
    ApproveCall,
    AskSubmitter,
    Close,
    Decision,
    DenyCall,
    Dismiss,
    EditCall,
    RejectItem,
    Reroute,
    Resume,
    Retry,
    fingerprint,
)
from gateway.resolution.moves import FALSE_ALARM, Reviewer, advice, begin_attempt, control, go_on
from gateway.resolution.recording import record_verb, resolution_of
from gateway.resolution.refusals import ItemMoved, NotAllowed, WrongField, check_tools

__all__ = [
    "DECISIONS",
    "FALSE_ALARM",
    "AnswerItem",
    "AnswerTool",
    "AnyDecision",
    "ApproveCall",
    "AskSubmitter",
    "Close",
    "Decision",
    "DenyCall",
    "Dismiss",
    "EditCall",
    "ItemMoved",
    "NotAllowed",
    "RejectItem",
    "Reroute",
    "Resume",
    "Retry",
    "Reviewer",
    "WrongField",
    "advice",
    "apply",
    "begin_attempt",
    "check_tools",
    "control",
    "fingerprint",
    "go_on",
    "record_verb",
    "resolution_of",
    "status_after",
]
