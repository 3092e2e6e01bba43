"""What the OpenAPI description says about webhooks, whose bodies the handlers read by themselves."""

from __future__ import annotations

from typing import Any

from gateway.api.schemas import parameters, problem
from gateway.webhooks.catalogue import EVENT_TYPES
from gateway.webhooks.model import BodyStyle, DeliveryStatus, DisabledReason, EndpointStatus, ErrorClass
from gateway.webhooks.requests import EndpointChange, NewEndpointRequest, OriginRequest, ReplayRequest, RotateRequest

DELIVERY_FILTERS = ("endpoint", "status", "event_type", "event", "resource", "created_after")

_TEXT = {"type": "string"}
_NULLABLE_TEXT = {"type": ["string", "null"]}
_COUNT = {"type": "integer"}
_NULLABLE_COUNT = {"type": ["integer", "null"]}
_TIME = {"type": "string", "format": "date-time"}
_NULLABLE_TIME = {"type": ["string", "null"], "format": "date-time"}
_ERROR = {"type": ["string", "null"], "enum": [*(error.value for error in ErrorClass), None]}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _page(name: str, schema: str) -> dict[str, Any]:
    return _object({name: {"type": "array", "items": _ref(schema)}, "next_cursor": _NULLABLE_TEXT})


_ENDPOINT = {
    "id": _TEXT,
    "url": _TEXT,
    "description": _NULLABLE_TEXT,
    "events": {"type": "array", "items": _TEXT, "description": f"`*`, `family.*`, or of {', '.join(EVENT_TYPES)}"},
    "body": {"type": "string", "enum": [style.value for style in BodyStyle]},
    "allow_insecure": {"type": "boolean"},
    "status": {"type": "string", "enum": [status.value for status in EndpointStatus]},
    "disabled_reason": {"type": ["string", "null"], "enum": [*(reason.value for reason in DisabledReason), None]},
    "secrets": {"type": "array", "items": _object({"created_at": _TIME, "expires_at": _NULLABLE_TIME})},
    "health": _object(
        {
            "failures_in_row": _COUNT,
            "failing_since": _NULLABLE_TIME,
            "paused_until": _NULLABLE_TIME,
            "last_success_at": _NULLABLE_TIME,
            "last_failure_at": _NULLABLE_TIME,
        }
    ),
    "cursor_seq": {"type": "integer", "description": "Events up to this number have been looked at"},
    "version": _COUNT,
    "created_at": _TIME,
    "updated_at": _TIME,
}
_SECRET = {"type": "string", "description": "`whsec_…`, shown this once"}
_DELIVERY = {
    "id": _TEXT,
    "endpoint": _TEXT,
    "callback_url": {"type": ["string", "null"], "description": "An item's own address; null: the endpoint's"},
    "event": {"type": "string", "description": "Id of the event; `webhook-id` of every attempt"},
    "event_type": _TEXT,
    "seq": _COUNT,
    "resource": _TEXT,
    "status": {"type": "string", "enum": [status.value for status in DeliveryStatus]},
    "is_test": {"type": "boolean"},
    "attempts": _COUNT,
    "last_status": _NULLABLE_COUNT,
    "last_error": _ERROR,
    "next_attempt_at": _NULLABLE_TIME,
    "created_at": _TIME,
    "updated_at": _TIME,
    "finished_at": _NULLABLE_TIME,
}
_ATTEMPT = {
    "attempt": _COUNT,
    "at": _TIME,
    "status": _NULLABLE_COUNT,
    "latency_ms": _COUNT,
    "error": _ERROR,
    "next_attempt_at": _NULLABLE_TIME,
    "response": {"type": "string", "description": "The answer's first kilobyte, redacted"},
}
_TEST = {
    "delivery": _TEXT,
    "status": _DELIVERY["status"],
    "status_class": {"type": ["string", "null"], "description": "`2xx`, `5xx` …; null without an answer"},
    "latency_ms": _NULLABLE_COUNT,
    "error": _ERROR,
}
_ORIGIN = {"id": _TEXT, "origin": _TEXT, "created_by": _TEXT, "created_at": _TIME}
_REQUESTS = (NewEndpointRequest, EndpointChange, RotateRequest, ReplayRequest, OriginRequest)


def webhook_components() -> dict[str, Any]:
    """The schemas that the paths of webhooks refer to."""
    found: dict[str, Any] = {
        "WebhookEndpoint": _object(_ENDPOINT),
        "WebhookEndpointWithSecret": _object({**_ENDPOINT, "secret": _SECRET}),
        "WebhookDelivery": _object(_DELIVERY),
        "WebhookDeliveryWithLog": _object({**_DELIVERY, "log": {"type": "array", "items": _object(_ATTEMPT)}}),
        "WebhookTest": _object(_TEST),
        "CallbackOrigin": _object(_ORIGIN),
    }
    for request in _REQUESTS:
        schema = request.model_json_schema(ref_template="#/components/schemas/{model}")
        found.update(schema.pop("$defs", {}))
        found[request.__name__] = schema
    return found


def _gives(description: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    if schema is None:
        return {"description": description}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _takes(request: type, *, required: bool = True) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(request.__name__)}}
    return {"requestBody": {"required": required, "content": content}}


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: problem("The request is not valid; `errors` names each field"),
    401: problem("A valid API key is needed"),
    403: problem("The key lacks the scope `admin`"),
    413: problem("Too many bytes"),
}
_UNKNOWN: dict[int | str, dict[str, Any]] = {404: problem("There is none of this id")}
_REFUSED: dict[int | str, dict[str, Any]] = {422: problem("The URL may not be called; `errors` says why")}
_DISABLED: dict[int | str, dict[str, Any]] = {409: problem("The endpoint is disabled")}
_FULL: dict[int | str, dict[str, Any]] = {429: problem("There are as many endpoints as there may be")}
_STALE: dict[int | str, dict[str, Any]] = {
    412: problem("The endpoint has changed since it was read"),
    428: problem("`If-Match` is missing"),
}
_IF_MATCH = {"name": "If-Match", "in": "header", "required": True, "schema": _TEXT, "description": "ETag that was read"}
_PREFER = {"name": "Prefer", "in": "header", "required": False, "schema": _TEXT, "description": "`wait=n`, at most 30"}

