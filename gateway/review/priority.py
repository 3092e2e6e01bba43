"""How urgent a case is beside others that are due at the same time: 0 to 100, larger first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, TypedDict

from gateway.profiles.loader import EscalationPolicy

_OF_PROFILE, _OF_BUDGET, _OF_GROUP, _OF_AGE = 30, 30, 20, 20
_MOST_PROFILE = 3
_FULL_GROUP = 32
"""Undecided cases of one incident from which on more of them change nothing."""


def priority_of(*, profile: int, burnt_percent: int, group_size: int, age_ms: int, due_after_ms: int) -> int:
    """`10·profile + 30·burnt + 20·log2(group)/5 + 20·age/due`, each part at its most where it passes its limit.

    `profile` is 0 to 3, `burnt_percent` how much of the budget was spent, `group_size` the undecided cases of the same
    incident with this one, `age_ms / due_after_ms` the part of the time to the due time that has passed.
    """
    parts = (
        _OF_PROFILE * _share(profile / _MOST_PROFILE),
        _OF_BUDGET * _share(burnt_percent / 100),
        _OF_GROUP * _share(math.log2(max(group_size, 1)) / math.log2(_FULL_GROUP)),
        _OF_AGE * _share(age_ms / due_after_ms if due_after_ms > 0 else 1.0),
    )
    return round(sum(parts))


class Terms(TypedDict):
    """What a new case gets from its profile: when it is due, when it expires and how, how urgent it is."""

    due_after_ms: int
    expires_after_ms: int
    on_expire: str
    profile_priority: int
    burnt_percent: int
    priority: int


def terms_of(policy: EscalationPolicy, packet: Mapping[str, Any], *, max_cost: Decimal | None = None) -> Terms:
    """The terms of a case that is raised now; `max_cost` is the money that its item may cost."""
    burnt = burnt_percent(packet, max_cost=max_cost)
    due_after_ms = int(policy.due_s * 1000)
    return Terms(
        due_after_ms=due_after_ms,
        expires_after_ms=int(policy.expires_s * 1000),
        on_expire=policy.on_expire,
        profile_priority=policy.priority,
        burnt_percent=burnt,
        priority=priority_of(
            profile=policy.priority, burnt_percent=burnt, group_size=1, age_ms=0, due_after_ms=due_after_ms
        ),
    )


def burnt_percent(packet: Mapping[str, Any], *, max_cost: Decimal | None = None) -> int:
    """The larger part of steps or money that is spent, in percent; 0 where neither is known."""
    steps, cost = packet.get("steps") or {}, packet.get("cost") or {}
    shares = (_ratio(steps.get("taken"), steps.get("of")), _ratio(cost.get("spent"), max_cost))
    return round(100 * max(_share(share) for share in shares))


def _ratio(spent: object, limit: object) -> float:
    try:
        return float(Decimal(str(spent)) / Decimal(str(limit)))
    except (InvalidOperation, ZeroDivisionError, OverflowError):
        return 0.0


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
