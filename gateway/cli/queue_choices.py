"""What a reviewer may choose at the terminal, by the numbers of the console, and what each choice asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Ask = Callable[[str], str]
"""Puts a question to the reviewer; gives the line that they typed."""

_DURATION = re.compile(r"([1-9][0-9]{0,3})\s*([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_MOST_FILE_BYTES = 256 * 1024


class NotUsable(ValueError):
    """What was typed cannot be sent; the message says what can."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way on."""

    number: int
    label: str
    action: str
    route: str | None = None
    fields: tuple[str, ...] = ()
    """Fields of the decision that the reviewer is asked for."""

    @property
    def shown(self) -> str:
        """As it stands in the list of choices."""
        return f"[{self.number}] {self.label}{'…' if self.fields else ''}"


CHOICES = (
    Choice(1, "text only", "reroute", route="text_only"),
    Choice(2, "resume", "resume", fields=("guidance",)),
    Choice(3, "answer", "answer_item", fields=("output",)),
    Choice(4, "ask photo", "ask_submitter", fields=("question", "until")),
    Choice(5, "reject", "reject_item", fields=("message",)),
    Choice(6, "false alarm", "dismiss"),
    Choice(7, "answer for the tool", "answer_tool", fields=("call_id", "result")),
    Choice(8, "let the call run", "approve_call", fields=("call_id",)),
    Choice(9, "run an edited call", "edit_call", fields=("call_id", "args")),
    Choice(10, "refuse the call", "deny_call", fields=("call_id", "message")),
    Choice(11, "try the same again", "retry", fields=("reason", "override")),
    Choice(12, "one look", "reroute", route="single_look"),
    Choice(13, "start over", "reroute", route="agent"),
    Choice(14, "end the run", "close"),
)

_QUESTIONS = {
    "guidance": "advice to the agent",
    "output": "the copy: a JSON file, or JSON",
    "question": "question to the submitter",
    "until": "until when (24h, 3d, or a time)",
    "message": "message",
    "call_id": "which call",
    "result": "the tool's result: text or JSON",
    "args": "the arguments, as JSON",
    "reason": "why",
    "override": "it would stop again; try all the same (yes/no)",
}


def choices_for(case: Mapping[str, Any]) -> list[Choice]:
    """Those that the case allows."""
    allowed = {offer["action"] for offer in case.get("allowed_actions", [])}
    return [choice for choice in CHOICES if choice.action in allowed]


def suggested(case: Mapping[str, Any], choices: list[Choice]) -> Choice | None:
    """The one that the service suggests for it."""
    hint = case.get("suggestion") or {}
    return next(
        (one for one in choices if one.action == hint.get("action") and one.route == hint.get("route")),
        None,
    )


def decision(choice: Choice, case: Mapping[str, Any], ask: Ask) -> dict[str, Any] | None:
    """The decision's fields, asked for one by one; None where the reviewer thought better of it. Raises `NotUsable`."""
    made: dict[str, Any] = {"action": choice.action}
    if choice.route is not None:
        made["route"] = choice.route
    for name in choice.fields:
        if name == "override" and not _needs_override(case):
            continue
        if name == "call_id" and (only := _only_call(case)) is not None:
            made[name] = only
            continue
        text = ask(_QUESTIONS[name]).strip()
        if not text:
            return None
        made[name] = value_of(name, text, now=datetime.now(UTC))
    return made


def value_of(name: str, text: str, *, now: datetime) -> Any:
    """A field of a decision from what was typed. Raises `NotUsable`."""
    match name:
        case "until":
            return _moment(text, now)
        case "output" | "args":
            return _object(name, text)
        case "result":
            return _json_or_text(text)
        case "override":
            return text.lower() in {"y", "yes"}
        case _:
            return text


def _moment(text: str, now: datetime) -> str:
    short = _DURATION.fullmatch(text.strip())
    if short is not None:
        return (now + timedelta(**{_UNITS[short[2]]: int(short[1])})).isoformat()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise NotUsable("send 90m, 24h, 3d, or a time such as 2026-12-01T09:00:00Z") from error
    return (moment if moment.tzinfo is not None else moment.astimezone()).isoformat()


def _object(name: str, text: str) -> dict[str, Any]:
    source = text if text.lstrip().startswith("{") else _file(text)
    try:
        found = json.loads(source)
    except ValueError as error:
        raise NotUsable(f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise NotUsable(f"{name} must be a JSON object")
    return found


def _file(name: str) -> str:
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise NotUsable(f"{name} is larger than {_MOST_FILE_BYTES} bytes")
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise NotUsable(f"{name} cannot be read: {getattr(error, 'strerror', 'it is no UTF-8 text')}") from error


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _needs_override(case: Mapping[str, Any]) -> bool:
    return any("override" in (offer.get("needs") or {}) for offer in case.get("allowed_actions", []))


def _only_call(case: Mapping[str, Any]) -> str | None:
    calls = case.get("open_calls") or []
    return str(calls[0]["call_id"]) if len(calls) == 1 else None
