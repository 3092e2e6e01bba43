"""The human queue over REST: one holder at a time, the first decision wins, and nobody is told less than what happened."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.store import escalations as case_store
from gateway.store.engine import Database
from tests.gateway.conftest import store_key
from tests.gateway.model_stub import COPY
from tests.gateway.queue_client import HOUR_MS, Queue, queue_of, refused
from tests.gateway.running import Service, bearer, until


@pytest.fixture
def queue(api: Service, name: str) -> Iterator[Queue]:
    with queue_of(api, name) as made:
        yield made


# --- looking ---------------------------------------------------------------------------------------------------------


def test_list_is_sorted_by_due_time_and_pages_meet_without_gap_or_overlap(queue: Queue) -> None:
    late, soon, middle = (queue.raised(due_ms=hours * HOUR_MS) for hours in (9, 1, 5))
    assert queue.listed() == [soon, middle, late]
    first = queue.client.get("/v1/escalations", params={"limit": 2}).json()
    assert [case["id"] for case in first["escalations"]] == [soon, middle]
    queue.raised(due_ms=2 * HOUR_MS)
    second = queue.client.get("/v1/escalations", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert ([case["id"] for case in second["escalations"]], second["next_cursor"]) == ([late], None)


def test_equally_due_cases_come_by_priority_also_across_pages(queue: Queue) -> None:
    cases = [queue.raised() for _ in range(5)]
    database = Database(f"sqlite:///{queue.service.data_dir / 'sluicegate.db'}")
    for case, priority in zip(cases, (0, 5, -3, 5, 9), strict=True):
        change = case_store.escalations.update().where(case_store.escalations.c.id == case)
        database.transact(lambda connection, c=change, p=priority: connection.execute(c.values(due_ms=7, priority=p)))
    database.close()
    expected = [cases[4], *sorted([cases[1], cases[3]]), cases[0], cases[2]]
    assert queue.listed() == expected
    found: list[str] = []
    query: dict[str, Any] = {"limit": 1}
    while True:
        page = queue.client.get("/v1/escalations", params=query).json()
        found.extend(case["id"] for case in page["escalations"])
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert found == expected


def test_list_is_narrowed_by_each_filter(queue: Queue) -> None:
    held, other = queue.raised(), queue.raised(reason="budget", tool=None, due_ms=9 * HOUR_MS)
    queue.claimed(held)
    group = queue.get(held)["group"]
    moment = queue.get(other)["due_at"]
    assert queue.listed(status="open") == [other]
    assert queue.listed(status="open,claimed") == [held, other]
    assert queue.listed(assignee="me") == [held]
    assert queue.listed(assignee="none") == [other]
    assert queue.listed(reason="budget") == [other]
    assert queue.listed(tool="ocr_extract") == [held]
    assert queue.listed(profile="product-copy") == [held, other]
    assert queue.listed(profile="another") == []
    assert queue.listed(group=group) == [held]
    assert queue.listed(priority="0") == [held, other]
    assert queue.listed(priority="-1") == []
    assert queue.listed(due_before=moment) == [held]
    assert queue.listed(item=queue.get(held)["item"]) == [held]


@pytest.mark.parametrize(
    "query",
    [
        {"stauts": "open"}, {"status": "opened"}, {"status": ""}, {"limit": "0"}, {"limit": "201"}, {"limit": "x"},
        {"priority": "high"}, {"priority": "²"}, {"priority": "--5"}, {"priority": "9" * 400}, {"due_before": "soon"},
        {"cursor": "x"}, {"cursor": "MXwx"}, {"cursor": "MXx4L3k"},
    ],
)  # fmt: skip
def test_mistaken_query_is_a_400_that_names_it(queue: Queue, query: dict[str, str]) -> None:
    refused(queue.client.get("/v1/escalations", params=query), 400, "invalid_request")


def test_case_shows_question_evidence_and_what_each_action_does(queue: Queue) -> None:
    case = queue.raised()
    answer = queue.client.get(f"/v1/escalations/{case}")
    shown = answer.json()
    assert answer.headers["ETag"] == f'"{shown["version"]}"'
    assert (shown["question"], shown["evidence"], shown["status"]) == ("How should the run go on?", [1], "open")
    assert all(action["consequence"]["en"] and action["consequence"]["zh"] for action in shown["allowed_actions"])
    assert "lease_token" not in answer.text


def test_other_tenants_see_nothing_and_can_do_nothing(queue: Queue, api: Service) -> None:
    case = queue.raised()
    token, etag = queue.claimed(case)
    with api.client(headers=bearer(store_key(api, f"{queue.tenant}-other"))) as stranger:
        assert stranger.get("/v1/escalations").json()["escalations"] == []
        refused(stranger.get(f"/v1/escalations/{case}"), 404, "not_found")
        for path, body in (
            ("claim", {}), ("heartbeat", {"lease_token": token}), ("release", {"lease_token": token}),
            ("resolve", {"lease_token": token, "action": "reject_item", "message": "no"}),
        ):  # fmt: skip
            answer = stranger.post(f"/v1/escalations/{case}/{path}", json=body, headers={"If-Match": etag})
            refused(answer, 404, "not_found")
        assert stranger.post("/v1/escalations/claim-next", json={}).json()["open"] == 0
    assert queue.get(case)["status"] == "claimed"


def test_scope_review_is_needed_and_acting_for_a_person_needs_delegation(queue: Queue, api: Service) -> None:
    case = queue.raised()
    with api.client(headers=bearer(store_key(api, queue.tenant, "items:read", "items:write"))) as submitter:
        refused(submitter.get("/v1/escalations"), 403, "scope_missing")
        refused(submitter.post("/v1/escalations/claim-next", json={}), 403, "scope_missing")
    with api.client(headers=bearer(store_key(api, queue.tenant, "review"))) as reviewer:
        alone = {"On-Behalf-Of": "ann@example.org"}
        assert refused(reviewer.post(f"/v1/escalations/{case}/claim", json={}, headers=alone), 403, "scope_missing")
        assert queue.get(case)["status"] == "open"
    claimed = queue.post(f"{case}/claim", On_Behalf_Of="ann@example.org")
    assert claimed.json()["escalation"]["holder"] == "person:ann@example.org"
    other = queue.post(f"{case}/claim", On_Behalf_Of="bob@example.org")
    assert refused(other, 409, "already_claimed")["holder"] == "person:ann@example.org"
    for wrong in ("", "x" * 101):
        refused(queue.post(f"{case}/claim", On_Behalf_Of=wrong), 400, "invalid_request")


# --- claiming --------------------------------------------------------------------------------------------------------


def test_ten_claims_of_three_cases_give_three_holders_and_seven_reasons(queue: Queue) -> None:
    threads = 10
    barrier = threading.Barrier(threads)
    for _ in range(4):
        cases = {queue.raised() for _ in range(3)}

        def take(_: int) -> dict[str, Any]:
            barrier.wait()
            answer = queue.post("claim-next", {"lease_s": 60})
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        with ThreadPoolExecutor(threads) as pool:
            answers = list(pool.map(take, range(threads)))
        taken = [answer for answer in answers if "lease" in answer]
        empty = [answer for answer in answers if answer.get("empty")]
        assert {answer["escalation"]["id"] for answer in taken} == cases
        assert (len(taken), len(empty)) == (3, 7)
        assert {(answer["open"], answer["claimed_by_others"], answer["hidden_by_filter"]) for answer in empty} == {
            (0, 3, 0)
        }
        for answer in taken:
            body = {"lease_token": answer["lease"]["token"], "action": "reject_item", "message": "no"}
            done = queue.post(
                f"{answer['escalation']['id']}/resolve", body, If_Match=f'"{answer["escalation"]["version"]}"'
            )
            assert done.status_code == 200, done.text


def test_empty_answers_tell_nothing_open_from_all_held_from_all_hidden(queue: Queue) -> None:
    def empty(body: dict[str, Any] | None = None) -> tuple[Any, ...]:
        found = queue.post("claim-next", body).json()
        assert found["empty"] is True
        return found["open"], found["claimed_by_others"], found["hidden_by_filter"], found["next_expiry"] is not None

    assert empty() == (0, 0, 0, False)
    case = queue.raised()
    assert empty({"filter": {"tool": "read_pdf"}}) == (1, 0, 1, False)
    queue.claimed(case)
    assert empty() == (0, 1, 0, True)
    queue.raised()
    assert empty({"filter": {"reason": "budget", "priority": 3}}) == (1, 1, 1, True)


def test_lease_that_ran_out_is_handed_on_with_a_larger_fence_and_the_old_one_is_worth_nothing(queue: Queue) -> None:
    case = queue.raised()
    old = queue.post(f"{case}/claim", {"lease_s": 1}, On_Behalf_Of="ann").json()["lease"]

    def next_holder() -> dict[str, Any] | None:
        answer = queue.post("claim-next", {"lease_s": 60}, On_Behalf_Of="bob").json()
        return None if answer.get("empty") else answer

    taken = until(next_holder, within_s=20)
    assert taken["escalation"]["id"] == case
    assert taken["lease"]["fence"] > old["fence"]
    lost = refused(queue.post(f"{case}/heartbeat", {"lease_token": old["token"]}), 409, "lease_lost")
    assert lost["holder"] == "person:bob"
    refused(queue.post(f"{case}/release", {"lease_token": old["token"]}), 409, "lease_lost")
    body = {"lease_token": old["token"], "action": "reject_item", "message": "no"}
    refused(queue.post(f"{case}/resolve", body, If_Match=f'"{queue.get(case)["version"]}"'), 409, "lease_lost")
    assert queue.item(case)["status"] == "awaiting_human"


def test_same_holder_claims_again_and_gets_the_same_lease_for_longer(queue: Queue) -> None:
    case = queue.raised()
    first = queue.post(f"{case}/claim", {"lease_s": 5}).json()["lease"]
    again = queue.post(f"{case}/claim", {"lease_s": 500}).json()["lease"]
    assert (again["token"], again["fence"]) == (first["token"], first["fence"])
    assert again["expires_at"] > first["expires_at"]
    beaten = queue.post(f"{case}/heartbeat", {"lease_token": first["token"], "lease_s": 800}).json()["lease"]
    assert beaten["expires_at"] > again["expires_at"]


def test_claim_next_gives_no_row_under_a_live_lease_not_even_the_callers_own(queue: Queue) -> None:
    queue.claimed(queue.raised())
    assert queue.post("claim-next").json()["empty"] is True


def test_released_case_is_open_for_others_at_once(queue: Queue) -> None:
    case = queue.raised()
    token, _ = queue.claimed(case)
    released = queue.post(f"{case}/release", {"lease_token": token, "note": "lunch"})
    assert (released.status_code, released.json()["status"], released.json()["holder"]) == (200, "open", None)
    refused(queue.post(f"{case}/heartbeat", {"lease_token": token}), 409, "lease_lost")
    assert queue.post("claim-next", {}, On_Behalf_Of="bob").json()["escalation"]["id"] == case


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("claim-next", {"lease_s": 0}), ("claim-next", {"lease_s": 901}), ("claim-next", {"lease_s": "60"}),
        ("claim-next", {"lease_s": True}), ("claim-next", {"filters": {}}), ("claim-next", {"filter": []}),
        ("claim-next", {"filter": {"tol": "x"}}), ("claim-next", {"filter": {"tool": None}}),
        ("claim-next", {"filter": {"status": "x"}}), ("claim-next", {"filter": {"priority": "²"}}),
        ("CASE/claim", {"lease_s": -1}), ("CASE/claim", {"lease": 60}), ("CASE/heartbeat", {"lease_token": "x", "n": 1}),
        ("CASE/release", {"lease_token": "x", "why": "y"}),
    ],
)  # fmt: skip
def test_mistaken_body_is_a_400(queue: Queue, path: str, body: dict[str, Any]) -> None:
    refused(queue.post(path.replace("CASE", queue.raised()), body), 400, "invalid_request")


@pytest.mark.parametrize("raw", [b"[1]", b"{", b'{"lease_s": NaN}', b'{"a": 1, "a": 2}', b"\xff", b"x" * 2_000_000])
def test_body_that_is_no_json_object_is_refused(queue: Queue, raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for path in ("claim-next", f"{queue.raised()}/resolve"):
        answer = queue.client.post(f"/v1/escalations/{path}", content=raw, headers=headers)
        assert answer.status_code in {400, 413}, answer.text


# --- deciding --------------------------------------------------------------------------------------------------------


def test_each_missing_or_stale_precondition_has_its_own_answer(queue: Queue) -> None:
    case = queue.raised()
    token, etag = queue.claimed(case)
    body = {"lease_token": token, "action": "reject_item", "message": "no"}
    refused(queue.post(f"{case}/resolve", {**body, "lease_token": None}, If_Match=etag), 400, "invalid_request")
    without = {name: value for name, value in body.items() if name != "lease_token"}
    refused(queue.post(f"{case}/resolve", without, If_Match=etag), 428, "precondition_required")
    refused(queue.post(f"{case}/resolve", body), 428, "precondition_required")
    refused(queue.post(f"{case}/resolve", body, If_Match='"1"'), 412, "conflict_version")
    refused(queue.post(f"{case}/resolve", {**body, "lease_token": "other"}, If_Match=etag), 409, "lease_lost")
    assert queue.item(case)["status"] == "awaiting_human"
    assert queue.post(f"{case}/resolve", body, If_Match=etag).status_code == 200
    assert queue.item(case)["status"] == "rejected"


@pytest.mark.parametrize(
    "decision",
    [
        {"action": "approve"}, {"action": None}, {}, {"action": "resume"}, {"action": "resume", "guidance": ""},
        {"action": "resume", "guidance": "x" * 2001}, {"action": "resume", "guidance": 5},
        {"action": "resume", "guidance": "go", "extra_steps": -1}, {"action": "resume", "guidance": "go", "extra_steps": 1.5},
        {"action": "resume", "guidance": "go", "extra_steps": True}, {"action": "resume", "guidance": "go", "ban_tools": "ocr"},
        {"action": "resume", "guidance": "go", "ban_tools": [1]}, {"action": "resume", "guidance": "go", "ban_tols": []},
        {"action": "reroute"}, {"action": "reroute", "route": "human"}, {"action": "reroute", "route": "text_only", "x": 1},
        {"action": "answer_item"}, {"action": "answer_item", "output": []}, {"action": "reject_item"},
        {"action": "reject_item", "message": "no", "reason_code": "Bad Code"}, {"action": "dismiss", "reason": "because"},
        {"action": "resume", "guidance": "go", "note": "x" * 2001},
    ],
)  # fmt: skip
def test_mistaken_decision_changes_nothing(queue: Queue, decision: dict[str, Any]) -> None:
    case = queue.raised()
    token, etag = queue.claimed(case)
    problem = refused(
        queue.post(f"{case}/resolve", {"lease_token": token, **decision}, If_Match=etag), 400, "invalid_request"
    )
    assert problem["errors"]
    assert queue.get(case)["status"] == "claimed"
    assert queue.item(case)["status"] == "awaiting_human"


def test_action_that_the_case_does_not_allow_is_named_with_those_that_it_does(queue: Queue) -> None:
    case = queue.raised(reason="worker_lost", tool=None, can_resume=False)
    token, etag = queue.claimed(case)
    for action in ({"action": "resume", "guidance": "go"}, {"action": "dismiss"}):
        problem = refused(
            queue.post(f"{case}/resolve", {"lease_token": token, **action}, If_Match=etag), 422, "action_not_allowed"
        )
        assert {"reroute", "answer_item", "reject_item"} <= set(problem["allowed_actions"])
        assert action["action"] not in problem["allowed_actions"]
    invalid = {"lease_token": token, "action": "answer_item", "output": {**COPY, "price": "9.99"}}
    assert (
        "price" in refused(queue.post(f"{case}/resolve", invalid, If_Match=etag), 422, "action_not_allowed")["detail"]
    )
    assert queue.get(case)["status"] == "claimed"


def test_eight_decisions_at_once_have_one_winner_one_effect_and_seven_answers_that_name_it(queue: Queue) -> None:
    for _ in range(4):
        case = queue.raised()
        token, etag = queue.claimed(case)
        barrier = threading.Barrier(8)
        rejects = {"lease_token": token, "action": "reject_item", "message": "no"}
        answers_it = {"lease_token": token, "action": "answer_item", "output": COPY}

        def decide(number: int) -> tuple[int, httpx.Response]:
            body, key = (rejects, "shared") if number < 4 else (answers_it, f"own-{number}")  # noqa: B023
            barrier.wait()  # noqa: B023
            return number, queue.post(f"{case}/resolve", body, If_Match=etag, Idempotency_Key=key)  # noqa: B023

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(decide, range(8)))
        won = [(number, answer) for number, answer in answers if answer.status_code == 200]
        lost = [answer for _, answer in answers if answer.status_code != 200]
        action = won[0][1].json()["resolution"]["action"]
        if action == "reject_item":
            assert [number for number, _ in won] == [0, 1, 2, 3]
            assert len({answer.text for _, answer in won}) == 1
            assert sorted("Idempotent-Replayed" in answer.headers for _, answer in won) == [False, True, True, True]
        else:
            assert len(won) == 1
        assert len(won) + len(lost) == 8
        for answer in lost:
            assert refused(answer, 409, "already_resolved")["resolution"]["action"] == action
        history = queue.client.get(f"/v1/items/{queue.get(case)['item']}/explanation").json()["history"]
        assert [step["from"] for step in history].count("awaiting_human") == 1


def test_repeat_with_the_same_key_replays_and_another_content_under_it_is_refused(queue: Queue) -> None:
    case = queue.raised()
    token, etag = queue.claimed(case)
    body = {"lease_token": token, "action": "reject_item", "message": "no"}
    first = queue.post(f"{case}/resolve", body, If_Match=etag, Idempotency_Key="k1")
    again = queue.post(f"{case}/resolve", body, If_Match=etag, Idempotency_Key="k1")
    assert (again.status_code, again.text) == (200, first.text)
    assert again.headers["Idempotent-Replayed"] == "true"
    changed = {**body, "message": "something else"}
    refused(queue.post(f"{case}/resolve", changed, If_Match=etag, Idempotency_Key="k1"), 422, "idempotency_key_reused")
    refused(queue.post(f"{case}/resolve", body, If_Match=etag, Idempotency_Key="k2"), 409, "already_resolved")
    late = refused(queue.post(f"{case}/claim"), 409, "already_resolved")
    assert late["resolution"]["action"] == "reject_item"


def test_case_of_a_cancelled_item_is_withdrawn(queue: Queue) -> None:
    case = queue.raised()
    token, etag = queue.claimed(case)
    item = queue.get(case)["item"]
    assert queue.client.post(f"/v1/items/{item}/cancel").status_code == 200
    assert queue.get(case)["status"] == "withdrawn"
    body = {"lease_token": token, "action": "reject_item", "message": "no"}
    refused(queue.post(f"{case}/resolve", body, If_Match=etag), 409, "escalation_withdrawn")
    refused(queue.post(f"{case}/claim"), 409, "escalation_withdrawn")
    assert queue.item(case)["status"] == "cancelled"
    assert queue.post("claim-next").json()["empty"] is True


def test_reason_of_the_decision_is_kept_with_who_made_it(queue: Queue) -> None:
    case = queue.raised()
    claimed = queue.post(f"{case}/claim", {}, On_Behalf_Of="ann@example.org")
    body = {
        "lease_token": claimed.json()["lease"]["token"],
        "action": "reroute",
        "route": "text_only",
        "note": "smeared",
    }
    resolved = queue.post(
        f"{case}/resolve", body, If_Match=claimed.headers["ETag"], On_Behalf_Of="ann@example.org"
    ).json()
    assert (resolved["resolution"]["by"], resolved["resolution"]["note"]) == ("person:ann@example.org", "smeared")
    item = queue.item(case)
    assert (item["status"], item["attempt"], item["route"]) == ("queued", 2, "text_only")
    history = queue.client.get(f"/v1/items/{item['id']}/explanation").json()["history"]
    assert (history[-1]["actor"], history[-1]["reason"]) == ("person:ann@example.org", "rerouted:text_only")
    events = queue.client.get(f"/v1/items/{item['id']}/events").json()["events"]
    assert events[-1]["type"] == "item.queued"


def test_same_standstill_while_it_is_open_makes_no_second_row(queue: Queue) -> None:
    case = queue.raised()
    shown = queue.get(case)
    database = Database(f"sqlite:///{queue.service.data_dir / 'sluicegate.db'}")
    again: Callable[[Any], str] = lambda connection: case_store.raise_case(  # noqa: E731
        connection,
        case_store.NewEscalation(
            tenant=queue.tenant, item_id=shown["item"], attempt=1, profile="product-copy", reason="repeated_error",
            tool="ocr_extract", packet={"question": "Again?"}, due_after_ms=1, expires_after_ms=HOUR_MS,
        ),
    )  # fmt: skip
    assert database.transact(again) == case
    database.close()
    assert (queue.get(case)["occurrence_count"], queue.listed()) == (2, [case])
