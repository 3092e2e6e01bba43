"""What time does to cases: decisions that can be taken back, warnings, urgency, leases and cases that run out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.escalation import OnExpire
from gateway.item import Status
from gateway.store import guard_runs, steps
from gateway.store import items as item_store
from gateway.store.steps import StepKind
from gateway.store.tables import escalations
from tests.gateway.conftest import store_key
from tests.gateway.model_stub import COPY
from tests.gateway.queue_client import HOUR_MS, Queue, queue_of, refused
from tests.gateway.running import Service, bearer, running, settled, until
from tests.gateway.test_metrics import value

REJECT = {"action": "reject_item", "message": "Please send a sharper photo."}
REFUSING_WORDS = ("reject", "refus", "den", "declin", "disallow", "forbid", "拒")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """API and worker, swept often."""
    settings = {"sweep_s": 0.2, "decoder_workers": 1, "ocr_workers": 1}
    with running("up", tmp_path_factory.mktemp("clock"), **settings) as service:
        yield service


@pytest.fixture
def queue(quick: Service, name: str) -> Iterator[Queue]:
    with queue_of(quick, name) as made:
        yield made


def pending(queue: Queue, case: str, undo_s: float, **decision: Any) -> dict[str, Any]:
    """Decide so that it can be taken back for a while."""
    token, etag = queue.claimed(case)
    answer = queue.post(f"{case}/resolve", {"lease_token": token, "undo_s": undo_s, **decision}, If_Match=etag)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def status_of(queue: Queue, case: str) -> str:
    return str(queue.get(case)["status"])


# --- taken back ------------------------------------------------------------------------------------------------------


def test_decision_waits_and_then_takes_effect_though_nobody_looks_any_more(queue: Queue) -> None:
    case = queue.raised()
    decided = pending(queue, case, 1, action="answer_item", output=COPY)
    assert (decided["status"], decided["apply_at"] is not None) == ("resolved", True)
    assert queue.item(case)["status"] == "awaiting_human"
    until(lambda: status_of(queue, case) == "applied", within_s=10)
    assert queue.item(case)["status"] == "succeeded"
    assert queue.whats(case) == ["opened", "claimed", "resolved", "applied"]
    history = queue.client.get(f"/v1/items/{queue.get(case)['item']}/explanation").json()["history"]
    assert history[-1]["actor"] == queue.get(case)["resolution"]["by"]


def test_decision_that_is_taken_back_is_in_the_same_hands_and_has_had_no_effect(queue: Queue) -> None:
    case = queue.raised()
    pending(queue, case, 30, **REJECT)
    refused(queue.post(f"{case}/claim", {}, On_Behalf_Of="ann"), 409, "already_resolved")
    back = queue.post(f"{case}/undo")
    assert back.status_code == 200, back.text
    shown = back.json()["escalation"]
    assert (shown["status"], shown["resolution"], shown["apply_at"]) == ("claimed", None, None)
    assert queue.whats(case) == ["opened", "claimed", "resolved", "undone"]
    body = {"lease_token": back.json()["lease"]["token"], "action": "answer_item", "output": COPY}
    assert queue.post(f"{case}/resolve", body, If_Match=back.headers["ETag"]).json()["status"] == "applied"
    assert queue.item(case)["status"] == "succeeded"


def test_lease_of_a_decided_case_is_over_and_nobody_is_said_to_hold_it(queue: Queue) -> None:
    case = queue.raised()
    token, etag = queue.claimed(case)
    decision = {"lease_token": token, **REJECT}
    assert queue.post(f"{case}/resolve", decision, If_Match=etag).status_code == 200
    lost = refused(queue.post(f"{case}/heartbeat", {"lease_token": token}), 409, "lease_lost")
    assert (lost["holder"], lost["escalation_status"], lost["changed"]["what"]) == (None, "applied", "resolved")
    assert lost["detail"].endswith("It is applied now.")


def test_only_who_decided_or_a_lead_takes_a_decision_back_and_not_once_it_took_effect(queue: Queue) -> None:
    case = queue.raised()
    pending(queue, case, 30, **REJECT)
    key = store_key(queue.service, queue.tenant, "review", "review:delegate")
    with queue.service.client(headers=bearer(key)) as other:
        answer = other.post(f"/v1/escalations/{case}/undo", json={}, headers={"On-Behalf-Of": "ann"})
        refused(answer, 403, "forbidden")
    assert queue.post(f"{case}/undo", {}, On_Behalf_Of="lea").json()["escalation"]["holder"] == "person:lea"
    done = queue.raised()
    queue.decided(done, **REJECT)
    refused(queue.post(f"{done}/undo"), 409, "already_resolved")
    undecided = refused(queue.post(f"{queue.raised()}/undo"), 409, "already_claimed")
    assert undecided["detail"] == "This is open: nothing is decided here yet."


def test_colleague_reopens_no_decision_that_can_still_be_taken_back(queue: Queue) -> None:
    by_colleague, by_themselves, by_lead, later = (queue.raised() for _ in range(4))
    key = store_key(queue.service, queue.tenant, "review", "review:delegate")
    why = {"reason": "The label can be read."}

    def reopened(case: str, person: str) -> httpx.Response:
        return client.post(f"/v1/escalations/{case}/reopen", json=why, headers={"On-Behalf-Of": person})

    with queue.service.client(headers=bearer(key)) as client:
        for case, undo_s in ((by_colleague, 60), (by_themselves, 60), (by_lead, 60), (later, 0)):
            headers = {"On-Behalf-Of": "ann"}
            claim = client.post(f"/v1/escalations/{case}/claim", json={}, headers=headers)
            body = {"lease_token": claim.json()["lease"]["token"], "undo_s": undo_s, **REJECT}
            headers["If-Match"] = claim.headers["ETag"]
            assert client.post(f"/v1/escalations/{case}/resolve", json=body, headers=headers).status_code == 200
        problem = refused(reopened(by_colleague, "bob"), 403, "forbidden")
        assert problem["detail"].startswith("person:ann decided this")
        assert status_of(queue, by_colleague) == "resolved"
        assert reopened(by_themselves, "ann").json()["status"] == "open"
        assert queue.post(f"{by_lead}/reopen", why, On_Behalf_Of="lea").json()["status"] == "open"
        assert reopened(later, "bob").json()["status"] == "open"


def test_cancelling_wins_over_a_decision_that_can_still_be_taken_back(queue: Queue) -> None:
    case = queue.raised()
    pending(queue, case, 1, action="answer_item", output=COPY)
    assert queue.client.post(f"/v1/items/{queue.get(case)['item']}/cancel").status_code == 200
    assert status_of(queue, case) == "withdrawn"
    refused(queue.post(f"{case}/undo"), 409, "escalation_withdrawn")
    until(lambda: queue.item(case)["status"] == "cancelled")


def test_decision_that_cannot_be_is_told_at_once_however_long_it_could_be_taken_back(queue: Queue) -> None:
    case = queue.raised(can_resume=False)
    token, etag = queue.claimed(case)
    for body in ({"action": "resume", "guidance": "go"}, {"action": "answer_item", "output": {"title": 1}}):
        answer = queue.post(f"{case}/resolve", {"lease_token": token, "undo_s": 8, **body}, If_Match=etag)
        refused(answer, 422, "action_not_allowed")
    for wrong in (-1, 61, "8", True, None):
        answer = queue.post(f"{case}/resolve", {"lease_token": token, "undo_s": wrong, **REJECT}, If_Match=etag)
        refused(answer, 400, "invalid_request")
    assert (status_of(queue, case), queue.whats(case)) == ("claimed", ["opened", "claimed"])


def test_decision_that_cannot_take_effect_any_more_leaves_the_case_open_and_says_why(queue: Queue) -> None:
    case = queue.raised()
    pending(queue, case, 2, action="answer_item", output=COPY)
    spoil = escalations.update().where(escalations.c.id == case)
    spoiled = {"action": "answer_item", "output": {"title": "no longer valid"}, "by": "person:ann", "at_ms": 1}
    queue.database.transact(lambda connection: connection.execute(spoil.values(resolution=spoiled)))
    until(lambda: status_of(queue, case) == "open", within_s=10)
    shown = queue.get(case)
    assert shown["apply_problem"]["code"] == "action_not_allowed"
    assert "schema" in shown["apply_problem"]["detail"]
    assert (shown["resolution"], queue.item(case)["status"]) == (None, "awaiting_human")
    assert queue.whats(case) == ["opened", "claimed", "resolved", "apply_failed"]
    assert queue.decided(case, "answer_item", output=COPY)["status"] == "applied"
    assert queue.get(case)["apply_problem"] is None


# --- running out -----------------------------------------------------------------------------------------------------


def test_lease_that_ran_out_is_in_the_audit_and_the_case_open(queue: Queue) -> None:
    case = queue.raised()
    token = queue.post(f"{case}/claim", {"lease_s": 1}, On_Behalf_Of="ann").json()["lease"]["token"]
    until(lambda: status_of(queue, case) == "open", within_s=10)
    assert queue.audit(case)[-1]["what"] == "lease_expired"
    assert queue.audit(case)[-1]["detail"] == {"previous_holder": "person:ann"}
    lost = refused(queue.post(f"{case}/heartbeat", {"lease_token": token}), 409, "lease_lost")
    assert (lost["holder"], lost["changed"]["what"]) == (None, "lease_expired")


def expired(queue: Queue, policy: OnExpire, **more: Any) -> str:
    """A case that nobody answered in time."""
    case = queue.raised(expires_ms=1, on_expire=policy.value, **more)
    until(lambda: status_of(queue, case) == "expired", within_s=10)
    assert queue.get(case)["resolution"]["by"] == "system:timeout"
    entry = queue.audit(case)[-1]
    assert (entry["what"], entry["actor"], entry["detail"]["policy"]) == ("expired", "system:timeout", policy.value)
    return case


def test_item_that_nobody_answered_goes_on_from_its_text_and_is_told_so_in_no_persons_name(queue: Queue) -> None:
    case = expired(queue, OnExpire.REROUTE_TEXT_ONLY)
    item_id = queue.get(case)["item"]
    item = settled(queue.client, item_id)
    assert (item["status"], item["attempt"], item["route"]) == ("succeeded", 2, "text_only")
    history = queue.client.get(f"/v1/items/{item_id}/explanation").json()["history"]
    moved = next(step for step in history if step["from"] == "awaiting_human")
    assert (moved["actor"], moved["to"]) == ("system:timeout", "queued")
    with queue.database.read() as connection:
        told = [row.intent["text"] for row in steps.all_of(connection, item_id) if row.kind is StepKind.CONTROL]
    assert told
    assert not any(word in text.lower() for text in told for word in REFUSING_WORDS)
    problem = refused(queue.post(f"{case}/claim"), 409, "already_resolved")
    assert problem["resolution"]["by"] == "system:timeout"
    assert "Nobody answered in time" in problem["detail"]


def test_item_of_a_profile_that_ends_it_is_closed_without_blaming_anybody(queue: Queue) -> None:
    case = expired(queue, OnExpire.REJECT)
    item = queue.item(case)
    assert (item["status"], item["reason"]) == ("rejected", "no_answer")
    problem = item["decision"]["problem"]
    assert (problem["code"], problem["next"], item["decision"]["stage"]) == ("no_answer", "retry", "timeout")
    assert queue.post(f"{case}/reopen", {"reason": "we are back"}).json()["reopen_count"] == 1
    assert queue.item(case)["status"] == "awaiting_human"


def test_case_on_hold_stays_with_its_item_until_somebody_reopens_it(queue: Queue) -> None:
    case = expired(queue, OnExpire.HOLD)
    assert queue.item(case)["status"] == "awaiting_human"
    assert queue.client.get("/v1/escalations/stats").json()["on_hold"] == 1
    again = queue.post(f"{case}/reopen", {"reason": "Monday"}).json()
    assert (again["id"], again["status"]) == (case, "open")
    assert again["expires_at"] > again["due_at"] > again["updated_at"]
    assert queue.decided(case, "answer_item", output=COPY)["status"] == "applied"
    assert queue.client.get("/v1/escalations/stats").json()["on_hold"] == 0


def test_case_that_cannot_be_closed_holds_up_no_other(queue: Queue) -> None:
    odd = queue.raised(expires_ms=1, on_expire="of another release")
    expired(queue, OnExpire.HOLD)
    assert status_of(queue, odd) == "open"
    queue.client.post(f"/v1/items/{queue.get(odd)['item']}/cancel").raise_for_status()


def test_expiry_takes_the_case_out_of_a_reviewers_hands_and_tells_them(queue: Queue) -> None:
    case = queue.raised(expires_ms=1500, on_expire="hold")
    token, etag = queue.claimed(case)
    until(lambda: status_of(queue, case) == "expired", within_s=10)
    answer = queue.post(f"{case}/resolve", {"lease_token": token, **REJECT}, If_Match=etag)
    assert refused(answer, 409, "already_resolved")["resolution"]["action"] == "hold"
    assert queue.events_of(case)[-1]["data"]["holder"] == queue.get(case)["holder"]


def test_timeouts_are_counted_by_policy_and_never_as_a_persons(queue: Queue) -> None:
    def counted(line: str) -> float:
        return value(queue.client.get("/metrics").text, line)

    expired(queue, OnExpire.REJECT)
    timed_out = 'sluicegate_escalations_timed_out{policy="reject"}'
    until(lambda: counted(timed_out) >= 1, within_s=15)
    before = counted("sluicegate_human_rejections")
    queue.decided(queue.raised(), **REJECT)
    until(lambda: counted("sluicegate_human_rejections") == before + 1, within_s=15)
    assert counted('sluicegate_escalations_decided{action="reject"}') == 0
    stats = queue.client.get("/v1/escalations/stats").json()
    assert (stats["timeouts"], stats["decisions"]) == ({"reject": 1}, {"reject_item": 1})


def test_case_whose_item_went_on_elsewhere_is_withdrawn_by_the_next_sweep(queue: Queue) -> None:
    case = queue.raised()
    item = queue.get(case)["item"]
    moved = queue.database.transact(
        lambda c: item_store.transition(
            c, item, expected=(Status.AWAITING_HUMAN,), to=Status.REJECTED, actor="test", reason="elsewhere"
        )
    )
    assert moved is not None
    until(lambda: status_of(queue, case) == "withdrawn", within_s=10)
    assert queue.audit(case)[-1]["actor"] == "system:queue"


def test_warnings_come_once_each_at_half_and_nine_tenths_of_the_time_and_leave_the_version_alone(queue: Queue) -> None:
    """`product-copy` gives four hours: a case that is due in one has three quarters of them behind it."""
    calm, half, late = (queue.raised(due_ms=int(hours * HOUR_MS)) for hours in (3, 1, 0.2))

    def warned(case: str) -> list[int]:
        return [e["data"]["percent"] for e in queue.events_of(case) if e["type"] == "escalation.due_soon"]

    until(lambda: warned(half) and warned(late), within_s=10)
    token, etag = queue.claimed(half)
    move = escalations.update().where(escalations.c.id == half)
    due = queue.database.transact(lambda c: item_store.now_ms(c)) + HOUR_MS // 5
    queue.database.transact(lambda c: c.execute(move.values(due_ms=due)))
    until(lambda: warned(half) == [50, 90], within_s=10)
    assert (warned(calm), warned(late)) == ([], [90])
    answer = queue.post(f"{half}/resolve", {"lease_token": token, **REJECT}, If_Match=etag)
    assert answer.status_code == 200, answer.text


def test_urgency_grows_with_age_group_budget_and_profile(queue: Queue) -> None:
    alone = queue.raised(reason="budget", tool=None, due_ms=4 * HOUR_MS)
    burnt = queue.raised(reason="rule", tool=None, due_ms=4 * HOUR_MS, burnt_percent=100, profile_priority=3)
    grouped = [queue.raised(due_ms=4 * HOUR_MS) for _ in range(4)]
    aged = queue.raised(reason="worker_lost", tool=None, due_ms=2 * HOUR_MS)

    def found() -> dict[str, int] | None:
        priorities = {case: int(queue.get(case)["priority"]) for case in (alone, burnt, grouped[0], aged)}
        return priorities if all(priorities.values()) else None

    assert until(found, within_s=10) == {alone: 10, burnt: 60, grouped[0]: 18, aged: 20}


# --- runs of somebody else's agent -----------------------------------------------------------------------------------


@pytest.fixture
def halted(queue: Queue) -> tuple[str, str]:
    """A run of somebody else's agent that waits for a person, and its case."""
    tools = [{"name": "find", "effect": "read"}]
    body = {"external_run_id": "r1", "agent": "a", "tools": tools, "policy": {"on_loop": "human"}}
    run = queue.client.post("/v1/guard/runs", json=body).json()["run_id"]
    for number in range(9):
        call = {"call_id": f"c{number}", "tool": "find", "args": {"q": "oak"}}
        decision = queue.client.post(f"/v1/guard/runs/{run}/before", json=call).json()
        if decision["turn"]["end"]:
            return run, decision["escalation_id"]
        if decision["execute"]:
            done = {"call_id": call["call_id"], "decision_id": decision["decision_id"], "status": "ok", "result": "[]"}
            queue.client.post(f"/v1/guard/runs/{run}/after", json=done)
    raise AssertionError("the guard never halted it")


