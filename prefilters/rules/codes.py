"""The file verdict codes: one vocabulary for rules, messages, API and tests."""

from __future__ import annotations

REFUSING_CODES = frozenset(
    {
        "empty",
        "unsupported_type",
        "corrupt",
        "low_resolution",
        "extreme_aspect",
        "too_many_pixels",
        "too_many_frames",
        "too_many_pages",
        "too_large",
        "encrypted",
        "too_short",
        "too_long",
        "silent",
        "no_audio",
        "timeout",
        "resource_limit",
        "rule",
    }
)
ROUTING_CODES = frozenset({"sparse_text", "unread_text", "very_blurry", "rule"})
NOTING_CODES = frozenset(
    {
        "blurry",
        "soft",
        "dark",
        "light",
        "blank",
        "animated",
        "small",
        "type_mismatch",
        "repairable_damage",
        "owner_password",
        "active_content",
        "hidden_text",
        "duplicate_file",
        "no_transcriber",
        "marketplace_minimum",
    }
)
