"""Settings: switches and budgets, keys, webhooks, people. What a secret is, is shown once and never again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.budgets import BudgetRoutes
from gateway.api.changes import Changes
from gateway.api.keys import KeyRoutes
from gateway.api.problems import ApiProblem
from gateway.api.switches import SwitchRoutes
from gateway.api.users import UserRoutes
from gateway.api.webhooks import WebhookRoutes
from gateway.console.access import form_of
from gateway.console.asking import Handler, ask
from gateway.console.pages import see_other
from gateway.console.serving import Backstage
from gateway.console.visit import Visit, visit_of
from gateway.person import Role
from gateway.store.keys import SCOPES
from gateway.webhooks.catalogue import EVENT_TYPES, FAMILIES
from gateway.wiring import Services

_OVERLAP_S = 24 * 3600


class SettingsPages:
    """Handlers of `/console/settings`; all but one's own account are for admins."""

    def __init__(self, backstage: Backstage, services: Services, changes: Changes) -> None:
        self._backstage = backstage
        self._keys = KeyRoutes(services.database)
        self._people = UserRoutes(services.database)
        self._switches = SwitchRoutes(services)
        self._budgets = BudgetRoutes(services)
        self._webhooks = WebhookRoutes(services, changes)

    def add_to(self, router: APIRouter) -> None:
        """The routes."""
        for method, path, handler in (
            ("GET", "", self.general),
            ("POST", "/switches", self.turn),
            ("GET", "/keys", self.keys),
            ("POST", "/keys", self.make_key),
            ("POST", "/keys/{key_id}/rotate", self.rotate_key),
            ("POST", "/keys/{key_id}/revoke", self.revoke_key),
            ("GET", "/webhooks", self.webhooks),
            ("POST", "/webhooks", self.make_endpoint),
            ("GET", "/webhooks/{endpoint_id}", self.endpoint),
            ("POST", "/webhooks/{endpoint_id}/status", self.set_status),
            ("POST", "/webhooks/{endpoint_id}/rotate", self.rotate_endpoint),
            ("POST", "/webhooks/{endpoint_id}/test", self.test_endpoint),
            ("POST", "/webhooks/{endpoint_id}/delete", self.delete_endpoint),
            ("GET", "/deliveries/{delivery_id}", self.delivery),
            ("POST", "/deliveries/{delivery_id}/redeliver", self.redeliver),
            ("GET", "/people", self.people),
            ("POST", "/people", self.add_person),
            ("POST", "/people/{user_id}", self.change_person),
        ):
            router.add_api_route(f"/settings{path}", handler, methods=[method])

    # --- what is on, and what it may cost ----------------------------------------------------------------------------

    async def general(self, request: Request) -> Response:
        """Switches, today's budgets, one's own account."""
        return await self._general(visit_of(request))

    async def _general(self, visit: Visit, *, problem: ApiProblem | None = None) -> Response:
        request = visit.request
        switches = await ask(request, self._switches.get)
        budgets = await ask(request, self._budgets.index) if visit.is_admin else {"budgets": []}
        return await self._render(
            visit, "settings.html", problem=problem, switches=switches, budgets=budgets["budgets"]
        )

    async def turn(self, request: Request) -> Response:
        """Pause or resume one thing."""
        visit = visit_of(request)
        visit.require_admin()
        form = form_of(request)
        setting = {"is_paused": form.get("paused") == "yes", "reason": form.get("reason", "").strip() or None}
        body = {form.get("switch", ""): setting}
        try:
            await ask(request, self._switches.put, method="PUT", body=body)
        except ApiProblem as problem:
            return await self._general(visit, problem=problem)
        return see_other("/console/settings")

    # --- keys --------------------------------------------------------------------------------------------------------

    async def keys(self, request: Request) -> Response:
        """All keys of the tenant, without their secrets."""
        return await self._keys_page(visit_of(request))

    async def _keys_page(
        self, visit: Visit, *, made: Mapping[str, Any] | None = None, problem: ApiProblem | None = None
    ) -> Response:
        visit.require_admin()
        listed = await ask(visit.request, self._keys.list, query={"limit": "200"})
        return await self._render(visit, "keys.html", problem=problem, keys=listed["keys"], made=made, scopes=SCOPES)

    async def make_key(self, request: Request) -> Response:
        """A new key; the answer is the only place where its secret stands."""
        form = form_of(request)
        body = {"name": form.get("name", "").strip() or None, "scopes": form.getlist("scopes")}
        return await self._with_key(request, self._keys.create, body=body)

    async def rotate_key(self, key_id: str, request: Request) -> Response:
        """A new secret; the one before works for another day."""
        return await self._with_key(request, self._keys.rotate, key_id, body={"overlap_s": _OVERLAP_S})

    async def _with_key(self, request: Request, handler: Handler, *path: str, body: Mapping[str, Any]) -> Response:
        visit = visit_of(request)
        visit.require_admin()
        try:
            made = await ask(request, handler, *path, method="POST", body=body)
        except ApiProblem as problem:
            return await self._keys_page(visit, problem=problem)
        return await self._keys_page(visit, made=made)

    async def revoke_key(self, key_id: str, request: Request) -> Response:
        """End a key."""
        visit_of(request).require_admin()
        await ask(request, self._keys.revoke, key_id, method="DELETE")
        return see_other("/console/settings/keys")

    # --- webhooks ----------------------------------------------------------------------------------------------------

    async def webhooks(self, request: Request) -> Response:
        """Endpoints and the newest deliveries."""
        return await self._webhooks_page(visit_of(request))

    async def _webhooks_page(
        self, visit: Visit, *, made: Mapping[str, Any] | None = None, problem: ApiProblem | None = None
    ) -> Response:
        visit.require_admin()
        listed = await ask(visit.request, self._webhooks.list, query={"limit": "200"})
        log = await ask(visit.request, self._webhooks.deliveries, query={"limit": "30"})
        families = [f"{family}.*" for family in FAMILIES]
        return await self._render(
            visit,
            "webhooks.html",
            problem=problem,
            endpoints=listed["webhook_endpoints"],
            deliveries=log["webhook_deliveries"],
            made=made,
            families=families,
            event_types=EVENT_TYPES,
        )

    async def make_endpoint(self, request: Request) -> Response:
        """A new endpoint; the answer is the only place where its secret stands."""
        visit = visit_of(request)
        visit.require_admin()
        form = form_of(request)
        body = {
            "url": form.get("url", "").strip(),
            "description": form.get("description", "").strip() or None,
            "events": form.getlist("events") or ["*"],
            "body": "full" if form.get("body") == "full" else "thin",
            "allow_insecure": form.get("allow_insecure") == "yes",
        }
        try:
            made = await ask(request, self._webhooks.create, method="POST", body=body)
        except ApiProblem as problem:
            return await self._webhooks_page(visit, problem=problem)
        return await self._webhooks_page(visit, made=made)

    async def endpoint(self, endpoint_id: str, request: Request) -> Response:
        """One endpoint: how it answers, what was sent to it."""
        return await self._endpoint_page(visit_of(request), endpoint_id)

    async def _endpoint_page(
        self,
        visit: Visit,
        endpoint_id: str,
        *,
        made: Mapping[str, Any] | None = None,
        tested: Mapping[str, Any] | None = None,
        problem: ApiProblem | None = None,
    ) -> Response:
        visit.require_admin()
        request = visit.request
        shown = await ask(request, self._webhooks.get, endpoint_id)
        log = await ask(request, self._webhooks.deliveries, query={"endpoint": endpoint_id, "limit": "100"})
        return await self._render(
            visit,
            "endpoint.html",
            problem=problem,
            endpoint=shown,
            deliveries=log["webhook_deliveries"],
            made=made,
            tested=tested,
        )

    async def set_status(self, endpoint_id: str, request: Request) -> Response:
        """Stop or start sending to an endpoint."""
        form = form_of(request)

        async def change() -> dict[str, Any]:
            return await ask(
                request,
                self._webhooks.change,
                endpoint_id,
                method="PATCH",
                body={"status": form.get("status", "")},
                version=form.get("version", ""),
            )

        return await self._on_endpoint(request, endpoint_id, change)

    async def rotate_endpoint(self, endpoint_id: str, request: Request) -> Response:
        """A new secret; for a day both sign."""

        async def rotate() -> dict[str, Any]:
            return await ask(request, self._webhooks.rotate, endpoint_id, method="POST", body={"overlap_s": _OVERLAP_S})

        return await self._on_endpoint(request, endpoint_id, rotate, shows="made")

    async def test_endpoint(self, endpoint_id: str, request: Request) -> Response:
        """Send a test event, and tell how it was answered."""

        async def test() -> dict[str, Any]:
            return await ask(request, self._webhooks.test, endpoint_id, method="POST")

        return await self._on_endpoint(request, endpoint_id, test, shows="tested")

    async def _on_endpoint(
        self,
        request: Request,
        endpoint_id: str,
        work: Callable[[], Awaitable[dict[str, Any]]],
        *,
        shows: str | None = None,
    ) -> Response:
        visit = visit_of(request)
        visit.require_admin()
        try:
            answer = await work()
        except ApiProblem as problem:
            return await self._endpoint_page(visit, endpoint_id, problem=problem)
        if shows == "made":
            return await self._endpoint_page(visit, endpoint_id, made=answer)
        if shows == "tested":
            return await self._endpoint_page(visit, endpoint_id, tested=answer)
        return see_other(f"/console/settings/webhooks/{endpoint_id}")

    async def delete_endpoint(self, endpoint_id: str, request: Request) -> Response:
        """Remove an endpoint with its log."""
        visit_of(request).require_admin()
        await ask(request, self._webhooks.delete, endpoint_id, method="DELETE")
        return see_other("/console/settings/webhooks")

    async def delivery(self, delivery_id: str, request: Request) -> Response:
        """One delivery with every attempt."""
        visit = visit_of(request)
        visit.require_admin()
        shown = await ask(request, self._webhooks.delivery, delivery_id)
        return await self._render(visit, "delivery.html", problem=None, delivery=shown)

    async def redeliver(self, delivery_id: str, request: Request) -> Response:
        """Send it again, under the same ids."""
        visit_of(request).require_admin()
        await ask(request, self._webhooks.redeliver, delivery_id, method="POST")
        return see_other(f"/console/settings/deliveries/{delivery_id}")

    # --- people ------------------------------------------------------------------------------------------------------

    async def people(self, request: Request) -> Response:
        """Who can log in, and what they may do."""
        return await self._people_page(visit_of(request))

    async def _people_page(self, visit: Visit, *, problem: ApiProblem | None = None) -> Response:
        visit.require_admin()
        listed = await ask(visit.request, self._people.list, query={"limit": "200"})
        roles = [role.value for role in Role]
        return await self._render(visit, "people.html", problem=problem, people=listed["users"], roles=roles)

    async def add_person(self, request: Request) -> Response:
        """Somebody who can log in from now on."""
        form = form_of(request)
        body = {name: form.get(name, "").strip() for name in ("name", "role")}
        body["password"] = form.get("password", "")
        return await self._with_person(request, self._people.add, method="POST", body=body)

    async def change_person(self, user_id: str, request: Request) -> Response:
        """Another role, or disabled, or enabled again; logs them out everywhere."""
        form = form_of(request)
        body: dict[str, Any] = {}
        if form.get("role"):
            body["role"] = form["role"]
        if form.get("disabled") in {"yes", "no"}:
            body["disabled"] = form["disabled"] == "yes"
        version = form.get("version", "")
        return await self._with_person(
            request, self._people.change, user_id, method="PATCH", body=body, version=version
        )

    async def _with_person(
        self,
        request: Request,
        handler: Handler,
        *path: str,
        method: str,
        body: Mapping[str, Any],
        version: str | None = None,
    ) -> Response:
        visit = visit_of(request)
        visit.require_admin()
        try:
            await ask(request, handler, *path, method=method, body=body, version=version)
        except ApiProblem as problem:
            return await self._people_page(visit, problem=problem)
        return see_other("/console/settings/people")

    async def _render(self, visit: Visit, template: str, *, problem: ApiProblem | None, **context: Any) -> Response:
        status = 422 if problem is not None else 200
        return await self._backstage.render(visit, template, status=status, problem=problem, **context)
