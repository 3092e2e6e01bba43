"""Who sits before which queue."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.resolution import Reviewer


@dataclass(frozen=True, slots=True)
class Desk:
    """A tenant's queue and the person, or client, that works at it."""

    tenant: str
    person: str
    """As history and audit name them."""
    is_lead: bool = False
    """Whether they may take over, assign and take back what others hold or decided."""

    @property
    def reviewer(self) -> Reviewer:
        """The person as the history of an item names them."""
        return Reviewer(self.person)
