"""Calls that a person has to agree to before they run."""

from __future__ import annotations

from guard.detectors.repeat import RepeatMemory
from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction
from guard.marks import Marks
from guard.policy import GuardPolicy, ToolTraits
from guard.trace import CallView


def find(memory: RepeatMemory, call: CallView, marks: Marks, policy: GuardPolicy, traits: ToolTraits) -> Finding | None:
    """Before a call that nothing else refuses: halts the run until a person has agreed to this very call.

    A twin of a call of the same message does not run by itself, so it needs no consent of its own; neither do arguments
    that are no JSON, since no tool takes them.
    """
    if not call.keys.is_json or not policy.wants_approval(call.tool, call.effect, traits):
        return None
    if call.keys.signature in marks.approved or call.keys.signature in memory.turn_calls:
        return None
    return Finding(Detector.CONTROL, ReasonCode.APPROVAL_NEEDED, 1, GuardAction.HALT, (call.step,))
