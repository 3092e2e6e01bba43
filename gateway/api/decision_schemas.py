"""What the OpenAPI description says about decisions: one schema per action, by the models that read them."""

from __future__ import annotations

from typing import Any

from gateway.resolution import DECISIONS

_TEXT: dict[str, Any] = {"type": "string"}
_UNDO = {"type": "number", "minimum": 0, "maximum": 60, "description": "Seconds in which it can be taken back"}


def decision_components() -> dict[str, Any]:
    """The schemas of decisions, by the names under which the description knows them."""
    schema = DECISIONS.json_schema(ref_template="#/components/schemas/Decision{model}")
    models: dict[str, Any] = schema.pop("$defs")
    for model in models.values():
        if "action" in model.get("properties", {}):
            model["properties"]["undo_s"] = _UNDO
    return {"Decision": schema, **{f"Decision{name}": model for name, model in models.items()}}


def _header(name: str, text: str, *, is_needed: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": is_needed, "schema": _TEXT, "description": text}


RESOLVE_OPENAPI: dict[str, Any] = {
    "parameters": [
        _header("If-Match", "The ETag of the case that is decided", is_needed=True),
        _header("Idempotency-Key", "The same decision again gets the same answer"),
        _header("On-Behalf-Of", "The person that a client acts for; needs the scope `review:delegate`"),
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Decision"}}},
    },
}
