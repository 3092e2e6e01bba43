"""Decisions that begin a new attempt: on another route, or on the same one."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from fallback.route import Route
from gateway.escalation import EscalationRecord, needs_override
from gateway.item import Item
from gateway.profiles import Profile
from gateway.resolution.decisions import Reroute, Retry
from gateway.resolution.goes_on import known_tools
from gateway.resolution.moves import Reviewer, advice, begin_attempt
from gateway.resolution.refusals import NotAllowed, WrongField, check_tools


def reroute(connection: Connection, item: Item, profile: Profile | None, reviewer: Reviewer, decision: Reroute) -> None:
    """A new attempt on the route that was chosen."""
    check_tools(decision.ban_tools, known_tools(profile))
    begin_attempt(
        connection,
        item,
        reviewer,
        action="reroute",
        route=decision.route,
        reason=decision.note,
        moved_because=f"rerouted:{decision.route}",
        guidance=None if decision.guidance is None else advice(decision.guidance),
        ban_tools=tuple(decision.ban_tools),
    )


def retry(
    connection: Connection,
    item: Item,
    profile: Profile | None,
    reviewer: Reviewer,
    record: EscalationRecord,
    decision: Retry,
) -> None:
    """A new attempt on the same route, with a fresh budget. Refused where the same rules would stop it again."""
    why = needs_override(record)
    is_same = profile is None or profile.version == item.profile_version
    if why is not None and is_same and not decision.override:
        raise NotAllowed(why["en"], fields=[WrongField("/override", "needs_override", why["en"])])
    # A rule asked for a person before any agent ran: trying again means to do what it kept from happening.
    route = Route.AGENT.value if item.route == Route.HUMAN.value else item.route
    values = {} if profile is None else {"profile_version": profile.version}
    begin_attempt(
        connection,
        item,
        reviewer,
        action="retry",
        route=route,
        reason=decision.reason,
        moved_because="retried",
        values=values,
    )
