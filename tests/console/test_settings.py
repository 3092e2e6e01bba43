"""Settings by plain forms, and the pages that tell how things stand."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from tests import media
from tests.acceptance.reviewing import Desk
from tests.console.conftest import Stuck, Visit
from tests.gateway.running import Service, bearer


def test_key_is_shown_once_works_and_can_be_revoked(service: Service, visit: Visit) -> None:
    page = visit(path="/console/settings/keys", java_script_enabled=False)
    page.get_by_label("What it is for").fill("the importer")
    page.get_by_role("button", name="Make the key").click()
    secret = page.locator(".secret code").inner_text()
    with httpx.Client(base_url=service.url, trust_env=False) as client:
        assert client.get("/v1/items", headers=bearer(secret)).status_code == 200
        assert client.get("/v1/keys", headers=bearer(secret)).status_code == 403
    page.goto(page.url)
    expect(page.locator(".secret")).to_have_count(0)
    assert secret not in page.content()
    row = page.locator("tr", has_text="the importer")
    row.get_by_role("button", name="New secret").click()
    assert page.locator(".secret code").inner_text() != secret
    page.locator("tr", has_text="the importer").get_by_role("button", name="Revoke").click()
    expect(page.locator("tr", has_text="the importer").locator(".status")).to_have_text("revoked")


def test_person_is_added_and_gets_another_role(visit: Visit) -> None:
    page = visit(path="/console/settings/people", java_script_enabled=False)
    page.get_by_label("Name").fill("Mia")
    page.get_by_label("First password").fill("short")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("did not work")
    page.get_by_label("Name").fill("Mia")
    page.get_by_label("First password").fill("a long enough secret")
    page.get_by_role("button", name="Add", exact=True).click()
    row = page.locator("tr", has_text="Mia")
    row.get_by_role("combobox").select_option("lead")
    row.get_by_role("button", name="Set").click()
    expect(page.locator("tr", has_text="Mia").get_by_role("combobox")).to_have_value("lead")


def test_reviewer_sees_no_settings_of_admins(service: Service, visit: Visit) -> None:
    page = visit("Li", "/console/settings")
    expect(page.locator(".subnav").first).not_to_contain_text("API keys")
    answer = page.goto(f"{service.url}/console/settings/keys")
    assert answer is not None
    assert answer.status == 403
    expect(page.locator("main")).to_contain_text("needs the role admin")


def test_endpoint_that_may_not_be_called_is_refused_in_words(visit: Visit) -> None:
    page = visit(path="/console/webhooks", java_script_enabled=False)
    page.get_by_label("Address").fill("https://169.254.169.254/hook")
    page.get_by_role("button", name="Add it").click()
    expect(page.get_by_role("alert")).to_contain_text("did not work")
    expect(page.locator(".secret")).to_have_count(0)


def test_pause_is_told_on_the_overview_until_it_ends(visit: Visit) -> None:
    page = visit(path="/console/settings", java_script_enabled=False)
    form = page.locator("form", has_text="model calls")
    form.get_by_label("Reason").fill("prices doubled")
    form.get_by_role("button", name="Pause").click()
    overview = visit(path="/console/overview")
    expect(overview.locator(".notice")).to_contain_text("prices doubled")
    page.locator("form", has_text="model calls").get_by_role("button", name="Resume").click()
    overview.reload()
    expect(overview.locator(".notice")).to_have_count(0)


def test_overview_counts_what_was_avoided_and_draws_it(stuck: Stuck, visit: Visit) -> None:
    stuck()
    page = visit(path="/console/overview?days=1")
    assert int(page.locator(".card", has_text="Calls the guard avoided").locator(".figure-big").inner_text()) > 0
    expect(page.locator("svg.plot")).to_have_count(2)
    assert "accepted" in (page.locator("svg.plot").first.get_attribute("aria-label") or "")
    expect(page.locator(".bars", has_text="repeated tool calls")).to_be_visible()


def test_refused_item_is_taken_after_all(desk: Desk, visit: Visit) -> None:
    item_id = desk.submit("Tiny candle", media.thumbnail())
    assert desk.settled(item_id)["status"] == "rejected"
    page = visit("Li", f"/console/items/{item_id}", java_script_enabled=False)
    page.get_by_label("Why").fill("The supplier has no other photo.")
    page.get_by_role("button", name="Begin a new attempt").click()
    expect(page.locator(".history")).to_contain_text("Li")
    assert desk.item(item_id)["attempt"] == 2


def test_audit_and_own_decisions_tell_who_did_what(desk: Desk, stuck: Stuck, visit: Visit) -> None:
    case = stuck()
    desk.decided(case["case"], "reject_item", message="No.")
    page = visit(path="/console/audit")
    row = page.locator("tr", has_text=case["title"]).first
    expect(row).to_contain_text("this machine")
    page.goto(page.url.replace("audit", "decisions"))
    expect(page.locator(".case", has_text=case["title"])).to_contain_text("Reject the item")
    expect(page.locator(".case", has_text=case["title"]).locator(".status").first).to_have_text("rejected")
