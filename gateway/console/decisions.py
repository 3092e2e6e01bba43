"""A form's fields to a decision of the API, in the same words and checked by the same models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from gateway import resolution
from gateway.console import choices
from gateway.console.words import Say
from gateway.escalation import EscalationRecord
from gateway.strict_json import JsonRefused, loads

_ANSWER_WITHIN = timedelta(hours=48)

Form = Mapping[str, str]


class FormProblem(Exception):
    """Something is missing or cannot be read; `public` says what, in the reviewer's language."""

    def __init__(self, public: str) -> None:
        super().__init__(public)
        self.public = public


def decision_of(form: Form, ban_tools: list[str], record: EscalationRecord, token: str, say: Say) -> Any:
    """The decision that the form asks for. Raises `FormProblem`."""
    choice = choices.known(form.get("choice", ""))
    if choice is None:
        raise FormProblem(say("Choose what is to happen."))
    body: dict[str, Any] = {"action": choice.action, "lease_token": token}
    if _text(form, "note"):
        body["note"] = _text(form, "note")
    body |= _fields(choice, form, ban_tools, record, say)
    try:
        return resolution.DECISIONS.validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        raise FormProblem(say("{field}: {problem}", field=where or choice.label, problem=first["msg"])) from error


def _fields(
    choice: choices.Choice, form: Form, ban_tools: list[str], record: EscalationRecord, say: Say
) -> dict[str, Any]:
    match choice.action:
        case "resume":
            return {
                "guidance": _needed(form, "guidance", say("Write a sentence of advice for the agent.")),
                "extra_steps": _count(form.get("extra_steps", ""), say),
                "ban_tools": ban_tools,
            }
        case "reroute":
            guidance = _text(form, "guidance")
            return {"route": choice.value, "ban_tools": ban_tools, **({"guidance": guidance} if guidance else {})}
        case "answer_item":
            return {"output": _copy(form, say)}
        case "ask_submitter":
            until = (datetime.now(UTC) + _ANSWER_WITHIN).isoformat(timespec="seconds")
            return {"question": _needed(form, "question", say("Write what the submitter is asked.")), "until": until}
        case "reject_item":
            return {"message": _needed(form, "message", say("Write what the submitter is told."))}
        case "deny_call":
            message = _needed(form, "message", say("Write why the call is refused."))
            return {"call_id": _call_id(record), "message": message}
        case "close":
            message = _text(form, "message")
            return {"message": message} if message else {}
        case "retry":
            return {"reason": _needed(form, "reason", say("Write why it is worth another try.")), "override": True}
        case "answer_tool":
            result = _needed(form, "result", say("Write what the tool answers."))
            return {"call_id": _call_id(record), "result": _json_or_text(result)}
        case "edit_call":
            return {"call_id": _call_id(record), "args": _arguments(form, say)}
        case "approve_call":
            return {"call_id": _call_id(record)}
        case _:
            return {}


def _text(form: Form, name: str) -> str:
    return form.get(name, "").replace("\r\n", "\n").strip()


def _needed(form: Form, name: str, otherwise: str) -> str:
    text = _text(form, name)
    if not text:
        raise FormProblem(otherwise)
    return text


def _count(text: str, say: Say) -> int:
    if not text.strip():
        return 0
    if not text.strip().isdecimal() or len(text) > 3:
        raise FormProblem(say("Extra steps must be a number from 0 to 100."))
    return int(text)


def _copy(form: Form, say: Say) -> dict[str, Any]:
    bullets = [line.strip(" •-\t") for line in _text(form, "copy_bullets").split("\n") if line.strip()]
    keywords = [word.strip() for word in _text(form, "copy_keywords").replace("，", ",").split(",") if word.strip()]
    return {
        "title": _needed(form, "copy_title", say("Write a title.")),
        "bullets": bullets,
        "description": _needed(form, "copy_description", say("Write a description.")),
        "keywords": keywords,
        "language": _text(form, "copy_language") or "en",
        "grounded_in": [],
    }


def _call_id(record: EscalationRecord) -> str:
    """The call that waits; the form's reviewer decides on it alone."""
    waiting = record.packet.get("open_calls") or ()
    first: Any = next(iter(waiting), {})
    return str(first.get("call_id", "") if isinstance(first, Mapping) else first)


def _json_or_text(text: str) -> Any:
    try:
        return loads(text)
    except JsonRefused:
        return text


def _arguments(form: Form, say: Say) -> dict[str, Any]:
    try:
        found = loads(_text(form, "call_args"))
    except JsonRefused as error:
        raise FormProblem(say("The arguments are no JSON: {problem}", problem=str(error))) from error
    if not isinstance(found, dict):
        raise FormProblem(say("The arguments must be a JSON object."))
    return found