def resume(queue: Queue, run: str, case: str) -> httpx.Response:
    return queue.client.post(f"/v1/guard/runs/{run}/resume", json={"escalation_id": case})


def test_run_learns_of_a_decision_only_once_it_can_no_longer_be_taken_back(
    queue: Queue, halted: tuple[str, str]
) -> None:
    run, case = halted
    pending(queue, case, 30, action="resume", guidance="Search for walnut.")
    assert resume(queue, run, case).status_code == 409
    body = queue.post(f"{case}/undo").json()
    decision = {"lease_token": body["lease"]["token"], "action": "resume", "guidance": "Search for pine."}
    etag = f'"{body["escalation"]["version"]}"'
    assert queue.post(f"{case}/resolve", {**decision, "undo_s": 1}, If_Match=etag).json()["status"] == "resolved"
    answer = until(lambda: (got := resume(queue, run, case)).status_code == 200 and got, within_s=10)
    assert "pine" in answer.text
    assert "walnut" not in answer.text
    assert status_of(queue, case) == "applied"


def force_expiry(queue: Queue, case: str, policy: OnExpire) -> None:
    change = escalations.update().where(escalations.c.id == case)
    queue.database.transact(lambda c: c.execute(change.values(expires_ms=1, on_expire=policy.value)))
    until(lambda: status_of(queue, case) == "expired", within_s=10)


