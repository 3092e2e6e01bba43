"""What the OpenAPI description says about the human queue: bodies that handlers read by themselves, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.api.schemas import problem
from gateway.escalation import Change, EscalationStatus, OnExpire
from gateway.resolution import DECISIONS
from gateway.review.bulk import MOST_IDS, Fate

_TEXT: dict[str, Any] = {"type": "string"}
_MAYBE: dict[str, Any] = {"type": ["string", "null"]}
_TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
_MAYBE_TIME: dict[str, Any] = {"type": ["string", "null"], "format": "date-time"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_OBJECT: dict[str, Any] = {"type": "object"}
_WORDS: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 2000, "pattern": r"\S"}
_LEASE_S: dict[str, Any] = {"type": "number", "minimum": 1, "maximum": 900, "description": "Seconds; 300 by default"}
_TOKEN: dict[str, Any] = {"type": "string", "minLength": 1, "description": "`lease.token` of the claim"}
_ID: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 40}
_BESIDE: Mapping[str, Any] = {
    "dry_run": {"type": "boolean", "description": "Say what would become of each case; change nothing"},
    "undo_s": {"type": "number", "minimum": 0, "maximum": 60, "description": "Seconds in which it can be taken back"},
}


def _ids(most: int) -> dict[str, Any]:
    return {"type": "array", "items": _ID, "minItems": 1, "maxItems": most}


def _body(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _for_many(required: tuple[str, ...], **beside: Any) -> dict[str, Any]:
    """A decision of any kind without a lease, with the fields `beside` it."""
    models: dict[str, Any] = DECISIONS.json_schema(ref_template="#/components/schemas/Decision{model}")["$defs"]
    kinds = []
    for model in models.values():
        if "action" not in model.get("properties", {}):
            continue
        own = {name: field for name, field in model["properties"].items() if name != "lease_token"}
        needed = [name for name in model.get("required", ()) if name != "lease_token"]
        kinds.append(_body((*needed, *required), **own, **beside, **_BESIDE))
    return {"anyOf": kinds}


_GROUP = {"group": _ID, "expected_count": _COUNT}
_BODIES: Mapping[str, dict[str, Any]] = {
    "claim_next": _body(filter={"type": ["object", "null"]}, lease_s=_LEASE_S),
    "claim": _body(lease_s=_LEASE_S),
    "heartbeat": _body(("lease_token",), lease_token=_TOKEN, lease_s=_LEASE_S),
    "release": _body(("lease_token",), lease_token=_TOKEN, note={"type": "string", "maxLength": 2000}),
    "assign": _body(
        user={"type": "string", "minLength": 1, "maxLength": 100, "description": "`me`, or a person's name"},
        lease_s=_LEASE_S,
        note={"type": "string", "maxLength": 2000},
    ),
    "note": _body(("text",), text=_WORDS),
    "undo": _body(lease_s=_LEASE_S),
    "reopen": _body(("reason",), reason=_WORDS),
    "bulk": {"anyOf": [_for_many(("ids",), ids=_ids(MOST_IDS)), _for_many(("group", "expected_count"), **_GROUP)]},
    "group_resolve": _for_many(("expected_count",), expected_count=_COUNT),
    "merge": _body(("groups",), groups=_ids(50)),
    "split": _body(("ids",), ids=_ids(MOST_IDS)),
}
_CASE, _CLAIM, _AUDIT = "Escalation", "EscalationClaim", "EscalationAudit"
_ANSWERS: Mapping[str, tuple[int, str, str]] = {
    "list": (200, "EscalationList", "A page of cases, and why it is empty where it is"),
    "get": (200, _CASE, "The case, a suggestion, and how the last five of its group were decided"),
    "claim_next": (200, _CLAIM, "A case with a lease; or, with `empty`, why there is none"),
    "claim": (200, _CLAIM, "The case with a lease"),
    "heartbeat": (200, "EscalationLease", "The lease, longer"),
    "release": (200, _CASE, "The case, open again"),
    "assign": (200, _CLAIM, "The case; with the lease where it is one's own"),
    "note": (201, "EscalationAuditEntry", "The note as the audit keeps it"),
    "audit": (200, _AUDIT, "All that happened, oldest first"),
    "resolve": (200, "EscalationDecided", "What was decided"),
    "undo": (200, _CLAIM, "The case in one's hands again"),
    "reopen": (200, _CASE, "The case, open again; 201 with a new case that `reopens` it"),
    "stats": (200, "EscalationStats", "Counts of now, times of the last seven days"),
    "bulk": (200, "EscalationBulk", "What became of each case"),
    "groups": (200, "EscalationGroupList", "A page of groups"),
    "group": (200, "EscalationGroup", "The group"),
    "group_resolve": (200, "EscalationBulk", "What became of each case"),
    "merge": (200, "EscalationGroup", "The group with all that came to it"),
    "split": (201, "EscalationSplit", "The new group and the cases that moved"),
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: problem("The request is not valid"),
    401: problem("A valid API key is needed"),
    403: problem("The caller may not do this"),
    404: problem("No such case or group"),
    409: problem("Somebody else holds it, decided it, or the group has changed: the problem says who and how"),
    412: problem("The case has changed since it was read"),
    422: problem("The action is not possible here, or the Idempotency-Key was reused"),
    428: problem("The lease or `If-Match` is missing"),
}


def described(name: str, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The `responses` and `openapi_extra` of one of the queue's routes."""
    status, schema, words = _ANSWERS[name]
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    answers: dict[int | str, dict[str, Any]] = {status: {"description": words, "content": content}, **_PROBLEMS}
    if name == "reopen":
        answers[201] = {"description": "A new case that `reopens` the decided one", "content": content}
    more = dict(extra or {})
    if name in _BODIES:
        body = {"required": name not in {"claim_next", "claim", "assign", "undo"}}
        more["requestBody"] = {**body, "content": {"application/json": {"schema": _BODIES[name]}}}
    return {"responses": answers, "openapi_extra": more}


