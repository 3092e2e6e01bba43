"""Which way on is chosen beforehand, and the reason that is shown for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gateway.console.words import Say
from gateway.escalation import EscalationRecord
from gateway.item import Item
from gateway.store.review_view import Outcome

_ENOUGH = 3
"""So many of the last decisions in a group must agree before they are held up as an example."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A choice of the form, with a reason in words; no value where nothing can be chosen."""

    value: str | None
    reason: str | None


def suggested(
    record: EscalationRecord, item: Item | None, outcomes: Sequence[Outcome], possible: Collection[str], say: Say
) -> Suggestion:
    """What colleagues did in this group, else what the reason of the stop speaks for."""
    if not possible:
        return Suggestion(None, None)
    done = Counter(each.route if each.action == "reroute" else each.action for each in outcomes)
    for value, count in done.most_common(1):
        if value in possible and count >= _ENOUGH:
            return Suggestion(
                value, say("{n} of the last {of} of this kind were decided so.", n=count, of=len(outcomes))
            )
    if record.reason in {"repeated_error", "repeated_tool_calls"} and "text_only" in possible and _has_words(item):
        return Suggestion("text_only", say("The tool got nowhere; the seller's own words are enough for copy."))
    if record.reason == "budget" and "resume" in possible:
        return Suggestion("resume", say("The budget ran out before the end; a few more steps may do."))
    if "retry" in possible and record.reason in {"model_error", "worker_lost"}:
        return Suggestion("retry", say("The run was interrupted from outside; nothing speaks against another try."))
    first = next(iter(possible))
    return Suggestion(first, None)


def _has_words(item: Item | None) -> bool:
    return item is not None and bool(item.title or item.submission.get("text") or item.submission.get("attributes"))
