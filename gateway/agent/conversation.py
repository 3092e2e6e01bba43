"""The messages for the model, rebuilt from the steps, so that a resumed run says exactly what the first one said."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from fallback.text_only import Picture
from gateway.store.steps import StepKind, StepRow

NOT_RUN = "Not run: the turn had ended before this call."
MAX_KEPT_ARGUMENTS = 64 * 1024
"""Bytes of one call's arguments that are kept; longer ones would be sent again with every request."""
CUT_ARGUMENTS = '{"cut": "too long"}'
"""What stands for longer ones, in the conversation and before the guard: no tool takes it."""
MAX_CALLS_KEPT = 64
"""Calls of one message that the conversation keeps."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call of the last model message, in its order."""

    index: int
    part: ToolCallPart
    row: StepRow | None
    """Its step, if it was begun."""
    grant: Mapping[str, Any] | None = None
    """A person's consent to it: `step`, `append`, and `note` and `edited` where they said or changed something."""


def stored_response(response: ModelResponse) -> list[Any]:
    """The response as a step keeps it. Raises `ValueError` for what cannot be written as JSON."""
    return list(ModelMessagesTypeAdapter.dump_python([response], mode="json"))


def tidy(response: ModelResponse, *, turn: int) -> ModelResponse:
    """The response as the run goes on with it: the same on the worker that asked and on any that takes over.

    Call ids become unique within the run, since providers want one result for each; what a model repeats or leaves out
    is its own affair. Names that no provider would take back, overlong arguments and surplus calls are cut.
    """
    kept: list[Any] = []
    calls = 0
    for part in response.parts:
        if isinstance(part, TextPart):
            kept.append(replace(part, content=part.content[:MAX_KEPT_ARGUMENTS]))
        elif isinstance(part, ToolCallPart) and calls < MAX_CALLS_KEPT:
            calls += 1
            kept.append(ToolCallPart(_name(part.tool_name), _kept(part), tool_call_id=f"call_{turn}_{calls}"))
    return replace(response, parts=kept or [TextPart("")])


