"""Tell workers that an item, or a webhook, waits. A hint is an id and may be lost, doubled or late: its row decides."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from gateway.store.items import EDGE_PASSED, MEASURED
from gateway.work.signals import Signals


class Bulkhead(StrEnum):
    """Kinds of work that must not hold each other up; with a broker, the names of its queues."""

    EDGE = "edge"
    """Judging files by what is cheap to measure: processor time, well under a second."""
    OCR = "ocr"
    """Reading what is in them, or hearing it: processor time, seconds."""
    AGENT = "agent"
    """Writing copy: waiting for a model, up to minutes."""
    DELIVER = "deliver"
    """Sending webhooks: waiting for receivers, seconds. Its ids are those of deliveries, not of items."""


def bulkhead_of(route: str | None, reason: str | None) -> Bulkhead:
    """What a waiting item waits for: it is judged until its route is known, and measured before it is read."""
    if route is not None:
        return Bulkhead.AGENT
    return Bulkhead.OCR if reason in {EDGE_PASSED, MEASURED} else Bulkhead.EDGE


class Dispatch(Protocol):
    """A way by which hints reach workers."""

    @property
    def must_repeat(self) -> bool:
        """Whether an item waits for good when its hint is lost, so that a sweeper has to send another."""

    def wake(self, item_id: str, bulkhead: Bulkhead = Bulkhead.EDGE) -> None:
        """Hint at an item, or with `DELIVER` at a delivery. Best effort: never blocks, never raises."""

    def close(self) -> None:
        """Send what is still to be sent, for a moment, and give connections back."""


class EmbeddedDispatch:
    """Signals on one machine; workers look at the queue every second anyway."""

    must_repeat = False

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def wake(self, item_id: str, bulkhead: Bulkhead = Bulkhead.EDGE) -> None:
        """Wake every worker of this machine; webhooks are found without."""
        self._signals.send("worker", item_id)

    def close(self) -> None:
        """Nothing: the signals belong to the process."""
