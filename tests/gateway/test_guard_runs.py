"""The guard over HTTP: the ladder of the library, whoever asks, whichever process answers, whatever is sent."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletionToolMessageParam
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter

from gateway.guarding.metrics import ToolNames
from gateway.guarding.requests import CallRequest, NewRunRequest, ReportRequest, ResumeRequest
from gateway.guarding.runs import GuardRuns
from gateway.guarding.visits import FIRST_SNAPSHOT
from gateway.store import items as item_store
from gateway.store.engine import Database
from guard import Effect, GuardAction, Outcome, ToolCall, ToolTraits
from tests.gateway.conftest import store_key
from tests.gateway.guard_caller import RUNS, HttpRun, declared, good, hardest, opened
from tests.gateway.running import Service, bearer, running, start
from tests.guard.ladder_table import LADDER_CASES, LadderCase, climb
from tests.guard.replay import Replayed, load_cases, misses, outcome_of, replay, tool_call, traits_of
from tests.guard.test_adapters import CASES, Case

READ = {"look": ToolTraits(Effect.READ_ONLY)}
SAME = Outcome.ok("same")
LOOPS = load_cases("loops.jsonl")


@pytest.fixture(scope="module")
def guard_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The API alone, with the limits that it has by itself."""
    with running("serve", tmp_path_factory.mktemp("guard-runs")) as started:
        yield started


@pytest.fixture
def caller(guard_service: Service) -> Iterator[httpx.Client]:
    with guard_service.client() as made:
        yield made


def look(number: int, turn: str | int | None = None, at: str = "p1") -> ToolCall:
    return ToolCall("look", {"at": at}, call_id=f"c{number}", turn=turn)


def halted(run: HttpRun, *, first: int = 1) -> dict[str, Any]:
    """The decision that halts a run which looks at the same thing over and over."""
    for number in range(first, first + 4):
        decision = run.both(look(number), SAME)[-1]
    assert decision["action"] == "halt", decision
    return decision


# -- the ladder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", LADDER_CASES, ids=lambda case: case.name)
def test_ladder_over_http(caller: httpx.Client, name: str, case: LadderCase) -> None:
    run = opened(caller, name=name, tools=case.tools, policy={"on_repeated_error": "error"})
    assert climb(case, run.judge) == case.expected


def replayed_over_http(run: HttpRun, case: dict[str, Any]) -> Replayed:
    replayed = Replayed()
    for number, recorded in enumerate(case["calls"], 1):
        decisions = run.both(tool_call(number, recorded), outcome_of(recorded))
        replayed.executed += int(decisions[0]["execute"])
        replayed.levels.append(hardest(decisions))
        if any(decision["next"] in {"human", "error"} for decision in decisions):
            replayed.escalated_at = number
        if replayed.levels[-1] is GuardAction.HALT:
            break
    return replayed


@pytest.mark.parametrize("case", LOOPS, ids=lambda case: str(case["id"]))
def test_recorded_run_over_http_is_judged_as_by_the_library(
    caller: httpx.Client, name: str, case: dict[str, Any]
) -> None:
    run = opened(caller, name=name, tools=traits_of(case))
    replayed, expected = replayed_over_http(run, case), replay(case)
    assert replayed.levels == expected.levels
    assert replayed.escalated_at == expected.escalated_at
    assert list(misses(case, replayed)) == []


def tool_outcome(tool: str, args: Any) -> Outcome:
    """What the tools of the adapters' table answer."""
    if tool.startswith("invented"):
        return Outcome.failed("UNKNOWN_TOOL", "no such tool")
    if isinstance(args, str):
        return Outcome.failed("INVALID_ARGUMENTS", "no JSON")
    if tool == "ask":
        return Outcome.failed("QUOTA", "no quota left")
    return Outcome.ok({"look": f"text of {args.get('file')}", "tune": "unreadable", "save": "saved"}[tool])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_http_climbs_the_ladder_of_the_adapters(caller: httpx.Client, name: str, case: Case) -> None:
    tools = {tool: ToolTraits(Effect.READ_ONLY) for tool in ("look", "tune", "ask")}
    run = opened(caller, name=name, tools=tools, policy={"undeclared_effect": "mutate"})
    answers: dict[str, str] = {}
    executed, messages, end = 0, 0, None
    for messages, message in enumerate(case.messages, 1):
        calls = [
            {"call_id": f"{messages}.{place}", "tool": tool, "args_raw" if isinstance(args, str) else "args": args}
            for place, (tool, args) in enumerate(message, 1)
        ]
        for asked, decision in zip(message, good(run.post("before-batch", calls)), strict=True):
            call_id = decision["call_id"]
            if decision["execute"]:
                outcome = tool_outcome(*asked)
                executed += not asked[0].startswith("invented") and not isinstance(asked[1], str)
                decision = run.after(call_id, outcome)
                said = f"{outcome.error.code}: {outcome.error.message}" if outcome.error else str(outcome.result)
                answers[call_id] = f"{said} {decision['append'] or ''}"
            elif decision["same_as"] is not None and decision["tool_result"] is None:
                answers[call_id] = answers[decision["same_as"]]
            else:
                answers[call_id] = decision["tool_result"]["text"]
            end = end or (decision if decision["turn"]["end"] else None)
        if end is not None:
            break
    assert messages + (end is None) == case.model_calls
    assert (end is not None) is case.is_halted
    assert executed == case.executed
    assert end is None or (end["next"] == "human") is case.escalates
    assert set(answers) >= {f"{messages}.{place}" for place in range(1, len(case.messages[messages - 1]) + 1)}
    for call_id, text in case.marks.items():
        assert text in answers[call_id]


def test_shadow_mode_lets_everything_pass_and_says_what_it_would_have_done(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ, policy={"mode": "shadow"})
    decisions = [run.both(look(number), SAME) for number in range(1, 5)]
    assert all(one["execute"] and one["action"] == "allow" for two in decisions for one in two)
    assert [two[0]["shadow_action"] for two in decisions] == ["allow", "allow", "block", "halt"]
    assert run.get()["status"] == "running"


# -- once and for all --------------------------------------------------------------------------------------------------


