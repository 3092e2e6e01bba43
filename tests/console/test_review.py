"""Reviewers at a case: racing, reloading, deciding by keyboard alone, writing with an input method, undoing."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Page, expect

from tests.acceptance.reviewing import Desk
from tests.console.conftest import Stuck, Visit
from tests.gateway.running import Service, until

LOCKED = "#decide > fieldset:disabled"


def _case(desk: Desk, case_id: str) -> dict[str, object]:
    found: dict[str, object] = desk.client.get(f"/v1/escalations/{case_id}").json()
    return found


def _lease(page: Page) -> str:
    return page.locator(".lease-state").get_attribute("data-state") or ""


def test_looking_at_a_case_neither_takes_nor_decides_it(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    before = _case(desk, case["case"])
    page = visit("Li", case["path"])
    expect(page.locator("h1")).to_have_text(case["title"])
    assert _lease(page) == "open"
    assert _case(desk, case["case"])["version"] == before["version"]


def test_of_two_reviewers_one_has_the_case_and_the_other_is_told_at_once_and_keeps_the_draft(
    desk: Desk, stuck: Stuck, visit: Visit
) -> None:
    case = stuck()
    li, anna = visit("Li", case["path"]), visit("Anna", case["path"])
    anna.locator("#choice-resume").check(force=True)
    anna.locator("#guidance").fill("Anna was writing this.")
    li.locator("#claim").click()
    expect(li.locator(".lease-state")).to_have_attribute("data-state", "mine")
    expect(anna.locator(".lease-state")).to_have_attribute("data-state", "other")
    expect(anna.locator("#notice")).to_contain_text("Li has this case")
    expect(anna.locator(LOCKED)).to_have_count(1)
    expect(anna.locator("#guidance")).to_have_value("Anna was writing this.")
    li.locator("#choice-text_only").check(force=True)
    li.locator(".send-text_only").click()
    li.wait_for_url(lambda url: "sent=" in url)
    expect(anna.locator("#notice")).to_contain_text("Write copy from text only, by Li")
    anna.reload()
    expect(anna.locator(".decided h2")).to_contain_text("Write copy from text only")


def test_two_who_send_at_the_same_time_decide_once_and_the_loser_learns_who_won(
    desk: Desk, stuck: Stuck, visit: Visit
) -> None:
    case = stuck()
    pages = [visit(name, case["path"], java_script_enabled=False) for name in ("Li", "Anna")]
    for page in pages:
        page.locator("#choice-dismiss").check(force=True)
    pages[0].locator(".send-dismiss").click()
    pages[1].locator(".send-dismiss").click()
    expect(pages[0].locator(".toast")).to_contain_text("False alarm")
    expect(pages[1].locator("#notice")).to_contain_text("decided already")
    expect(pages[1].locator("#notice")).to_contain_text("by Li")
    expect(pages[1].locator("#notice")).to_contain_text("You wanted the same")
    assert _case(desk, case["case"])["resolution"]["by"] == "person:Li"  # type: ignore[index]


def test_reload_keeps_the_lease_and_what_was_written(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    page = visit("Li", case["path"])
    page.locator("#claim").click()
    expect(page.locator(".lease-state")).to_have_attribute("data-state", "mine")
    fence = _case(desk, case["case"])["fence"]
    page.locator("#choice-reject_item").check(force=True)
    page.locator("#message").fill("Please send the whole sheet.")
    page.reload()
    assert _lease(page) == "mine"
    expect(page.locator("#choice-reject_item")).to_be_checked()
    expect(page.locator("#message")).to_have_value("Please send the whole sheet.")
    assert _case(desk, case["case"])["fence"] == fence


def test_a_case_is_decided_by_keyboard_alone_in_six_keys(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    stuck()
    page = visit("Li")
    pressed = ["j", "k", "Enter"]
    for key in pressed:
        page.keyboard.press(key)
    page.wait_for_url("**/console/review/*")
    case_id = page.url.rsplit("/", 1)[1].split("?")[0]
    for key in ("1", "Control+Enter"):
        expect(page.locator("html.has-script")).to_be_attached()
        page.keyboard.press(key)
        pressed.append(key)
    page.wait_for_url(lambda url: "sent=" in url)
    assert len(pressed) <= 6
    resolution = _case(desk, case_id)["resolution"]
    assert (resolution["action"], resolution["by"]) == ("reroute", "person:Li")  # type: ignore[index]


def test_undo_takes_a_decision_back_into_the_same_hands(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    stuck()
    page = visit("Li", case["path"])
    page.keyboard.press("6")
    page.keyboard.press("Control+Enter")
    page.wait_for_url(lambda url: "sent=" in url)
    expect(page.locator(".toast")).to_contain_text("False alarm")
    page.keyboard.press("u")
    page.wait_for_url(f"**{case['path']}")
    assert _lease(page) == "mine"
    assert _case(desk, case["case"])["status"] == "claimed"
    assert desk.item(case["item"])["status"] == "awaiting_human"


def test_decision_takes_effect_by_itself_once_it_can_no_longer_be_undone(
    desk: Desk, stuck: Stuck, visit: Visit
) -> None:
    case = stuck()
    page = visit("Li", case["path"])
    page.keyboard.press("1")
    page.keyboard.press("Control+Enter")
    page.wait_for_url(lambda url: "sent=" in url)
    page.context.close()
    item = until(lambda: (found := desk.item(case["item"]))["status"] == "succeeded" and found, within_s=40)
    assert (item["route"], item["attempt"]) == ("text_only", 2)


def test_enter_of_an_input_method_sends_nothing_and_letters_in_a_field_are_letters(
    desk: Desk, stuck: Stuck, visit: Visit
) -> None:
    case = stuck()
    page = visit("Li", case["path"])
    page.keyboard.press("g")
    field = page.locator("#guidance")
    expect(field).to_be_focused()
    cdp = page.context.new_cdp_session(page)
    cdp.send("Input.imeSetComposition", {"text": "fang'shui", "selectionStart": 9, "selectionEnd": 9})
    for modifiers in (0, 2):
        event = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229, "modifiers": modifiers}
        cdp.send("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        cdp.send("Input.dispatchKeyEvent", {"type": "keyUp", **event})
    composing = "{key: 'Enter', ctrlKey: true, isComposing: true, bubbles: true}"
    field.evaluate(f"(node) => node.dispatchEvent(new KeyboardEvent('keydown', {composing}))")
    cdp.send("Input.insertText", {"text": "防水"})
    page.keyboard.type("c1z?")
    expect(field).to_have_value("防水c1z?")
    expect(page.locator("dialog[open]")).to_have_count(0)
    assert _lease(page) == "open"
    assert _case(desk, case["case"])["status"] == "open"
    assert page.url.endswith(case["path"])


def test_single_letter_keys_can_be_turned_off(stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    page = visit("Li", case["path"])
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.get_by_role("button", name="Turn single-letter keys off").click()
    page.wait_for_url(f"**{case['path']}")
    page.keyboard.press("?")
    page.keyboard.press("5")
    expect(page.locator("#help")).not_to_be_visible()
    expect(page.locator("#choice-reject_item")).not_to_be_checked()


def test_whole_path_works_without_a_script(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    page = visit("Anna", "/console/", java_script_enabled=False)
    page.goto(page.url.replace("/console/", case["path"]))
    page.locator("#claim").click()
    assert _lease(page) == "mine"
    page.locator("#choice-resume").check(force=True)
    page.locator(".send-resume").click()
    expect(page.locator("#notice")).to_contain_text("Write a sentence of advice")
    page.locator("#guidance").fill("Write without it.")
    page.locator("#ban").check()
    page.locator(".send-resume").click()
    expect(page.locator(".toast")).to_contain_text("Go on with my advice")
    resolution = _case(desk, case["case"])["resolution"]
    assert resolution["guidance"] == "Write without it."  # type: ignore[index]
    assert resolution["ban_tools"] == ["ocr_extract"]  # type: ignore[index]


def test_lead_takes_a_case_over_and_the_holder_is_told(stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    li, lena = visit("Li", case["path"]), visit("Lena", case["path"])
    li.keyboard.press("c")
    expect(lena.locator(".lease-state")).to_have_attribute("data-state", "other")
    lena.get_by_role("button", name="Take over").click()
    expect(lena.locator(".lease-state")).to_have_attribute("data-state", "mine")
    expect(li.locator("#notice")).to_contain_text("Lena")
    expect(li.locator(LOCKED)).to_have_count(1)


def test_viewer_reads_and_decides_nothing(service: Service, stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    page = visit("Vera", case["path"])
    expect(page.locator("#notice")).to_contain_text("You are looking only")
    expect(page.locator(LOCKED)).to_have_count(1)
    token = page.locator("meta[name=csrf]").get_attribute("content") or ""
    held = {cookie["name"]: cookie["value"] for cookie in page.context.cookies()}
    with httpx.Client(base_url=service.url, cookies=held, trust_env=False) as client:
        answer = client.post(f"{case['path']}/claim", data={"csrf": token})
    assert answer.status_code == 403


def test_item_that_is_cancelled_while_somebody_reads_says_so(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    page = visit("Li", case["path"])
    page.locator("#choice-reject_item").check(force=True)
    page.locator("#message").fill("half a sentence")
    desk.client.post(f"/v1/items/{case['item']}/cancel", json={})
    expect(page.locator("#notice")).to_contain_text("Nothing is left to decide")
    expect(page.locator("#message")).to_have_value("half a sentence")


def test_whole_group_is_decided_with_the_count_that_was_seen(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    group = _case(desk, case["case"])["group"]
    page = visit("Li", f"/console/groups/{group}")
    stuck()
    page.locator("input[name=sure]").check()
    page.locator("#choice-reject_item").check(force=True)
    page.locator("#message").fill("Please send the sheet again.")
    page.locator(".send-reject_item").click()
    expect(page.locator("#notice")).to_contain_text("Nothing was sent")
    expect(page.locator("#message")).to_have_value("Please send the sheet again.")
    page.locator("input[name=sure]").check()
    page.locator(".send-reject_item").click()
    expect(page.locator("#notice")).to_contain_text(re.compile(r"Sent for [2-9]|Sent for 1[0-9]"))
    assert _case(desk, case["case"])["resolution"]["action"] == "reject_item"  # type: ignore[index]


def test_note_is_kept_alone_and_read_by_the_next(stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    li = visit("Li", case["path"])
    li.keyboard.press("n")
    li.keyboard.type("The supplier is on holiday.")
    li.get_by_role("button", name="Save the note alone").click()
    expect(li.locator(".note-line")).to_contain_text("The supplier is on holiday.")
    expect(li.locator("#note")).to_have_value("")
    assert _lease(li) == "open"
    expect(visit("Anna", case["path"]).locator(".note-line")).to_contain_text("Li")
