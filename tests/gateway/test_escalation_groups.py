"""Cases of the same kind of incident: counted, suggested for, decided, merged and split together; and many cases at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.model_stub import COPY
from tests.gateway.queue_client import Queue, queue_of, refused
from tests.gateway.running import Service

REJECT = {"action": "reject_item", "message": "Please send a sharper photo."}
TEXT_ONLY = {"action": "reroute", "route": "text_only"}
BURNT = {"cost": {"spent": "0.031", "currency": "USD"}}


@pytest.fixture
def queue(api: Service, name: str) -> Iterator[Queue]:
    with queue_of(api, name) as made:
        yield made


def groups(queue: Queue, **query: str) -> list[dict[str, Any]]:
    answer = queue.client.get("/v1/escalation-groups", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["groups"]
    return found


def group(queue: Queue, group_id: str) -> dict[str, Any]:
    found: dict[str, Any] = queue.client.get(f"/v1/escalation-groups/{group_id}").json()
    return found


def act(queue: Queue, group_id: str, verb: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return queue.client.post(f"/v1/escalation-groups/{group_id}/{verb}", json=body, headers=named)


def stuck(queue: Queue, code: str | None = None, **more: Any) -> str:
    """A case of one kind of incident; another last error code makes another fingerprint."""
    return queue.raised(packet={**BURNT, "calls": [{"error": None}, {"error": code}]}, **more)


def results(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 200, answer.text
    return {one["id"]: one["result"] for one in answer.json()["results"]}


# --- looking ---------------------------------------------------------------------------------------------------------


def test_group_tells_what_waits_for_how_long_and_what_it_burnt(queue: Queue) -> None:
    cases = [stuck(queue) for _ in range(3)]
    other = queue.raised(reason="budget", tool=None)
    queue.claimed(cases[0])
    mine = queue.get(cases[0])["group"]
    assert mine.startswith("grp_")
    assert [found["id"] for found in groups(queue)] == [queue.get(other)["group"], mine]
    shown = group(queue, mine)
    assert (shown["open"], shown["claimed"], shown["to_decide"], shown["cases"]) == (2, 1, 3, 3)
    assert (shown["kind"], shown["tool"], shown["profile"]) == ("no_progress", "ocr_extract", "product-copy")
    assert shown["burnt"] == [{"amount": "0.093", "currency": "USD"}]
    assert shown["oldest_at"] == queue.get(cases[0])["created_at"]
    assert queue.listed(group=mine) == sorted(cases, key=lambda case: queue.get(case)["due_at"])


def test_groups_page_without_gap_and_leave_out_what_is_settled_unless_all_is_asked_for(queue: Queue) -> None:
    for number in range(3):
        queue.raised(tool=f"tool_{number}")
    settled = queue.raised(reason="budget", tool=None)
    queue.decided(settled, **REJECT)
    assert [found["tool"] for found in groups(queue)] == ["tool_2", "tool_1", "tool_0"]
    assert len(groups(queue, all="true")) == 4
    first = queue.client.get("/v1/escalation-groups", params={"limit": "2"}).json()
    rest = queue.client.get("/v1/escalation-groups", params={"limit": "2", "cursor": first["next_cursor"]}).json()
    found = [one["tool"] for one in first["groups"] + rest["groups"]]
    assert (found, rest["next_cursor"]) == (["tool_2", "tool_1", "tool_0"], None)
    for query in ({"limit": "0"}, {"all": "yes"}, {"open": "true"}, {"cursor": "x"}):
        refused(queue.client.get("/v1/escalation-groups", params=query), 400, "invalid_request")
    refused(queue.client.get("/v1/escalation-groups/grp_none"), 404, "not_found")


def test_case_and_group_suggest_what_worked_before_with_the_reason(queue: Queue) -> None:
    first = stuck(queue)
    assert queue.get(first)["suggestion"]["basis"] == "reason"
    for case in (first, stuck(queue), stuck(queue)):
        queue.decided(case, "answer_item", output=COPY)
    queue.decided(stuck(queue), **REJECT)
    case = stuck(queue)
    shown = queue.get(case)
    suggestion = shown["suggestion"]
    assert (suggestion["action"], suggestion["basis"]) == ("answer_item", "history")
    assert "3 of the last 4" in suggestion["reason"]["en"]
    assert suggestion["reason"]["zh"]
    assert [past["action"] for past in shown["group_last"]] == ["reject_item", *["answer_item"] * 3]
    assert [past["outcome"] for past in shown["group_last"]] == ["rejected", *["succeeded"] * 3]
    assert group(queue, shown["group"])["suggestion"] == suggestion
    assert len(group(queue, shown["group"])["last"]) == 4


# --- deciding together -----------------------------------------------------------------------------------------------


def test_group_is_decided_as_a_whole_if_it_is_as_large_as_the_reviewer_saw(queue: Queue) -> None:
    cases = [stuck(queue) for _ in range(3)]
    mine = queue.get(cases[0])["group"]
    changed = refused(act(queue, mine, "resolve", {"expected_count": 2, **TEXT_ONLY}), 409, "group_changed")
    assert changed["count"] == 3
    assert {queue.get(case)["status"] for case in cases} == {"open"}
    answer = act(queue, mine, "resolve", {"expected_count": 3, **TEXT_ONLY}, Idempotency_Key="k")
    assert results(answer) == dict.fromkeys(cases, "decided")
    assert answer.json()["counts"] == {"decided": 3}
    assert {queue.item(case)["route"] for case in cases} == {"text_only"}
    assert group(queue, mine)["to_decide"] == 0
    again = act(queue, mine, "resolve", {"expected_count": 3, **TEXT_ONLY}, Idempotency_Key="k")
    assert (again.headers["Idempotent-Replayed"], again.json()) == ("true", answer.json())
    other = {"expected_count": 3, **REJECT}
    refused(act(queue, mine, "resolve", other, Idempotency_Key="k"), 422, "idempotency_key_reused")


def test_refused_as_a_whole_leaves_the_key_free(queue: Queue) -> None:
    mine = queue.get(stuck(queue))["group"]
    refused(act(queue, mine, "resolve", {"expected_count": 9, **REJECT}, Idempotency_Key="k"), 409, "group_changed")
    assert act(queue, mine, "resolve", {"expected_count": 1, **REJECT}, Idempotency_Key="k").status_code == 200


def test_each_case_of_a_bulk_decision_has_its_own_fate(queue: Queue) -> None:
    free, held, mine, done, gone = (queue.raised() for _ in range(5))
    halfway = queue.raised(reason="worker_lost", tool=None, can_resume=False)
    queue.post(f"{held}/claim", {}, On_Behalf_Of="ann")
    queue.claimed(mine)
    queue.decided(done, **REJECT)
    queue.client.post(f"/v1/items/{queue.get(gone)['item']}/cancel")
    ids = [free, held, mine, done, gone, halfway, "esc_none"]
    body = {"ids": ids, "action": "resume", "guidance": "Read the back."}
    expected = {
        free: "decided", held: "claimed_by_others", mine: "decided", done: "already_resolved", gone: "withdrawn",
        halfway: "not_allowed", "esc_none": "not_found",
    }  # fmt: skip
    trial = queue.post("bulk", {**body, "dry_run": True})
    would = {case: "would_be_decided" if fate == "decided" else fate for case, fate in expected.items()}
    assert (results(trial), trial.json()["dry_run"]) == (would, True)
    assert (queue.get(free)["status"], queue.get(mine)["status"], queue.whats(free)) == ("open", "claimed", ["opened"])
    answer = queue.post("bulk", body)
    assert results(answer) == expected
    assert [one["id"] for one in answer.json()["results"]] == ids
    assert answer.json()["skipped"] == [{"id": held, "holder": "person:ann"}]
    assert queue.get(held)["holder"] == "person:ann"
    assert queue.get(halfway)["status"] == "open"
    assert {queue.item(case)["status"] for case in (free, mine)} == {"queued"}


def test_bulk_decision_can_be_taken_back_case_by_case(queue: Queue) -> None:
    cases = [queue.raised() for _ in range(2)]
    assert set(results(queue.post("bulk", {"ids": cases, "undo_s": 30, **REJECT})).values()) == {"decided"}
    assert {queue.get(case)["status"] for case in cases} == {"resolved"}
    assert queue.post(f"{cases[0]}/undo").json()["escalation"]["status"] == "claimed"
    assert queue.get(cases[1])["status"] == "resolved"


@pytest.mark.parametrize(
    "body",
    [
        {}, {"ids": []}, {"ids": ["x"] * 201}, {"ids": "esc_1"}, {"ids": [1]}, {"ids": ["esc_1"], "group": "grp_1"},
        {"ids": ["esc_1"], "dry_run": "yes"}, {"group": "grp_1"}, {"group": "grp_1", "expected_count": -1},
        {"group": "grp_1", "expected_count": True}, {"group": 5, "expected_count": 1}, {"ids": ["esc_1"], "action": "burn"},
        {"ids": ["esc_1"], "lease_token": "t"}, {"ids": ["esc_1"], "unknown": 1}, {"ids": ["esc_1"], "undo_s": 61},
    ],
)  # fmt: skip
def test_mistaken_bulk_decision_is_a_400(queue: Queue, body: dict[str, Any]) -> None:
    refused(queue.post("bulk", {**REJECT, **body}), 400, "invalid_request")


# --- merged and split ------------------------------------------------------------------------------------------------


def test_merged_groups_are_one_also_for_what_comes_later(queue: Queue) -> None:
    one, other = stuck(queue), queue.raised(reason="budget", tool=None)
    into, source = queue.get(one)["group"], queue.get(other)["group"]
    merged = act(queue, into, "merge", {"groups": [source, into]}).json()
    assert (merged["id"], merged["to_decide"], len(merged["fingerprints"])) == (into, 2, 2)
    assert {queue.get(case)["group"] for case in (one, other, queue.raised(reason="budget", tool=None))} == {into}
    assert group(queue, source)["id"] == into
    assert [found["id"] for found in groups(queue)] == [into]
    assert queue.audit(other)[-1]["what"] == "regrouped"
    for body in ({}, {"groups": []}, {"groups": ["grp_none"] * 51}, {"groups": [1]}):
        refused(act(queue, into, "merge", body), 400, "invalid_request")
    refused(act(queue, into, "merge", {"groups": ["grp_none"]}), 404, "not_found")


def test_split_fingerprint_never_rejoins(queue: Queue) -> None:
    blurry, torn = stuck(queue, "LOW_CONFIDENCE"), stuck(queue, "TORN_LABEL")
    old = queue.get(blurry)["group"]
    assert queue.get(torn)["group"] == old
    answer = act(queue, old, "split", {"ids": [torn]})
    new = answer.json()["group"]["id"]
    assert (answer.status_code, answer.json()["moved"], answer.headers["Location"]) == (
        201, [torn], f"/v1/escalation-groups/{new}",
    )  # fmt: skip
    assert (group(queue, new)["split_from"], new != old) == (old, True)
    assert queue.get(stuck(queue, "TORN_LABEL"))["group"] == new
    assert queue.get(stuck(queue, "LOW_CONFIDENCE"))["group"] == old
    for into, source in ((old, new), (new, old)):
        refused(act(queue, into, "merge", {"groups": [source]}), 409, "group_split")
    elsewhere = queue.get(queue.raised(reason="budget", tool=None))["group"]
    act(queue, elsewhere, "merge", {"groups": [new]})
    refused(act(queue, old, "merge", {"groups": [elsewhere]}), 409, "group_split")


def test_single_case_that_is_split_from_its_like_stays_apart_when_it_comes_back(queue: Queue) -> None:
    odd, same = stuck(queue), stuck(queue)
    old = queue.get(odd)["group"]
    new = act(queue, old, "split", {"ids": [odd]}).json()["group"]["id"]
    assert (queue.get(same)["group"], queue.get(stuck(queue))["group"]) == (old, old)
    queue.decided(odd, "resume", guidance="go")
    assert queue.get(queue.raised_again(odd))["group"] == new


def test_splitting_what_is_not_in_the_group_moves_nothing(queue: Queue) -> None:
    mine, other = stuck(queue), queue.raised(reason="budget", tool=None)
    old = queue.get(mine)["group"]
    for ids in ([mine, other], [mine, "esc_none"]):
        refused(act(queue, old, "split", {"ids": ids}), 404, "not_found")
    assert queue.get(mine)["group"] == old
    for body in ({}, {"ids": []}, {"ids": [mine], "why": "x"}):
        refused(act(queue, old, "split", body), 400, "invalid_request")
