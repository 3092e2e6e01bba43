"""A service with a model that gets stuck, people who can log in, and Debian's Chromium to look at it with."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from gateway import passwords
from gateway.person import Role
from gateway.store import people
from gateway.store.engine import Database
from tests import media
from tests.acceptance.reviewing import Desk
from tests.acceptance.talking_model import TalkingModel, fumbles, talking_model
from tests.console.seeding import Story, submit, write_profiles
from tests.gateway.running import Service, running

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-quic", "--disable-background-networking"]
PASSWORD = "correct horse battery staple"
PEOPLE = {"Li": Role.REVIEWER, "Anna": Role.REVIEWER, "Vera": Role.VIEWER, "Lena": Role.LEAD}
_NUMBERS = itertools.count(1)

expect.set_options(timeout=20_000)


@pytest.fixture(scope="package")
def model() -> Iterator[TalkingModel]:
    with talking_model() as started:
        yield started


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory, model: TalkingModel) -> Iterator[Service]:
    """API and worker, keyless on loopback; people can log in as well."""
    folder = tmp_path_factory.mktemp("console")
    settings = {"model_url": model.url, "model_attempts": 1, "profiles_dir": write_profiles(folder / "profiles")}
    with running("up", folder, **settings) as started:
        add_people(folder)
        yield started


def add_people(data_dir: Path) -> None:
    """Those of the tests, all with the same password."""
    database = Database(f"sqlite:///{data_dir / 'sluicegate.db'}")
    hashed = passwords.hashed(PASSWORD)
    for name, role in PEOPLE.items():
        database.transact(
            lambda connection, name=name, role=role: people.add(
                connection, tenant="default", name=name, role=role, password_hash=hashed, at_ms=1
            )
        )
    database.close()


@pytest.fixture(scope="package")
def cookies(service: Service) -> Callable[[str], dict[str, str]]:
    """The session of a person, logged in once."""
    known: dict[str, dict[str, str]] = {}

    def of(name: str) -> dict[str, str]:
        if name not in known:
            with httpx.Client(base_url=service.url, trust_env=False) as client:
                client.post("/console/login", data={"name": name, "password": PASSWORD})
                known[name] = dict(client.cookies)
        return known[name]

    return of


@pytest.fixture
def desk(service: Service) -> Iterator[Desk]:
    with service.client() as client:
        yield Desk(client, service.data_dir)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@dataclass
class Watch:
    """What a page did that it must not."""

    dialogs: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def on(self, page: Page) -> None:
        def dialog(opened: object) -> None:
            self.dialogs.append(str(opened))

        def message(said: ConsoleMessage) -> None:
            if said.type == "error" and ("Content Security Policy" in said.text or "Uncaught" in said.text):
                self.complaints.append(said.text)

        page.on("dialog", dialog)
        page.on("console", message)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, service: Service, cookies: Callable[[str], dict[str, str]]) -> Iterator[Visit]:
    """Open a page as somebody, or as nobody in particular; at the end no page had an error, a dialog, a forbidden script."""
    watch = Watch()
    opened: list[BrowserContext] = []

    def visit_as(
        person: str | None = None, path: str = "/console/", *, url: str | None = None, **options: object
    ) -> Page:
        wanted = {"viewport": {"width": 1366, "height": 768}, "locale": "en-US", **options}
        context = browser.new_context(**wanted)  # type: ignore[arg-type]  # options of the caller
        context.set_default_timeout(15_000)
        context.on("page", watch.on)
        opened.append(context)
        if person is not None:
            context.add_cookies([{"name": k, "value": v, "url": service.url} for k, v in cookies(person).items()])
        page = context.new_page()
        page.goto(f"{url or service.url}{path}")
        return page

    yield visit_as
    for context in opened:
        context.close()
    assert watch.dialogs == []
    assert watch.complaints == []


Stuck = Callable[..., dict[str, str]]


@pytest.fixture
def stuck(desk: Desk, model: TalkingModel) -> Stuck:
    """An item whose agent got stuck, before a person: its id, its case's, and its title."""

    def make(title: str | None = None, **changes: object) -> dict[str, str]:
        name = title or f"Towel {next(_NUMBERS)} {uuid.uuid4().hex[:6]}"
        story = {"files": {"facts.pdf": media.pdf_text}, "behave": fumbles, "attributes": {"brand": "Vestland"}}
        item_id = submit(desk.client, model, Story(f"T-{next(_NUMBERS)}", name, **{**story, **changes}))  # type: ignore[arg-type]
        item = desk.settled(item_id)
        assert item["status"] == "awaiting_human", item["failure"]
        return {
            "item": item_id,
            "case": str(item["escalation"]),
            "title": name,
            "path": f"/console/review/{item['escalation']}",
        }

    return make
