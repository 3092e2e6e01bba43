"""Cases from hand to hand: assigned, given back with a note, annotated, reopened, withdrawn; and all of it in the audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.store import escalation_leases as leases
from gateway.store import escalations as case_store
from gateway.store import items as item_store
from tests.gateway.conftest import store_key
from tests.gateway.model_stub import COPY
from tests.gateway.queue_client import Queue, queue_of, refused
from tests.gateway.running import Service, bearer

REJECT = {"action": "reject_item", "message": "Please send a sharper photo."}


@pytest.fixture
def queue(api: Service, name: str) -> Iterator[Queue]:
    with queue_of(api, name) as made:
        yield made


@pytest.fixture
def reviewer(queue: Queue) -> Iterator[httpx.Client]:
    """A client that may review for people, and is no lead."""
    key = store_key(queue.service, queue.tenant, "review", "review:delegate")
    with queue.service.client(headers=bearer(key)) as client:
        yield client


def test_lead_takes_over_and_the_holder_before_is_told_who_has_it_now(queue: Queue) -> None:
    case = queue.raised()
    token = queue.post(f"{case}/claim", {}, On_Behalf_Of="ann").json()["lease"]["token"]
    given = queue.post(f"{case}/assign", {"user": "me", "note": "Ann is ill"}, On_Behalf_Of="lea").json()
    assert (given["escalation"]["holder"], given["lease"]["fence"]) == ("person:lea", 2)
    for path, body in (("heartbeat", {}), ("release", {}), ("resolve", REJECT)):
        answer = queue.post(f"{case}/{path}", {"lease_token": token, **body}, On_Behalf_Of="ann", If_Match='"3"')
        lost = refused(answer, 409, "lease_lost")
        assert lost["holder"] == "person:lea"
        changed = lost["changed"]
        assert (changed["what"], changed["by"], changed["note"]) == ("assigned", "person:lea", "Ann is ill")
    assigned = queue.events_of(case)[-1]
    assert (assigned["type"], assigned["data"]["previous_holder"]) == ("escalation.assigned", "person:ann")
    body = {"lease_token": given["lease"]["token"], **REJECT}
    etag = f'"{given["escalation"]["version"]}"'
    assert queue.post(f"{case}/resolve", body, If_Match=etag, On_Behalf_Of="lea").status_code == 200


def test_token_of_a_colleagues_lease_is_worth_nothing_in_other_hands(queue: Queue, reviewer: httpx.Client) -> None:
    case = queue.raised()
    claim = reviewer.post(f"/v1/escalations/{case}/claim", json={}, headers={"On-Behalf-Of": "ann"})
    token, etag = claim.json()["lease"]["token"], claim.headers["ETag"]
    for path, body in (("heartbeat", {}), ("release", {}), ("resolve", REJECT)):
        for client, person in ((reviewer, "bob"), (reviewer, None), (queue.client, "lea"), (queue.client, None)):
            headers = {"If-Match": etag, **({} if person is None else {"On-Behalf-Of": person})}
            answer = client.post(f"/v1/escalations/{case}/{path}", json={"lease_token": token, **body}, headers=headers)
            assert refused(answer, 409, "lease_lost")["holder"] == "person:ann"
    assert (queue.get(case)["holder"], queue.whats(case)) == ("person:ann", ["opened", "claimed"])
    answer = queue.post(f"{case}/resolve", {"lease_token": token, **REJECT}, If_Match=etag, On_Behalf_Of="ann")
    assert (answer.status_code, answer.json()["resolution"]["by"]) == (200, "person:ann")


def test_assigned_case_is_the_persons_and_its_token_comes_with_their_claim(queue: Queue) -> None:
    case = queue.raised()
    given = queue.post(f"{case}/assign", {"user": "bob@example.org"})
    assert "lease" not in given.json()
    assert given.json()["holder"] == "person:bob@example.org"
    assert queue.listed(assignee="person:bob@example.org") == [case]
    refused(queue.post(f"{case}/claim", {}, On_Behalf_Of="ann"), 409, "already_claimed")
    assert queue.post(f"{case}/claim", {}, On_Behalf_Of="bob@example.org").json()["lease"]["fence"] == 1


def test_reviewer_hands_on_what_they_hold_and_nothing_else(queue: Queue, reviewer: httpx.Client) -> None:
    mine, other = queue.raised(), queue.raised()
    ann = {"On-Behalf-Of": "ann"}
    assert reviewer.post(f"/v1/escalations/{mine}/claim", json={}, headers=ann).status_code == 200
    assert queue.post(f"{other}/claim", {}, On_Behalf_Of="bob").status_code == 200
    handed = reviewer.post(f"/v1/escalations/{mine}/assign", json={"user": "bob"}, headers=ann)
    assert handed.json()["holder"] == "person:bob"
    for case in (mine, other, queue.raised()):
        for user in ("me", "carl"):
            answer = reviewer.post(f"/v1/escalations/{case}/assign", json={"user": user}, headers=ann)
            refused(answer, 403, "forbidden")


@pytest.mark.parametrize("user", ["", 5, None, "x" * 101, "a\nb"])
def test_assigning_to_nobody_is_a_400(queue: Queue, user: Any) -> None:
    refused(queue.post(f"{queue.raised()}/assign", {"user": user}), 400, "invalid_request")


def test_assigning_what_is_decided_or_gone_says_so(queue: Queue) -> None:
    done, gone = queue.raised(), queue.raised()
    queue.decided(done, **REJECT)
    queue.client.post(f"/v1/items/{queue.get(gone)['item']}/cancel")
    assert refused(queue.post(f"{done}/assign", {"user": "bob"}), 409, "already_resolved")["resolution"]
    refused(queue.post(f"{gone}/assign", {"user": "bob"}), 409, "escalation_withdrawn")


def test_audit_tells_every_change_with_who_when_and_what(queue: Queue) -> None:
    case = queue.raised()
    token = queue.post(f"{case}/claim", {}, On_Behalf_Of="ann").json()["lease"]["token"]
    queue.post(f"{case}/release", {"lease_token": token, "note": "lunch"}, On_Behalf_Of="ann")
    note = queue.post(f"{case}/notes", {"text": "The label is torn."}, On_Behalf_Of="bob")
    assert (note.status_code, note.json()["note"], note.json()["actor"]) == (201, "The label is torn.", "person:bob")
    queue.post(f"{case}/assign", {"user": "bob"})
    claimed = queue.post(f"{case}/claim", {}, On_Behalf_Of="bob")
    body = {"lease_token": claimed.json()["lease"]["token"], **REJECT, "note": "torn"}
    queue.post(f"{case}/resolve", body, If_Match=claimed.headers["ETag"], On_Behalf_Of="bob")
    audit = queue.audit(case)
    assert [(entry["what"], entry["actor"].split(":")[-1][:4], entry["from"], entry["to"]) for entry in audit] == [
        ("opened", "queu", None, "open"),
        ("claimed", "ann", "open", "claimed"),
        ("released", "ann", "claimed", "open"),
        ("noted", "bob", "open", "open"),
        ("assigned", "key_", "open", "claimed"),
        ("resolved", "bob", "claimed", "applied"),
    ]
    assert [entry["note"] for entry in audit] == [None, None, "lunch", "The label is torn.", None, "torn"]
    assert [entry["at"] for entry in audit] == sorted(entry["at"] for entry in audit)
    assert [entry["fence"] for entry in audit] == [0, 1, 1, 1, 2, 2]
    kinds = [event["type"].split(".")[1] for event in queue.events_of(case)]
    assert kinds == ["opened", "claimed", "released", "noted", "assigned", "resolved"]


@pytest.mark.parametrize("body", [{}, {"text": ""}, {"text": "  "}, {"text": 5}, {"text": "x" * 2001}, {"note": "x"}])
def test_note_without_words_is_a_400(queue: Queue, body: dict[str, Any]) -> None:
    refused(queue.post(f"{queue.raised()}/notes", body), 400, "invalid_request")


def test_cases_of_other_tenants_are_not_there_for_any_verb(queue: Queue, api: Service) -> None:
    case = queue.raised()
    group = queue.get(case)["group"]
    with api.client(headers=bearer(store_key(api, f"{queue.tenant}-other"))) as stranger:
        for path, body in (
            ("assign", {"user": "x"}), ("notes", {"text": "x"}), ("undo", {}), ("reopen", {"reason": "x"}),
        ):  # fmt: skip
            refused(stranger.post(f"/v1/escalations/{case}/{path}", json=body), 404, "not_found")
        refused(stranger.get(f"/v1/escalations/{case}/audit"), 404, "not_found")
        refused(stranger.get(f"/v1/escalation-groups/{group}"), 404, "not_found")
        for path, more in (
            ("resolve", {"expected_count": 1, **REJECT}),
            ("merge", {"groups": [group]}),
            ("split", {"ids": [case]}),
        ):
            refused(stranger.post(f"/v1/escalation-groups/{group}/{path}", json=more), 404, "not_found")
        bulk = stranger.post("/v1/escalations/bulk", json={"ids": [case], **REJECT}).json()
        assert [one["result"] for one in bulk["results"]] == ["not_found"]
        assert stranger.get("/v1/escalation-groups").json()["groups"] == []
        assert stranger.get("/v1/escalations/stats").json()["open"] == 0
    assert queue.get(case)["status"] == "open"


def test_what_a_person_holds_is_open_for_others_once_their_role_ends(queue: Queue) -> None:
    case, other = queue.raised(), queue.raised()
    token = queue.post(f"{case}/claim", {}, On_Behalf_Of="ann").json()["lease"]["token"]
    queue.post(f"{other}/claim", {}, On_Behalf_Of="bob")
    freed = queue.database.transact(
        lambda connection: leases.free_all_of(
            connection, tenant=queue.tenant, holder="person:ann", actor="person:root", why="role_revoked"
        )
    )
    assert freed == [case]
    lost = refused(queue.post(f"{case}/heartbeat", {"lease_token": token}, On_Behalf_Of="ann"), 409, "lease_lost")
    assert (lost["holder"], lost["changed"]["by"]) == (None, "person:root")
    assert (queue.get(case)["status"], queue.get(other)["holder"]) == ("open", "person:bob")
    assert queue.audit(case)[-1]["detail"] == {"previous_holder": "person:ann", "why": "role_revoked"}


# --- taken up again --------------------------------------------------------------------------------------------------


def test_rejected_item_comes_back_under_the_same_case(queue: Queue) -> None:
    case = queue.raised()
    queue.decided(case, **REJECT)
    assert queue.item(case)["status"] == "rejected"
    again = queue.post(f"{case}/reopen", {"reason": "The photo was fine."}, On_Behalf_Of="lea")
    assert (again.status_code, again.json()["id"], again.json()["status"]) == (200, case, "open")
    assert (again.json()["reopen_count"], again.json()["resolution"], again.json()["apply_at"]) == (1, None, None)
    assert queue.item(case)["status"] == "awaiting_human"
    entry = queue.audit(case)[-1]
    assert (entry["what"], entry["actor"], entry["note"]) == ("reopened", "person:lea", "The photo was fine.")
    assert entry["detail"]["decided"] == "reject_item"
    queue.decided(case, "answer_item", output=COPY)
    assert queue.item(case)["status"] == "succeeded"
    assert queue.whats(case) == ["opened", "claimed", "resolved", "reopened", "claimed", "resolved"]


def test_item_that_is_worked_on_again_comes_back_under_a_new_case_that_names_the_old_one(queue: Queue) -> None:
    case = queue.raised()
    queue.decided(case, "resume", guidance="Try the back of the label.")
    item = queue.get(case)["item"]
    lease = queue.database.transact(lambda c: item_store.claim(c, item, owner="worker", lease_ms=60_000))
    assert lease is not None
    again = queue.post(f"{case}/reopen", {"reason": "I meant another item."})
    linked = again.json()["id"]
    assert (again.status_code, again.headers["Location"]) == (201, f"/v1/escalations/{linked}")
    assert (linked != case, again.json()["reopens"], again.json()["came_back_after"]) == (True, case, None)
    assert queue.get(case)["status"] == "applied"
    assert (queue.item(linked)["status"], queue.item(linked)["escalation"]) == ("awaiting_human", linked)
    assert queue.database.transact(lambda c: item_store.holds(c, lease)) is False
    queue.decided(linked, "reroute", route="text_only")
    assert queue.item(linked)["attempt"] == 2


def test_case_whose_run_is_over_offers_no_resume_once_it_is_taken_up_again(queue: Queue) -> None:
    case = queue.raised()
    queue.decided(case, "reroute", route="text_only")
    linked = queue.post(f"{case}/reopen", {"reason": "wrong route"}).json()
    offered = [action["action"] for action in linked["allowed_actions"]]
    assert "resume" not in offered
    assert "reroute" in offered


def test_delivered_outcome_cannot_be_taken_up_again(queue: Queue) -> None:
    case = queue.raised()
    queue.decided(case, "answer_item", output=COPY)
    problem = refused(queue.post(f"{case}/reopen", {"reason": "typo"}), 409, "item_state_conflict")
    assert problem["item_status"] == "succeeded"
    undecided = queue.raised()
    refused(queue.post(f"{undecided}/reopen", {"reason": "why not"}), 409, "item_state_conflict")
    queue.client.post(f"/v1/items/{queue.get(undecided)['item']}/cancel")
    refused(queue.post(f"{undecided}/reopen", {"reason": "why not"}), 409, "escalation_withdrawn")


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": 1}, {"reason": "x", "id": "y"}])
def test_reopening_needs_a_reason(queue: Queue, body: dict[str, Any]) -> None:
    refused(queue.post(f"{queue.raised()}/reopen", body), 400, "invalid_request")


def test_same_incident_after_its_decision_is_a_new_case_that_says_after_what_it_came_back(queue: Queue) -> None:
    case = queue.raised()
    queue.decided(case, "resume", guidance="Look again.")
    again = queue.raised_again(case)
    shown = queue.get(again)
    assert (shown["came_back_after"], shown["group"]) == ("resume", queue.get(case)["group"])
    decided = queue.client.get("/v1/decisions", params={"by": "me", "escalation": case}).json()["decisions"]
    assert (decided[0]["action"], decided[0]["outcome"]["came_back"]) == ("resume", True)


def test_withdrawn_case_tells_its_holder_in_the_event_and_at_the_next_call(queue: Queue) -> None:
    case = queue.raised()
    token = queue.post(f"{case}/claim", {}, On_Behalf_Of="ann").json()["lease"]["token"]
    queue.client.post(f"/v1/items/{queue.get(case)['item']}/cancel")
    event = queue.events_of(case)[-1]
    assert (event["type"], event["data"]["holder"]) == ("escalation.withdrawn", "person:ann")
    for path, body in (("heartbeat", {}), ("release", {}), ("resolve", REJECT)):
        answer = queue.post(f"{case}/{path}", {"lease_token": token, **body}, If_Match='"9"')
        refused(answer, 409, "escalation_withdrawn")
    assert queue.whats(case)[-1] == "withdrawn"


def test_figures_tell_open_held_overdue_and_how_long_people_took(queue: Queue) -> None:
    assert queue.client.get("/v1/escalations/stats").json()["why_empty"] == "nothing_open"
    first, second = queue.raised(due_ms=-1000), queue.raised(reason="budget", tool=None)
    queue.claimed(first)
    found = queue.client.get("/v1/escalations/stats").json()
    assert (found["open"], found["claimed"], found["overdue"], found["why_empty"]) == (1, 1, 1, None)
    assert found["by_reason"] == {"repeated_tool_calls": 1, "budget": 1}
    assert found["oldest_age_s"] >= 0
    queue.claimed(second)
    assert queue.client.get("/v1/escalations/stats").json()["why_empty"] == "all_claimed"
    queue.decided(first, **REJECT)
    found = queue.client.get("/v1/escalations/stats").json()
    assert (found["decisions"], found["timeouts"]) == ({"reject_item": 1}, {})
    assert found["time_to_resolve"]["count"] == 1
    assert found["time_to_resolve"]["p50_s"] >= found["time_to_claim"]["p50_s"] >= 0


def test_list_says_why_it_is_empty_and_narrows_by_what_is_overdue_or_was_decided_by_whom(queue: Queue) -> None:
    def why(**query: Any) -> str | None:
        found: str | None = queue.client.get("/v1/escalations", params=query).json()["queue"]["why"]
        return found

    def is_empty(**query: Any) -> bool:
        return bool(queue.client.get("/v1/escalations", params=query).json()["queue"]["empty"])

    assert (why(), is_empty()) == ("nothing_open", True)
    late, fine = queue.raised(due_ms=-1000, priority=40), queue.raised(priority=7)
    assert (why(), why(tool="read_pdf")) == (None, "hidden_by_filter")
    assert (is_empty(), is_empty(tool="read_pdf")) == (False, True)
    assert (queue.listed(overdue="true"), queue.listed(overdue="false")) == ([late], [late, fine])
    assert queue.listed(min_priority="8") == [late]
    queue.claimed(late)
    queue.claimed(fine)
    assert why() == "all_claimed"
    assert queue.listed(resolved_by="me") == []
    queue.decided(late, **REJECT)
    assert queue.listed(resolved_by="me") == [late]
    assert queue.listed(resolved_by="person:ann") == []
    refused(queue.client.get("/v1/escalations", params={"overdue": "yes"}), 400, "invalid_request")


def test_case_without_a_group_is_decided_as_any_other(queue: Queue) -> None:
    case = queue.raised()
    forget = case_store.escalations.update().where(case_store.escalations.c.id == case)
    values = {"group_id": None, "fingerprint": None, "on_expire": None}
    queue.database.transact(lambda connection: connection.execute(forget.values(**values)))
    assert queue.get(case)["group"] is None
    assert queue.decided(case, **REJECT)["status"] == "applied"


def test_item_with_an_open_case_of_another_attempt_does_not_get_two(queue: Queue, api: Service) -> None:
    case = queue.raised()
    queue.decided(case, "resume", guidance="go")
    first = queue.post(f"{case}/reopen", {"reason": "one"})
    assert first.status_code == 201
    second = refused(queue.post(f"{case}/reopen", {"reason": "two"}), 409, "item_state_conflict")
    assert first.json()["id"] in second["detail"]
    assert len(queue.listed(item=queue.get(case)["item"])) == 2
