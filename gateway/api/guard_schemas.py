"""What the OpenAPI description says about guard runs, whose bodies the handlers read by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.api.schemas import problem
from gateway.guarding.requests import (
    BatchRequest,
    CallRequest,
    EndRequest,
    NewRunRequest,
    ReportRequest,
    ResumeRequest,
)
from gateway.store.guard_runs import RunStatus
from guard import EndReason, Flag, GuardAction, NextStep, Phase, ReasonCode

_TEXT = {"type": "string"}
_NULLABLE_TEXT = {"type": ["string", "null"]}
_TEXTS = {"type": "array", "items": _TEXT}
_COUNT = {"type": "integer"}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: dict[str, Any], *, nullable: bool = False) -> dict[str, Any]:
    return {"type": ["object", "null"] if nullable else "object", "properties": properties}


_TOOL_RESULT = _object(
    {
        "is_error": {"type": "boolean"},
        "code": _TEXT,
        "text": _TEXT,
        "seen_before": _object(
            {"call_id": _TEXT, "step": _COUNT, "digest": _NULLABLE_TEXT, "excerpt": _TEXT}, nullable=True
        ),
        "as": {
            "type": "object",
            "description": "The result in the form of a provider's messages",
            "properties": {
                "openai.chat": {"type": "object", "description": "A message of role `tool`"},
                "openai.responses": {"type": "object", "description": "An input item `function_call_output`"},
                "anthropic": {"type": "object", "description": "A content block `tool_result` for a user message"},
            },
        },
    }
)
_TO_CLOSE = {
    "type": "array",
    "description": "At a halt: results for the other open calls of the message, should you not run them",
    "items": _object({"call_id": _TEXT, "tool": _TEXT, "tool_result": _ref("GuardToolResult")}),
}
_BUDGET = _object(
    {
        "steps": _COUNT,
        "steps_max": {"type": ["integer", "null"]},
        "tokens": _COUNT,
        "tokens_max": {"type": ["integer", "null"]},
        "cost": {"type": "string", "description": "Decimal, in your currency"},
        "cost_max": _NULLABLE_TEXT,
        "seconds": {"type": "number"},
        "seconds_max": {"type": ["number", "null"]},
        "calls_per_tool_max": {"type": ["integer", "null"]},
    }
)
_DECISION = {
    **_object(
        {
            "decision_id": _TEXT,
            "run_id": _TEXT,
            "seq": {"type": "integer", "description": "Number of the decision in its run, from 1"},
            "phase": {"type": "string", "enum": [phase.value for phase in Phase]},
            "call_id": _TEXT,
            "tool": _TEXT,
            "step": {"type": "integer", "description": "Number of the call in its run, from 1"},
            "epoch": {"type": "integer", "description": "How often the run was resumed"},
            "action": {"type": "string", "enum": [action.value for action in GuardAction]},
            "execute": {"type": "boolean", "description": "Before a call: whether to run it. After: whether it ran"},
            "same_as": {"type": ["string", "null"], "description": "The call whose result this one shares"},
            "reason": _object(
                {
                    "code": {"type": "string", "enum": [code.value for code in ReasonCode]},
                    "text": _TEXT,
                    "signature": _TEXT,
                    "rule": _NULLABLE_TEXT,
                },
                nullable=True,
            ),
            "signature": _TEXT,
            "counts": _object(
                {
                    "same": _COUNT,
                    "similar": _COUNT,
                    "errors_same_code": _COUNT,
                    "steps": _COUNT,
                    "steps_max": {"type": ["integer", "null"]},
                }
            ),
            "append": {"type": ["string", "null"], "description": "Words to add to the real result"},
            "tool_result": {
                "anyOf": [_ref("GuardToolResult"), {"type": "null"}],
                "description": "Where the call does not run: the result that closes it",
            },
            "also_close": _TO_CLOSE,
            "turn": _object({"end": {"type": "boolean"}, "resumable": {"type": "boolean"}}),
            "end_reason": {"type": ["string", "null"], "enum": [*(reason.value for reason in EndReason), None]},
            "next": {
                "type": ["string", "null"],
                "enum": [*(step.value for step in NextStep), None],
                "description": "What the policy wants after this halt",
            },
            "banned_tools": _TEXTS,
            "escalation_id": _NULLABLE_TEXT,
            "policy": _TEXT,
            "shadow_action": {"type": ["string", "null"], "enum": [*(action.value for action in GuardAction), None]},
            "flags": {"type": "array", "items": {"type": "string", "enum": [flag.value for flag in Flag]}},
        }
    ),
    "required": ["decision_id", "seq", "epoch", "action", "execute", "reason", "counts", "turn", "policy"],
}
_OPENED = {
    "run_id": _TEXT,
    "agent": _TEXT,
    "external_run_id": _TEXT,
    "item_id": _NULLABLE_TEXT,
    "status": {"type": "string", "enum": [status.value for status in RunStatus]},
    "epoch": _COUNT,
    "policy": {"type": "string", "description": "Name of the policy; equal policies have the same"},
    "banned_tools": _TEXTS,
    "links": {"type": "object"},
}
_RUN = _object(
    {
        **_OPENED,
        "counters": {"type": "object", "additionalProperties": _COUNT},
        "budget": _BUDGET,
        "ladder": {"type": "array", "items": {"type": "object"}, "description": "Signatures above the first rung"},
        "halt": {"type": ["object", "null"]},
        "escalation_id": _NULLABLE_TEXT,
        "open_calls": {"type": "array", "items": {"type": "object"}},
        "tools": {"type": "object"},
        "policy_values": {"type": "object"},
        "outcome": {"type": ["object", "null"]},
        "created_at": {"type": "string", "format": "date-time"},
        "updated_at": {"type": "string", "format": "date-time"},
        "ended_at": {"type": ["string", "null"], "format": "date-time"},
    }
)
_RESUMED = _object(
    {
        "run_id": _TEXT,
        "epoch": _COUNT,
        "messages_to_append": {"type": "array", "items": {"type": "object"}},
        "call_results": _TO_CLOSE,
        "approved_calls": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "call_id": _TEXT,
                    "tool": _TEXT,
                    "args": {"type": ["object", "null"], "description": "null: as the model asked"},
                    "changed": {"type": "boolean"},
                    "note": {"type": ["string", "null"]},
                },
            },
        },
        "also_close": _TO_CLOSE,
        "banned_tools": _TEXTS,
        "budget": _BUDGET,
        "policy": _TEXT,
    }
)
_REQUESTS = (NewRunRequest, CallRequest, BatchRequest, ReportRequest, EndRequest, ResumeRequest)


def guard_components() -> dict[str, Any]:
    """The schemas that the guard's paths refer to."""
    found: dict[str, Any] = {
        "GuardToolResult": _TOOL_RESULT,
        "GuardDecision": _DECISION,
        "GuardRun": _RUN,
        "GuardRunOpened": _object(_OPENED),
        "GuardRunResumed": _RESUMED,
    }
    for request in _REQUESTS:
        schema = request.model_json_schema(ref_template="#/components/schemas/{model}")
        found.update(schema.pop("$defs", {}))
        found[request.__name__] = schema
    return found


