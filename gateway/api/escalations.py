"""Routes of the human queue. Each is parse, one call, render."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fastapi import APIRouter
from pydantic import ValidationError
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import resolution
from gateway.api import idempotency
from gateway.api import request_values as values
from gateway.api.auth import Principal
from gateway.api.changes import Changes
from gateway.api.gate import principal_of
from gateway.api.problems import ApiProblem, FieldError, invalid, not_found
from gateway.api.render import case_links, escalation_json, timestamp
from gateway.api.schemas import parameters
from gateway.escalation import EscalationLease, EscalationRecord, EscalationStatus
from gateway.resolution import ItemMoved, NotAllowed, Reviewer
from gateway.store import escalations as store
from gateway.store import items as item_store
from gateway.store.escalations import CaseFilter
from gateway.wiring import Services
from gateway.work.dispatch import Bulkhead

T = TypeVar("T")

_DEFAULT_LEASE_S, _MOST_LEASE_S = 300, 900
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")
_FILTERS = ("status", "reason", "tool", "profile", "group", "priority", "assignee", "due_before", "item")


class EscalationRoutes:
    """Handlers of `/v1/escalations`."""

    def __init__(self, services: Services, changes: Changes) -> None:
        self._services = services
        self._changes = changes

    def router(self) -> APIRouter:
        """The routes with their descriptions."""
        router = APIRouter(prefix="/v1/escalations", tags=["escalations"])
        add = router.add_api_route
        add(
            "",
            self.list,
            methods=["GET"],
            summary="Cases for a person, the soonest due first",
            openapi_extra={"parameters": parameters(*_FILTERS, "cursor", "limit")},
        )
        add("/claim-next", self.claim_next, methods=["POST"], summary="Take the next case that nobody holds")
        add("/{escalation_id}", self.get, methods=["GET"], summary="One case with all that is needed to decide")
        add("/{escalation_id}/claim", self.claim, methods=["POST"], summary="Take a case, or renew one's own lease")
        add("/{escalation_id}/heartbeat", self.heartbeat, methods=["POST"], summary="Renew a lease by its token")
        add("/{escalation_id}/release", self.release, methods=["POST"], summary="Give a case back")
        add("/{escalation_id}/resolve", self.resolve, methods=["POST"], summary="Decide; the first valid writer wins")
        return router  # fmt: skip

    async def list(self, request: Request) -> Response:
        """Cases of the caller's tenant."""
        wanted = values.query(request, (*_FILTERS, "cursor", "limit"))
        principal = principal_of(request.scope["state"])
        limit = values.integer(wanted, "limit", default=values.DEFAULT_LIMIT, least=1, most=values.MAX_LIMIT)
        after = _place(wanted)
        where = _filter(wanted, _holder(request, principal))
        found = await self._read(
            lambda connection: store.page(
                connection, tenant=principal.tenant, where=where, after=after, limit=limit + 1
            )
        )
        page = found[:limit]
        cursor = _cursor(page[-1]) if len(found) > limit else None
        return JSONResponse({"escalations": [escalation_json(record) for record in page], "next_cursor": cursor})

    async def get(self, escalation_id: str, request: Request) -> Response:
        """The decision packet."""
        values.query(request, ())
        record = await self._record(escalation_id, principal_of(request.scope["state"]))
        return JSONResponse(escalation_json(record), headers=_etag(record))

    async def claim_next(self, request: Request) -> Response:
        """A case with a lease, or why there is none: nothing open, all held by others, or hidden by the filter."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        body = await values.json_object(request)
        _refuse_unknown(body, ("filter", "lease_s"))
        where = _body_filter(body.get("filter"), _holder(request, principal))
        lease_ms = _lease_ms(body)
        holder = _holder(request, principal)

        def take(connection: Connection) -> tuple[str, EscalationLease] | None:
            return store.claim_next(connection, tenant=principal.tenant, where=where, holder=holder, lease_ms=lease_ms)

        taken = await self._transact(take)
        if taken is None:
            return JSONResponse(await self._why_empty(principal.tenant, where))
        record = await self._record(taken[0], principal)
        return JSONResponse(
            {"escalation": escalation_json(record), "lease": _lease_json(taken[1])}, headers=_etag(record)
        )

    async def _why_empty(self, tenant: str, where: CaseFilter) -> dict[str, Any]:
        state = await self._read(lambda connection: store.queue_state(connection, tenant=tenant, where=where))
        return {
            "empty": True,
            "open": state.open,
            "claimed_by_others": state.claimed,
            "hidden_by_filter": state.open - state.matching,
            "next_expiry": timestamp(state.next_expiry_ms),
        }

    async def claim(self, escalation_id: str, request: Request) -> Response:
        """A lease on this case."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        body = await values.json_object(request)
        _refuse_unknown(body, ("lease_s",))
        lease_ms = _lease_ms(body)
        holder = _holder(request, principal)
        await self._record(escalation_id, principal)
        lease = await self._transact(
            lambda connection: store.claim(
                connection, escalation_id, tenant=principal.tenant, holder=holder, lease_ms=lease_ms
            )
        )
        record = await self._record(escalation_id, principal)
        if lease is None:
            raise _not_claimable(record)
        return JSONResponse({"escalation": escalation_json(record), "lease": _lease_json(lease)}, headers=_etag(record))

    async def heartbeat(self, escalation_id: str, request: Request) -> Response:
        """A longer lease."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        body = await values.json_object(request)
        _refuse_unknown(body, ("lease_token", "lease_s"))
        token, lease_ms = _token(body), _lease_ms(body)
        record = await self._record(escalation_id, principal)
        lease = await self._transact(
            lambda connection: store.heartbeat(
                connection, escalation_id, tenant=principal.tenant, token=token, lease_ms=lease_ms
            )
        )
        if lease is None:
            raise _lease_lost(record)
        return JSONResponse({"lease": _lease_json(lease)})

    async def release(self, escalation_id: str, request: Request) -> Response:
        """Open again for others."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        body = await values.json_object(request)
        _refuse_unknown(body, ("lease_token", "note"))
        token = _token(body)
        record = await self._record(escalation_id, principal)
        is_released = await self._transact(
            lambda connection: store.release(connection, escalation_id, tenant=principal.tenant, token=token)
        )
        if not is_released:
            raise _lease_lost(record)
        record = await self._record(escalation_id, principal)
        return JSONResponse(escalation_json(record), headers=_etag(record))

    async def resolve(self, escalation_id: str, request: Request) -> Response:
        """The decision and its effect, once; the same request again gets the same answer."""
        values.query(request, ())
        principal = principal_of(request.scope["state"])
        key = idempotency.parse_key(request.headers.get("idempotency-key"))
        wanted = _decision(await values.json_object(request))
        version = _if_match(request)
        reviewer = Reviewer(_holder(request, principal))

        def decide(connection: Connection) -> tuple[EscalationRecord, bool]:
            return _decide(connection, self._services, escalation_id, principal.tenant, wanted, version, key, reviewer)

        try:
            record, is_replay = await self._transact(decide)
        except NotAllowed as error:
            allowed = [action.value for action in error.allowed]
            raise ApiProblem("action_not_allowed", error.public, extra={"allowed_actions": allowed}) from error
        except ItemMoved:
            raise _withdrawn() from None
        if record.run_id is None and record.item_id is not None:
            self._services.dispatch.wake(record.item_id, Bulkhead.AGENT)
            self._services.signals.send("api", record.item_id)
            self._changes.notify(record.item_id)
        headers = {**_etag(record), **({"Idempotent-Replayed": "true"} if is_replay else {})}
        return JSONResponse(_resolved_json(record), headers=headers)

    async def _record(self, escalation_id: str, principal: Principal) -> EscalationRecord:
        record = await self._read(lambda connection: store.get(connection, escalation_id, tenant=principal.tenant))
        if record is None:
            raise not_found("escalation of this id")
        return record

    async def _read(self, look: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._services.database.read() as connection:
                return look(connection)

        return await run_in_threadpool(run)

    async def _transact(self, work: Callable[[Connection], T]) -> T:
        return await run_in_threadpool(self._services.database.transact, work)


def _decide(
    connection: Connection,
    services: Services,
    escalation_id: str,
    tenant: str,
    wanted: Any,
    version: int | None,
    key: str | None,
    reviewer: Reviewer,
) -> tuple[EscalationRecord, bool]:
    """In one transaction: whoever flips the case first has decided; all others learn what won."""
    record = store.get(connection, escalation_id, tenant=tenant)
    if record is None:
        raise not_found("escalation of this id")
    mark = resolution.fingerprint(escalation_id, wanted)
    if record.resolution is not None and record.status in {EscalationStatus.APPLIED, EscalationStatus.RESOLVED}:
        won_key, won_mark = store.resolved_by(connection, escalation_id)
        if key is not None and key == won_key:
            if mark != won_mark:
                raise idempotency.reused(key)
            return record, True
        raise _already_resolved(record)
    if record.status in {EscalationStatus.WITHDRAWN, EscalationStatus.EXPIRED}:
        raise _withdrawn()
    if version is None:
        raise ApiProblem("precondition_required", "Send `If-Match` with the ETag of the escalation that you decide on.")
    if not store.holds(connection, escalation_id, token=wanted.lease_token):
        raise _lease_lost(record)
    if record.version != version:
        raise ApiProblem(
            "conflict_version",
            f"The escalation has version {record.version} now, not {version}. Read it again before you decide.",
            extra={"version": record.version},
        )
    is_first = store.resolve(
        connection,
        escalation_id,
        token=wanted.lease_token,
        version=version,
        resolution=resolution.resolution_of(wanted, reviewer, item_store.now_ms(connection)),
        key=key,
        fingerprint=mark,
        status=resolution.status_after(record, wanted),
    )
    if not is_first:  # another transaction was quicker since we looked
        latest = store.get(connection, escalation_id, tenant=tenant)
        raise _already_resolved(latest) if latest is not None and latest.resolution is not None else _lease_lost(record)
    resolution.apply(connection, services.profiles, record, wanted, reviewer)
    resolved = store.get(connection, escalation_id, tenant=tenant)
    assert resolved is not None
    return resolved, False


def _decision(body: dict[str, Any]) -> Any:
    if "lease_token" not in body:
        raise ApiProblem("precondition_required", "Send the `lease_token` of your claim; claim the escalation first.")
    try:
        return resolution.DECISIONS.validate_python(body)
    except ValidationError as error:
        fields = [
            FieldError("/" + "/".join(str(part) for part in item["loc"][1:]), str(item["type"]), str(item["msg"]))
            for item in error.errors(include_url=False, include_context=False, include_input=False)[:20]
        ]
        first = fields[0]
        raise invalid(f"The decision is not valid at {first.pointer}: {first.detail}.", *fields) from error


def _if_match(request: Request) -> int | None:
    text = (request.headers.get("if-match") or "").strip().removeprefix("W/").strip('"')
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _holder(request: Request, principal: Principal) -> str:
    """Who reviews: the person that a client acts for, else the caller itself."""
    person = request.headers.get("on-behalf-of")
    if person is None:
        return principal.actor
    principal.require("review:delegate")
    if not 1 <= len(person) <= 100 or not person.isprintable():
        raise invalid("On-Behalf-Of must name a person in 1 to 100 printable characters.")
    return f"person:{person}"


def _cursor(last: EscalationRecord) -> str:
    return values.encode_cursor(last.due_ms, f"{last.priority}/{last.id}")


def _place(wanted: dict[str, str]) -> store.Place | None:
    """The case after which the next page begins."""
    after = values.decode_cursor(wanted)
    if after is None:
        return None
    priority, _, escalation_id = after[1].partition("/")
    if not _WHOLE_NUMBER.fullmatch(priority) or not escalation_id:
        raise invalid(
            "The cursor is not valid.", FieldError("cursor", "cursor", "Send the `next_cursor` as it was given.")
        )
    return store.Place(after[0], int(priority), escalation_id)


def _filter(wanted: Mapping[str, str], me: str) -> CaseFilter:
    assignee = wanted.get("assignee")
    statuses = wanted.get("status")
    priority = wanted.get("priority")
    if priority is not None and not _WHOLE_NUMBER.fullmatch(priority):
        raise invalid("`priority` must be a whole number.", FieldError("priority", "type", "Send a whole number."))
    return CaseFilter(
        status=None if statuses is None else _known_statuses(statuses.split(",")),
        reason=wanted.get("reason"),
        tool=wanted.get("tool"),
        profile=wanted.get("profile"),
        group=wanted.get("group"),
        priority=None if priority is None else int(priority),
        assignee=me if assignee == "me" else None if assignee in {None, "none"} else assignee,
        unassigned=assignee == "none",
        due_before_ms=values.moment(dict(wanted), "due_before"),
        item_id=wanted.get("item"),
    )


def _body_filter(raw: object, me: str) -> CaseFilter:
    if raw is None:
        return CaseFilter()
    if not isinstance(raw, dict) or not all(isinstance(value, str | int) for value in raw.values()):
        raise invalid("`filter` must be an object of texts.", FieldError("/filter", "type", "Send an object."))
    _refuse_unknown(raw, _FILTERS, "/filter")
    return _filter({name: str(value) for name, value in raw.items()}, me)


def _known_statuses(wanted: list[str]) -> tuple[str, ...]:
    unknown = [status for status in wanted if status not in set(EscalationStatus)]
    if unknown:
        detail = f"Must be among {', '.join(sorted(EscalationStatus))}."
        raise invalid(f"`status` is not valid. {detail}", FieldError("status", "choice", detail))
    return tuple(wanted)


def _refuse_unknown(body: Mapping[str, Any], known: tuple[str, ...], where: str = "") -> None:
    for name in body:
        if name not in known:
            raise invalid(
                f"The field `{name[:60]}` is not known here; there are: {', '.join(known)}.",
                FieldError(f"{where}/{name[:60]}", "unknown_field", "Remove it or correct its name."),
            )


def _lease_ms(body: Mapping[str, Any]) -> int:
    seconds = body.get("lease_s", _DEFAULT_LEASE_S)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1 <= seconds <= _MOST_LEASE_S:
        raise invalid(
            f"`lease_s` must be a number from 1 to {_MOST_LEASE_S}.",
            FieldError("/lease_s", "range", f"1 to {_MOST_LEASE_S} seconds."),
        )
    return int(seconds * 1000)


def _token(body: Mapping[str, Any]) -> str:
    token = body.get("lease_token")
    if not isinstance(token, str) or not token:
        raise ApiProblem("precondition_required", "Send the `lease_token` of your claim.")
    return token


def _etag(record: EscalationRecord) -> dict[str, str]:
    return {"ETag": f'"{record.version}"'}


def _lease_json(lease: EscalationLease) -> dict[str, Any]:
    return {"token": lease.token, "fence": lease.fence, "expires_at": timestamp(lease.expires_ms)}


def _resolved_json(record: EscalationRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "status": record.status.value,
        "item": record.item_id,
        "run": record.run_id,
        "resolution": _resolution_json(record),
        "links": case_links(record),
    }


def _resolution_json(record: EscalationRecord) -> dict[str, Any]:
    stored = dict(record.resolution or {})
    stored["at"] = timestamp(stored.pop("at_ms", None))
    return stored


def _not_claimable(record: EscalationRecord) -> ApiProblem:
    if record.status is EscalationStatus.CLAIMED:
        return ApiProblem(
            "already_claimed",
            f"{record.holder} holds this until {timestamp(record.lease_expires_ms)}.",
            extra={"holder": record.holder, "expires_at": timestamp(record.lease_expires_ms)},
            retry_after_s=5,
        )
    return _already_resolved(record) if record.resolution is not None else _withdrawn()


def _lease_lost(record: EscalationRecord) -> ApiProblem:
    return ApiProblem(
        "lease_lost",
        "Your lease on this escalation is over: it ran out, was given back or was taken over. Claim it again.",
        extra={"holder": record.holder, "expires_at": timestamp(record.lease_expires_ms)},
    )


def _already_resolved(record: EscalationRecord) -> ApiProblem:
    stored = _resolution_json(record)
    return ApiProblem(
        "already_resolved",
        f"This was decided already: {stored.get('action')} by {stored.get('by')} at {stored.get('at')}.",
        extra={"resolution": stored},
    )


def _withdrawn() -> ApiProblem:
    return ApiProblem(
        "escalation_withdrawn", "The item was cancelled or finished elsewhere; nothing is left to decide."
    )
