"""Consent and answers for runs of other people's agents: decided by a person, fetched by the caller, carried out once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import store_key
from tests.gateway.running import Service, bearer

RUNS = "/v1/guard/runs"
PAY = {"to": "ann", "amount": 5}


@pytest.fixture
def client(api: Service, name: str) -> Iterator[httpx.Client]:
    with api.client(headers=bearer(store_key(api, name))) as made:
        yield made


def good(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code in {200, 201}, answer.text
    found: dict[str, Any] = answer.json()
    return found


class Run:
    """One run whose tool `pay` needs consent."""

    def __init__(self, client: httpx.Client, name: str, **how: Any) -> None:
        self.client = client
        tools = [{"name": "pay", "effect": "mutate", "needs_approval": True}, {"name": "look", "effect": "read"}]
        body = {"agent": "tests", "external_run_id": name, "tools": tools, **how}
        self.id = good(client.post(RUNS, json=body))["run_id"]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(f"{RUNS}/{self.id}/{path}", json=body)

    def before(self, call_id: str, args: dict[str, Any], tool: str = "pay") -> dict[str, Any]:
        return good(self.post("before", call_id=call_id, tool=tool, args=args))

    def held(self) -> dict[str, Any]:
        """The case of a call that was held back."""
        halt = self.before("c1", PAY)
        assert (halt["action"], halt["execute"], halt["next"]) == ("halt", False, "human"), halt
        assert (halt["reason"]["code"], halt["end_reason"]) == ("approval_needed", "approval_needed")
        return good(self.client.get(f"/v1/escalations/{halt['escalation_id']}"))

    def decide(self, case: str, **decision: Any) -> httpx.Response:
        claim = self.client.post(f"/v1/escalations/{case}/claim", json={})
        body = {"lease_token": good(claim)["lease"]["token"], **decision}
        headers = {"If-Match": claim.headers["ETag"]}
        return self.client.post(f"/v1/escalations/{case}/resolve", json=body, headers=headers)

    def resumed(self, case: str, **decision: Any) -> dict[str, Any]:
        good(self.decide(case, **decision))
        return good(self.post("resume", escalation_id=case))


def test_call_that_needs_consent_is_held_and_a_reader_is_not(client: httpx.Client, name: str) -> None:
    run = Run(client, name)
    assert run.before("c0", {"at": 1}, tool="look")["execute"]
    case = run.held()
    assert [(call["call_id"], call["tool"], call["state"]) for call in case["open_calls"]] == [
        ("c1", "pay", "needs_approval")
    ]
    assert json.loads(case["open_calls"][0]["arguments"]) == PAY
    assert {"approve_call", "edit_call", "deny_call"} <= {entry["action"] for entry in case["allowed_actions"]}
    assert run.before("c2", {"at": 2}, tool="look")["action"] == "halt"


def test_approved_call_is_told_to_the_caller_and_runs_once(client: httpx.Client, name: str) -> None:
    run = Run(client, name)
    case = run.held()
    resumed = run.resumed(case["id"], action="approve_call", call_id="c1", message="Fine.")
    [granted] = resumed["approved_calls"]
    assert granted == {"call_id": "c1", "tool": "pay", "args": None, "changed": False, "note": "Fine."}
    assert resumed["messages_to_append"] == []
    again = run.before("c1", PAY)
    assert (again["action"], again["execute"]) == ("allow", True)
    assert run.before("c1", PAY) == again
    good(run.post("after", call_id="c1", status="ok", result="paid"))
    other = run.before("c9", PAY)
    assert (other["action"], other["execute"]) == ("block", False)
    assert run.before("c10", {**PAY, "amount": 6})["action"] == "halt"


def test_edited_call_is_told_with_its_new_arguments_and_the_old_ones_stay_held(client: httpx.Client, name: str) -> None:
    run = Run(client, name)
    case = run.held()
    less = {"to": "ann", "amount": 4}
    resumed = run.resumed(case["id"], action="edit_call", call_id="c1", args=less)
    [granted] = resumed["approved_calls"]
    assert (granted["args"], granted["changed"]) == (less, True)
    [message] = resumed["messages_to_append"]
    assert message["content"].startswith("A reviewer changed the call c1 before it ran.")
    assert run.before("c1", less)["execute"]
    assert run.before("c2", PAY)["action"] == "halt"


@pytest.mark.parametrize(
    ("edit", "status", "code", "pointer"),
    [
        ({"call_id": "c1", "tool": "steal", "args": {}}, 422, "edited_call_denied", "/tool"),
        ({"call_id": "c9", "args": {}}, 400, "invalid_request", "/call_id"),
        ({"call_id": "c1"}, 400, "invalid_request", "/args"),
        ({"call_id": "c1", "tool": "look", "args": {"at": 1}}, 422, "edited_call_denied", "/args"),
    ],
)
def test_edit_that_cannot_be_is_refused_when_it_is_decided(
    client: httpx.Client, name: str, edit: dict[str, Any], status: int, code: str, pointer: str
) -> None:
    run = Run(client, name)
    run.before("c0", {"at": 1}, tool="look")
    good(run.post("after", call_id="c0", status="ok", result="nothing"))
    case = run.held()
    refused = run.decide(case["id"], action="edit_call", **edit)
    assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    assert pointer in [error["pointer"] for error in refused.json()["errors"]]


@pytest.mark.parametrize(
    ("decision", "is_error", "word"),
    [
        ({"action": "deny_call", "message": "Too much."}, True, "Too much."),
        ({"action": "answer_tool", "result": {"receipt": 7}}, False, '"receipt":7'),
    ],
)
def test_denied_or_answered_call_comes_back_as_a_result_for_each_provider(
    client: httpx.Client, name: str, decision: dict[str, Any], is_error: bool, word: str
) -> None:
    run = Run(client, name)
    case = run.held()
    resumed = run.resumed(case["id"], call_id="c1", **decision)
    [answer] = resumed["call_results"]
    assert (answer["call_id"], answer["tool_result"]["is_error"]) == ("c1", is_error)
    assert all(
        word in json.dumps(form, ensure_ascii=False).replace('\\"', '"')
        for form in answer["tool_result"]["as"].values()
    )
    assert answer["tool_result"]["as"]["anthropic"]["is_error"] is is_error
    assert resumed["approved_calls"] == []
    assert not run.before("c2", PAY)["execute"]


def test_policy_may_name_tools_or_all_that_change_something(client: httpx.Client, name: str) -> None:
    run = Run(client, name, tools=[{"name": "a", "effect": "mutate"}, {"name": "b", "effect": "read"}],
              policy={"needs_approval": ["mutating"]})  # fmt: skip
    assert run.before("c1", {}, tool="b")["execute"]
    assert run.before("c2", {}, tool="a")["reason"]["code"] == "approval_needed"
    wrong = client.post(RUNS, json={"agent": "t", "external_run_id": f"{name}-x", "policy": {"needs_approval": "all"}})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (400, "/policy")


def test_unknown_tool_is_refused_when_a_run_is_resumed(client: httpx.Client, name: str) -> None:
    run = Run(client, name)
    case = run.held()
    refused = run.decide(case["id"], action="resume", guidance="Go on.", ban_tools=["lok"])
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (400, "/ban_tools/0")
    assert "pay, look" in refused.json()["errors"][0]["detail"]


def test_decision_on_a_run_tells_how_the_run_stands(client: httpx.Client, name: str) -> None:
    run = Run(client, name)
    case = run.held()
    run.resumed(case["id"], action="deny_call", call_id="c1", message="No.")
    good(run.post("end", outcome="done"))
    [decided] = client.get("/v1/decisions", params={"escalation": case["id"]}).json()["decisions"]
    assert (decided["action"], decided["run"], decided["outcome"]["status"]) == ("deny_call", run.id, "ended")
