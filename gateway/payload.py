"""A payload that is ready for the caller's own model, on the route that was decided."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from fallback.route import CAPABILITIES, Route
from fallback.text_only import Brief, Picture, request_text
from gateway.agent import evidence
from gateway.decision import ScreenedFile
from gateway.item import Item
from gateway.profiles import Profile
from gateway.wiring import Services
from prefilters.probes.cost import image_costs
from prefilters.probes.text import token_count

FORMATS = ("openai.chat", "neutral")
DETAILS = ("auto", "low", "high")
_VISUAL_TOOLS = ("ocr_extract", "image_facts", "read_barcode")
_ROUTE_HINTS = {
    Route.TEXT_ONLY: "No usable image text was found; do not plan visual steps.",
    Route.SINGLE_LOOK: "Look at the pictures once; do not plan further visual steps.",
}


def build_payload(
    services: Services,
    item: Item,
    profile: Profile,
    files: Sequence[ScreenedFile],
    *,
    route: Route,
    form: str,
    max_side: int,
    detail: str,
) -> dict[str, Any]:
    """The payload in one of `FORMATS`. On the text-only route it has no image parts at all. Blocks while files are read."""
    capabilities = CAPABILITIES[route]
    price = services.prices.reference
    brief = evidence.gather(
        services, item, profile, files, capabilities, read_pictures=route is Route.TEXT_ONLY, max_side=max_side
    )
    text = request_text(brief)
    content = _chat_content(text, brief, detail) if form == "openai.chat" else _neutral_content(text, brief)
    banned = [] if capabilities.visual_tools else [tool for tool in profile.tools if tool in _VISUAL_TOOLS]
    hint = _ROUTE_HINTS.get(route)
    decision = item.decision or {}
    return {
        "format": form,
        "item": item.id,
        "route": route.value,
        "content": content,
        "system_hints": [profile.prompt.strip(), *([hint] if hint else [])],
        "tools": {
            "allowed": [tool for tool in profile.tools if capabilities.tools and tool not in banned],
            "banned": [{"name": tool, "until": "run_end", "rule": _rule(decision)} for tool in banned],
        },
        "token_estimate": {
            "text": token_count(text),
            "image": sum(price.image_tokens(image_costs(picture.width, picture.height)) for picture in brief.pictures),
            "method": f"o200k_base for text, {price.look.value} for pictures as {price.model} counts them",
        },
        "media": [
            {"part": picture.part, "width": picture.width, "height": picture.height, "bytes": len(picture.content)}
            for picture in brief.pictures
        ],
        "ruleset": decision.get("ruleset", item.ruleset),
        "warnings": [f"{note['code']}:{note['file']}" for note in decision.get("notes", [])],
        "urls_expire_at": None,
    }


def _rule(decision: dict[str, Any] | Any) -> str | None:
    reason = decision.get("reason")
    return None if reason is None else reason.get("rule")


def _chat_content(text: str, brief: Brief, detail: str) -> list[dict[str, Any]]:
    """The content parts of one user message of OpenAI's chat completions."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    parts.extend(
        {"type": "image_url", "image_url": {"url": _data_url(picture), "detail": detail}} for picture in brief.pictures
    )
    return parts


def _neutral_content(text: str, brief: Brief) -> list[dict[str, Any]]:
    """No provider's format: text, then pictures as base64 with their part names."""
    parts: list[dict[str, Any]] = [{"kind": "text", "text": text}]
    parts.extend(
        {
            "kind": "image",
            "part": picture.part,
            "media_type": picture.media_type,
            "data": base64.b64encode(picture.content).decode(),
            "width": picture.width,
            "height": picture.height,
        }
        for picture in brief.pictures
    )
    return parts


def _data_url(picture: Picture) -> str:
    return f"data:{picture.media_type};base64,{base64.b64encode(picture.content).decode()}"
