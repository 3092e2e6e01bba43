"""Every page: readable by anyone, in light and dark, whatever a stranger wrote into what it shows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Page, expect

from gateway.store import steps
from gateway.store.engine import Database
from gateway.store.steps import StepKind
from tests import media
from tests.acceptance.reviewing import Desk
from tests.acceptance.talking_model import TalkingModel, fumbles, in_turn
from tests.console.conftest import Stuck, Visit
from tests.console.seeding import Story, submit
from tests.gateway.running import Service

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
HOSTILE_NAME = '"><svg onload=alert(3)>.jpg'
LOOPED = 2_400


def _looped(service: Service, item_id: str) -> None:
    """A run of 2,400 calls, as an incident leaves it: some work, then the same call for ever, then with ever other numbers."""
    database = Database(f"sqlite:///{service.data_dir / 'sluicegate.db'}")

    def write(connection: object) -> None:
        last = steps.next_seq(connection, item_id)  # type: ignore[arg-type]
        for number in range(LOOPED):
            if number < 20:
                tool, arguments, shape = "lookup_attributes", {"query": f"word {number}"}, None
            elif number < 2_000:
                tool, arguments, shape = "ocr_extract", {"file": "p1", "contrast": 1.0}, "same"
            else:
                tool, arguments, shape = "image_facts", {"file": "p1", "scale": 1 + number / 1000}, "jitter"
            text = json.dumps(arguments)
            keys = {"signature": f"{tool} {text}", "folded": f"{tool} {text}", "shape": shape}
            asked = {
                "type": "call",
                "view": {"keys": keys},
                "args": text,
                "execute": True,
                "reason": None,
                "text": None,
            }
            came = {
                "type": "outcome",
                "code": "LOW_CONFIDENCE",
                "digest": "d1",
                "excerpt": '{"confidence":0.12}',
                "cost": 0.0001,
            }
            steps.insert(
                connection,  # type: ignore[arg-type]
                item_id, seq=last + number, attempt=1, kind=StepKind.TOOL, fence=1, at_ms=1_796_000_000_000 + number * 900,
                intent={"tool": tool, "step": 10 + number, "action": "allow", "execute": True, "records": [asked]},
                outcome={"action": "warn" if number > 21 else "allow", "records": [came]},
            )  # fmt: skip

    database.transact(write)
    database.close()


@pytest.fixture(scope="module")
def long_run(service: Service, model: TalkingModel) -> str:
    """An item whose run has 2,400 calls more than it had."""
    with service.client() as client:
        desk = Desk(client, service.data_dir)
        item_id = submit(
            client, model, Story("T-2400", "Towel of the incident", {"facts.pdf": media.pdf_text}, fumbles)
        )
        desk.settled(item_id)
    _looped(service, item_id)
    return item_id


PAGES: dict[str, Callable[[dict[str, str]], str]] = {
    "queue": lambda case: "/console/",
    "filtered": lambda case: "/console/?tool=no_such_tool",
    "review": lambda case: case["path"],
    "decided": lambda case: f"/console/review/{case['decided']}",
    "group": lambda case: f"/console/groups/{case['group']}",
    "selected": lambda case: f"/console/bulk?ids={case['case']}",
    "items": lambda case: "/console/items",
    "item": lambda case: f"/console/items/{case['item']}",
    "refused item": lambda case: f"/console/items/{case['refused']}",
    "timeline": lambda case: f"/console/items/{case['long']}/timeline",
    "overview": lambda case: "/console/overview",
    "decisions": lambda case: "/console/decisions",
    "audit": lambda case: "/console/audit",
    "settings": lambda case: "/console/settings",
    "keys": lambda case: "/console/settings/keys",
    "webhooks": lambda case: "/console/settings/webhooks",
    "people": lambda case: "/console/settings/people",
    "nowhere": lambda case: "/console/items/itm_nowhere",
}


@pytest.fixture(scope="module")
def places(service: Service, model: TalkingModel, long_run: str) -> dict[str, str]:
    """Ids of what the pages show."""
    with service.client() as client:
        desk = Desk(client, service.data_dir)
        ids = [
            submit(
                client, model, Story(f"P-{n}", f"Paged {n}", {"facts.pdf": media.pdf_text}, fumbles, {"brand": "Fjord"})
            )
            for n in range(2)
        ]
        refused = submit(client, model, Story("P-9", "Refused", {"tiny.jpg": media.thumbnail}, in_turn()))
        cases = [desk.settled(item_id)["escalation"] for item_id in ids]
        desk.decided(cases[1], "dismiss")
        group = client.get(f"/v1/escalations/{cases[0]}").json()["group"]
    return {
        "item": ids[0], "case": cases[0], "decided": cases[1], "refused": refused, "group": group, "long": long_run,
        "path": f"/console/review/{cases[0]}",
    }  # fmt: skip


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(visit: Visit, places: dict[str, str], colours: str) -> None:
    axe = Axe()
    page = visit(color_scheme=colours, reduced_motion="reduce")
    base = page.url.removesuffix("/console/")
    found = []
    for name, path in PAGES.items():
        page.goto(base + path(places))
        result = axe.run(page)
        found += [
            (name, violation["id"], violation["nodes"][0]["html"][:200])
            for violation in result.response["violations"]
            if violation["impact"] in {"serious", "critical"}
        ]
        assert page.locator("h1").count() == 1, name
        assert page.evaluate("document.documentElement.scrollWidth") <= 1366, name
    assert found == []


def test_no_page_is_wider_than_a_phone(visit: Visit, places: dict[str, str]) -> None:
    page = visit(viewport={"width": 390, "height": 844})
    base = page.url.removesuffix("/console/")
    wide = []
    for name, path in PAGES.items():
        page.goto(base + path(places))
        if page.evaluate("document.documentElement.scrollWidth") > 390:
            wide.append(name)
    assert wide == []


def test_all_that_decides_is_on_the_screen_at_once(visit: Visit, places: dict[str, str]) -> None:
    page = visit("Li", places["path"])
    for selector in (
        ".stage .picture img", ".chips", ".why-text", ".strip", ".meters", ".pairs", ".group-line", ".suggestion",
        "#choice-text_only + label", "#choice-dismiss + label", ".lease-state", ".case-bar .due", ".send-text_only",
    ):  # fmt: skip
        box = page.locator(selector).first.bounding_box()
        assert box is not None, selector
        assert box["y"] >= 0, selector
        assert box["y"] + box["height"] <= 768, selector


def test_run_of_2400_calls_is_one_page_that_begins_where_it_repeats(
    service: Service, visit: Visit, long_run: str, desk: Desk
) -> None:
    page = visit(path=f"/console/items/{long_run}/timeline#first")
    assert page.evaluate("document.querySelectorAll('*').length") < 3_000
    expect(page.locator("#first")).to_be_visible()
    expect(page.locator(".line", has_text="×1,980")).to_contain_text("one result")
    expect(page.locator(".line", has_text="image_facts").locator(".jitter")).to_contain_text("…")
    page.locator(".line", has_text="×1,980").get_by_role("link", name="show the calls").click()
    expect(page.locator(".line-rows tbody tr")).to_have_count(50)
    page.get_by_role("link", name="1930 more").click()
    expect(page.locator(".line-rows tbody tr")).to_have_count(100)
    trace = desk.client.get(f"/v1/items/{long_run}/trace", params={"limit": 10}).json()
    assert (trace["calls"] > LOOPED, len(trace["blocks"])) == (True, 10)
    rest = desk.client.get(f"/v1/items/{long_run}/trace", params={"cursor": trace["next_cursor"]}).json()
    blocks = [*trace["blocks"], *rest["blocks"]]
    assert rest["next_cursor"] is None
    [longest] = [block for block in blocks if block.get("count") == 1_980]
    assert (longest["distinct_results"], longest["repeats"]) == (1, True)
    calls = desk.client.get(f"/v1/items/{long_run}/trace/blocks/{longest['number']}").json()
    assert (len(calls["calls"]), calls["next_cursor"] is not None) == (50, True)
    for path in (f"/v1/items/{long_run}/trace/blocks/999999", "/v1/items/itm_none/trace"):
        assert desk.client.get(path).status_code == 404


def _hostile_picture() -> bytes:
    picture = Image.open(io.BytesIO(media.text_picture("<script>alert(4)</script>")))
    exif = Image.Exif()
    exif[0x010F] = HOSTILE
    exif[0x0110] = HOSTILE_NAME
    packed = io.BytesIO()
    picture.convert("RGB").save(packed, "JPEG", exif=exif, quality=92)
    return packed.getvalue()


def test_what_strangers_write_is_text_and_nothing_else(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    case = stuck(
        f"{HOSTILE} \u202etitle",
        files={HOSTILE_NAME: _hostile_picture},
        attributes={HOSTILE: HOSTILE, "brand": "'\"><b>bold</b>", "none": ""},
        text=HOSTILE + "long " * 400,
    )
    page = visit("Li", case["path"])
    expect(page.locator("h1")).to_contain_text(HOSTILE)
    expect(page.locator(".file-line").first).to_contain_text("<svg onload=alert(3)>")
    expect(page.locator(".pairs")).to_contain_text("not provided")
    assert page.locator("main b", has_text="bold").count() == 0
    assert page.locator("main script, main svg[onload], main img[onerror]").count() == 0
    page.locator("[data-read]").first.click()
    expect(page.locator("#reading pre")).to_contain_text("script")
    assert page.locator("#reading pre *").count() == 0
    page.keyboard.press("Escape")
    page.locator("[data-read]").nth(1).click()
    expect(page.locator("#reading pre")).to_contain_text("onerror")
    page.keyboard.press("Escape")
    for path in (
        "/console/",
        f"/console/items/{case['item']}",
        f"/console/items/{case['item']}/timeline",
        "/console/items?q=%3Cscript%3E",
    ):
        page.goto(page.url.split("/console/")[0] + path)
        assert page.locator("main script, main svg[onload], main img[onerror]").count() == 0, path


def test_picture_that_cannot_be_made_says_so_and_keeps_hash_and_size(
    service: Service, stuck: Stuck, visit: Visit
) -> None:
    case = stuck(files={"label.png": lambda: media.png(long_side=300)})
    for path in (service.data_dir / "blobs" / "by-tenant").rglob("*"):
        if path.is_file() and path.stat().st_size == len(media.png(long_side=300)):
            path.unlink()
    page = visit("Li", case["path"])
    expect(page.locator(".broken").first).to_be_visible()
    expect(page.locator(".file-line").first).to_contain_text("image/png")
    expect(page.locator(".file-line code").first).not_to_be_empty()


def test_empty_queue_says_which_kind_of_empty(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    stuck()
    page = visit("Li", "/console/?tool=no_such_tool")
    expect(page.locator(".empty-title")).to_contain_text("Your filter hides")


def test_page_of_a_keyless_service_says_that_nobody_is_logged_in(visit: Visit) -> None:
    page = visit()
    expect(page.locator(".ribbon")).to_contain_text("No login here")
    expect(page.locator(".person")).to_have_text("this machine")


def test_colours_and_language_follow_the_reader(visit: Visit) -> None:
    page = visit("Li", locale="zh-CN")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(page.locator("h1")).to_have_text("队列")
    page.locator("form[action='/console/preferences'] button[name=theme]").first.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def _answers(page: Page) -> int:
    return page.evaluate("performance.getEntriesByType('resource').length")


def test_nothing_is_fetched_from_anywhere_else(service: Service, visit: Visit, places: dict[str, str]) -> None:
    page = visit("Li")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(service.url + places["path"])
    expect(page.locator("html.has-script")).to_be_attached()
    assert asked
    assert {url.split("/", 3)[2] for url in asked} == {service.url.split("/", 3)[2]}