def test_retries_get_the_stored_decision_byte_for_byte_and_count_nothing(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    for number in (1, 2):
        for path, body in (
            ("before", {"call_id": f"c{number}", "tool": "look", "args": {"at": "p1", "n": 1}}),
            ("after", {"call_id": f"c{number}", "status": "ok", "result": "same"}),
        ):
            first, *others = [run.post(path, body) for _ in range(4)]
            assert "idempotent-replayed" not in first.headers
            for other in others:
                assert other.content == first.content
                assert other.headers["idempotent-replayed"] == "true"
    again = run.post("before", {"call_id": "c1", "tool": "look", "args_raw": '{"n": 1.0, "at": "p1"}'})
    assert again.headers["idempotent-replayed"] == "true"
    assert first.json()["action"] == "warn"
    shown = run.get()
    assert (shown["counters"]["decisions"], shown["budget"]["steps"]) == (4, 2)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("before", {"call_id": "c1", "tool": "look", "args": {"at": "p2"}}),
        ("before", {"call_id": "c1", "tool": "see", "args": {"at": "p1"}}),
        ("before", {"call_id": "c1", "tool": "look", "args": {"at": "p1"}, "turn": 2}),
        ("before", {"call_id": "c1", "tool": "look", "args_raw": "{"}),
        ("after", {"call_id": "c1", "status": "ok", "result": "different"}),
        ("after", {"call_id": "c1", "status": "error", "error": {"code": "GONE"}}),
    ],
    ids=["arguments", "tool", "turn", "raw arguments", "result", "error"],
)
def test_the_same_call_id_with_other_content_is_422(
    caller: httpx.Client, name: str, path: str, body: dict[str, Any]
) -> None:
    run = opened(caller, name=name, tools=READ)
    run.both(look(1), SAME)
    answer = run.post(path, body)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert run.get()["budget"]["steps"] == 1


def test_the_outcome_of_a_call_that_was_not_let_through_is_409(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name)
    run.both(ToolCall("save", {"n": 1}, call_id="c1"), Outcome.ok("saved"))
    assert not run.before(ToolCall("save", {"n": 1}, call_id="c2"))["execute"]
    answer = run.post("after", {"call_id": "c2", "status": "ok", "result": "saved twice"})
    assert (answer.status_code, answer.json()["code"]) == (409, "item_state_conflict")
    assert run.get()["counters"]["reports"] == 1


def test_an_outcome_that_nobody_asked_about_is_counted_and_flagged(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    body = {"call_id": "c1", "status": "ok", "result": "same", "tool": "look", "args": {"at": "p1"}}
    told = good(run.post("after", body))
    assert told["flags"] == ["unasked"]
    assert run.both(look(2), SAME)[-1]["action"] == "warn"
    assert run.get()["counters"]["unasked"] == 1
    late = run.post("before", {"call_id": "c1", "tool": "look", "args": {"at": "p1"}})
    assert (late.status_code, late.json()["code"]) == (409, "item_state_conflict")


def test_unnamed_outcomes_are_no_repetition_of_each_other(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name)
    told = [good(run.post("after", {"call_id": f"c{n}", "status": "ok", "result": "x"})) for n in range(8)]
    assert {decision["turn"]["end"] for decision in told} == {False}
    assert run.get()["budget"]["steps"] == 8


def test_opening_again_finds_the_same_run_as_it_was_opened(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    run.both(look(1), SAME)
    body = {"agent": "tests", "external_run_id": name, "tools": [{"name": "save", "effect": "mutate"}]}
    answer = caller.post(RUNS, json=body)
    assert (answer.status_code, answer.json()["run_id"]) == (200, run.id)
    assert answer.headers["location"] == f"{RUNS}/{run.id}"
    assert list(run.get()["tools"]) == ["look"]
    assert caller.post(RUNS, json={**body, "agent": "other"}).status_code == 201


def test_ten_that_open_one_run_at_the_same_time_get_one_run(caller: httpx.Client, name: str) -> None:
    body = {"agent": "tests", "external_run_id": name}
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: caller.post(RUNS, json=body), range(10)))
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 9}


# -- one writer at a time ----------------------------------------------------------------------------------------------


def raced(run: HttpRun, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    """All of these asked at the same moment."""
    line = threading.Barrier(len(bodies))

    def ask(body: dict[str, Any]) -> httpx.Response:
        line.wait()
        return run.clients[0].post(f"{RUNS}/{run.id}/before", json=body)

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(ask, bodies))


@pytest.mark.parametrize("tool", ["look", "save"])
@pytest.mark.parametrize(
    "turn", [lambda n: None, lambda n: "one", lambda n: n], ids=["no turn", "the same turn", "turns of their own"]
)
def test_twenty_identical_calls_at_once_never_run_twice(
    caller: httpx.Client, name: str, tool: str, turn: Callable[[int], Any]
) -> None:
    run = opened(caller, name=name, tools=READ)
    bodies = [{"call_id": f"c{n}", "tool": tool, "args": {"at": "p1"}, "turn": turn(n)} for n in range(20)]
    others = [{"call_id": f"o{n}", "tool": "look", "args": {"at": f"o{n}"}, "turn": turn(100 + n)} for n in range(5)]
    answers = raced(run, [*bodies, *others])
    run_now = [a for a in answers[:20] if a.status_code == 200 and a.json()["execute"]]
    assert len(run_now) == 1
    for answer in answers[:20]:
        if answer.status_code == 409:
            assert (answer.json()["code"], answer.json()["holder"]) == ("already_claimed", run_now[0].json()["call_id"])
            assert answer.headers["retry-after"] == "1"
        else:
            assert answer.status_code == 200
            assert answer.json()["same_as"] in {None, run_now[0].json()["call_id"]}
    assert len({a.json()["decision_id"] for a in answers if a.status_code == 200}) == sum(
        a.status_code == 200 for a in answers
    )


