"""Templates to answers: escaping always on, nothing of a stranger's ever taken for markup."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gateway import __version__
from gateway.api.render import language_of
from gateway.console import words
from gateway.console.visit import THEME_COOKIE, THEMES, Visit

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_HEADERS = {"Cache-Control": "no-store"}
"""Beside those that the gate puts on every answer of the console, a strict policy for scripts and styles among them."""


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        money=words.money, clock=words.clock, iso=words.iso, size=words.size, short=words.short, cut=words.cut, plain=words.plain
    )  # fmt: skip
    made.globals.update(version=__version__, static_version=_version(), dash=words.DASH)
    return made


def _version() -> str:
    """Changes with any of our own files, so that browsers may keep them for ever."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_TEMPLATES = _environment()


def page(visit: Visit, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A whole page, or a piece of one."""
    return HTMLResponse(rendered(visit, template, **context), status_code=status, headers=_HEADERS)


def page_for_strangers(request: Request, template: str, **context: Any) -> HTMLResponse:
    """A page for somebody of whom nothing is known but their browser."""
    language = language_of(request.headers.get("accept-language"))
    theme = request.cookies.get(THEME_COOKIE, "auto")
    text = _TEMPLATES.get_template(template).render(
        t=words.speaker(language), language=language, theme=theme if theme in THEMES else "auto", **context
    )
    return HTMLResponse(text, headers=_HEADERS)


def rendered(visit: Visit, template: str, **context: Any) -> str:
    """The template's text."""
    now_ms = time.time_ns() // 1_000_000
    say = visit.say

    def ago(ms: int | None) -> str:
        return words.DASH if ms is None else say("{span} ago", span=words.span(now_ms - ms, say))

    def until(ms: int) -> str:
        left = ms - now_ms
        if left >= 0:
            return say("in {span}", span=words.span(left, say))
        return say("overdue {span}", span=words.span(-left, say))

    return _TEMPLATES.get_template(template).render(
        visit=visit,
        t=say,
        now_ms=now_ms,
        ago=ago,
        until=until,
        span=lambda ms: words.span(ms, say),
        who=lambda actor: words.who(actor, say),
        **context,
    )


def see_other(location: str) -> Response:
    """Where a form leads after its work is done."""
    return RedirectResponse(location, status_code=303, headers={"Cache-Control": "no-store"})


def wants_json(request: Request) -> bool:
    """Whether a script of ours asks, which takes the pieces that changed instead of a page."""
    return "application/json" in request.headers.get("accept", "")