@dataclass(frozen=True, slots=True)
class Description:
    """What one path takes and answers."""

    responses: dict[int | str, dict[str, Any]]
    request: dict[str, Any] = field(default_factory=dict)


def _takes(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _gives(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: problem("The request is not valid; `errors` names each field"),
    401: problem("A valid API key is needed"),
    403: problem("The key lacks the scope `guard`"),
    404: problem("No such run"),
    413: problem("Too many bytes"),
}
_CONFLICT = problem("The run has ended, the call was not let through, or an identical one is still running")
_REUSED = problem("The call id was sent before with something else")

OPEN = Description(
    {
        **_PROBLEMS,
        200: _gives("The run that this agent opened before under the same id", _ref("GuardRunOpened")),
        201: _gives("A new run", _ref("GuardRunOpened")),
    },
    _takes(_ref("NewRunRequest")),
)
READ = Description({**_PROBLEMS, 200: _gives("The run", _ref("GuardRun"))})
BEFORE = Description(
    {**_PROBLEMS, 200: _gives("The decision", _ref("GuardDecision")), 409: _CONFLICT, 422: _REUSED},
    _takes(_ref("CallRequest")),
)
_DECISIONS = {"type": "array", "items": _ref("GuardDecision")}
BATCH = Description(
    {
        **_PROBLEMS,
        200: _gives("The decisions in order", {"anyOf": [_DECISIONS, _object({"decisions": _DECISIONS})]}),
        409: _CONFLICT,
        422: _REUSED,
    },
    _takes({"anyOf": [{"type": "array", "items": _ref("CallRequest")}, _ref("BatchRequest")]}),
)
AFTER = Description(
    {**_PROBLEMS, 200: _gives("The decision", _ref("GuardDecision")), 409: _CONFLICT, 422: _REUSED},
    _takes(_ref("ReportRequest")),
)
END = Description({**_PROBLEMS, 200: _gives("The run as it was left", _ref("GuardRun"))}, _takes(_ref("EndRequest")))
RESUME = Description(
    {**_PROBLEMS, 200: _gives("With what the run goes on", _ref("GuardRunResumed")), 409: _CONFLICT},
    _takes(_ref("ResumeRequest")),
)
