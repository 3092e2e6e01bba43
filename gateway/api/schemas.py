"""What the OpenAPI description says about bodies and parameters that handlers read by themselves."""

from __future__ import annotations

from typing import Any

from gateway.api.problems import KINDS, MEDIA_TYPE
from gateway.item import Mode, Status
from gateway.submission import Submission

_TEXT = {"type": "string"}
_NULLABLE_TEXT = {"type": ["string", "null"]}
_MESSAGE = {"type": "object", "properties": {"en": _TEXT, "zh": _TEXT}}

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "description": "URI reference of the help page"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong and what to change"},
        "instance": _TEXT,
        "code": {"type": "string", "description": f"One of {', '.join(sorted(KINDS))}, or a file verdict code"},
        "request_id": _TEXT,
        "retryable": {"type": "boolean"},
        "retry_after_s": {"type": "integer"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "code", "detail"],
                "properties": {"pointer": _TEXT, "code": _TEXT, "detail": _TEXT},
            },
        },
        "user_message": _MESSAGE,
    },
}

FILE_PROBLEM_SCHEMA: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {
        "type": _TEXT,
        "code": _TEXT,
        "title": _TEXT,
        "user_message": _MESSAGE,
        "file": _TEXT,
        "measured": {"type": "object"},
        "limit": {"type": "object"},
        "next": {"type": ["string", "null"], "enum": ["fix_input", "retry", "person", None]},
        "fix": _NULLABLE_TEXT,
    },
}

ITEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "status", "version", "mode", "files", "usage", "links", "created_at"],
    "properties": {
        "id": _TEXT,
        "external_id": _NULLABLE_TEXT,
        "status": {"type": "string", "enum": [status.value for status in Status]},
        "reason": _NULLABLE_TEXT,
        "version": {"type": "integer"},
        "mode": {"type": "string", "enum": [mode.value for mode in Mode]},
        "profile": _TEXT,
        "route": {"type": ["string", "null"], "enum": ["agent", "single_look", "text_only", "human", None]},
        "title": _NULLABLE_TEXT,
        "notes": {"type": "array", "items": _TEXT},
        "decision": {
            "type": ["object", "null"],
            "properties": {
                "verdict": {"type": "string", "enum": ["accept", "single_look", "text_only", "human", "reject"]},
                "stage": _TEXT,
                "ruleset": _TEXT,
                "problem": FILE_PROBLEM_SCHEMA,
                "reason": FILE_PROBLEM_SCHEMA,
                "saved": {"type": ["object", "null"]},
            },
        },
        "files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": _TEXT,
                    "part": _TEXT,
                    "sha256": _TEXT,
                    "media_type": _TEXT,
                    "bytes": {"type": "integer"},
                    "verdict": _NULLABLE_TEXT,
                    "problem": FILE_PROBLEM_SCHEMA,
                    "checks": {"type": "array", "items": {"type": "object"}},
                },
            },
        },
        "result": {"type": ["object", "null"], "description": "The copy, by the profile's output schema"},
        "failure": {"type": ["object", "null"]},
        "usage": {"type": "object"},
        "escalation": _NULLABLE_TEXT,
        "supersedes": _NULLABLE_TEXT,
        "superseded_by": _NULLABLE_TEXT,
        "attempts": {"type": "array", "items": {"type": "object"}, "description": "Who began each, and where it ended"},
        "effects": {"type": "array", "items": {"type": "object"}, "description": "What its agent's tools changed"},
        "info_requested": {"type": ["object", "null"], "description": "A reviewer's question to the submitter"},
        "links": {"type": "object"},
        "created_at": {"type": "string", "format": "date-time"},
        "expires_at": {"type": ["string", "null"], "format": "date-time"},
        "purged_at": {"type": ["string", "null"], "format": "date-time", "description": "In lists: a tombstone"},
    },
}


def _item(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}},
    }


def problem(description: str) -> dict[str, Any]:
    """A response that is a problem document."""
    return {"description": description, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


ITEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _item("The item; for a submission: the existing item with the same content (`Duplicate-Of`)"),
    201: _item("The item, its outcome known"),
    202: _item("The item, accepted; its outcome will be known later"),
    400: problem("The request is not valid"),
    401: problem("A valid API key is needed"),
    404: problem("No such item"),
    410: problem("Its content was purged; `tombstone` is what remains"),
    409: problem("It conflicts with another request or the item's state"),
    413: problem("Too many bytes"),
    415: problem("A content type that is not taken"),
    422: problem("With `handling=strict`: the item was rejected; or the Idempotency-Key was reused"),
    507: problem("No room left; nothing was stored"),
}


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": _TEXT, "description": description}