def test_one_call_asked_about_twenty_times_at_once_is_one_decision(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    answers = raced(run, [{"call_id": "c1", "tool": "look", "args": {"at": "p1"}}] * 20)
    assert len({answer.content for answer in answers}) == 1
    assert run.get()["budget"]["steps"] == 1


def test_an_identical_call_waits_only_for_the_outcome(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    assert run.before(look(1, turn=1))["execute"]
    early = run.post("before", {"call_id": "c2", "tool": "look", "args": {"at": "p1"}, "turn": 2})
    assert (early.status_code, early.json()["retryable"], early.json()["holder"]) == (409, True, "c1")
    assert early.json()["expires_at"] > "2026"
    run.after("c1", SAME)
    assert run.before(look(2, turn=2))["execute"]
    assert run.after("c2", SAME)["action"] == "warn"


# -- processes come and go ---------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_was_after_kill_9(tmp_path: Path, name: str) -> None:
    first = start("serve", tmp_path)
    with first.client() as client:
        run = opened(client, name=name, tools=READ)
        levels = [hardest(run.both(look(number), SAME)) for number in (1, 2)]
        asked = run.before(ToolCall("look", {"at": "p2"}, call_id="open"))
    first.kill()
    with running("serve", tmp_path) as second, second.client() as client:
        run = HttpRun((client,), run.id, iter(range(100)))
        again = run.before(ToolCall("look", {"at": "p2"}, call_id="open"))
        assert again == asked
        assert run.after("open", Outcome.ok("other"))["flags"] == []
        levels += [hardest(run.both(look(number), SAME)) for number in (3, 4)]
        assert [level.value for level in levels] == ["allow", "warn", "block", "halt"]
        assert run.get()["budget"]["steps"] == 5


def test_two_processes_answer_one_run_in_turn_as_one_guard_would(guard_service: Service, name: str) -> None:
    """Each follows the records of the other, with all that a run can hold."""
    case = {
        "calls": [
            {
                "tool": ("look", "save", "search")[n % 3],
                "effect": "write" if n % 3 == 1 else "read",
                "args": {"n": n % 7 if n % 11 else "x", "q": f"w{n}"},
                "outcome": "error" if n % 5 == 4 else "ok",
                "error_code": f"E{n % 3}",
                "result": f"result {n % 13} at 2026-11-30T12:00:{n % 60:02}Z",
            }
            for n in range(60)
        ]
    }
    expected = replay(case)
    with running("serve", guard_service.data_dir) as other, guard_service.client() as one, other.client() as two:
        run = opened(one, two, name=name, tools=traits_of(case))
        replayed = replayed_over_http(run, case)
        shown = [good(client.get(f"{RUNS}/{run.id}")) for client in (one, two)]
    assert shown[0] == shown[1]
    assert replayed.levels == expected.levels
    assert len(replayed.levels) == 60


def runs_on(database: Database, name: str, **options: Any) -> tuple[GuardRuns, str]:
    runs = GuardRuns(database)
    body = {"agent": "tests", "external_run_id": name, "tools": declared(READ), **options}
    row, _ = runs.open("t", NewRunRequest.model_validate(body))
    return runs, row.id


def test_a_rebuilt_guard_equals_one_that_was_kept(database: Database, name: str) -> None:
    kept, run_id = runs_on(database, name)
    other, other_id = runs_on(database, f"{name}-2")
    for number in range(FIRST_SNAPSHOT // 2 + 30):  # a restart before the first snapshot, and often after it
        is_restart = number % 9 == 8 or number > FIRST_SNAPSHOT // 2
        results = []
        for runs, run in ((kept, run_id), (GuardRuns(database) if is_restart else other, other_id)):
            ask = CallRequest(
                call_id=f"c{number}", tool="look", args={"at": number % 9, "of": [1.5 * number, number // 20]}
            )
            (before,) = runs.before("t", run, [ask])
            answers = [json.loads(before.text)]
            if answers[0]["execute"]:
                told = ReportRequest(call_id=f"c{number}", status="ok", result={"seen": number % 4})
                answers.append(json.loads(runs.after("t", run, told).text))
            results.append([{k: v for k, v in a.items() if k not in {"decision_id", "run_id"}} for a in answers])
        assert results[0] == results[1]


def test_two_processes_that_race_on_one_database_let_one_identical_call_run(database: Database, name: str) -> None:
    runs, run_id = runs_on(database, name)
    guards = [runs, GuardRuns(database)]

    def ask(number: int) -> bool:
        call = CallRequest(call_id=f"c{number}", tool="look", args={"at": "p1"}, turn="one")
        (answer,) = guards[number % 2].before("t", run_id, [call])
        return bool(json.loads(answer.text)["execute"])

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(24))) == 1
    assert runs.read("t", run_id).row.decisions == 24


# -- messages with several calls ---------------------------------------------------------------------------------------


def batch_of(*pairs: tuple[str, str, Any]) -> list[dict[str, Any]]:
    return [{"call_id": call_id, "tool": tool, "args": args} for call_id, tool, args in pairs]


def test_a_batch_is_judged_in_order_and_an_identical_call_shares_the_first_result(
    caller: httpx.Client, name: str
) -> None:
    run = opened(caller, name=name, tools=READ)
    calls = batch_of(
        ("c1", "look", {"at": "p1"}),
        ("c2", "look", {"at": "p1"}),
        ("c3", "save", {"n": 1}),
        ("c4", "save", {"n": 1}),
        ("c5", "look", {"at": "p2"}),
    )
    decisions = good(run.post("before-batch", calls))
    assert [d["call_id"] for d in decisions] == ["c1", "c2", "c3", "c4", "c5"]
    assert [(d["execute"], d["same_as"]) for d in decisions[:2]] == [(True, None), (False, "c1")]
    assert [(d["action"], d["execute"]) for d in decisions[2:4]] == [("allow", True), ("block", False)]
    assert decisions[3]["tool_result"]["as"]["openai.chat"]["tool_call_id"] == "c4"
    assert decisions[4]["execute"]
    again = run.post("before-batch", {"calls": calls})
    assert again.json() == {"decisions": decisions}
    assert again.headers["idempotent-replayed"] == "true"


def test_a_batch_with_one_bad_call_changes_nothing(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    run.both(look(1), SAME)
    calls = batch_of(("c8", "look", {"at": "p8"}), ("c1", "look", {"at": "other"}), ("c9", "look", {}))
    assert run.post("before-batch", calls).status_code == 422
    assert run.get()["budget"]["steps"] == 1
    twice = run.post("before-batch", batch_of(("c8", "look", {}), ("c8", "look", {})))
    assert (twice.status_code, twice.json()["code"]) == (400, "invalid_request")


CHAT: TypeAdapter[Any] = TypeAdapter(ChatCompletionToolMessageParam)
RESPONSES: TypeAdapter[Any] = TypeAdapter(FunctionCallOutput)


def assert_ready_for_providers(result: dict[str, Any], call_id: str) -> None:
    """Each form is what that provider's own types take, and all say the same of the same call."""
    forms = result["as"]
    chat, responses, anthropic = forms["openai.chat"], forms["openai.responses"], forms["anthropic"]
    assert CHAT.validate_python(chat) == chat
    assert RESPONSES.validate_python(responses) == responses
    assert anthropic == {"type": "tool_result", "tool_use_id": call_id, "is_error": True, "content": result["text"]}
    assert (chat["tool_call_id"], responses["call_id"]) == (call_id, call_id)
    assert chat["content"] == responses["output"] == result["text"]


def test_a_halt_leaves_a_result_for_each_call_of_its_message(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    for number in (1, 2):
        run.both(look(number, turn=number), SAME)
    run.before(look(3, turn=3))
    calls = batch_of(
        ("a", "look", {"at": "p7"}),
        ("b", "save", {"n": 1}),
        ("halts", "look", {"at": "p1"}),
        ("late", "look", {"at": "p9"}),
    )
    decisions = good(run.post("before-batch", calls))
    assert [(d["action"], d["execute"]) for d in decisions] == [
        ("allow", True),
        ("allow", True),
        ("halt", False),
        ("halt", False),
    ]
    halt = decisions[2]
    assert halt["turn"] == {"end": True, "resumable": True}
    assert_ready_for_providers(halt["tool_result"], "halts")
    assert halt["tool_result"]["seen_before"]["call_id"] == "c1"
    assert [closed["call_id"] for closed in halt["also_close"]] == ["a", "b"]
    for closed in halt["also_close"]:
        assert_ready_for_providers(closed["tool_result"], closed["call_id"])
    said = [one["tool_result"]["text"] for one in (*halt["also_close"], decisions[3])]
    assert len(set(said)) == len(said)
    assert_ready_for_providers(decisions[3]["tool_result"], "late")
    answered = {"halts", "late"} | {closed["call_id"] for closed in halt["also_close"]}
    assert answered == {call["call_id"] for call in calls}


def test_an_error_that_halts_closes_the_other_calls_of_its_message(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools={"search": ToolTraits(Effect.READ_ONLY)})
    for number in range(3):
        run.both(ToolCall("search", {"q": "x" * number}, call_id=f"c{number}"), Outcome.failed("LOW"))
    good(run.post("before-batch", batch_of(("a", "search", {"q": "last"}), ("b", "search", {"q": "open"}))))
    halt = run.after("a", Outcome.failed("LOW"))
    assert (halt["action"], halt["turn"]["end"], halt["end_reason"]) == ("halt", True, "repeated_error")
    assert [closed["call_id"] for closed in halt["also_close"]] == ["b"]
    assert halt["append"]
    assert run.after("b", Outcome.ok("came after all"))["flags"] == []


# -- budgets, policies, bans -------------------------------------------------------------------------------------------


def test_the_budget_is_that_of_the_run(caller: httpx.Client, name: str) -> None:
    tools = {**READ, "save": ToolTraits(Effect.MUTATING)}
    run = opened(caller, name=name, tools=tools, budget={"max_steps": 2, "max_cost": "0.50"})
    for number in (1, 2):
        assert run.before(look(number, at=f"p{number}"))["execute"]
        run.after(f"c{number}", Outcome.ok(number, cost=0.1))
    third = run.before(look(3, at="p3"))
    assert (third["action"], third["reason"]["code"], third["end_reason"]) == ("halt", "step_budget", "budget")
    assert third["counts"]["steps_max"] == 2
    assert run.get()["budget"]["cost"] == "0.2"
    body = {"extra_steps": 2, "guidance": "One more, then answer.", "ban_tools": ["save"]}
    resumed = good(run.post("resume", body))
    assert (resumed["epoch"], resumed["banned_tools"], resumed["budget"]["steps_max"]) == (1, ["save"], 4)
    assert resumed["messages_to_append"] == [{"role": "user", "content": "One more, then answer."}]
    assert run.before(look(4, at="p4"))["execute"]
    assert run.before(look(5, at="p5"))["action"] == "halt"


def test_each_budget_of_a_run_can_be_raised_when_it_goes_on(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ, budget={"max_cost": "0.50", "max_tokens": 100, "max_seconds": 600})
    good(run.post("before", {"call_id": "c1", "tool": "look", "args": {"at": "p1"}}))
    good(run.post("after", {"call_id": "c1", "status": "ok", "result": 1, "cost": "0.50", "tokens": 5}))
    assert run.before(look(2, at="p2"))["reason"]["code"] == "cost_budget"
    more = {"extra_cost": "0.25", "extra_tokens": 50, "extra_seconds": 60}
    resumed = good(run.post("resume", more))
    told = {"cost_max": "0.75", "tokens_max": 150, "seconds_max": 660.0}
    assert {limit: resumed["budget"][limit] for limit in told} == told
    assert run.before(look(3, at="p3"))["execute"]
    assert {limit: run.get()["budget"][limit] for limit in told} == told
    refused = run.post("resume", {"extra_cost": "-1"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (400, "/extra_cost")


def test_banning_a_tool_that_the_run_does_not_have_is_refused_with_those_that_it_has(
    caller: httpx.Client, name: str
) -> None:
    run = opened(caller, name=name, tools={**READ, "save": ToolTraits(Effect.MUTATING)})
    run.both(ToolCall("undeclared", {}, call_id="c0"), SAME)
    halted(run)
    refused = run.post("resume", {"ban_tools": ["undeclared", "lock"]})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/ban_tools/1"
    assert error["detail"] == "There is no tool 'lock' here; there are: look, save, undeclared."
    assert run.get()["status"] == "halted"
    assert good(run.post("resume", {"ban_tools": ["undeclared", "look"]}))["banned_tools"] == ["undeclared", "look"]


def test_a_run_that_declared_no_tools_may_ban_any(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, policy={"undeclared_effect": "read"})
    halted(run)
    assert good(run.post("resume", {"ban_tools": ["anything"]}))["banned_tools"] == ["anything"]


def test_the_policy_is_that_of_the_run_and_has_a_name(caller: httpx.Client, name: str) -> None:
    strict = opened(caller, name=name, tools=READ, policy={"counting": "strict", "language": "zh"})
    results = [hardest(strict.both(look(n), Outcome.ok(f"new {n}"))) for n in range(1, 5)]
    assert [level.value for level in results] == ["allow", "warn", "block", "halt"]
    shown = strict.get()
    assert shown["policy"].startswith("pol_")
    assert shown["policy_values"]["counting"] == "strict"
    assert (
        shown["policy"]
        == opened(caller, name=f"{name}-2", policy={"counting": "strict", "language": "zh"}).get()["policy"]
    )
    assert shown["policy"] != opened(caller, name=f"{name}-3").get()["policy"]


def test_by_default_a_loop_is_the_callers_to_decide(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    halt = halted(run)
    assert (halt["next"], halt["escalation_id"]) == ("stop", None)
    assert run.get()["status"] == "halted"
    sticky = run.before(look(9, at="p9"))
    assert (sticky["action"], sticky["execute"], sticky["flags"]) == ("halt", False, ["ended"])
    first = run.post("resume", {"guidance": "Look elsewhere."}, headers={"Idempotency-Key": "again"})
    again = run.post("resume", {"guidance": "Look elsewhere."}, headers={"Idempotency-Key": "again"})
    assert first.json()["epoch"] == 1
    assert again.content == first.content
    assert run.before(look(10))["action"] == "block"
    assert run.before(look(11, at="p9"))["execute"]
    nothing = run.post("resume", {})
    assert (nothing.status_code, nothing.json()["code"]) == (409, "item_state_conflict")


def test_the_fallback_closes_the_tool_and_the_turn_goes_on(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ, policy={"on_loop": "fallback"})
    halt = halted(run)
    assert (halt["next"], halt["turn"]["end"], halt["banned_tools"]) == ("fallback", False, ["look"])
    assert_ready_for_providers(halt["tool_result"], halt["call_id"])
    assert "has no look" in halt["tool_result"]["text"]
    assert "stops" not in halt["tool_result"]["text"]
    assert run.before(look(9, at="p9"))["reason"]["code"] == "tool_banned"
    assert run.before(ToolCall("save", {"n": 1}, call_id="c10"))["execute"]


def test_paused_time_is_no_part_of_the_time_budget(
    database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([1_000_000, *range(1_001_000, 1_005_000, 1_000), *[9_000_000] * 20])
    at = {"ms": 0}

    def tick(connection: Any) -> int:
        at["ms"] = next(clock)
        return at["ms"]

    monkeypatch.setattr(item_store, "now_ms", tick)
    runs, run_id = runs_on(database, name, budget={"max_seconds": 60}, policy={"ladders": {"read_only": [None, 1, 2]}})
    for number in (1, 2):
        (answer,) = runs.before("t", run_id, [CallRequest(call_id=f"c{number}", tool="look", args={"at": number // 3})])
    assert json.loads(answer.text)["action"] == "halt"
    at_halt = runs.read("t", run_id).progress.spent["seconds"]
    resumed = json.loads(runs.resume("t", run_id, ResumeRequest(guidance="go on")).text)
    assert resumed["budget"]["seconds"] == at_halt < 60
    (answer,) = runs.before("t", run_id, [CallRequest(call_id="c5", tool="save", args={})])
    assert json.loads(answer.text)["execute"]


# -- people ------------------------------------------------------------------------------------------------------------


def failing(run: HttpRun) -> dict[str, Any]:
    """The decision that puts a run before a person."""
    for number in range(4):
        call = ToolCall("look", {"at": "x" * number, "api_key": "sk-0123456789abcdef"}, call_id=f"e{number}")
        decision = run.both(call, Outcome.failed("LOW_CONFIDENCE", result=f"confidence 0.1{number}"))[-1]
    assert decision["next"] == "human", decision
    return decision


def decide(client: httpx.Client, escalation_id: str, **decision: Any) -> httpx.Response:
    claim = client.post(f"/v1/escalations/{escalation_id}/claim", json={})
    body = {"lease_token": claim.json()["lease"]["token"], **decision}
    return client.post(
        f"/v1/escalations/{escalation_id}/resolve", json=body, headers={"If-Match": claim.headers["etag"]}
    )


def test_a_repeated_error_goes_before_a_person_and_on_with_their_words(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    halt = failing(run)
    case = good(caller.get(f"/v1/escalations/{halt['escalation_id']}"))
    assert (case["run"], case["item"], case["status"], case["tool"]) == (run.id, None, "open", "look")
    links = {"self": f"/v1/escalations/{case['id']}", "run": f"{RUNS}/{run.id}"}
    assert links.items() <= case["links"].items()
    assert [action["action"] for action in case["allowed_actions"]] == [
        "resume", "dismiss", "answer_tool", "close",
    ]  # fmt: skip
    assert "LOW_CONFIDENCE" in case["question"]
    assert case["first_answer"] == "confidence 0.10"
    assert [call["error"] for call in case["calls"]] == ["LOW_CONFIDENCE"] * 4
    assert "sk-0123" not in json.dumps(case)
    assert run.get()["status"] == "awaiting_human"

    early = run.post("resume", {"escalation_id": case["id"]})
    assert (early.status_code, early.json()["code"]) == (409, "item_state_conflict")
    own = run.post("resume", {"guidance": "by myself"})
    assert (own.status_code, own.json()["code"]) == (409, "item_state_conflict")

    for wrong in ({"action": "reject_item", "message": "no"}, {"action": "reroute", "route": "text_only"}):
        assert decide(caller, case["id"], **wrong).json()["code"] == "action_not_allowed"
    decided = decide(caller, case["id"], action="resume", guidance="Use the notes.", extra_steps=3, ban_tools=["look"])
    assert (good(decided)["status"], good(decided)["run"]) == ("resolved", run.id)
    assert run.before(look(20))["action"] == "halt"

    resumed = run.post("resume", {"escalation_id": case["id"]})
    assert good(resumed)["epoch"] == 1
    assert good(resumed)["banned_tools"] == ["look"]
    assert good(resumed)["messages_to_append"] == [
        {"role": "user", "content": "A reviewer looked at this and says: Use the notes."}
    ]
    assert run.post("resume", {"escalation_id": case["id"]}).content == resumed.content
    assert good(caller.get(f"/v1/escalations/{case['id']}"))["status"] == "applied"
    assert run.before(look(21))["reason"]["code"] == "tool_banned"
    assert run.before(ToolCall("save", {"n": 1}, call_id="s"))["execute"]
    assert run.get()["status"] == "running"


def test_a_false_alarm_starts_the_signature_afresh(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ, policy={"on_loop": "human"})
    halt = halted(run)
    assert good(decide(caller, halt["escalation_id"], action="dismiss"))["status"] == "resolved"
    good(run.post("resume", {"escalation_id": halt["escalation_id"]}))
    assert run.before(look(9))["execute"]


def test_a_person_may_close_a_run(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    halt = failing(run)
    assert good(decide(caller, halt["escalation_id"], action="close", message="Enough."))["status"] == "applied"
    refused = run.post("resume", {"escalation_id": halt["escalation_id"]})
    assert (refused.status_code, refused.json()["outcome"]["message"]) == (409, "Enough.")
    assert run.post("before", {"call_id": "n", "tool": "look"}).status_code == 409
    assert run.get()["status"] == "ended"


def test_ending_a_run_withdraws_its_case_and_keeps_what_was_answered(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    halt = failing(run)
    ended = good(run.post("end", {"outcome": "abandoned", "output_digest": "sha256:0"}))
    assert (ended["status"], ended["outcome"]["outcome"]) == ("ended", "abandoned")
    assert good(caller.get(f"/v1/escalations/{halt['escalation_id']}"))["status"] == "withdrawn"
    assert good(run.post("end", {"outcome": "done"}))["outcome"]["outcome"] == "abandoned"
    new = run.post("before", {"call_id": "new", "tool": "look"})
    assert (new.status_code, new.json()["code"]) == (409, "item_state_conflict")
    body = {"call_id": "e0", "tool": "look", "args": {"at": "", "api_key": "sk-0123456789abcdef"}}
    assert run.post("before", body).headers["idempotent-replayed"] == "true"
    gone = run.post("resume", {"escalation_id": halt["escalation_id"]})
    assert (gone.status_code, gone.json()["code"]) == (409, "escalation_withdrawn")


def test_a_run_of_a_cancelled_item_is_cancelled(caller: httpx.Client, name: str) -> None:
    item = caller.post("/v1/items", json={"title": name}, headers={"Prefer": "respond-async"}).json()
    run = opened(caller, name=name, tools=READ, item_id=item["id"])
    assert run.before(look(1))["execute"]
    caller.post(f"/v1/items/{item['id']}/cancel", json={})
    refused = run.before(look(2, at="p2"))
    assert (refused["reason"]["code"], refused["turn"]) == ("run_cancelled", {"end": True, "resumable": False})
    assert run.get()["status"] == "cancelled"
    assert run.get()["item_id"] == item["id"]


# -- bad input ---------------------------------------------------------------------------------------------------------


def deep(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


HOSTILE_ARGS = {
    "not JSON": ("args_raw", '{"a": '),
    "empty text": ("args_raw", ""),
    "text as args": ("args", "{"),
    "a list": ("args_raw", "[1, 2]"),
    "duplicate keys": ("args_raw", '{"a": 1, "a": 2}'),
    "NaN in text": ("args_raw", '{"a": NaN}'),
    "overflow": ("args_raw", '{"a": 1e999}'),
    "ten thousand digits": ("args_raw", '{"a": ' + "9" * 10_000 + "}"),
    "depth 200 in text": ("args_raw", deep(200)),
    "depth 100,000 in text": ("args_raw", "[" * 100_000),
    "lone surrogate": ("args_raw", '{"a": "\ud800"}'),
    "NUL": ("args_raw", '{"a": "\x00"}'),
    "5 MB": ("args_raw", json.dumps({"a": "x y." * 1_250_000})),
    "5 MB broken": ("args_raw", '{"a": "' + "x" * 5_000_000),
    "5 MB in place": ("args", {"a": ["0123456789"] * 400_000}),
}


@pytest.mark.parametrize("kind", HOSTILE_ARGS)
def test_hostile_arguments_are_decisions_that_climb_the_ladder(caller: httpx.Client, name: str, kind: str) -> None:
    field, value = HOSTILE_ARGS[kind]
    run = opened(caller, name=name, tools=READ)
    actions = []
    for number in range(4):
        decision = good(run.post("before", {"call_id": f"c{number}", "tool": "look", field: value}))
        if decision["execute"]:
            decision = run.after(f"c{number}", Outcome.failed("NO", "no"))
        actions.append(decision["action"])
    assert (actions[0], actions[-1]) == ("allow", "halt")
    if decision["escalation_id"] is not None:
        good(caller.get(f"/v1/escalations/{decision['escalation_id']}"))


RAW_ARGS = {
    "NaN": '{"a": NaN, "b": -Infinity}',
    "ten thousand digits": '{"a": ' + "9" * 10_000 + "}",
    "depth 200": deep(200),
    "lone surrogate": '{"a": "\\ud800", "\\udc00": 1}',
    "NUL": '{"a": "\\u0000"}',
    "duplicate keys": '{"a": 1, "a": 2}',
}


@pytest.mark.parametrize("kind", RAW_ARGS)
def test_odd_json_in_arguments_and_results_is_judged(caller: httpx.Client, name: str, kind: str) -> None:
    run = opened(caller, name=name, tools=READ)
    head = {"content-type": "application/json"}
    actions = []
    for number in range(4):
        body = f'{{"call_id": "c{number}", "tool": "look", "args": {RAW_ARGS[kind]}}}'
        decision = good(caller.post(f"{RUNS}/{run.id}/before", content=body, headers=head))
        if decision["execute"]:
            told = f'{{"call_id": "c{number}", "status": "ok", "result": {RAW_ARGS[kind]}}}'
            decision = good(caller.post(f"{RUNS}/{run.id}/after", content=told, headers=head))
        actions.append(decision["action"])
    assert actions == ["allow", "warn", "block", "halt"]


def test_invalid_arguments_are_a_decision_with_a_hint(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    decision = good(run.post("before", {"call_id": "c1", "tool": "look", "args_raw": "{'a': 1}"}))
    assert (decision["action"], decision["execute"], decision["flags"]) == ("allow", True, ["invalid_arguments"])
    assert "JSON" in decision["append"]


def test_a_result_of_5_mb_is_compared_and_not_kept(guard_service: Service, caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    results = [
        {"rows": [f"{name} {n} é" for n in range(200_000)]},
        {"rows": [f"{name} {n} é" for n in range(1, 200_001)]},
    ]
    actions = [hardest(run.both(look(n), Outcome.ok(results[n // 2]))).value for n in range(4)]
    assert actions == ["allow", "warn", "block", "halt"]
    other = opened(caller, name=f"{name}-2", tools=READ)
    assert [hardest(other.both(look(n), Outcome.ok(results[n]))).value for n in range(2)] == ["allow", "allow"]
    database = guard_service.data_dir / "sluicegate.db"
    kept = b"".join(path.read_bytes() for path in database.parent.glob("sluicegate.db*"))
    assert f"{name} 150000".encode() not in kept


def test_an_empty_result_is_null_or_left_out(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    run.before(look(1))
    good(run.post("after", {"call_id": "c1", "status": "ok", "result": None}))
    run.before(look(2))
    assert good(run.post("after", {"call_id": "c2", "status": "ok"}))["action"] == "warn"


def test_digests_serve_where_the_result_stays_with_the_caller(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    for number in (1, 2):
        run.before(look(number))
        body = {"call_id": f"c{number}", "status": "ok", "result_digest": "sha256:77", "result_excerpt": "3 lines"}
        told = good(run.post("after", {**body, "metrics": {"confidence": 0.12}, "ms": 12.5, "tokens": 5}))
    assert told["action"] == "warn"
    assert "3 lines" in told["append"]
    assert run.get()["budget"]["tokens"] == 10


BAD_REQUESTS: dict[str, tuple[str, Any, str]] = {
    "no call id": ("before", {"tool": "look"}, "/call_id"),
    "empty call id": ("before", {"call_id": "", "tool": "look"}, "/call_id"),
    "call id with NUL": ("before", {"call_id": "a\x00", "tool": "look"}, "/call_id"),
    "call id with half a surrogate pair": ("before", {"call_id": "\ud800", "tool": "look"}, "/call_id"),
    "call id of 201 characters": ("before", {"call_id": "c" * 201, "tool": "look"}, "/call_id"),
    "no tool": ("before", {"call_id": "c"}, "/tool"),
    "tool of 129 characters": ("before", {"call_id": "c", "tool": "t" * 129}, "/tool"),
    "empty tool": ("before", {"call_id": "c", "tool": ""}, "/tool"),
    "args_raw that is no text": ("before", {"call_id": "c", "tool": "t", "args_raw": {"a": 1}}, "/args_raw"),
    "turn that is a list": ("before", {"call_id": "c", "tool": "t", "turn": [1]}, "/turn"),
    "turn that is true": ("before", {"call_id": "c", "tool": "t", "turn": True}, "/turn"),
    "empty batch": ("before-batch", [], "/calls"),
    "batch of a number": ("before-batch", [1], "/calls/0"),
    "501 calls": ("before-batch", [{"call_id": f"c{n}", "tool": "t"} for n in range(501)], "/calls"),
    "unknown status": ("after", {"call_id": "c", "status": "maybe"}, "/status"),
    "no status": ("after", {"call_id": "c"}, "/status"),
    "ok with an error": ("after", {"call_id": "c", "status": "ok", "error": {"code": "E"}}, ""),
    "negative cost": ("after", {"call_id": "c", "status": "ok", "cost": "-1"}, "/cost"),
    "cost that is no number": ("after", {"call_id": "c", "status": "ok", "cost": "much"}, "/cost"),
    "endless cost": ("after", {"call_id": "c", "status": "ok", "cost": "1e400"}, "/cost"),
    "tokens as text": ("after", {"call_id": "c", "status": "ok", "tokens": "5"}, "/tokens"),
    "outcome of 65 characters": ("end", {"outcome": "x" * 65}, "/outcome"),
    "too many extra steps": ("resume", {"extra_steps": 1001}, "/extra_steps"),
    "a list": ("before", [], ""),
}


@pytest.mark.parametrize("kind", BAD_REQUESTS)
def test_a_request_that_breaks_the_contract_is_a_400_that_names_the_field(
    caller: httpx.Client, name: str, kind: str
) -> None:
    path, body, pointer = BAD_REQUESTS[kind]
    run = opened(caller, name=name, tools=READ)
    answer = run.post(path, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.json()["errors"][0]["pointer"].startswith(pointer)
    assert run.get()["counters"]["decisions"] == 0


BAD_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "no agent": ({"agent": None}, "/agent"),
    "no external run id": ({"external_run_id": None}, "/external_run_id"),
    "unknown effect": ({"tools": [{"name": "t", "effect": "writes"}]}, "/tools/0/effect"),
    "a tool twice": ({"tools": [{"name": "t"}, {"name": "t"}]}, ""),
    "misspelt policy": ({"policy": {"countin": "strict"}}, "/policy"),
    "policy of the wrong type": ({"policy": {"ladders": {"read_only": [4, 3, 2]}}}, "/policy"),
    "a budget that is no mapping": ({"policy": {"budget": 3}}, "/policy"),
    "a ladder that is no list": ({"policy": {"ladders": {"read_only": 3}}}, "/policy"),
    "endless policy": ({"policy": {"budget": {"seconds": float("inf")}}}, "/policy"),
    "misspelt budget": ({"budget": {"max_step": 3}}, "/budget/max_step"),
    "negative budget": ({"budget": {"max_steps": -1}}, "/budget/max_steps"),
}


@pytest.mark.parametrize("kind", BAD_RUNS)
def test_a_run_that_cannot_be_opened_says_why(caller: httpx.Client, name: str, kind: str) -> None:
    change, pointer = BAD_RUNS[kind]
    body = json.dumps({"agent": "tests", "external_run_id": name, **change})
    answer = caller.post(RUNS, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.json()["errors"][0]["pointer"].startswith(pointer)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"\xff", 400), (b"[" * 100_000, 400), (b"1", 400), (b" " * (16 * 1024 * 1024 + 1), 413)],
    ids=["cut", "no UTF-8", "too deep", "a number", "16 MiB and a byte"],
)
def test_a_body_that_cannot_be_read_is_refused(caller: httpx.Client, name: str, body: bytes, status: int) -> None:
    run = opened(caller, name=name)
    answer = caller.post(f"{RUNS}/{run.id}/before", content=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_unknown_fields_are_ignored(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ, later="yes")
    assert good(run.post("before", {"call_id": "c1", "tool": "look", "args": {}, "new_field": 1}))["execute"]


def test_an_undeclared_tool_is_taken_for_one_that_changes_things(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    levels = [hardest(run.both(ToolCall("invented", {}, call_id=f"c{n}"), Outcome.ok("done"))).value for n in range(3)]
    assert levels == ["allow", "block", "halt"]


def test_a_decision_of_another_call_is_named(caller: httpx.Client, name: str) -> None:
    run = opened(caller, name=name, tools=READ)
    run.before(look(1))
    answer = run.post("after", {"call_id": "c1", "decision_id": "dec_0", "status": "ok"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/decision_id")


# -- tenants -----------------------------------------------------------------------------------------------------------


def test_runs_of_other_tenants_are_not_there(guard_service: Service, caller: httpx.Client, name: str) -> None:
    mine, theirs = (bearer(store_key(guard_service, tenant)) for tenant in ("mine", "theirs"))
    body = {"agent": "tests", "external_run_id": name, "tools": declared(READ)}
    run = caller.post(RUNS, json=body, headers=mine).json()["run_id"]
    assert caller.post(RUNS, json=body, headers=theirs).json()["run_id"] != run
    item = caller.post("/v1/items", json={"title": name}, headers=mine).json()["id"]
    for method, path, sent in (
        ("GET", "", None),
        ("POST", "/before", {"call_id": "c1", "tool": "look"}),
        ("POST", "/before-batch", [{"call_id": "c1", "tool": "look"}]),
        ("POST", "/after", {"call_id": "c1", "status": "ok"}),
        ("POST", "/end", {}),
        ("POST", "/resume", {}),
    ):
        answer = caller.request(method, f"{RUNS}/{run}{path}", json=sent, headers=theirs)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    linked = caller.post(RUNS, json={**body, "external_run_id": f"{name}-2", "item_id": item}, headers=theirs)
    assert (linked.status_code, linked.json()["code"]) == (404, "not_found")
    assert good(caller.get(f"{RUNS}/{run}", headers=mine))["counters"]["decisions"] == 0


def test_the_scope_guard_is_needed_and_enough(guard_service: Service, caller: httpx.Client, name: str) -> None:
    body = {"agent": "tests", "external_run_id": name}
    without = bearer(store_key(guard_service, "scopes", "items:write", "items:read", "review"))
    answer = caller.post(RUNS, json=body, headers=without)
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")
    assert caller.post(RUNS, json=body, headers=bearer(store_key(guard_service, "scopes", "guard"))).status_code == 201


def test_every_path_is_described_and_every_reference_leads_somewhere(caller: httpx.Client) -> None:
    document = caller.get("/openapi.json").json()
    paths = {path.removeprefix(RUNS) for path in document["paths"] if path.startswith(RUNS)}
    assert paths == {
        "",
        *(f"/{{run_id}}{end}" for end in ("", "/before", "/before-batch", "/after", "/end", "/resume")),
    }
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])


def test_decisions_hold_what_the_description_promises(caller: httpx.Client, name: str) -> None:
    document = caller.get("/openapi.json").json()
    described = document["components"]["schemas"]
    run = opened(caller, name=name, tools=READ)
    halt = halted(run)
    for shown, schema in ((halt, "GuardDecision"), (run.get(), "GuardRun"), (halt["tool_result"], "GuardToolResult")):
        assert set(shown) == set(described[schema]["properties"])


# -- metrics -----------------------------------------------------------------------------------------------------------


def series(client: httpx.Client, line: str) -> float:
    found = [text for text in client.get("/metrics").text.splitlines() if text.startswith(f"{line} ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def test_decisions_avoided_calls_and_their_cost_are_counted_once(caller: httpx.Client, name: str) -> None:
    tool = f"look_{name[-6:]}"
    lines = {
        "halts": f'sluicegate_guard_decisions_total{{action="halt",reason="repeated_call",tool="{tool}"}}',
        "made up": 'sluicegate_guard_decisions_total{action="allow",reason="",tool="unknown"}',
        "avoided": "sluicegate_avoided_calls_total",
        "cost": "sluicegate_avoided_cost_total",
    }
    earlier = {key: series(caller, line) for key, line in lines.items()}
    run = opened(caller, name=name, tools={tool: ToolTraits(Effect.READ_ONLY)})
    for number in range(1, 5):  # two run at 0.5 each, the third is blocked, the fourth halts
        call = ToolCall(tool, {"at": "p1"}, call_id=f"c{number}")
        for _ in range(2):  # a retry counts nothing
            run.before(call)
        if number < 3:
            run.after(call.call_id, Outcome.ok("same", cost=0.5))
    opened(caller, name=f"{name}-2").before(ToolCall(f"invented_{name}", {}, call_id="c1"))
    added = {key: series(caller, line) - earlier[key] for key, line in lines.items()}
    assert added == {"halts": 1, "made up": 1, "avoided": 2, "cost": pytest.approx(1 / 3 + 1 / 4)}
    assert f"invented_{name}" not in caller.get("/metrics").text


def test_names_of_tools_make_no_series_without_end() -> None:
    names = ToolNames(limit=3)
    declared = [f"tool_{n}" for n in range(9)]
    assert [names.label(tool, declared) for tool in declared] == [*declared[:3], *["other"] * 6]
    assert names.label("tool_1", declared) == "tool_1"
    assert names.label("long" * 40, ["long" * 40]) == "other"
    assert names.label("never declared", declared) == "unknown"


def test_what_shadow_mode_would_have_done_is_counted_as_that_and_avoids_nothing(
    caller: httpx.Client, name: str
) -> None:
    tool = f"peek_{name[-6:]}"
    avoided = series(caller, "sluicegate_avoided_calls_total")
    run = opened(caller, name=name, tools={tool: ToolTraits(Effect.READ_ONLY)}, policy={"mode": "shadow"})
    for number in range(1, 5):
        call = ToolCall(tool, {"at": "p1"}, call_id=f"c{number}")
        assert run.before(call)["execute"] is True
        run.after(call.call_id, Outcome.ok("same"))

    def counted(action: str) -> float:
        return series(
            caller,
            f'sluicegate_guard_decisions_total{{action="{action}",reason="repeated_call",tool="{tool}"}}',
        )

    assert {action: counted(action) for action in ("shadow_block", "shadow_halt", "block", "halt", "allow")} == {
        "shadow_block": 1, "shadow_halt": 1, "block": 0, "halt": 0, "allow": 0,
    }  # fmt: skip
    assert counted("shadow_warn") > 0
    assert series(caller, "sluicegate_avoided_calls_total") == avoided
