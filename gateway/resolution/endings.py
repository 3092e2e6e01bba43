"""Decisions that end an item, or a run: the copy by a person's hand, a refusal, a close."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from gateway.item import Item, Status
from gateway.profiles import Profile
from gateway.resolution.decisions import AnswerItem, Close, RejectItem
from gateway.resolution.moves import Reviewer, move
from gateway.resolution.refusals import ItemMoved, NotAllowed, WrongField
from gateway.store import guard_runs as run_store

_TITLE = "Rejected by a reviewer"


def answer_item(
    connection: Connection, item: Item, profile: Profile | None, reviewer: Reviewer, decision: AnswerItem
) -> None:
    """The reviewer's copy is the item's result, if the profile's schema takes it."""
    if profile is None:
        raise NotAllowed(f"The profile {item.profile} is no longer installed, so the copy cannot be checked.")
    output = {name: value for name, value in decision.output.items() if name != "produced_by"}
    problems = profile.output_problems(output)
    if problems:
        sentences = "; ".join(f"{pointer.strip('/') or 'the output'}: {detail}" for pointer, detail in problems[:10])
        fields = [WrongField(f"/output{pointer}", "schema", detail) for pointer, detail in problems]
        raise NotAllowed(f"The copy is not valid by the profile's schema: {sentences}", fields=fields)
    values = {"result": {**output, "produced_by": "human"}, "failure": None}
    move(connection, item, reviewer, Status.SUCCEEDED, reason=None, values=values)


def reject_item(connection: Connection, item: Item, reviewer: Reviewer, decision: RejectItem) -> None:
    """The item is refused, in words for its submitter."""
    worded = decision.message.model_dump()
    problem = {
        "type": "/problems/rule",
        "code": decision.reason_code,
        "title": _TITLE,
        "user_message": worded,
        "file": None,
        "part": None,
        "file_name": None,
        "measured": {},
        "limit": {},
        "rule": None,
        "next": "fix_input",
        "fix": worded,
    }
    decided = {**(item.decision or {}), "verdict": "reject", "stage": "person", "problem": problem, "reason": None}
    move(
        connection,
        item,
        reviewer,
        Status.REJECTED,
        reason=decision.reason_code,
        values={"decision": {**decided, "by": reviewer.name}},
    )


def close(connection: Connection, run_id: str, reviewer: Reviewer, decision: Close) -> None:
    """The run ends here. Raises `ItemMoved` where it has ended before."""
    outcome = {"outcome": "closed", "by": reviewer.name, "message": decision.message}
    if not run_store.close(connection, run_id, outcome=outcome):
        raise ItemMoved
