"""The incident over real HTTP: a model that never gives up is stopped within the ladder, all is kept, a person decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import httpx
import pytest

from examples import catalogue
from examples.stubborn_model import StubbornModel, contrast_of, copy_from, serving
from gateway.store.steps import StepKind
from tests import media
from tests.acceptance.reviewing import Desk
from tests.acceptance.talking_model import (
    Message,
    Talk,
    TalkingModel,
    always,
    calls,
    fumbles,
    in_turn,
    reads,
    saves,
    says,
    wanders,
)
from tests.gateway.model_stub import COPY

MOST_EXECUTED, MOST_REQUESTS = 4, 5
SENTENCE = "The small print cannot be read; write without it."


@pytest.fixture
def halted_label(desk: Desk, model: TalkingModel, name: str, label: bytes) -> dict[str, str]:
    """The half-legible label before a person, with its case. What the model does next is up to the test."""
    model.plays(name, wanders)
    item = desk.written(name, label)
    assert item["status"] == "awaiting_human", item["failure"]
    return {"item": item["id"], "case": str(item["escalation"])}


@pytest.fixture
def halted(desk: Desk, model: TalkingModel, name: str, sheet: bytes) -> dict[str, str]:
    """The same standstill at no cost."""
    model.plays(name, fumbles)
    item = desk.written(name, sheet)
    assert item["status"] == "awaiting_human", item["failure"]
    return {"item": item["id"], "case": str(item["escalation"])}


# --- the loop is stopped ---------------------------------------------------------------------------------------------


def test_run_is_stopped_within_the_ladder_and_all_that_it_learned_is_kept(
    desk: Desk, model: TalkingModel, name: str, label: bytes
) -> None:
    talk = model.plays(name, wanders)
    item = desk.written(name, label, attributes={"brand": "Casa Oliva"})
    assert (item["status"], item["route"]) == ("awaiting_human", "agent")
    assert item["reason"] in {"repeated_tool_calls", "repeated_error"}
    usage = item["usage"]
    assert usage["tool_calls"] <= MOST_EXECUTED
    assert usage["model_calls"] == len(talk.requests) <= MOST_REQUESTS
    actions = desk.actions(item["id"])
    assert (actions[:2], actions[-1], actions.count("halt")) == (["allow", "warn"], "halt", 1)
    asked = len(actions)
    assert (usage["steps"], usage["tool_calls"] + usage["blocked_calls"]) == (asked, asked)
    assert usage["avoided_calls"] == usage["blocked_calls"] + 20 - asked
    assert usage["input_tokens"] == 1000 * len(talk.requests)
    case = desk.only_case(item["id"])
    assert case["id"] == item["escalation"]
    assert (case["status"], case["tool"], case["halt_number"]) == ("open", "ocr_extract", 1)
    assert case["resume_point"] == asked
    assert [call["action"] for call in case["calls"]] == actions
    assert {call["error"] for call in case["calls"] if call["executed"]} == {"LOW_CONFIDENCE"}
    assert case["evidence"] == list(range(1, asked + 1))
    assert case["question"].endswith("?")
    assert "LOW_CONFIDENCE" in case["why"]
    assert case["first_answer"].startswith("LOW_CONFIDENCE")
    assert case["cost"] == {"spent": usage["cost"], "currency": "USD"}
    assert case["steps"] == {"taken": asked, "of": 20}
    assert [action["action"] for action in case["allowed_actions"]] == [
        "resume", "reroute", "answer_item", "reject_item", "dismiss", "retry", "answer_tool", "ask_submitter",
    ]  # fmt: skip
    facts = item["files"][0]["facts"]
    assert facts["image.sharpness"] > 0.3
    assert facts["text.tokens"] >= 4
    kinds = [row.kind for row in desk.steps(item["id"])]
    assert kinds == [StepKind.PROMPT, *[StepKind.MODEL, StepKind.TOOL] * asked]
    assert all(row.outcome is not None for row in desk.steps(item["id"]))


def test_equal_calls_are_warned_blocked_and_halted_once_each(
    desk: Desk, model: TalkingModel, name: str, label: bytes
) -> None:
    model.plays(name, always(reads(1.0)))
    item = desk.written(name, label)
    assert (item["status"], item["reason"]) == ("awaiting_human", "repeated_tool_calls")
    assert desk.actions(item["id"]) == ["allow", "warn", "block", "halt"]
    assert item["usage"]["tool_calls"] == 2
    assert "with the same arguments; every answer was LOW_CONFIDENCE" in desk.only_case(item["id"])["why"]


def test_profile_in_shadow_mode_lets_every_call_run_and_the_outer_belt_alone_ends_a_run_without_end(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    lookup = calls(("lookup_attributes", {"query": "weight"}))
    model.plays(name, in_turn(*[lookup] * 5))
    item = desk.written(name, sheet, profile="shadow")
    assert item["status"] == "succeeded", item
    assert desk.actions(item["id"]) == ["allow"] * 6
    usage = item["usage"]
    assert (usage["tool_calls"], usage["blocked_calls"], usage["avoided_calls"]) == (6, 0, 0)
    talk = model.plays(name.upper(), always(lookup))
    item = desk.written(name.upper(), sheet, profile="shadow")
    assert (item["status"], item["reason"]) == ("awaiting_human", "step_budget")
    assert set(desk.actions(item["id"])) == {"allow"}
    assert len(talk.requests) == item["usage"]["tool_calls"] == 2 * 6 + 2


def test_model_is_told_when_it_is_warned_and_blocked(desk: Desk, model: TalkingModel, name: str, sheet: bytes) -> None:
    talk = model.plays(name, fumbles)
    item = desk.written(name, sheet)
    assert desk.actions(item["id"]) == ["allow", "warn", "warn", "block", "halt"]
    results = [message["content"] for message in talk.messages if message["role"] == "tool"]
    assert len(results) == 4
    assert "[guard]" not in results[0]
    assert all("INVALID_ARGUMENTS" in result and "[guard]" in result for result in results[1:3])
    assert "guard_blocked" in results[3]
    assert len({message["tool_call_id"] for message in talk.messages if message["role"] == "tool"}) == 4


def test_stubborn_model_of_the_examples_is_stopped_and_its_item_ends_with_copy_from_text(
    desk: Desk, label: bytes, name: str, tmp_path_factory: pytest.TempPathFactory, profiles_dir: object
) -> None:
    from tests.gateway.running import running

    with serving(StubbornModel(catalogue.HALF_LEGIBLE_REGION)) as stubborn:
        settings = {"model_url": stubborn.url, "profiles_dir": profiles_dir}
        with running("up", tmp_path_factory.mktemp("stubborn"), **settings) as service, service.client() as client:
            own = Desk(client, service.data_dir)
            blurred = own.submit(f"{name} blurred", media.blurred(), attributes={"brand": "Beerenhof"})
            item = own.written(name, label, attributes={"brand": "Casa Oliva"})
            assert item["status"] == "awaiting_human"
            assert stubborn.counters.calls <= MOST_REQUESTS
            assert len(set(stubborn.counters.contrasts)) == stubborn.counters.calls
            assert all(1.0 <= contrast <= 1.5 for contrast in stubborn.counters.contrasts)
            past_the_agent = own.settled(blurred)
            assert (past_the_agent["status"], past_the_agent["route"]) == ("succeeded", "text_only")
            assert (past_the_agent["usage"]["steps"], past_the_agent["usage"]["model_calls"]) == (0, 1)
            own.decided(item["escalation"], "reroute", route="text_only")
            ended = own.settled(item["id"])
            assert (ended["status"], ended["route"], ended["attempt"]) == ("succeeded", "text_only", 2)
            assert "Brand: Casa Oliva" in ended["result"]["bullets"]
            assert ended["usage"]["tool_calls"] == item["usage"]["tool_calls"]
            assert stubborn.counters.requests == ended["usage"]["model_calls"] + 1
            assert ended["usage"]["input_tokens"] > item["usage"]["input_tokens"]


def test_stubborn_model_wanders_without_coming_back_and_says_only_what_it_was_told() -> None:
    wandered = [contrast_of(number) for number in range(300)]
    assert len(set(wandered)) == 300
    assert (min(wandered) >= 1.0, max(wandered) <= 1.5) == (True, True)
    told = (
        'Language of the copy: de.\n<data-ab12 source="title">\nSeife\n</data-ab12>\n'
        '<data-ab12 source="attribute:net_content">\n150 g\n</data-ab12>'
    )
    copy = copy_from(told)
    assert (copy["title"], copy["language"], copy["bullets"][0]) == ("Seife", "de", "Net content: 150 g")
    assert {ground["source"] for ground in copy["grounded_in"]} == {"title", "attribute:net_content"}


# --- what a person may decide ----------------------------------------------------------------------------------------


def test_text_only_completes_the_item_in_a_second_attempt(
    desk: Desk, model: TalkingModel, name: str, halted_label: dict[str, str]
) -> None:
    before = desk.item(halted_label["item"])["usage"]
    talk = model.plays(name, wanders)
    resolved = desk.decided(halted_label["case"], "reroute", route="text_only", note="smeared")
    assert (resolved["status"], resolved["resolution"]["action"]) == ("applied", "reroute")
    item = desk.settled(halted_label["item"])
    assert (item["status"], item["route"], item["attempt"], item["escalation"]) == ("succeeded", "text_only", 2, None)
    assert item["result"]["title"] == COPY["title"]
    assert (len(talk.requests), talk.offered, talk.pictures) == (1, [], 0)
    assert item["usage"]["model_calls"] == before["model_calls"] + 1
    assert Decimal(item["usage"]["cost"]) > Decimal(before["cost"])
    assert desk.only_case(halted_label["item"])["status"] == "applied"
    assert [step["reason"] for step in desk.history(halted_label["item"])][-4:-3] == ["rerouted:text_only"]


def obeys(talk: Talk) -> Message:
    """Wanders until somebody looks at it; then hands in its copy."""
    return saves() if talk.was_told(SENTENCE) else wanders(talk)


def test_resumed_run_that_obeys_ends_with_copy_and_repeats_no_finished_call(
    desk: Desk, model: TalkingModel, name: str, halted_label: dict[str, str]
) -> None:
    first = desk.steps(halted_label["item"])
    talk = model.plays(name, obeys)
    desk.decided(halted_label["case"], "resume", guidance=SENTENCE)
    item = desk.settled(halted_label["item"])
    assert (item["status"], item["attempt"], item["result"]["title"]) == ("succeeded", 1, COPY["title"])
    assert len(talk.requests) == 1
    asked = len(desk.cases(halted_label["item"])[0]["calls"])
    assert len(talk.calls_before) == asked
    assert len([message for message in talk.messages if message["role"] == "tool"]) == asked
    assert talk.pictures == 1
    after = desk.steps(halted_label["item"])
    assert after[: len(first)] == first
    assert [row.kind for row in after[len(first) :]] == [StepKind.CONTROL, StepKind.MODEL, StepKind.TOOL]
    assert all(row.executions == 1 for row in after)
    assert item["usage"]["avoided_calls"] == item["usage"]["blocked_calls"]


def test_old_call_after_a_resume_is_blocked_at_once(
    desk: Desk, model: TalkingModel, name: str, halted: dict[str, str]
) -> None:
    def repeats(talk: Talk) -> Message:
        if "guard_blocked" in talk.last_result and len(talk.calls_before) == 6:
            return saves()
        return calls(("ocr_extract", {"file": "p1", "region": [0.6, 0.6, 0.2, 0.2], "contrast": contrast_of(0)}))

    model.plays(name, repeats)
    desk.decided(halted["case"], "resume", guidance=SENTENCE)
    item = desk.settled(halted["item"])
    assert item["status"] == "succeeded"
    assert desk.actions(halted["item"])[5:] == ["block", "allow"]
    assert item["usage"]["tool_calls"] == 3 + 1


def test_run_that_goes_on_varying_is_stopped_again_and_the_second_halt_says_so(
    desk: Desk, model: TalkingModel, name: str, halted_label: dict[str, str]
) -> None:
    before = desk.item(halted_label["item"])["usage"]
    model.plays(name, wanders)
    desk.decided(halted_label["case"], "resume", guidance=SENTENCE)
    item = desk.settled(halted_label["item"])
    assert item["status"] == "awaiting_human"
    assert item["usage"]["tool_calls"] - before["tool_calls"] <= MOST_EXECUTED
    assert item["usage"]["model_calls"] - before["model_calls"] <= MOST_REQUESTS
    first, second = desk.cases(halted_label["item"])
    assert (first["status"], first["halt_number"], first["came_back_after"]) == ("applied", 1, None)
    assert (second["status"], second["halt_number"], second["came_back_after"]) == ("open", 2, "resume")
    assert second["group"] == first["group"]
    assert item["escalation"] == second["id"]
    assert item["usage"]["avoided_calls"] == item["usage"]["blocked_calls"] + 20 - item["usage"]["steps"]


def test_banned_tool_is_not_offered_and_not_run(
    desk: Desk, model: TalkingModel, name: str, halted: dict[str, str]
) -> None:
    def defies(talk: Talk) -> Message:
        return (
            saves() if "guard_blocked" in talk.last_result and talk.was_told(SENTENCE) and _asked(talk) else reads(3.0)
        )

    def _asked(talk: Talk) -> bool:
        return len(talk.calls_before) > 5

    talk = model.plays(name, defies)
    desk.decided(halted["case"], "resume", guidance=SENTENCE, ban_tools=["ocr_extract"])
    item = desk.settled(halted["item"])
    assert item["status"] == "succeeded"
    assert all("ocr_extract" not in _names(request) for request in talk.requests)
    assert "image_facts" in talk.offered
    assert desk.actions(halted["item"])[5:] == ["block", "allow"]


def _names(request: dict[str, object]) -> list[str]:
    tools = request["tools"]
    assert isinstance(tools, list)
    return [tool["function"]["name"] for tool in tools]


def test_false_alarm_lets_the_run_go_on_with_that_call_forgiven(
    desk: Desk, model: TalkingModel, name: str, halted: dict[str, str]
) -> None:
    def insists(talk: Talk) -> Message:
        if len(talk.calls_before) > 5:
            return saves()
        return calls(("ocr_extract", {"file": "p1", "region": [0.6, 0.6, 0.2, 0.2], "contrast": contrast_of(4)}))

    model.plays(name, insists)
    desk.decided(halted["case"], "dismiss", reason="false_positive")
    item = desk.settled(halted["item"])
    assert item["status"] == "succeeded"
    refused, again, saved = (
        desk.steps(halted["item"])[10],
        *(row for row in desk.steps(halted["item"])[11:] if row.kind is StepKind.TOOL),
    )
    assert (refused.intent["execute"], again.intent["execute"], saved.intent["tool"]) == (False, True, "save_copy")


def test_copy_by_a_person_is_held_against_the_schema(desk: Desk, halted: dict[str, str]) -> None:
    wrong = desk.decide(halted["case"], "answer_item", output={**COPY, "bullets": ["one"]})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "action_not_allowed")
    assert "bullets" in wrong.json()["detail"]
    assert desk.item(halted["item"])["status"] == "awaiting_human"
    assert desk.only_case(halted["item"])["status"] == "claimed"
    desk.decided(halted["case"], "answer_item", output=COPY)
    item = desk.item(halted["item"])
    assert (item["status"], item["result"]) == ("succeeded", {**COPY, "produced_by": "human"})


def test_rejection_by_a_person_tells_the_submitter(desk: Desk, halted: dict[str, str]) -> None:
    desk.decided(halted["case"], "reject_item", reason_code="unreadable", message="Please send a sharper photo.")
    item = desk.item(halted["item"])
    assert (item["status"], item["decision"]["verdict"]) == ("rejected", "reject")
    problem = item["decision"]["problem"]
    assert (problem["code"], problem["user_message"]["en"]) == ("unreadable", "Please send a sharper photo.")


# --- what follows a halt is policy -----------------------------------------------------------------------------------

FACTS = calls(("image_facts", {"file": "p1"}))
LOOKUP = calls(("lookup_attributes", {"query": "brand"}))
"""Works each time, and brings the same each time."""


def looks_until_fallen_back(talk: Talk) -> Message:
    """Looks at the same facts for ever, which works each time; hands in its copy once pictures are out of reach."""
    return FACTS if "image_facts" in talk.offered else saves()


def test_loop_of_a_tool_that_works_falls_back_to_text_once(
    desk: Desk, model: TalkingModel, name: str, label: bytes
) -> None:
    talk = model.plays(name, looks_until_fallen_back)
    item = desk.written(name, label)
    assert (item["status"], item["result"]["title"]) == ("succeeded", COPY["title"])
    assert desk.actions(item["id"]) == ["allow", "warn", "block", "halt", "allow"]
    assert item["usage"]["tool_calls"] == 3
    assert not {"ocr_extract", "image_facts", "read_barcode"} & set(talk.offered)
    assert "save_copy" in talk.offered
    assert talk.pictures == 0
    assert desk.cases(item["id"]) == []


def test_second_halt_after_a_fallback_goes_to_a_person_and_a_resume_opens_the_tools_again(
    desk: Desk, model: TalkingModel, name: str, label: bytes
) -> None:
    talk = model.plays(name, always(FACTS))
    item = desk.written(name, label)
    assert item["status"] == "awaiting_human"
    assert desk.actions(item["id"]) == ["allow", "warn", "block", "halt", "halt"]
    assert item["usage"]["tool_calls"] == 2
    case = desk.only_case(item["id"])
    assert (case["tool"], case["halt_number"]) == ("image_facts", 2)
    talk.behave = always(saves())
    desk.decided(case["id"], "resume", guidance=SENTENCE)
    assert desk.settled(item["id"])["status"] == "succeeded"
    assert {"ocr_extract", "image_facts"} <= set(talk.offered)
    assert talk.pictures == 1


def test_resume_after_a_fallback_keeps_closed_what_it_names(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    talk = model.plays(name, always(LOOKUP))
    item = desk.written(name, sheet)
    assert item["status"] == "awaiting_human"
    assert "lookup_attributes" not in talk.offered
    talk.behave = always(saves())
    desk.decided(item["escalation"], "resume", guidance=SENTENCE, ban_tools=["lookup_attributes", "read_pdf"])
    assert desk.settled(item["id"])["status"] == "succeeded"
    assert not {"lookup_attributes", "read_pdf"} & set(talk.offered)
    assert "ocr_extract" in talk.offered


def test_second_attempt_of_the_agent_starts_afresh_with_advice_and_without_what_is_banned(
    desk: Desk, model: TalkingModel, name: str, halted: dict[str, str]
) -> None:
    talk = model.plays(name, always(saves()))
    desk.decided(halted["case"], "reroute", route="agent", guidance=SENTENCE, ban_tools=["ocr_extract"])
    item = desk.settled(halted["item"])
    assert (item["status"], item["route"], item["attempt"]) == ("succeeded", "agent", 2)
    assert talk.was_told(SENTENCE)
    assert talk.calls_before == []
    assert "ocr_extract" not in talk.offered
    assert item["usage"]["model_calls"] == 5 + 1


def test_policy_human_asks_at_the_first_loop(desk: Desk, model: TalkingModel, name: str, sheet: bytes) -> None:
    model.plays(name, always(LOOKUP))
    item = desk.written(name, sheet, profile="loop-human")
    assert item["status"] == "awaiting_human"
    assert desk.actions(item["id"]) == ["allow", "warn", "block", "halt"]
    assert desk.only_case(item["id"])["halt_number"] == 1


def test_policy_halt_leaves_it_to_the_caller_who_resumes(
    desk: Desk, client: httpx.Client, model: TalkingModel, name: str, sheet: bytes
) -> None:
    model.plays(name, lambda talk: saves() if talk.was_told(SENTENCE) else LOOKUP)
    item = desk.written(name, sheet, profile="loop-halt")
    assert (item["status"], item["reason"], item["escalation"]) == ("halted", "repeated_tool_calls", None)
    assert item["failure"]["detail"].endswith("?")
    assert desk.cases(item["id"]) == []
    wrong = client.post(f"/v1/items/{item['id']}/resume", json={"guidance": ""})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (400, "/guidance")
    resumed = client.post(f"/v1/items/{item['id']}/resume", json={"guidance": SENTENCE})
    assert (resumed.status_code, resumed.json()["failure"]) == (202, None)
    ended = desk.settled(item["id"])
    assert (ended["status"], ended["attempt"], ended["failure"]) == ("succeeded", 1, None)
    again = client.post(f"/v1/items/{item['id']}/resume", json={"guidance": SENTENCE})
    assert (again.status_code, again.json()["code"]) == (409, "item_state_conflict")


def test_policy_error_fails_the_item_when_a_tool_fails_again_and_again(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    model.plays(name, fumbles)
    item = desk.written(name, sheet, profile="error-ends")
    assert (item["status"], item["failure"]["code"]) == ("failed", item["reason"])
    assert item["failure"]["detail"].endswith(".")
    assert item["usage"]["tool_calls"] <= MOST_EXECUTED
    assert desk.cases(item["id"]) == []


def test_budget_of_steps_ends_before_a_person_and_extra_steps_let_it_finish(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    def looks_up(talk: Talk) -> Message:
        return (
            saves()
            if talk.was_told(SENTENCE)
            else calls(("lookup_attributes", {"query": f"w{len(talk.calls_before)}"}))
        )

    model.plays(name, looks_up)
    item = desk.written(name, sheet, profile="few-steps")
    assert (item["status"], item["reason"]) == ("awaiting_human", "budget")
    case = desk.only_case(item["id"])
    assert "budget" in case["question"]
    assert item["usage"]["tool_calls"] == 3
    desk.decided(case["id"], "resume", guidance=SENTENCE, extra_steps=2)
    assert desk.settled(item["id"])["status"] == "succeeded"


# --- what the model may say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        pytest.param(("read_barcode", {"file": "p1"}), "barcodes", id="barcodes"),
        pytest.param(("read_pdf", {"file": "p2", "pages": [1]}), "page", id="a page of a document"),
        pytest.param(("lookup_attributes", {"query": "brand"}), "Casa Oliva", id="what the seller said"),
        pytest.param(("ocr_extract", {"file": "p2"}), "WRONG_KIND", id="a picture tool on a document"),
        pytest.param(("read_pdf", {"file": "p2", "pages": [99]}), "NO_SUCH_PAGE", id="a page that is not there"),
        pytest.param(("read_pdf", {"file": "p9"}), "NO_SUCH_FILE", id="a file that is not there"),
        pytest.param(("transcribe", {"file": "p1"}), "WRONG_KIND", id="a picture to be transcribed"),
    ],
)
def test_tool_answers_are_wrapped_as_data_or_coded_errors(
    desk: Desk, model: TalkingModel, name: str, label: bytes, wanted: tuple[str, object], word: str
) -> None:
    talk = model.plays(name, lambda talk: saves() if talk.calls_before else calls(wanted))
    item = desk.written(name, label, media.pdf_text(), attributes={"brand": "Casa Oliva"})
    assert item["status"] == "succeeded"
    assert word in talk.last_result
    is_error = word.isupper() and "_" in word
    assert talk.last_result.startswith('{"error":' if is_error else "<tool-data")


def test_copy_may_come_as_text_and_a_wrong_one_is_asked_for_again(
    desk: Desk, model: TalkingModel, name: str, sheet: bytes
) -> None:
    answers: dict[int, Callable[[], Message]] = {1: lambda: says("Here it comes."), 2: lambda: says(json.dumps(COPY))}
    talk = model.plays(name, lambda talk: answers[len(talk.requests)]())
    item = desk.written(name, sheet)
    assert (item["status"], item["result"]["title"], len(talk.requests)) == ("succeeded", COPY["title"], 2)
    assert talk.was_told("neither a tool call nor a valid copy")
