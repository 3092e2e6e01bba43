"""Who looks at the console and what they may do there: the person of a request, roles, logging in and out.

The gate lets nobody past who is not logged in, and no change without the session's CSRF token; what is left to a page is
to ask for the role that it needs.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlencode

import anyio.to_thread
import structlog
from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from gateway import credentials, passwords
from gateway.api import sessions
from gateway.api.auth import csrf_of
from gateway.api.problems import ApiProblem
from gateway.credentials import Changed, CredentialRefused
from gateway.person import Person, Role
from gateway.store import items, logins, people
from gateway.store.engine import Database
from gateway.store.logins import Attempt
from gateway.store.people import PersonRecord, SessionLimits

__all__ = ["AccessRoutes", "Person", "Role", "form_of", "has_people", "person_of", "require_role"]

log = structlog.get_logger()


def person_of(request: Request) -> Person:
    """Who looks. On public pages, where nobody may be logged in, use `visitor_of`."""
    person = visitor_of(request)
    assert person is not None, "the gate lets nobody past"
    return person


def visitor_of(request: Request) -> Person | None:
    """Who looks at a public page (login, static files); None for somebody who is not logged in."""
    person = request.scope["state"].get("person")
    assert person is None or isinstance(person, Person)
    return person


def require_role(person: Person, role: Role) -> None:
    """Raise a 403 unless the person has this role or one above it."""
    if not person.role.includes(role):
        raise ApiProblem(
            "forbidden",
            f"This needs the role {role.value}; {person.name} has the role {person.role.value}. Ask an admin.",
            extra={"reason": "role", "role": role.value},
        )


def form_of(request: Request) -> ImmutableMultiDict[str, str]:
    """The form that was sent (`application/x-www-form-urlencoded`), its CSRF token already checked."""
    form = request.scope["state"].get("form")
    return form if form is not None else ImmutableMultiDict()


def has_people(database: Database) -> bool:
    """Whether anybody can log in; if not, the login page says how to add somebody."""
    with database.read() as connection:
        return people.any_active(connection)


@dataclass(frozen=True, slots=True)
class _LoggedIn:
    person: PersonRecord
    token: str


@dataclass(frozen=True, slots=True)
class _Refused:
    """Wrong name or password, which are not told apart; or too many attempts."""

    wait_s: int | None = None


class AccessRoutes:
    """Handlers of `POST /console/login`, `/console/logout` and `/console/password`.

    Forms are answered with a redirect; with `Accept: application/json` a script gets JSON, to log in in place.
    """

    def __init__(self, database: Database, limits: SessionLimits) -> None:
        self._database = database
        self._limits = limits
        self._passwords = anyio.CapacityLimiter(2)
        """Who waits for a password to be looked at waits here, and keeps no thread from other requests."""

    def router(self) -> APIRouter:
        """The routes; the pages around them are the console's."""
        router = APIRouter(prefix=sessions.CONSOLE, include_in_schema=False)
        router.add_api_route("/login", self.login, methods=["POST"])
        router.add_api_route("/logout", self.logout, methods=["POST"])
        router.add_api_route("/password", self.password, methods=["POST"])
        return router

    async def login(self, request: Request) -> Response:
        """Fields `name`, `password`, `next`."""
        form = form_of(request)
        name, password = form.get("name", "").strip(), form.get("password", "")
        next_path = sessions.safe_next(form.get("next"))
        before = sessions.session_token(request.headers)
        log_in = partial(self._log_in, name, password, _address(request), before)
        outcome = await anyio.to_thread.run_sync(log_in, limiter=self._passwords)
        if isinstance(outcome, _Refused):
            return _refused_login(request, outcome, next_path)
        if _wants_json(request):
            person = outcome.person
            answer: Response = JSONResponse(
                {"name": person.name, "role": person.role.value, "csrf": csrf_of(outcome.token)}
            )
        else:
            answer = RedirectResponse(next_path, status_code=303)
        answer.headers["Set-Cookie"] = self._cookie(request, outcome.token)
        return answer

    async def logout(self, request: Request) -> Response:
        """End this session; with the field `everywhere`, all of this person's."""
        token = sessions.session_token(request.headers)
        if token is not None:
            await run_in_threadpool(self._log_out, token, everywhere="everywhere" in form_of(request))
        answer = JSONResponse({}) if _wants_json(request) else RedirectResponse(sessions.LOGIN, status_code=303)
        answer.headers["Set-Cookie"] = self._cookie(request, "")
        return answer

    async def password(self, request: Request) -> Response:
        """Fields `current` and `password`: a new password for oneself. All other sessions of this person end."""
        person = person_of(request)
        if person.is_keyless:
            raise ApiProblem("forbidden", "Nobody is logged in, so there is no password to change.")
        token = sessions.session_token(request.headers)
        assert token is not None
        form = form_of(request)
        current, wanted = form.get("current", ""), form.get("password", "")
        change = partial(self._change_password, person, current, wanted, _address(request), token)
        await anyio.to_thread.run_sync(change, limiter=self._passwords)
        if _wants_json(request):
            return JSONResponse({})
        return RedirectResponse(sessions.safe_next(form.get("next")), status_code=303)

    def _cookie(self, request: Request, token: str) -> str:
        return sessions.session_cookie(token, request.scope, lasts_s=self._limits.total_ms // 1000)

    def _log_in(self, name: str, password: str, address: str, before: str | None) -> _LoggedIn | _Refused:
        attempt = Attempt(people.login_of(name), address)
        outcome = self._check(attempt, name, password)
        if not isinstance(outcome, PersonRecord):
            return outcome

        def start(connection: Connection) -> str:
            at_ms = items.now_ms(connection)
            logins.succeed(connection, attempt)
            if before is not None:
                people.end_session(connection, people.token_hash(before), at_ms=at_ms)
            return people.start_session(connection, outcome, at_ms=at_ms, limits=self._limits)

        token = self._database.transact(start)
        log.info("login.succeeded", person_id=outcome.id)
        return _LoggedIn(outcome, token)

    def _check(self, attempt: Attempt, name: str, password: str) -> PersonRecord | _Refused:
        """Takes as long, and says the same, whether there is such a person or not."""
        wait_ms = self._database.transact(
            lambda connection: logins.begin(connection, attempt, at_ms=items.now_ms(connection))
        )
        if wait_ms is not None:
            log.warning("login.throttled", address=attempt.address)
            return _Refused(math.ceil(wait_ms / 1000))
        with self._database.read() as connection:
            found = people.find(connection, name)
        is_right = passwords.matches(None if found is None else found[1], password)
        if not is_right or found is None or found[0].disabled_ms is not None:
            log.warning("login.failed", address=attempt.address)
            return _Refused()
        return found[0]

    def _log_out(self, token: str, *, everywhere: bool) -> None:
        hashed = people.token_hash(token)

        def end(connection: Connection) -> None:
            at_ms = items.now_ms(connection)
            found = people.session(connection, hashed, at_ms=at_ms, limits=self._limits)
            if everywhere and found is not None:
                people.end_all(connection, found.person.id, reason=people.SessionEnd.LOGGED_OUT, at_ms=at_ms)
            people.end_session(connection, hashed, at_ms=at_ms)

        self._database.transact(end)

    def _change_password(self, person: Person, current: str, wanted: str, address: str, token: str) -> None:
        attempt = Attempt(people.login_of(person.name), address)
        outcome = self._check(attempt, person.name, current)
        if isinstance(outcome, _Refused):
            raise _refusal(outcome, "The current password is not right.")
        self._database.transact(lambda connection: logins.succeed(connection, attempt))
        try:
            credentials.change_person(
                self._database,
                outcome,
                by=person.actor,
                password=wanted,
                keep_session=people.token_hash(token),
            )
        except CredentialRefused as error:
            raise ApiProblem("invalid_request", error.public, extra={"reason": "password"}) from error
        except Changed as error:
            raise ApiProblem("conflict_version", error.public) from error


def _refused_login(request: Request, outcome: _Refused, next_path: str) -> Response:
    """To the login page with `error=credentials`, or `error=throttled` and `wait` in seconds; a problem for a script."""
    if _wants_json(request):
        raise _refusal(outcome, "The name or the password is not right.")
    query = {"next": next_path, "error": "credentials" if outcome.wait_s is None else "throttled"}
    if outcome.wait_s is not None:
        query["wait"] = str(outcome.wait_s)
    return RedirectResponse(f"{sessions.LOGIN}?{urlencode(query)}", status_code=303)


def _refusal(outcome: _Refused, otherwise: str) -> ApiProblem:
    if outcome.wait_s is None:
        return ApiProblem("unauthenticated", otherwise, extra={"reason": "credentials"})
    return ApiProblem(
        "rate_limited",
        "There were too many attempts to log in. Wait, then try again.",
        extra={"reason": "throttled"},
        retry_after_s=outcome.wait_s,
    )


def _wants_json(request: Request) -> bool:
    return "application/json" in request.headers.get("accept", "")


def _address(request: Request) -> str:
    """Where the attempt comes from; of IPv6, the network that one customer usually has."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6 and not address.is_loopback:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
