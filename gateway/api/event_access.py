"""Which events a caller may read: those about what they may read otherwise.

One rule for the pages of the log and its streams; the console's audit follows it by the reader's role.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.api.auth import Principal

_SCOPE_OF_FAMILY: Mapping[str, str] = {"item": "items:read", "escalation": "review"}
"""What else happens (to keys, people, webhooks, budgets, switches) is for admins, and so is a family that is not known here."""
_SCOPES = frozenset({*_SCOPE_OF_FAMILY.values(), "admin"})


def reading_scopes(principal: Principal) -> frozenset[str]:
    """The scopes that decide which events the caller reads; a stream token keeps these and no others.

    Whoever is logged in reads cases in the console, whatever the role, so a person has `review` here: it opens events only.
    """
    of_a_person = {"review"} if principal.role is not None else set()
    return (principal.scopes | of_a_person) & _SCOPES


def readable_families(principal: Principal) -> frozenset[str] | None:
    """The families of events (`item` of `item.ready`) that the caller may read; None for all."""
    scopes = reading_scopes(principal)
    if "admin" in scopes:
        return None
    return frozenset(family for family, scope in _SCOPE_OF_FAMILY.items() if scope in scopes)