def test_run_that_nobody_answered_goes_on_without_the_tool(queue: Queue, halted: tuple[str, str]) -> None:
    run, case = halted
    force_expiry(queue, case, OnExpire.REROUTE_TEXT_ONLY)
    answer = resume(queue, run, case)
    assert answer.status_code == 200, answer.text
    assert answer.json()["banned_tools"] == ["find"]
    assert "Nobody answered in time" in answer.text
    assert not any(word in str(answer.json()["messages_to_append"]).lower() for word in REFUSING_WORDS)


def test_run_of_a_policy_that_ends_it_is_ended_and_one_on_hold_waits(queue: Queue, halted: tuple[str, str]) -> None:
    run, case = halted
    force_expiry(queue, case, OnExpire.HOLD)
    assert "on hold" in resume(queue, run, case).json()["detail"]
    assert queue.post(f"{case}/reopen", {"reason": "Monday"}).json()["status"] == "open"
    force_expiry(queue, case, OnExpire.REJECT)
    with queue.database.read() as connection:
        row = guard_runs.get(connection, run, tenant=queue.tenant)
    assert row is not None
    assert (row.status.value, (row.outcome or {})["by"]) == ("ended", "system:timeout")


def test_decision_that_a_run_never_fetched_can_be_taken_up_again_or_is_withdrawn_at_its_end(
    queue: Queue, halted: tuple[str, str]
) -> None:
    run, case = halted
    assert queue.decided(case, "resume", guidance="go")["status"] == "resolved"
    again = queue.post(f"{case}/reopen", {"reason": "not so"})
    assert (again.status_code, again.json()["status"]) == (200, "open")
    assert queue.decided(case, "resume", guidance="rather so")["status"] == "resolved"
    assert queue.client.post(f"/v1/guard/runs/{run}/end", json={"outcome": "failed"}).status_code == 200
    assert status_of(queue, case) == "withdrawn"
    with queue.database.read() as connection:
        left = connection.execute(sa.select(escalations.c.resolution).where(escalations.c.id == case)).scalar_one()
    assert left["guidance"] == "rather so"
