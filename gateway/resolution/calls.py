"""Decisions on a single call that waits for consent: it runs, it runs otherwise, or it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from sqlalchemy.engine import Connection

from gateway.agent.open_calls import CallState
from gateway.agent.policing import guard_of, limits_of, picture_facts, policy_of, trace_of
from gateway.agent.tools import Tool, as_text, tools_of
from gateway.decision import ScreenedFile
from gateway.item import Item
from gateway.profiles import Profile
from gateway.resolution.decisions import ApproveCall, DenyCall, EditCall
from gateway.resolution.goes_on import find_open_call
from gateway.resolution.moves import Reviewer, control, go_on
from gateway.resolution.refusals import NotAllowed, WrongField
from gateway.store import steps
from guard import Guard, ToolCall
from guard.call import read_keys
from guard.trace import CallRecord, ControlRecord
from prefilters.screening import Screening


@dataclass(frozen=True, slots=True)
class Consent:
    """A call that a person agreed to, judged once more: the guard's records, and what it may say beside the result."""

    records: tuple[ControlRecord, CallRecord]
    append: str | None

    @property
    def step(self) -> int:
        """Its number among the run's calls."""
        return self.records[1].view.step


def approve_call(
    connection: Connection, item: Item, profile: Profile, reviewer: Reviewer, decision: ApproveCall
) -> None:
    """The call runs as it stands, once; then the others of its message are judged as usual."""
    call = find_open_call(connection, item, decision.call_id, state=CallState.NEEDS_APPROVAL)
    guard = guard_at(connection, item, profile)
    asked = ToolCall(call.tool, args_raw=call.arguments, call_id=call.call_id)
    consent = consented(guard, asked, note=decision.message or "approved", is_edited=False)
    granted = {"call_id": call.call_id, "step": consent.step, "append": consent.append, "note": decision.message}
    go_on(connection, item, reviewer, *consent.records, text=None, reason="call_approved", said={"granted": granted})


def edit_call(connection: Connection, item: Item, profile: Profile, reviewer: Reviewer, decision: EditCall) -> None:
    """Another call runs in its place, once, if the tool's schema and the guard take it; the rest of the message does not."""
    call = find_open_call(connection, item, decision.call_id, state=CallState.NEEDS_APPROVAL)
    tool = decision.tool or call.tool
    check_edited(tools_of(profile), tool, decision.args)
    guard = guard_at(connection, item, profile)
    asked = ToolCall(tool, args=decision.args, call_id=call.call_id)
    consent = consented(guard, asked, note=decision.message or "edited", is_edited=True)
    granted = {
        "call_id": call.call_id,
        "step": consent.step,
        "append": consent.append,
        "note": decision.message,
        "edited": {"tool": tool, "arguments": json.dumps(decision.args, ensure_ascii=False)},
    }
    go_on(connection, item, reviewer, *consent.records, text=None, reason="call_edited", said={"granted": granted})


def deny_call(connection: Connection, item: Item, reviewer: Reviewer, decision: DenyCall) -> None:
    """The call stays unrun, and the agent reads why."""
    call = find_open_call(connection, item, decision.call_id, state=CallState.NEEDS_APPROVAL)
    said = {"answers": [{"call_id": call.call_id, "content": denied_content(decision.message)}]}
    record = control(note=f"denied {call.tool}: {decision.message}"[:2000])
    go_on(connection, item, reviewer, record, text=None, reason="call_denied", said=said)


def denied_content(message: str) -> str:
    """What stands in place of the result of a call that a person refused."""
    return as_text({"error": {"code": "denied_by_reviewer", "message": f"A reviewer refused this call: {message}"}})


def consented(guard: Guard, asked: ToolCall, *, note: str, is_edited: bool) -> Consent:
    """The call in a new epoch, with the person's consent. Raises `NotAllowed` where the guard refuses it all the same.

    That the call itself was held back is no evidence against it; what is known of an edited one stays so.
    """
    traits = guard.tools.get(asked.tool)
    ignored = frozenset(() if traits is None else traits.ignore_args)
    signature = read_keys(asked, ignored).signature
    agreed = control(forgiven=() if is_edited else (signature,), approved=(signature,), note=note[:2000])
    guard.resume(forgive=agreed.forgiven, approve=agreed.approved, note=agreed.note, now=agreed.now)
    decision = guard.before(asked, now=agreed.now)
    record = guard.last_record
    assert isinstance(record, CallRecord)
    if not decision.execute:
        why = decision.reason.text if decision.reason is not None else "The guard refuses it."
        raise denied(f"The guard refuses this call: {why}", WrongField("/args", "guard", why))
    return Consent((agreed, record), decision.append)


def check_edited(tools: Mapping[str, Tool], name: str, args: Mapping[str, Any]) -> None:
    """Hold an edited call against the tool that it names. Raises `NotAllowed`."""
    tool = tools.get(name)
    if tool is None:
        listed = ", ".join(tools)
        raise denied(
            f"There is no tool {name[:64]!r}; there are: {listed}.",
            WrongField("/tool", "unknown_tool", f"Use one of {listed}."),
        )
    errors = sorted(Draft202012Validator(tool.schema).iter_errors(args), key=lambda error: list(map(str, error.path)))
    if errors:
        fields = [
            WrongField("/args" + "".join(f"/{part}" for part in error.path), "schema", error.message[:300])
            for error in errors[:20]
        ]
        raise denied(f"{name} does not take these arguments: {fields[0].pointer}: {fields[0].detail}", *fields)


def denied(public: str, *fields: WrongField) -> NotAllowed:
    """An edited or approved call that may not run."""
    return NotAllowed(public, code="edited_call_denied", fields=fields)


def guard_at(connection: Connection, item: Item, profile: Profile) -> Guard:
    """The guard of the item's current attempt, as its steps left it."""
    rows = [row for row in steps.all_of(connection, item.id) if row.attempt == item.attempt]
    files = [
        ScreenedFile(file, Screening.from_json(file.screening)) for file in item.files if file.screening is not None
    ]
    policy = policy_of(profile, limits_of(item, profile))
    return guard_of(trace_of(rows), policy, tools_of(profile).values(), picture_facts(files))
