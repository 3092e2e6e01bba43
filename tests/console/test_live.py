"""What lasts: one stream for many tabs, a restart under an open page, a session that ends while somebody writes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from gateway.store import people
from gateway.store.engine import Database
from gateway.store.escalations import NewEscalation, raise_case
from tests.console.conftest import PASSWORD, Stuck, Visit, add_people
from tests.gateway.running import Service, start


def _streams(page: Page) -> list[str]:
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/v1/events" in request.url:
            asked.append(request.url)

    page.context.on("request", note)
    return asked


def test_seven_tabs_share_one_stream_and_all_of_them_are_live(stuck: Stuck, visit: Visit) -> None:
    first = visit("Anna")
    asked = _streams(first)
    tabs = [first, *(first.context.new_page() for _ in range(6))]
    for tab in tabs:
        tab.goto(first.url)
    for tab in tabs:
        expect(tab.locator("#link-state")).to_have_attribute("data-state", "live")
    case = stuck()
    for tab in tabs:
        tab.bring_to_front()
        expect(tab.locator(f"#case-{case['case']}")).to_be_visible()
    assert len(asked) <= 2  # the tab that listened first was loaded twice
    tabs[0].close()
    again = stuck()
    for tab in tabs[1:]:
        tab.bring_to_front()
        expect(tab.locator(f"#case-{again['case']}")).to_be_visible()
    assert len(asked) <= 3


def test_what_is_being_typed_is_never_replaced_by_news(stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    page = visit("Anna", case["path"])
    expect(page.locator("#link-state")).to_have_attribute("data-state", "live")
    page.keyboard.press("g")
    page.keyboard.type("half a")
    page.evaluate("document.getElementById('guidance').dataset.same = 'yes'")
    open_before = page.locator("#count-open b").first.inner_text()
    stuck()
    expect(page.locator("#count-open b").first).not_to_have_text(open_before)
    page.keyboard.type(" sentence")
    expect(page.locator("#guidance")).to_be_focused()
    expect(page.locator("#guidance")).to_have_value("half a sentence")
    expect(page.locator("#guidance")).to_have_attribute("data-same", "yes")


# --- a service of one's own, which may be stopped ---------------------------------------------------------------------


class Island:
    """An API process that wants a login, on a port that stays the same."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self._folder = folder
        self.service: Service = self._start()
        add_people(folder)
        self.database = Database(f"sqlite:///{folder / 'sluicegate.db'}")

    def _start(self) -> Service:
        return start("serve", self._folder, port=self._port, require_login="true")

    def restart(self) -> None:
        assert self.service.stop() == 0
        self.service = self._start()

    def stop(self) -> None:
        assert self.service.stop() == 0

    def case(self, title: str) -> str:
        new = NewEscalation(
            tenant="default", item_id=None, attempt=1, profile="product-copy", reason="budget", tool=f"tool_{title[:8]}",
            packet={"why": title, "resume_point": 1, "calls": []}, due_after_ms=3_600_000, expires_after_ms=7_200_000,
        )  # fmt: skip
        return self.database.transact(lambda connection: raise_case(connection, new))

    def page_of(self, browser: Browser, name: str, path: str) -> Page:
        with httpx.Client(base_url=self.service.url, trust_env=False) as client:
            client.post("/console/login", data={"name": name, "password": PASSWORD})
            held = dict(client.cookies)
        context = browser.new_context(locale="en-US")
        context.set_default_timeout(30_000)
        context.add_cookies([{"name": key, "value": value, "url": self.service.url} for key, value in held.items()])
        page = context.new_page()
        page.goto(f"{self.service.url}{path}")
        return page

    def end_sessions(self) -> None:
        def end(connection: object) -> None:
            for person in people.page(connection, tenant="default", after=None, limit=10):  # type: ignore[arg-type]
                people.end_all(connection, person.id, reason=people.SessionEnd.LOGGED_OUT, at_ms=2)  # type: ignore[arg-type]

        self.database.transact(end)


@pytest.fixture(scope="module")
def island(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Island]:
    made = Island(tmp_path_factory.mktemp("island"))
    yield made
    made.database.close()
    made.stop()


def test_restart_under_an_open_stream_loses_neither_the_draft_nor_what_happened_meanwhile(
    island: Island, browser: Browser
) -> None:
    case = island.case("before the restart")
    page = island.page_of(browser, "Li", f"/console/review/{case}")
    expect(page.locator("#link-state")).to_have_attribute("data-state", "live")
    page.keyboard.press("2")
    page.locator("#guidance").fill("written before")
    assert island.service.stop() == 0
    expect(page.locator("#link-state")).to_have_attribute("data-state", "lost")
    page.locator("#claim").click()
    expect(page.locator("#unreachable")).to_be_visible()
    island.case("while it was away")
    island.service = island._start()
    expect(page.locator(".lease-state")).to_have_attribute("data-state", "mine", timeout=30_000)
    expect(page.locator("#unreachable")).not_to_be_visible()
    expect(page.locator("#link-state")).to_have_attribute("data-state", "live", timeout=30_000)
    expect(page.locator("#count-open b").first).to_have_text("2")
    expect(page.locator("#guidance")).to_have_value("written before")
    page.context.close()


def test_session_that_ends_is_taken_up_again_in_place_and_what_was_sent_is_sent_again(
    island: Island, browser: Browser
) -> None:
    case = island.case("of a long afternoon")
    page = island.page_of(browser, "Anna", f"/console/review/{case}")
    page.keyboard.press("2")
    page.locator("#guidance").fill("still here")
    island.end_sessions()
    page.locator("#claim").click()
    dialog = page.locator("#login")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Password").fill("a wrong one")
    dialog.get_by_role("button", name="Log in").click()
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    dialog.get_by_label("Password").fill(PASSWORD)
    dialog.get_by_role("button", name="Log in").click()
    expect(page.locator(".lease-state")).to_have_attribute("data-state", "mine")
    expect(page.locator("#guidance")).to_have_value("still here")
    page.context.close()


def test_stranger_is_led_to_the_login_and_back(island: Island, browser: Browser) -> None:
    case = island.case("linked in a mail")
    context = browser.new_context(locale="en-US")
    page = context.new_page()
    page.goto(f"{island.service.url}/console/review/{case}")
    page.get_by_label("Name").fill("Anna")
    page.get_by_label("Password").fill("a wrong one")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not right")
    page.get_by_label("Name").fill("Anna")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator(".why-text")).to_have_text("linked in a mail")
    expect(page.locator(".ribbon")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    context.close()