def _name(name: str) -> str:
    """A name of the characters that providers allow; a changed one is never that of a tool, since those have no dash."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:64] or "-"


def _kept(part: ToolCallPart) -> str:
    """The arguments as JSON text, as the model wrote them."""
    try:
        text = part.args if isinstance(part.args, str) else part.args_as_json_str()
        size = len(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return CUT_ARGUMENTS
    return CUT_ARGUMENTS if size > MAX_KEPT_ARGUMENTS else text or "{}"


class Conversation:
    """What has been said in one attempt."""

    def __init__(self, rows: Sequence[StepRow], pictures: Mapping[str, Picture]) -> None:
        self._rows = rows
        self._pictures = pictures

    def messages(self) -> list[ModelMessage]:
        """All messages so far; the last is what the model is asked next."""
        messages: list[ModelMessage] = []
        asked: list[Any] = []
        instructions: str | None = None
        for row in self._rows:
            if row.kind is StepKind.PROMPT:
                instructions = row.intent["instructions"]
                asked.append(self._first_prompt(row))
            elif row.kind is StepKind.MODEL and "response" in (row.outcome or {}):
                messages.append(ModelRequest(parts=asked, instructions=instructions))
                asked = []
                messages.append(_response(row))
                asked.extend(self._returns(row))
            elif row.kind is StepKind.CONTROL and row.intent.get("text"):
                asked.append(self._said(row))
        messages.append(ModelRequest(parts=asked, instructions=instructions))
        return messages

    def pending_calls(self) -> list[PendingCall]:
        """The calls of the last model message that have no outcome yet; none once something was said after them.

        A person's consent to single calls says nothing more: those run, and after an approved one the rest of the message.
        """
        last, grants = self._standing_message()
        if last is None:
            return []
        by_index = self._tool_rows(last.seq)
        is_closed = any("edited" in row.intent["granted"] for row in grants.values())
        pending = []
        for index, part in enumerate(_calls(last)):
            row, consent = by_index.get(index), grants.get(part.tool_call_id)
            if consent is not None:
                begun = row if row is not None and row.seq > consent.seq else None
                if begun is None or begun.outcome is None:
                    granted = consent.intent["granted"]
                    pending.append(PendingCall(index, _granted_part(part, granted), begun, granted))
            elif not is_closed and (row is None or row.outcome is None):
                pending.append(PendingCall(index, part, row))
        return pending

    def _standing_message(self) -> tuple[StepRow | None, dict[str, StepRow]]:
        """The last model message, if nothing but consent to its calls was said since; and that consent by call id."""
        grants: dict[str, StepRow] = {}
        for row in reversed(self._rows):
            if row.kind is StepKind.MODEL:
                return (row if "response" in (row.outcome or {}) else None), grants
            if row.kind is StepKind.CONTROL and row.intent.get("control") != "info":
                if "granted" not in row.intent:
                    return None, {}
                grants.setdefault(row.intent["granted"]["call_id"], row)
            elif row.kind is StepKind.PROMPT:
                return None, {}
        return None, {}

    def last_text(self) -> str:
        """The text of the last model message, without its calls."""
        row = next((row for row in reversed(self._rows) if "response" in (row.outcome or {})), None)
        if row is None:
            return ""
        return "".join(part.content for part in _response(row).parts if isinstance(part, TextPart))

    def _first_prompt(self, row: StepRow) -> UserPromptPart:
        content: list[Any] = [row.intent["text"]]
        if not self._is_blind():
            content.extend(self._contents_of(row.intent.get("pictures", ())))
        return UserPromptPart(content)

    def _said(self, row: StepRow) -> UserPromptPart:
        """Something that was said on the way, with the pictures that came with it."""
        pictures = [] if self._is_blind() else self._contents_of(row.intent.get("pictures", ()))
        return UserPromptPart([row.intent["text"], *pictures] if pictures else row.intent["text"])

    def _contents_of(self, parts: Sequence[str]) -> list[Any]:
        return [
            BinaryContent(self._pictures[part].content, media_type=self._pictures[part].media_type)
            for part in parts
            if part in self._pictures
        ]

    def _is_blind(self) -> bool:
        """After a fallback the run goes on by text alone, until a person opens the tools again."""
        controls = (row.intent.get("control") for row in reversed(self._rows) if row.kind is StepKind.CONTROL)
        return next((control for control in controls if control in {"fall_back", "resume"}), None) == "fall_back"

    def _returns(self, row: StepRow) -> Iterator[ToolReturnPart]:
        by_index = self._tool_rows(row.seq)
        answers = self._answers()
        for index, part in enumerate(_calls(row)):
            step = by_index.get(index)
            content = NOT_RUN if step is None or step.outcome is None else step.outcome["content"]
            content = answers.get(part.tool_call_id, content)
            yield ToolReturnPart(part.tool_name, content, tool_call_id=part.tool_call_id)

    def _answers(self) -> dict[str, str]:
        """What people gave in place of results, by call id."""
        return {
            answer["call_id"]: answer["content"]
            for row in self._rows
            if row.kind is StepKind.CONTROL
            for answer in row.intent.get("answers", ())
        }

    def _tool_rows(self, turn: int) -> dict[int, StepRow]:
        return {
            row.intent["index"]: row for row in self._rows if row.kind is StepKind.TOOL and row.intent["turn"] == turn
        }


def _response(row: StepRow) -> ModelResponse:
    assert row.outcome is not None
    [message] = ModelMessagesTypeAdapter.validate_python(row.outcome["response"])
    assert isinstance(message, ModelResponse)
    return message


def _granted_part(part: ToolCallPart, granted: Mapping[str, Any]) -> ToolCallPart:
    """The call as a person let it through."""
    edited = granted.get("edited")
    if edited is None:
        return part
    return ToolCallPart(edited["tool"], edited["arguments"], tool_call_id=part.tool_call_id)


def _calls(row: StepRow) -> list[ToolCallPart]:
    return [part for part in _response(row).parts if isinstance(part, ToolCallPart)]
