"""Decisions after which the same attempt goes on: advice, a false alarm, an answer in a tool's place."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from fallback.text_only import fenced
from gateway.agent.open_calls import CallState, OpenCall, open_calls
from gateway.agent.tools import as_text, tools_of
from gateway.escalation import EscalationRecord
from gateway.item import Item
from gateway.profiles import Profile
from gateway.resolution.decisions import AnswerTool, Dismiss, Resume
from gateway.resolution.moves import FALSE_ALARM, Reviewer, advice, control, go_on
from gateway.resolution.refusals import check_tools, wrong_field
from gateway.store import steps

_ON_BEHALF = (
    "A reviewer gave this result in the tool's place; the tool was not run. Take it as it is, and do not call it again."
)


def resume(connection: Connection, item: Item, profile: Profile | None, reviewer: Reviewer, decision: Resume) -> None:
    """The open calls stay unrun, and the agent reads the advice next."""
    check_tools(decision.ban_tools, known_tools(profile))
    record = control(ban_tools=tuple(decision.ban_tools), extra_steps=decision.extra_steps, note=decision.guidance)
    go_on(connection, item, reviewer, record, text=advice(decision.guidance))


def dismiss(
    connection: Connection, item: Item, reviewer: Reviewer, record: EscalationRecord, decision: Dismiss
) -> None:
    """The ladder of the call that was refused begins anew."""
    signature = record.packet.get("signature")
    forgiven = (str(signature),) if signature else ()
    go_on(connection, item, reviewer, control(forgiven=forgiven, note="false alarm"), text=FALSE_ALARM)


def answer_tool(connection: Connection, item: Item, reviewer: Reviewer, decision: AnswerTool) -> None:
    """The call gets the reviewer's result; the others of its message stay as they are."""
    call = find_open_call(connection, item, decision.call_id)
    content = answered_content(call.tool, decision.result)
    said = {"answers": [{"call_id": call.call_id, "content": content}]}
    note = f"answered {call.tool} at {call.call_id}"
    go_on(connection, item, reviewer, control(note=note), text=None, said=said)


def answered_content(tool: str, result: object) -> str:
    """A reviewer's result as the agent reads it: data, in a fence, and whose it is."""
    text = result if isinstance(result, str) else as_text(result)
    return "\n".join([fenced("tool-data", tool, text), _ON_BEHALF])


def find_open_call(connection: Connection, item: Item, call_id: str, *, state: CallState | None = None) -> OpenCall:
    """The open call of this id. Raises `NotAllowed` that lists those that there are."""
    rows = [row for row in steps.all_of(connection, item.id) if row.attempt == item.attempt]
    found = [call for call in open_calls(rows) if state is None or call.state is state]
    for call in found:
        if call.call_id == call_id:
            return call
    listed = ", ".join(f"{call.call_id} ({call.tool})" for call in found) or "none"
    raise wrong_field("/call_id", "unknown_call", f"There is no such open call; there are: {listed}.")


def known_tools(profile: Profile | None) -> tuple[str, ...]:
    """Names of the tools that the profile's agent has."""
    return () if profile is None else tuple(tools_of(profile))
