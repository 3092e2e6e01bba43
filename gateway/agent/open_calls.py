"""The calls of a run's last message that got no result of their own: what a reviewer may answer, approve, change or deny.

Read from the stored steps alone, without a model library, so that the process that takes decisions can do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.escalation import APPROVAL_NEEDED
from gateway.store.steps import StepKind, StepRow
from gateway.strict_json import JsonRefused, loads

_PASSED_OVER = frozenset({"info"})
"""Controls that say something without letting the run go on."""


class CallState(StrEnum):
    """Why a call has no result of its own."""

    NEEDS_APPROVAL = "needs_approval"
    REFUSED = "refused"
    """By the guard."""
    FAILED = "failed"
    NOT_RUN = "not_run"
    """The turn ended before it."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """One such call."""

    turn: int
    """Step number of the model's message."""
    index: int
    call_id: str
    tool: str
    arguments: str
    """As the model wrote them."""
    state: CallState

    @property
    def args(self) -> Mapping[str, Any] | None:
        """The arguments as an object; None where they are none."""
        try:
            value = loads(self.arguments or "{}")
        except JsonRefused:
            return None
        return value if isinstance(value, dict) else None

    def to_json(self) -> dict[str, Any]:
        """As a case shows it."""
        args = self.args
        shown = self.arguments[:2000] if args is None or len(self.arguments) > 2000 else args
        return {"call_id": self.call_id, "tool": self.tool, "arguments": shown, "state": self.state.value}


def open_calls(rows: Sequence[StepRow]) -> list[OpenCall]:
    """The open calls at the end of these steps of one attempt, in the order of the message; none while the run goes on."""
    message = _standing_message(rows)
    if message is None:
        return []
    latest = {
        row.intent["index"]: row for row in rows if row.kind is StepKind.TOOL and row.intent["turn"] == message.seq
    }
    found = []
    for index, part in enumerate(calls_of(message)):
        state = _state_of(latest.get(index))
        if state is not None:
            arguments = part.get("args")
            text = arguments if isinstance(arguments, str) else "{}"
            found.append(OpenCall(message.seq, index, str(part["tool_call_id"]), str(part["tool_name"]), text, state))
    return found


def calls_of(row: StepRow) -> list[Mapping[str, Any]]:
    """The tool calls of a stored model message, in order."""
    stored = (row.outcome or {}).get("response") or ()
    return [part for message in stored for part in message.get("parts", ()) if part.get("part_kind") == "tool-call"]


def _standing_message(rows: Sequence[StepRow]) -> StepRow | None:
    """The last model message, if the run stands at it: nobody has let it go on since, but for single calls."""
    for row in reversed(rows):
        if row.kind is StepKind.MODEL:
            return row if "response" in (row.outcome or {}) else None
        if (
            row.kind is StepKind.CONTROL
            and row.intent.get("control") not in _PASSED_OVER
            and "granted" not in row.intent
        ):
            return None
    return None


def _state_of(row: StepRow | None) -> CallState | None:
    if row is None:
        return CallState.NOT_RUN
    if row.outcome is None:
        return None  # a worker is at it
    if row.outcome.get("halt", {}).get("reason") == APPROVAL_NEEDED:
        return CallState.NEEDS_APPROVAL
    if not row.intent["execute"]:
        return CallState.REFUSED
    return None if row.outcome.get("code") is None else CallState.FAILED
