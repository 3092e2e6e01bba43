"""Decisions, questions, attempts and effects in either database: written with their effect, and read with what followed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.escalation import EscalationRecord, EscalationStatus
from gateway.item import Effect, Item, Mode, Status
from gateway.profiles import load_profiles
from gateway.resolution import DECISIONS, ItemMoved, Reviewer, apply
from gateway.resolution.asking import informed, timed_out
from gateway.store import decisions, effects, escalation_leases, escalations, inquiries, items, tables
from gateway.store.decisions import DecisionFilter
from gateway.store.engine import Database
from gateway.store.escalations import CaseFilter, NewEscalation
from gateway.verbs.retrying import Retry, retry
from gateway.verbs.superseding import check_supersedable, supersede

PROFILES = load_profiles()
PROFILE = PROFILES["product-copy"]
ANN = Reviewer("person:ann")
_HOUR_MS = 3_600_000


def waiting(database: Database, name: str, *, reason: str = "repeated_error") -> tuple[str, str]:
    """An item before a person, and its case."""

    def write(connection: Any) -> tuple[str, str]:
        at_ms = items.now_ms(connection)
        new = items.NewItem(
            id=f"itm_{name}", tenant="t", external_id=None, mode=Mode.GENERATE, profile="product-copy",
            profile_version=PROFILE.version, ruleset="rs_1", submission={"title": name}, notes=(), content_key=name,
            duplicate_of=None, retention_ms=_HOUR_MS, files=(),
        )  # fmt: skip
        item = items.insert(connection, new, actor="test", at_ms=at_ms)
        lease = items.claim(connection, item.id, owner="w", lease_ms=60_000)
        assert lease is not None
        packet = {"question": "How?", "resume_point": 3, "detector": "error_codes", "signature": "sha256:1"}
        case = escalations.raise_case(
            connection,
            NewEscalation(
                tenant="t", item_id=item.id, attempt=1, profile="product-copy", reason=reason, tool="ocr_extract",
                packet=packet, due_after_ms=_HOUR_MS, expires_after_ms=9 * _HOUR_MS,
            ),
        )  # fmt: skip
        moved = items.transition(
            connection, item.id, expected=(Status.INSPECTING,), to=Status.AWAITING_HUMAN, actor="w", fence=lease.fence,
            values={"escalation_id": case, "route": "agent"},
        )  # fmt: skip
        assert moved is not None
        return item.id, case

    return database.transact(write)


def case_of(database: Database, case: str) -> EscalationRecord:
    with database.read() as connection:
        found = escalations.get(connection, case, tenant="t")
    assert found is not None
    return found


def item_of(database: Database, item: str) -> Item:
    with database.read() as connection:
        found = items.get(connection, item)
    assert found is not None
    return found


def decide(database: Database, case: str, **decision: Any) -> None:
    wanted = DECISIONS.validate_python({"lease_token": "t", **decision})
    record = case_of(database, case)
    database.transact(lambda connection: apply(connection, PROFILES, record, wanted, ANN))


def ask(database: Database, case: str, seconds: float) -> None:
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    decide(database, case, action="ask_submitter", question="Which?", until=until)


def test_answered_question_gives_the_unused_time_back_and_goes_to_whoever_asked(database: Database) -> None:
    waiting(database, "soon")
    item, case = waiting(database, "asked")
    before = case_of(database, case)
    ask(database, case, 3600)
    asked = case_of(database, case)
    assert (asked.status, item_of(database, item).status) == (
        EscalationStatus.WAITING_SUBMITTER,
        Status.AWAITING_SUBMITTER,
    )
    assert asked.due_ms - before.due_ms == asked.expires_ms - before.expires_ms > 3_590_000

    def answer(connection: Any) -> None:
        inquiry = inquiries.open_of_item(connection, item)
        assert inquiry is not None
        waits = items.get(connection, item)
        assert waits is not None
        informed(connection, waits, inquiry, actor="key:shop", answer={"text": "The red one."})

    database.transact(answer)
    back = case_of(database, case)
    assert (back.status, back.resolution, item_of(database, item).status) == (
        EscalationStatus.OPEN, None, Status.AWAITING_HUMAN,
    )  # fmt: skip
    assert abs(back.due_ms - before.due_ms) < 5_000
    with database.read() as connection:
        assert inquiries.open_of_item(connection, item) is None
    taken = database.transact(
        lambda c: escalation_leases.claim_next(c, tenant="t", where=CaseFilter(), holder=ANN.name, lease_ms=9_000)
    )
    assert taken is not None
    assert taken[0] == case
    other = database.transact(
        lambda c: escalation_leases.claim_next(c, tenant="t", where=CaseFilter(), holder="person:bob", lease_ms=9_000)
    )
    assert other is not None
    assert other[0] != case


def test_overdue_question_ends_once_and_one_of_an_ended_item_changes_nothing(database: Database) -> None:
    item, case = waiting(database, "late")
    ask(database, case, 60)
    gone, other = waiting(database, "gone")
    ask(database, other, 60)
    database.transact(lambda c: c.execute(sa.update(tables.inquiries).values(until_ms=1)))
    database.transact(
        lambda c: items.transition(c, gone, expected=(Status.AWAITING_SUBMITTER,), to=Status.CANCELLED, actor="shop")
    )
    with database.read() as connection:
        overdue = inquiries.overdue(connection)
    ended = {one.item_id: database.transact(partial(timed_out, inquiry=one)) for one in overdue}
    assert ended == {item: True, gone: False}
    assert case_of(database, case).packet["inquiries"][0]["ended"] == "timed_out"
    with database.read() as connection:
        assert inquiries.overdue(connection) == []
        assert [one.ended for one in inquiries.of_item(connection, gone)] == ["withdrawn"]


def test_decisions_are_read_with_what_followed_and_counted_by_detector(database: Database) -> None:
    item, case = waiting(database, "resumed")
    decide(database, case, action="resume", guidance="Go on.")
    _, alarm = waiting(database, "alarm")
    decide(database, alarm, action="dismiss")
    _, refused = waiting(database, "refused")
    decide(database, refused, action="reject_item", message="No.")

    def read() -> dict[str, tuple[str | None, bool]]:
        with database.read() as connection:
            found = decisions.page(connection, tenant="t", where=DecisionFilter(actor=ANN.name), after=None, limit=10)
        return {record.action: (outcome.status, outcome.came_back) for record, outcome in found}

    assert read() == {"resume": (None, False), "dismiss": (None, False), "reject_item": ("rejected", False)}
    again = database.transact(lambda c: items.claim(c, item, owner="w", lease_ms=60_000))
    assert again is not None
    database.transact(
        lambda c: items.transition(c, item, expected=(Status.INSPECTING,), to=Status.AWAITING_HUMAN, actor="w")
    )
    assert read()["resume"] == ("awaiting_human", False)
    with database.read() as connection:
        [row] = decisions.precision(connection, tenant="t")
        first = decisions.page(connection, tenant="t", where=DecisionFilter(), after=None, limit=1)[0][0]
        rest = decisions.page(connection, tenant="t", where=DecisionFilter(), after=(first.at_ms, first.id), limit=10)
    assert (row.detector, row.tool, row.decided, row.false_alarms) == ("error_codes", "ocr_extract", 3, 1)
    assert first.id not in {record.id for record, _ in rest}
    assert len(rest) == 2


def test_second_decision_on_a_moved_item_changes_nothing(database: Database) -> None:
    item, case = waiting(database, "twice")
    decide(database, case, action="resume", guidance="Go on.")
    with pytest.raises(ItemMoved):
        decide(database, case, action="reject_item", message="No.")
    with database.read() as connection:
        found = decisions.page(connection, tenant="t", where=DecisionFilter(item_id=item), after=None, limit=10)
    assert [record.action for record, _ in found] == ["resume"]


def test_attempts_effects_and_links_are_read_back(database: Database) -> None:
    item, case = waiting(database, "old")
    decide(database, case, action="reject_item", message="No.")
    old = item_of(database, item)
    wanted = Retry("It is fine.", override=True, budget={"max_steps": 2})
    database.transact(lambda c: retry(c, old, PROFILE, wanted, actor="person:ann", advised_by="A reviewer says"))
    tried = item_of(database, item)
    assert (tried.attempt, tried.budget, tried.attempts[0].before["status"]) == (2, {"max_steps": 2}, "rejected")
    assert tried.decision is not None
    assert tried.decision["overridden"]["by"] == "person:ann"
    effect = Effect(4, "set_attribute", {"name": "material", "value": "wool"})
    database.transact(lambda c: effects.insert(c, item, effect))
    with pytest.raises(sa.exc.IntegrityError):
        database.transact(lambda c: effects.insert(c, item, effect))
    other, other_case = waiting(database, "replaced")

    def replace(connection: Any) -> None:
        supersede(connection, check_supersedable(connection, other, tenant="t"), item, actor="shop")

    database.transact(replace)
    assert (item_of(database, other).superseded_by, item_of(database, other).status) == (item, Status.CANCELLED)
    assert case_of(database, other_case).status is EscalationStatus.WITHDRAWN
