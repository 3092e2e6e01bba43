"""The offline writer in the agent's seat: reads what there is to read by real tool calls, then hands in its draft.

It is a program, not a model: each message follows from the conversation so far, so a resumed run goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolDefinition,
    ToolReturnPart,
)

from fallback.text_only import Brief, SourceText
from gateway.agent.models import Reply
from gateway.agent.offline import PRODUCED_BY, offline_draft
from prefilters.facts import FactValue
from prefilters.media import MediaKind

_READERS: Mapping[MediaKind, Sequence[str]] = {
    MediaKind.IMAGE: ("ocr_extract", "read_barcode"),
    MediaKind.PDF: ("read_pdf",),
    MediaKind.AUDIO: ("transcribe",),
}
_SOURCE_KIND = {"ocr_extract": "ocr", "read_pdf": "text_layer"}


class OfflineModel:
    """Plays the model for one item. Costs nothing and needs no network."""

    name = PRODUCED_BY

    def __init__(
        self,
        brief: Brief,
        kinds: Mapping[str, MediaKind],
        seen: Sequence[tuple[str, Mapping[str, FactValue]]],
    ) -> None:
        """`kinds` says per part what there is to read, `seen` what was measured of it."""
        self._brief = brief
        self._kinds = kinds
        self._seen = seen
        self._spoken = {part for part, facts in seen if facts.get("audio.transcribed")}

    def respond(self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]) -> Reply:
        """The next call of its plan; the draft once all is read; a sentence when it may not hand it in."""
        open_tools = {tool.name for tool in tools}
        called = _called(messages)
        for part, kind in self._kinds.items():
            for tool in _READERS[kind]:
                if tool == "transcribe" and part not in self._spoken:
                    continue
                if tool in open_tools and (tool, part) not in called:
                    return self._says(ToolCallPart(tool, {"file": part}))
        if "save_copy" in open_tools and not any(name == "save_copy" for name, _ in called):
            copy = offline_draft(self._with_sources(_returned(messages)), self._seen)
            return self._says(ToolCallPart("save_copy", copy))
        return self._says(TextPart("Nothing is left to read."))

    def _says(self, part: ToolCallPart | TextPart) -> Reply:
        return Reply(ModelResponse(parts=[part], model_name=self.name))

    def _with_sources(self, returned: Mapping[tuple[str, str], Any]) -> Brief:
        sources: list[SourceText] = []
        for (tool, part), result in returned.items():
            if tool == "read_barcode":
                codes = result.get("barcodes", ())
                sources.extend(SourceText(part, "barcode", f"{code['format']} {code['text']}") for code in codes)
            elif result.get("text"):
                kind = str(result.get("source", _SOURCE_KIND.get(tool, "ocr")))
                sources.append(SourceText(part, kind, result["text"]))
        brief = self._brief
        return Brief(brief.language, brief.title, brief.text, brief.attributes, sources=sources)


def _calls(messages: Sequence[ModelMessage]) -> dict[str, tuple[str, str]]:
    """(tool, file) by call id."""
    found: dict[str, tuple[str, str]] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    found[part.tool_call_id] = (part.tool_name, str(part.args_as_dict().get("file", "")))
    return found


def _called(messages: Sequence[ModelMessage]) -> set[tuple[str, str]]:
    return set(_calls(messages).values())


def _returned(messages: Sequence[ModelMessage]) -> dict[tuple[str, str], Any]:
    """What each reading call brought; errors are left out."""
    calls = _calls(messages)
    found: dict[tuple[str, str], Any] = {}
    for message in messages:
        if isinstance(message, ModelRequest):
            for part in message.parts:
                if isinstance(part, ToolReturnPart) and part.tool_call_id in calls:
                    result = _unfenced(str(part.content))
                    if result is not None:
                        found[calls[part.tool_call_id]] = result
    return found


def _unfenced(content: str) -> dict[str, Any] | None:
    """The JSON of a successful tool result, without the fence around it."""
    lines = content.splitlines()
    if len(lines) < 3 or not lines[0].startswith("<tool-data"):
        return None
    value = json.loads(lines[1])
    return value if isinstance(value, dict) else None
