"""Decisions on a run of somebody else's agent: held against the run when they are made, carried out when it fetches them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from gateway.escalation import EscalationRecord
from gateway.guarding.requests import read_definition
from gateway.resolution.calls import consented, denied
from gateway.resolution.decisions import AnswerTool, AnyDecision, ApproveCall, DenyCall, EditCall, Resume
from gateway.resolution.refusals import WrongField, check_tools, wrong_field
from gateway.store import guard_runs as run_store
from guard import Guard, ToolCall, Trace, record_from_json


def check_for_run(connection: Connection, run_id: str, record: EscalationRecord, decision: AnyDecision) -> None:
    """Raise `NotAllowed` for what the run could not be told: unknown tools and calls, and a call that its guard refuses."""
    tools = run_store.known_tools(connection, run_id)
    match decision:
        case Resume():
            check_tools(decision.ban_tools, tools)
        case AnswerTool() | DenyCall() | ApproveCall():
            open_call(record, decision.call_id)
        case EditCall():
            call = open_call(record, decision.call_id)
            tool = decision.tool or str(call["tool"])
            if tools and tool not in tools:
                listed = ", ".join(tools)
                field = WrongField("/tool", "unknown_tool", f"Use one of {listed}.")
                raise denied(f"There is no tool {tool[:64]!r} in this run; there are: {listed}.", field)
            edited = ToolCall(tool, args=decision.args, call_id=decision.call_id)
            consented(rebuilt(connection, run_id), edited, note="consent", is_edited=True)
        case _:
            return


def open_call(record: EscalationRecord, call_id: str) -> Mapping[str, Any]:
    """The call of this id that stands open in the case. Raises `NotAllowed` that lists those that there are."""
    calls = record.packet.get("open_calls") or ()
    for call in calls:
        if call["call_id"] == call_id:
            found: Mapping[str, Any] = call
            return found
    listed = ", ".join(f"{call['call_id']} ({call['tool']})" for call in calls) or "none"
    raise wrong_field("/call_id", "unknown_call", f"There is no such open call; there are: {listed}.")


def rebuilt(connection: Connection, run_id: str) -> Guard:
    """The run's guard from its whole trace, for a trial."""
    definition = run_store.definition_of(connection, run_id)
    policy, tools = read_definition(definition)
    records = [record_from_json(stored) for stored in run_store.records_after(connection, run_id, after=0)]
    return Guard.from_trace(Trace(records), policy, tools=tools, facts=definition["facts"])
