"""What requests to the human queue say: filters, leases, tokens, decisions, who acts for whom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request

from gateway import resolution
from gateway.api import paging
from gateway.api import request_values as values
from gateway.api.auth import Principal
from gateway.api.gate import principal_of
from gateway.api.problems import ApiProblem, FieldError, invalid
from gateway.escalation import EscalationRecord, EscalationStatus
from gateway.person import Role
from gateway.resolution import AnyDecision
from gateway.review.deciding import MOST_UNDO_MS
from gateway.review.desk import Desk
from gateway.review.queue import DEFAULT_LEASE_MS
from gateway.store.escalation_rows import CaseFilter, Place

FILTERS = (
    "status", "reason", "tool", "profile", "group", "priority", "min_priority", "assignee", "due_before", "overdue", "item",
    "resolved_by",
)  # fmt: skip
_MOST_LEASE_S = 900
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")


def desk_of(request: Request) -> Desk:
    """Whose queue, and who works at it: the person that a client acts for, else the caller itself."""
    principal = principal_of(request.scope["state"])
    role = principal.role
    is_lead = "admin" in principal.scopes if role is None else role.includes(Role.LEAD)
    return Desk(principal.tenant, _holder(request, principal), is_lead=is_lead)


def _holder(request: Request, principal: Principal) -> str:
    person = request.headers.get("on-behalf-of")
    if person is None:
        return principal.actor
    principal.require("review:delegate")
    return person_named(person, "On-Behalf-Of")


def person_named(name: object, where: str) -> str:
    """A person as the audit names them. Raises a 400."""
    if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
        raise invalid(f"{where} must name a person in 1 to 100 printable characters.")
    return name if name.startswith("person:") else f"person:{name}"


def place_of(last: EscalationRecord) -> paging.Place:
    """Where a case stands in the list."""
    return last.due_ms, f"{last.priority}/{last.id}"


def case_at(after: paging.Place | None) -> Place | None:
    """The case after which the next page begins. Raises a 400."""
    if after is None:
        return None
    priority, _, escalation_id = after[1].partition("/")
    if not _WHOLE_NUMBER.fullmatch(priority) or not escalation_id:
        raise paging.wrong_cursor()
    return Place(after[0], int(priority), escalation_id)


def case_filter(wanted: Mapping[str, str], desk: Desk) -> CaseFilter:
    """A filter from query parameters. Raises a 400."""
    assignee = wanted.get("assignee")
    statuses = wanted.get("status")
    resolver = wanted.get("resolved_by")
    return CaseFilter(
        status=None if statuses is None else _known_statuses(statuses.split(",")),
        reason=wanted.get("reason"),
        tool=wanted.get("tool"),
        profile=wanted.get("profile"),
        group=wanted.get("group"),
        priority=_number(wanted, "priority"),
        least_priority=_number(wanted, "min_priority"),
        assignee=desk.person if assignee == "me" else None if assignee in {None, "none"} else assignee,
        unassigned=assignee == "none",
        due_before_ms=values.moment(dict(wanted), "due_before"),
        is_overdue=values.choice(dict(wanted), "overdue", ("true", "false"), "false") == "true",
        item_id=wanted.get("item"),
        resolved_by=desk.person if resolver == "me" else resolver,
    )


def body_filter(raw: object, desk: Desk) -> CaseFilter:
    """A filter from a body's `filter`. Raises a 400."""
    if raw is None:
        return CaseFilter()
    if not isinstance(raw, dict) or not all(isinstance(value, str | int) for value in raw.values()):
        raise invalid("`filter` must be an object of texts.", FieldError("/filter", "type", "Send an object."))
    refuse_unknown(raw, FILTERS, "/filter")
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in raw.items()}
    return case_filter(texts, desk)


def _number(wanted: Mapping[str, str], name: str) -> int | None:
    text = wanted.get(name)
    if text is not None and not _WHOLE_NUMBER.fullmatch(text):
        raise invalid(f"`{name}` must be a whole number.", FieldError(name, "type", "Send a whole number."))
    return None if text is None else int(text)


