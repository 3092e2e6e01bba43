"""Decisions on a run of somebody else's agent: held against the run when they are made, carried out when it fetches them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from gateway.escalation import EscalationRecord
from gateway.guard_requests import read_definition
from gateway.resolution.calls import consented
from gateway.resolution.decisions import AnswerTool, AnyDecision, ApproveCall, DenyCall, EditCall, Resume
from gateway.resolution.refusals import check_tools, wrong_field
from gateway.store import guard_runs as run_store
from guard import Guard, ToolCall, Trace, record_from_json


def check_for_run(connection: Connection, run_id: str, record: EscalationRecord, decision: AnyDecision) -> None:
    """Raise `NotAllowed` for what the run could not be told: unknown tools and calls, and a call that its guard refuses."""
    tools = tuple(run_store.definition_of(connection, run_id)["tools"])
    match decision:
        case Resume():
            check_tools(decision.ban_tools, tools)
        case AnswerTool() | DenyCall():
            open_call(record, decision.call_id)
        case ApproveCall() | EditCall():
            call = open_call(record, decision.call_id)
            if isinstance(decision, EditCall) and decision.tool is not None:
                check_tools([decision.tool], tools, pointer="/tool")
            guard = rebuilt(connection, run_id, record_count=None)
            consented(guard, asked_call(call, decision), note="consent", is_edited=isinstance(decision, EditCall))
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


def asked_call(call: Mapping[str, Any], decision: ApproveCall | EditCall) -> ToolCall:
    """The call that is to run by this decision."""
    if isinstance(decision, EditCall):
        return ToolCall(decision.tool or call["tool"], args=decision.args, call_id=call["call_id"])
    return ToolCall(call["tool"], args=call.get("args"), args_raw=call.get("args_raw"), call_id=call["call_id"])


def rebuilt(connection: Connection, run_id: str, *, record_count: int | None) -> Guard:
    """The run's guard from its whole trace, for a trial."""
    definition = run_store.definition_of(connection, run_id)
    policy, tools = read_definition(definition)
    records = [record_from_json(stored) for stored in run_store.records_after(connection, run_id, after=0)]
    trace = Trace(records if record_count is None else records[:record_count])
    return Guard.from_trace(trace, policy, tools=tools, facts=definition["facts"])
