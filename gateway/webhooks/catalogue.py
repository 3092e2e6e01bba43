"""Which events there are, and what a filter lets through."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.escalation import Change
from gateway.item import Status

_NEVER_TOLD = frozenset({Status.RECEIVING})
"""A state without an event."""
EVENT_TYPES: tuple[str, ...] = (
    *(f"item.{status.value}" for status in Status if status not in _NEVER_TOLD),
    *(f"item.{word}" for word in ("info_requested", "duplicate", "superseded", "purged")),
    *(f"escalation.{change.value}" for change in Change),
    *(f"rule.{word}" for word in ("proposed", "activated", "retired")),
    *("budget.threshold", "budget.changed"),
    *(f"webhook.{word}" for word in ("failing", "disabled", "test")),
)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(name.split(".")[0] for name in EVENT_TYPES))
TEST, FAILING, DISABLED = "webhook.test", "webhook.failing", "webhook.disabled"
PURGED = "item.purged"

CALLBACK_EVENTS = frozenset(
    f"item.{word}"
    for word in (
        *("rejected", "ready", "halted", "awaiting_human", "info_requested", "succeeded", "failed", "cancelled"),
        *("expired", "duplicate"),
    )
)
"""What an item's own callback address is told: that it has an outcome, or waits for somebody."""


def is_filter(text: str) -> bool:
    """Whether `text` may stand in an endpoint's filter: an event's name, `family.*` or `*`."""
    return text == "*" or text in EVENT_TYPES or (text.endswith(".*") and text[:-2] in FAMILIES)


def lets_through(filters: Iterable[str], event_type: str) -> bool:
    """Whether an endpoint with these filters wants the event.

    `*` means all families that are listed here: what happens to keys, people and switches is for the audit alone.
    """
    family = event_type.split(".")[0]
    return family in FAMILIES and any(text in {"*", event_type, f"{family}.*"} for text in filters)
