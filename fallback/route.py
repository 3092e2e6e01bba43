"""Where an item goes, from the verdicts on its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from prefilters.verdict import VerdictKind


class Route(StrEnum):
    """How an item is worked on."""

    AGENT = "agent"
    """The full agent, whatever the modality."""
    SINGLE_LOOK = "single_look"
    """One visual request, no tools, no planning."""
    TEXT_ONLY = "text_only"
    """One request without any image part."""
    HUMAN = "human"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a run on a route may use."""

    images: bool
    """Image parts may be sent to the model."""
    tools: bool
    """The agent may call tools."""
    visual_tools: bool
    """Among them those that look at pictures again."""
    max_requests: int | None
    """Model requests; None means as many as the budget allows."""


CAPABILITIES = {
    Route.AGENT: Capabilities(images=True, tools=True, visual_tools=True, max_requests=None),
    Route.SINGLE_LOOK: Capabilities(images=True, tools=False, visual_tools=False, max_requests=1),
    Route.TEXT_ONLY: Capabilities(images=False, tools=False, visual_tools=False, max_requests=1),
    Route.HUMAN: Capabilities(images=False, tools=False, visual_tools=False, max_requests=0),
}


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """The verdict on one file, as far as the route needs it."""

    file_id: str
    kind: VerdictKind


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The route, or None when the item is rejected, and the file whose verdict decided."""

    route: Route | None
    deciding_file: str | None

    @property
    def capabilities(self) -> Capabilities:
        """What the run may use; nothing for a rejected item."""
        return CAPABILITIES[self.route or Route.HUMAN]


_BEST_FIRST = (
    (VerdictKind.ESCALATE, Route.HUMAN),
    (VerdictKind.ACCEPT, Route.AGENT),
    (VerdictKind.SINGLE_LOOK, Route.SINGLE_LOOK),
    (VerdictKind.TEXT_ONLY, Route.TEXT_ONLY),
)


def choose_route(files: Sequence[FileOutcome], *, require_all_files: bool = False) -> RouteDecision:
    """The best route that the usable files allow.

    A rule that asks for a person wins over all; else one good file is enough for the agent. One refused file rejects the
    item only when the profile demands all, or when no usable one is left. An item without files is written from its text.
    """
    if not files:
        return RouteDecision(Route.TEXT_ONLY, None)
    refused = [file for file in files if file.kind is VerdictKind.REJECT]
    if refused and (require_all_files or len(refused) == len(files)):
        return RouteDecision(None, refused[0].file_id)
    for kind, route in _BEST_FIRST:
        for file in files:
            if file.kind is kind:
                return RouteDecision(route, file.file_id)
    raise AssertionError("a usable file has one of the kinds above")