_ONE = "/webhook-endpoints/{endpoint_id}"
_OF_DELIVERY = "/webhook-deliveries/{delivery_id}"
_ENDPOINT_REF, _WITH_SECRET = _ref("WebhookEndpoint"), _ref("WebhookEndpointWithSecret")

_SUMMARIES: dict[tuple[str, str], str] = {
    ("POST", "/webhook-endpoints"): "Tell an address of events",
    ("GET", "/webhook-endpoints"): "Endpoints, newest first",
    ("GET", _ONE): "One endpoint, and how it has answered of late",
    ("PATCH", _ONE): "Change an endpoint",
    ("DELETE", _ONE): "Remove an endpoint with its log",
    ("POST", f"{_ONE}/rotate"): "A new secret; the old one signs as well for a while",
    ("POST", f"{_ONE}/test"): "Send a test event and see whether it arrives",
    ("POST", f"{_ONE}/replay"): "Send the events of a range again",
    ("GET", "/webhook-deliveries"): "Deliveries, newest first",
    ("GET", _OF_DELIVERY): "One delivery with every attempt",
    ("POST", f"{_OF_DELIVERY}/redeliver"): "Send a delivery again",
    ("GET", "/callback-origins"): "Origins that items may name as `callback_url`",
    ("POST", "/callback-origins"): "Allow an origin",
    ("DELETE", "/callback-origins/{origin_id}"): "Allow it no longer",
}
_ANSWERS: dict[tuple[str, str], dict[int | str, dict[str, Any]]] = {
    ("POST", "/webhook-endpoints"): {201: _gives("The endpoint with its secret", _WITH_SECRET), **_REFUSED, **_FULL},
    ("GET", "/webhook-endpoints"): {200: _gives("A page", _page("webhook_endpoints", "WebhookEndpoint"))},
    ("GET", _ONE): {200: _gives("The endpoint", _ENDPOINT_REF), **_UNKNOWN},
    ("PATCH", _ONE): {200: _gives("The endpoint as it is now", _ENDPOINT_REF), **_UNKNOWN, **_STALE, **_REFUSED},
    ("DELETE", _ONE): {204: _gives("It is gone", None), **_UNKNOWN},
    ("POST", f"{_ONE}/rotate"): {200: _gives("The endpoint with its new secret", _WITH_SECRET), **_UNKNOWN},
    ("POST", f"{_ONE}/test"): {
        200: _gives("What came of it", _ref("WebhookTest")),
        202: _gives("It was not sent within the wait", _ref("WebhookTest")),
        **_UNKNOWN,
    },
    ("POST", f"{_ONE}/replay"): {
        202: _gives(
            "How many events are to be sent", _object({"queued": _COUNT, "from_seq": _COUNT, "to_seq": _COUNT})
        ),
        **_UNKNOWN,
        **_DISABLED,
    },
    ("GET", "/webhook-deliveries"): {200: _gives("A page", _page("webhook_deliveries", "WebhookDelivery"))},
    ("GET", _OF_DELIVERY): {200: _gives("The delivery", _ref("WebhookDeliveryWithLog")), **_UNKNOWN},
    ("POST", f"{_OF_DELIVERY}/redeliver"): {
        202: _gives("The delivery, due now", _ref("WebhookDelivery")),
        **_UNKNOWN,
        **_DISABLED,
    },
    ("GET", "/callback-origins"): {
        200: _gives(
            "The tenant's list, and what the operator allows for all",
            _object(
                {
                    "callback_origins": {"type": "array", "items": _ref("CallbackOrigin")},
                    "for_all": {"type": "array", "items": _TEXT},
                }
            ),
        )
    },
    ("POST", "/callback-origins"): {
        200: _gives("It was on the list", _ref("CallbackOrigin")),
        201: _gives("It is on the list now", _ref("CallbackOrigin")),
        **_REFUSED,
    },
    ("DELETE", "/callback-origins/{origin_id}"): {204: _gives("It is off the list", None), **_UNKNOWN},
}
_EXTRAS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/webhook-endpoints"): _takes(NewEndpointRequest),
    ("GET", "/webhook-endpoints"): {"parameters": parameters("cursor", "limit")},
    ("PATCH", _ONE): {**_takes(EndpointChange), "parameters": [_IF_MATCH]},
    ("POST", f"{_ONE}/rotate"): _takes(RotateRequest, required=False),
    ("POST", f"{_ONE}/test"): {"parameters": [_PREFER]},
    ("POST", f"{_ONE}/replay"): _takes(ReplayRequest),
    ("GET", "/webhook-deliveries"): {"parameters": parameters(*DELIVERY_FILTERS, "cursor", "limit")},
    ("POST", "/callback-origins"): _takes(OriginRequest),
}


def description_of(method: str, path: str) -> dict[str, Any]:
    """The keyword arguments with which a route is described."""
    key = (method, path)
    statuses = _ANSWERS[key]
    best = min(status for status in statuses if isinstance(status, int))
    return {
        "summary": _SUMMARIES[key],
        "status_code": best,
        "responses": {**_PROBLEMS, **statuses},
        "openapi_extra": _EXTRAS.get(key, {}),
    }
