"""One request to the console: who looks, in which language, and how they like it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.requests import Request

from gateway.api.render import language_of
from gateway.console.access import person_of, require_role
from gateway.console.words import Say, speaker
from gateway.person import Person, Role
from gateway.review.desk import Desk

THEMES = ("auto", "light", "dark")
THEME_COOKIE, KEYS_COOKIE = "sluicegate_theme", "sluicegate_keys"


@dataclass(frozen=True, slots=True)
class Visit:
    """Who asks for a page, and how it is to be shown to them."""

    request: Request
    person: Person
    language: str
    theme: str
    has_keys: bool
    """Whether single letters are commands; they can be turned off."""
    say: Say

    @property
    def tenant(self) -> str:
        """Whose items and cases are shown."""
        return self.person.tenant

    @property
    def holder(self) -> str:
        """The name under which leases and decisions are kept."""
        return self.person.actor

    @property
    def name(self) -> str:
        """The name that is shown."""
        return self.person.name

    @property
    def csrf(self) -> str:
        """Goes with every form."""
        return self.person.csrf

    @property
    def is_keyless(self) -> bool:
        """Whether nobody is logged in: whoever sits at this machine."""
        return self.person.is_keyless

    @property
    def can_review(self) -> bool:
        """Whether decisions may be taken."""
        return self.person.role.includes(Role.REVIEWER)

    @property
    def is_lead(self) -> bool:
        """Whether cases of others may be taken over and given away."""
        return self.person.role.includes(Role.LEAD)

    @property
    def is_admin(self) -> bool:
        """Whether keys, webhooks, people and switches may be changed."""
        return self.person.role.includes(Role.ADMIN)

    @property
    def desk(self) -> Desk:
        """The reviewer at the queue of their tenant."""
        return Desk(self.tenant, self.holder, is_lead=self.is_lead)

    @property
    def at_ms(self) -> int:
        """When the page was asked for; only for what is shown, never for what is decided."""
        return time.time_ns() // 1_000_000

    def require_reviewer(self) -> None:
        """Raise a 403 for viewers."""
        require_role(self.person, Role.REVIEWER)

    def require_lead(self) -> None:
        """Raise a 403 below the role lead."""
        require_role(self.person, Role.LEAD)

    def require_admin(self) -> None:
        """Raise a 403 below the role admin."""
        require_role(self.person, Role.ADMIN)

    @property
    def path(self) -> str:
        """The page's own address with its query, for coming back to it."""
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")


def visit_of(request: Request) -> Visit:
    """Who looks."""
    language = language_of(request.headers.get("accept-language"))
    theme = request.cookies.get(THEME_COOKIE, "auto")
    return Visit(
        request=request,
        person=person_of(request),
        language=language,
        theme=theme if theme in THEMES else "auto",
        has_keys=request.cookies.get(KEYS_COOKIE) != "off",
        say=speaker(language),
    )
