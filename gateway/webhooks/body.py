"""What is sent: the event, and with `full` the resource it is about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.api.escalation_json import escalation_json
from gateway.api.render import event_json, item_json
from gateway.store import escalation_rows
from gateway.store import items as item_store
from gateway.webhooks.model import BodyStyle

MOST_BYTES = 20_000
_COLLECTIONS = {"itm": "items", "esc": "escalations", "run": "guard/runs", "whe": "webhook-endpoints"}
_BULKY = ("checks", "facts", "timings_ms")


def body_of(connection: Connection, event: sa.Row[Any], style: BodyStyle) -> bytes:
    """The exact bytes of one attempt, at most `MOST_BYTES`. `full` tells the resource as it is now, not as it was."""
    thin = _thin(event)
    if style is BodyStyle.THIN:
        return _encoded(thin)
    resource = _resource(connection, event)
    if resource is None:
        return _encoded(thin)
    name, value = resource
    for candidate in (value, _lean(value)):
        body = _encoded(_with(thin, {name: candidate}))
        if len(body) <= MOST_BYTES:
            return body
    return _encoded(_with(thin, {"omitted": name}))


def _thin(event: sa.Row[Any]) -> dict[str, Any]:
    links = {"self": _path(event.resource), "events": f"/v1/events?after={event.seq - 1}"}
    document = event_json(event)
    return {**document, "data": {**document["data"], "links": links}}


def _path(resource: str) -> str | None:
    collection = _COLLECTIONS.get(resource.partition("_")[0])
    return None if collection is None else f"/v1/{collection}/{resource}"


def _with(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**document, "data": {**document["data"], **more}}


def _resource(connection: Connection, event: sa.Row[Any]) -> tuple[str, dict[str, Any]] | None:
    if event.resource.startswith("itm_"):
        item = item_store.get(connection, event.resource, tenant=event.tenant)
        return None if item is None else ("item", item_json(item, language="en"))
    if event.resource.startswith("esc_"):
        record = escalation_rows.get(connection, event.resource, tenant=event.tenant)
        return None if record is None else ("escalation", escalation_json(record))
    return None


def _lean(value: dict[str, Any]) -> dict[str, Any]:
    """Without what was measured of each file, and without the calls of a run."""
    files = [{name: part for name, part in file.items() if name not in _BULKY} for file in value.get("files", ())]
    kept = {name: part for name, part in value.items() if name != "calls"}
    return {**kept, "files": files} if files else kept


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
