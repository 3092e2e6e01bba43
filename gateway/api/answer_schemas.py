"""What routes answer that describe no schema of their own: lists, explanations, payloads, and the service about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.api.budgets import BUDGET_SCHEMA

_TEXT: dict[str, Any] = {"type": "string"}
_SOME_TEXT: dict[str, Any] = {"type": ["string", "null"]}
_OBJECT: dict[str, Any] = {"type": "object"}
_ITEM: dict[str, Any] = {"$ref": "#/components/schemas/Item"}


def _object(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _list_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _page(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return _object({name: _list_of(schema), "next_cursor": _SOME_TEXT})


_CHECK = _object({"required": {"type": "boolean"}, "status": _TEXT, "problem": _SOME_TEXT})
_READINESS = _object(
    {
        "status": {"type": "string", "enum": ["ok", "unavailable"]},
        "checks": {"type": "object", "additionalProperties": _CHECK},
    }
)
_PROFILE = _object({"name": _TEXT, "version": _TEXT, "description": _TEXT})
_DECISION = _object(
    {
        "action": _TEXT,
        "by": _TEXT,
        "at": {"type": "string", "format": "date-time"},
        "outcome": {"type": ["object", "null"]},
    }
)
_ARTIFACT = _object({"id": _TEXT, "kind": _TEXT, "media_type": _TEXT, "links": _OBJECT})

ANSWERS: Mapping[tuple[str, str], dict[int, dict[str, Any]]] = {
    ("GET", "/v1/items"): {200: _json("A page", _page("items", _ITEM))},
    ("GET", "/v1/items/{item_id}"): {
        200: _json("The item", _ITEM),
        304: {"description": "It still has the version of `If-None-Match`"},
    },
    ("POST", "/v1/items/{item_id}/cancel"): {
        200: _json("The item, cancelled", _ITEM),
        202: _json("The item; its worker will notice", _ITEM),
    },
    ("GET", "/v1/items/{item_id}/explanation"): {
        200: _json("Each rule, what was measured and what is needed", _OBJECT)
    },
    ("GET", "/v1/items/{item_id}/llm-payload"): {
        200: _json("Content for one message to a model", _object({"format": _TEXT, "content": _list_of(_OBJECT)}))
    },
    ("POST", "/v1/stream-tokens"): {
        201: _json(
            "A token for one stream", _object({"token": _TEXT, "expires_at": {"type": "string", "format": "date-time"}})
        )
    },
    ("GET", "/v1/items/{item_id}/artifacts"): {
        200: _json("What was made from its files", _object({"item": _TEXT, "artifacts": _list_of(_ARTIFACT)}))
    },
    ("GET", "/v1/items/{item_id}/artifacts/{artifact_id}"): {
        200: {
            "description": "The content",
            "content": {"*/*": {"schema": {"description": "A picture, a text or JSON"}}},
        },
        304: {"description": "It still has the hash of `If-None-Match`"},
    },
    ("GET", "/v1/decisions"): {200: _json("A page", _page("decisions", _DECISION))},
    ("GET", "/v1/decisions/precision"): {
        200: _json("Per detector, rule and tool", _object({"precision": _list_of(_OBJECT)}))
    },
    ("GET", "/v1/budgets"): {200: _json("All budgets, `*` first", _object({"budgets": _list_of(BUDGET_SCHEMA)}))},
    ("GET", "/healthz"): {200: _json("The process answers", _object({"status": {"type": "string", "enum": ["ok"]}}))},
    ("GET", "/readyz"): {
        200: _json("All that is required is there", _READINESS),
        503: _json("Something that is required is missing", _READINESS),
    },
    ("GET", "/metrics"): {
        200: {"description": "Prometheus's text format", "content": {"text/plain": {"schema": _TEXT}}}
    },
    ("GET", "/v1/meta"): {
        200: _json("Version, limits, formats", _object({"version": _TEXT, "ruleset": _TEXT, "limits": _OBJECT}))
    },
    ("GET", "/v1/profiles"): {200: _json("Kinds of work", _object({"profiles": _list_of(_PROFILE)}))},
    ("GET", "/v1/profiles/{name}"): {200: _json("One kind of work", _PROFILE)},
}
