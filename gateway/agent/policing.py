"""What judges an item's run: its budget, the guard's policy, and the guard as the steps left it. Loads no model library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gateway.agent.tools import Tool
from gateway.decision import ScreenedFile
from gateway.item import Item
from gateway.profiles import Profile
from gateway.store.steps import StepRow
from guard import Budget, Guard, GuardPolicy, Trace, record_from_json
from prefilters.media import MediaKind


@dataclass(frozen=True, slots=True)
class Limits:
    """The tighter of the profile's and the item's own budget."""

    steps: int
    tokens: int
    cost: Decimal
    seconds: float


def limits_of(item: Item, profile: Profile) -> Limits:
    """The tighter of the two budgets, value by value."""
    own: Mapping[str, Any] = item.budget
    budget = profile.budget
    return Limits(
        steps=min(budget.max_steps, own.get("max_steps") or budget.max_steps),
        tokens=min(budget.max_tokens, own.get("max_tokens") or budget.max_tokens),
        cost=min(budget.max_cost, Decimal(str(own["max_cost"])) if own.get("max_cost") else budget.max_cost),
        seconds=min(budget.max_seconds, own.get("max_seconds") or budget.max_seconds),
    )


def policy_of(profile: Profile, limits: Limits) -> GuardPolicy:
    """The guard's policy for one item. Raises `PolicyError` for a profile that says something unknown."""
    return GuardPolicy.from_mapping(
        {"on_loop": profile.on_loop, "on_repeated_error": profile.on_repeated_error, **profile.guard}
    ).with_budget(Budget(steps=limits.steps, tokens=limits.tokens, cost=float(limits.cost), seconds=limits.seconds))


def trace_of(rows: Iterable[StepRow]) -> Trace:
    """The guard's trace in these steps."""
    return Trace(
        [
            record_from_json(record)
            for row in rows
            for record in (*row.intent.get("records", ()), *(row.outcome or {}).get("records", ()))
        ]
    )


def guard_of(trace: Trace, policy: GuardPolicy, tools: Iterable[Tool], facts: Mapping[str, object]) -> Guard:
    """The guard of an attempt, as its steps left it, on whichever process."""
    return Guard.from_trace(trace, policy, tools={tool.name: tool.traits for tool in tools}, facts=dict(facts))


def picture_facts(files: Sequence[ScreenedFile]) -> dict[str, object]:
    """What meta-rules may know of the item: how much text its most legible picture carries."""
    tokens = [
        int(file.screening.facts["text.tokens"])
        for file in files
        if file.screening.media.kind is MediaKind.IMAGE and "text.tokens" in file.screening.facts
    ]
    return {"text.tokens": max(tokens)} if tokens else {}