SUBMIT_OPENAPI: dict[str, Any] = {
    "parameters": [
        _header("Idempotency-Key", "1 to 255 printable ASCII characters, bare or quoted"),
        _header("Prefer", "`wait=n` (at most 30), `respond-async`, `handling=strict`"),
    ],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "item": {"$ref": "#/components/schemas/Submission"},
                        "p1": {"type": "string", "format": "binary"},
                    },
                },
                "encoding": {"item": {"contentType": "application/json"}},
            },
            "application/json": {"schema": {"$ref": "#/components/schemas/Submission"}},
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "application/pdf": {"schema": {"type": "string", "format": "binary"}},
            "audio/*": {"schema": {"type": "string", "format": "binary"}},
        },
    },
}

_DESCRIPTIONS = {
    "after": ("integer", "Sequence number of the last event that is known"),
    "limit": ("integer", "At most 200"),
    "format": ("string", "`openai.chat` or `neutral`"),
    "max_px": ("integer", "Long side of pictures, 64 to 2048"),
    "detail": ("string", "`auto`, `low` or `high`"),
    "images": ("string", "`inline`"),
    "status": ("string", "One or more statuses, separated by commas"),
    "profile": ("string", "Name of a profile"),
    "external_id": ("string", "The caller's own id"),
    "created_after": ("string", "RFC 3339 time"),
    "route": ("string", "Route that was taken"),
    "reason": ("string", "Code of the deciding verdict"),
    "tool": ("string", "Tool at which the run stopped"),
    "group": ("string", "Id of a group of the same incident"),
    "priority": ("integer", "Exactly this priority"),
    "assignee": ("string", "`me`, `none`, or a holder"),
    "due_before": ("string", "RFC 3339 time"),
    "all": ("string", "`true`: also what has nothing open"),
    "min_priority": ("integer", "This priority or more"),
    "overdue": ("string", "`true`: undecided and past its due time"),
    "resolved_by": ("string", "`me`, or who decided"),
    "item": ("string", "Id of an item"),
    "by": ("string", "`me`, or who decided"),
    "action": ("string", "The action that was chosen"),
    "escalation": ("string", "Id of an escalation"),
    "endpoint": ("string", "Id of a webhook endpoint"),
    "event": ("string", "Id of an event"),
    "event_type": ("string", "Exactly this type, such as `item.succeeded`"),
    "resource": ("string", "Id of what the event is about"),
    "cursor": ("string", "`next_cursor` of the page before"),
}


_BOOLEAN = {"enum": ["true", "false"]}
_MOMENT = {"format": "date-time"}
_SMALL_INTEGER = {"minimum": -999_999_999, "maximum": 999_999_999}
_BOUNDS: dict[str, dict[str, Any]] = {
    "after": {"minimum": 0, "maximum": 10**18 - 1},
    "limit": {"minimum": 1, "maximum": 200},
    "format": {"enum": ["openai.chat", "neutral"]},
    "max_px": {"minimum": 64, "maximum": 2048},
    "detail": {"enum": ["auto", "low", "high"]},
    "images": {"enum": ["inline"]},
    "created_after": _MOMENT,
    "due_before": _MOMENT,
    "all": _BOOLEAN,
    "overdue": _BOOLEAN,
    "priority": _SMALL_INTEGER,
    "min_priority": _SMALL_INTEGER,
}


def parameters(*names: str) -> list[dict[str, Any]]:
    """Query parameters for the description."""
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "schema": {"type": _DESCRIPTIONS[name][0], **_BOUNDS.get(name, {})},
            "description": _DESCRIPTIONS[name][1],
        }
        for name in names
    ]


LIST_PARAMETERS = parameters("status", "profile", "external_id", "created_after", "route", "reason", "cursor", "limit")


def components() -> dict[str, Any]:
    """The schemas that the paths refer to."""
    submission = Submission.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = submission.pop("$defs", {})
    return {"Item": ITEM_SCHEMA, "Problem": PROBLEM_SCHEMA, "Submission": submission, **definitions}