def _known_statuses(wanted: list[str]) -> tuple[str, ...]:
    unknown = [status for status in wanted if status not in set(EscalationStatus)]
    if unknown:
        detail = f"Must be among {', '.join(sorted(EscalationStatus))}."
        raise invalid(f"`status` is not valid. {detail}", FieldError("status", "choice", detail))
    return tuple(wanted)


def refuse_unknown(body: Mapping[str, Any], known: tuple[str, ...], where: str = "") -> None:
    """Raise a 400 that names the first field that is not known here."""
    for name in body:
        if name not in known:
            raise invalid(
                f"The field `{name[:60]}` is not known here; there are: {', '.join(known) or 'none'}.",
                FieldError(f"{where}/{name[:60]}", "unknown_field", "Remove it or correct its name."),
            )


def lease_ms(body: Mapping[str, Any]) -> int:
    """How long a lease is wanted, 1 s to 15 min. Raises a 400."""
    return _seconds(body, "lease_s", default=DEFAULT_LEASE_MS / 1000, least=1, most=_MOST_LEASE_S)


def take_undo_ms(body: dict[str, Any]) -> int:
    """How long a decision can be taken back; taken out of the body, since it is no part of the decision. Raises a 400."""
    undo_ms = _seconds(body, "undo_s", default=0, least=0, most=MOST_UNDO_MS / 1000)
    body.pop("undo_s", None)
    return undo_ms


def _seconds(body: Mapping[str, Any], name: str, *, default: float, least: float, most: float) -> int:
    seconds = body.get(name, default)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= most:
        raise invalid(
            f"`{name}` must be a number from {least} to {most:g}.",
            FieldError(f"/{name}", "range", f"{least} to {most:g} seconds."),
        )
    return int(seconds * 1000)


def lease_token(body: Mapping[str, Any]) -> str:
    """The token of the caller's lease. Raises a 428."""
    token = body.get("lease_token")
    if not isinstance(token, str) or not token:
        raise ApiProblem("precondition_required", "Send the `lease_token` of your claim.")
    return token


def text_of(body: Mapping[str, Any], name: str, *, most: int = 2000) -> str:
    """A text that must be there. Raises a 400."""
    text = values.optional_text(dict(body), name, most=most)
    if not text or not text.strip():
        detail = f"Must be a text of 1 to {most:,} characters."
        raise invalid(f"`{name}` is not valid. {detail}", FieldError(f"/{name}", "type", detail))
    return text


def decision_of(body: dict[str, Any]) -> AnyDecision:
    """The decision in a body. Raises a 400 that names the fields, or a 428 without a lease."""
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


def decision_for_many(body: dict[str, Any], *, beside: tuple[str, ...]) -> AnyDecision:
    """A decision on many cases, without a lease: all of the body but the fields `beside` it. Raises a 400."""
    if "lease_token" in body:
        raise invalid(
            "A decision on many cases carries no lease; what you hold is yours, what others hold is left alone.",
            FieldError("/lease_token", "unknown_field", "Remove it."),
        )
    decision = {name: value for name, value in body.items() if name not in beside}
    return decision_of({**decision, "lease_token": "bulk"})


def ids_of(raw: object, name: str, *, most: int) -> list[str]:
    """A list of ids. Raises a 400."""
    is_list = isinstance(raw, list) and all(isinstance(one, str) and 0 < len(one) <= 40 for one in raw)
    if not is_list or not isinstance(raw, list) or not 1 <= len(raw) <= most:
        detail = f"Must be a list of 1 to {most} ids."
        raise invalid(f"`{name}` is not valid. {detail}", FieldError(f"/{name}", "type", detail))
    return raw


def count_of(body: Mapping[str, Any], name: str) -> int:
    """A count that must be there. Raises a 400."""
    count = body.get(name)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 100_000:
        detail = "Must be a whole number from 0 to 100,000."
        raise invalid(f"`{name}` is not valid. {detail}", FieldError(f"/{name}", "type", detail))
    return count


def flag_of(body: Mapping[str, Any], name: str) -> bool:
    """A flag, off by default. Raises a 400."""
    flag = body.get(name, False)
    if not isinstance(flag, bool):
        raise invalid(f"`{name}` must be true or false.", FieldError(f"/{name}", "type", "Send true or false."))
    return flag
