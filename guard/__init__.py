"""Judges an agent's tool calls: lets honest work pass, warns about, blocks and halts loops.

    guard = Guard(GuardPolicy(), tools={"ocr_extract": ToolTraits(Effect.READ_ONLY, group="vision")})
    decision = guard.before(call)
    if decision.execute:
        decision = guard.after(call, outcome)

Standard library only; adapters for agent frameworks are modules of their own under `guard.adapters`.
"""

from guard.call import ToolCall
from guard.capabilities import Capabilities
from guard.decision import Counts, Decision, Flag, Phase, Reason, SeenBefore, ToolResult
from guard.escalation import Escalation, NextStep, after_halt
from guard.finding import Detector, EndReason, Finding, ReasonCode, RuleEffect
from guard.guard import Guard, Resumption, Spent
from guard.ladder import GuardAction, Ladder, action_for
from guard.metarules import History, Rule, RuleCall, Ruling, register_rule, unregister_rule
from guard.policy import (
    INVALID_ARGUMENTS,
    PRODUCT_COPY_BUDGET,
    UNKNOWN_TOOL,
    Budget,
    Counting,
    Effect,
    ErrorClass,
    GuardPolicy,
    Ladders,
    Language,
    Mode,
    OnLoop,
    OnRepeatedError,
    PolicyError,
    ToolTraits,
    number_args_of,
)
from guard.results import Outcome, ToolError
from guard.trace import Step, Trace, TraceError, record_from_json, record_to_json

__all__ = [
    "INVALID_ARGUMENTS",
    "PRODUCT_COPY_BUDGET",
    "UNKNOWN_TOOL",
    "Budget",
    "Capabilities",
    "Counting",
    "Counts",
    "Decision",
    "Detector",
    "Effect",
    "EndReason",
    "ErrorClass",
    "Escalation",
    "Finding",
    "Flag",
    "Guard",
    "GuardAction",
    "GuardPolicy",
    "History",
    "Ladder",
    "Ladders",
    "Language",
    "Mode",
    "NextStep",
    "OnLoop",
    "OnRepeatedError",
    "Outcome",
    "Phase",
    "PolicyError",
    "Reason",
    "ReasonCode",
    "Resumption",
    "Rule",
    "RuleCall",
    "RuleEffect",
    "Ruling",
    "SeenBefore",
    "Spent",
    "Step",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolTraits",
    "Trace",
    "TraceError",
    "action_for",
    "after_halt",
    "number_args_of",
    "record_from_json",
    "record_to_json",
    "register_rule",
    "unregister_rule",
]
