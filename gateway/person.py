"""People who use the console, and what each role lets them do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a person may do; each role includes those before it."""

    VIEWER = "viewer"
    """Looks at items and cases."""
    REVIEWER = "reviewer"
    """Decides cases."""
    LEAD = "lead"
    """Assigns cases, takes over what others hold and takes back what they decided, activates rules."""
    ADMIN = "admin"
    """Manages people, keys and webhooks."""

    def includes(self, other: Role) -> bool:
        """Whether this role may do all that the other may."""
        return _RANK[self] >= _RANK[other]


_RANK: Mapping[Role, int] = {role: rank for rank, role in enumerate(Role)}

_VIEWER = frozenset({"items:read"})
_REVIEWER = _VIEWER | {"items:write", "review", "rules:propose"}
_LEAD = _REVIEWER | {"rules:activate", "traces:export"}

SCOPES_BY_ROLE: Mapping[Role, frozenset[str]] = {
    Role.VIEWER: _VIEWER,
    Role.REVIEWER: _REVIEWER,
    Role.LEAD: _LEAD,
    Role.ADMIN: _LEAD | {"guard", "admin"},
}
"""Scopes of a person's session. None has `review:delegate`: who is logged in acts under their own name."""


@dataclass(frozen=True, slots=True)
class Person:
    """Who looks at the console."""

    name: str
    role: Role
    tenant: str
    csrf: str
    """Goes with everything that changes something: the form field `csrf` or the header `X-CSRF-Token`."""
    is_keyless: bool = False
    """Nobody logged in: whoever sits at this machine. The pages say so."""

    @property
    def actor(self) -> str:
        """The name in the audit, and of who holds a case."""
        return "local" if self.is_keyless else actor_of(self.name)


def actor_of(name: str) -> str:
    """How a person is called in the audit."""
    return f"person:{name}"