_LEASE = _body(("token", "fence", "expires_at"), token=_TEXT, fence=_COUNT, expires_at=_TIME)
_EMPTY: Mapping[str, Any] = {
    "empty": {"type": "boolean"},
    "why": {"type": ["string", "null"], "enum": ["nothing_open", "all_claimed", "hidden_by_filter", None]},
    "open": _COUNT,
    "claimed_by_others": _COUNT,
    "hidden_by_filter": _COUNT,
    "next_expiry": _MAYBE_TIME,
}


def _open(**properties: Any) -> dict[str, Any]:
    """An answer to which fields may be added."""
    return {"type": "object", "properties": properties}


def queue_components() -> dict[str, Any]:
    """The schemas to which the queue's routes refer."""
    entry = _open(
        at=_TIME,
        what={"type": "string", "enum": [change.value for change in Change]},
        actor=_TEXT,
        note=_MAYBE,
        detail={"type": ["object", "null"]},
        **{"from": _MAYBE, "to": _TEXT},
    )
    case = _open(
        id=_TEXT,
        status={"type": "string", "enum": [status.value for status in EscalationStatus]},
        version=_COUNT,
        item=_MAYBE,
        run=_MAYBE,
        reason=_TEXT,
        tool=_MAYBE,
        question=_MAYBE,
        why=_MAYBE,
        group=_MAYBE,
        priority={"type": "integer"},
        holder=_MAYBE,
        fence=_COUNT,
        occurrence_count=_COUNT,
        came_back_after=_MAYBE,
        reopen_count=_COUNT,
        reopens=_MAYBE,
        allowed_actions={"type": "array", "items": _OBJECT},
        resolution={"type": ["object", "null"]},
        apply_at=_MAYBE_TIME,
        apply_problem={"type": ["object", "null"]},
        due_at=_TIME,
        expires_at=_TIME,
        on_expire={"type": ["string", "null"], "enum": [*(policy.value for policy in OnExpire), None]},
        suggestion={"type": ["object", "null"]},
        group_last={"type": "array", "items": _OBJECT},
    )
    group = _open(
        id=_TEXT,
        kind=_TEXT,
        tool=_MAYBE,
        profile=_TEXT,
        open=_COUNT,
        claimed=_COUNT,
        to_decide=_COUNT,
        cases=_COUNT,
        oldest_at=_MAYBE_TIME,
        burnt={"type": "array", "items": _open(amount=_TEXT, currency=_TEXT)},
        last={"type": "array", "items": _OBJECT},
        suggestion={"type": ["object", "null"]},
        split_from=_MAYBE,
    )
    fate = _open(id=_TEXT, result={"type": "string", "enum": [fate.value for fate in Fate]}, code=_MAYBE, detail=_MAYBE)
    times = _open(count=_COUNT, **{f"p{percent}_s": {"type": ["number", "null"]} for percent in (50, 90, 99)})
    return {
        _CASE: case,
        _CLAIM: _open(escalation=_ref(_CASE), lease=_LEASE, **_EMPTY),
        "EscalationLease": _open(lease=_LEASE),
        "EscalationList": _open(
            escalations={"type": "array", "items": _ref(_CASE)}, next_cursor=_MAYBE, queue=_open(**_EMPTY)
        ),
        "EscalationAuditEntry": entry,
        _AUDIT: _open(audit={"type": "array", "items": _ref("EscalationAuditEntry")}),
        "EscalationDecided": _open(
            id=_TEXT, status=_TEXT, item=_MAYBE, run=_MAYBE, resolution=_OBJECT, apply_at=_MAYBE_TIME
        ),
        "EscalationStats": _open(
            open=_COUNT,
            claimed=_COUNT,
            overdue=_COUNT,
            on_hold=_COUNT,
            pending=_COUNT,
            oldest_age_s={"type": ["number", "null"]},
            time_to_claim=times,
            time_to_resolve=times,
            decisions=_OBJECT,
            timeouts=_OBJECT,
        ),
        "EscalationBulk": _open(
            dry_run={"type": "boolean"},
            counts=_OBJECT,
            results={"type": "array", "items": fate},
            skipped={"type": "array", "items": _open(id=_TEXT, holder=_MAYBE)},
        ),
        "EscalationGroup": group,
        "EscalationGroupList": _open(groups={"type": "array", "items": _ref("EscalationGroup")}, next_cursor=_MAYBE),
        "EscalationSplit": _open(group=_ref("EscalationGroup"), moved={"type": "array", "items": _TEXT}),
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
