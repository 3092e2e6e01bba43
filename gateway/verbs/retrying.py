"""A new attempt at an item that ended: by its caller, or, where a rule had refused it, by a person who overrides that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from fallback.route import Route
from gateway.decision import ScreenedFile, file_problem
from gateway.item import Item, Status
from gateway.profiles import Profile
from gateway.resolution import ItemMoved, Reviewer, begin_attempt, check_tools, record_verb
from gateway.resolution.goes_on import known_tools
from gateway.store import items as item_store
from gateway.verbs.allowed import RETRYABLE, StateConflict
from prefilters.screening import Screening

OVERRIDABLE = frozenset({"low_resolution", "extreme_aspect", "too_short", "rule", "sparse_text", "very_blurry"})
"""Codes of refusals by judgement: the file can be read, so a person may decide otherwise."""
_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Retry:
    """What a caller wants."""

    reason: str
    route: str | None = None
    ban_tools: tuple[str, ...] = ()
    guidance: str | None = None
    budget: Mapping[str, Any] | None = None
    override: bool = False
    """Use what was refused all the same."""


@dataclass(frozen=True, slots=True)
class _Override:
    """A refusal that is set aside."""

    decision: Mapping[str, Any]
    files: Sequence[str] = field(default=())
    route: str | None = None


def retry(connection: Connection, item: Item, profile: Profile, wanted: Retry, *, actor: str, advised_by: str) -> None:
    """Begin the next attempt. Raises `StateConflict`, and `NotAllowed` for an unknown tool.

    `advised_by` is how the agent is told whose `guidance` it is.
    """
    if item.status not in RETRYABLE or item.superseded_by is not None:
        raise StateConflict(_why_not(item), item)
    check_tools(wanted.ban_tools, known_tools(profile))
    route = wanted.route or (None if item.route == Route.HUMAN.value else item.route)
    values: dict[str, Any] = {"cancel_requested_ms": None, "profile_version": profile.version}
    if item.status is Status.REJECTED:
        override = _override(connection, item, wanted, actor=actor)
        route = wanted.route or override.route
        values["decision"] = dict(override.decision)
        for file_id in override.files:
            item_store.override_file(connection, file_id, _by(connection, wanted, actor))
    if item.expires_ms is not None:
        days = item.submission.get("retention_days") or profile.retention_days
        kept_ms = item.expires_ms - item.created_ms if days is None else int(days) * _DAY_MS
        values["expires_ms"] = max(item.expires_ms, item_store.now_ms(connection) + kept_ms)
    try:
        begin_attempt(
            connection,
            item,
            Reviewer(actor),
            action="retry",
            route=route,
            reason=wanted.reason,
            moved_because="overridden" if item.status is Status.REJECTED else "retried",
            guidance=None if wanted.guidance is None else f"{advised_by}: {wanted.guidance}",
            ban_tools=wanted.ban_tools,
            budget=wanted.budget,
            expected=item.status,
            values=values,
        )
    except ItemMoved:
        latest = item_store.get(connection, item.id)
        raise StateConflict("The item changed at the same moment. Read it again.", latest or item) from None
    body = {"reason": wanted.reason, "route": route, "override": wanted.override, "from": item.status.value}
    record_verb(
        connection,
        tenant=item.tenant,
        item_id=item.id,
        action="override" if item.status is Status.REJECTED else "retry",
        actor=actor,
        body=body,
    )


def _why_not(item: Item) -> str:
    if item.superseded_by is not None:
        return f"The item was replaced by {item.superseded_by}; work on that one."
    if item.status is Status.AWAITING_HUMAN:
        return "The item waits for a person; resolve its escalation."
    return f"The item is {item.status.value}; only one that ended without a result can be tried again."


def _override(connection: Connection, item: Item, wanted: Retry, *, actor: str) -> _Override:
    """What has to be set aside so that a refused item is worked on. Raises `StateConflict` where that is impossible."""
    decision = item.decision or {}
    problem = decision.get("problem") or {}
    overridden = {**_by(connection, wanted, actor), "code": problem.get("code"), "problem": problem or None}
    verdict = {"verdict": "accept", "problem": None, "reason": None, "overridden": overridden}
    if not wanted.override:
        raise StateConflict(
            f"The item was rejected ({problem.get('code') or item.reason}). Send `override: true` to try it all the same.",
            item,
        )
    refused = [file for file in _screened(item) if file.is_refused]
    usable = [file for file in _screened(item) if not file.is_refused]
    open_again = [file for file in refused if (file_problem(file) or {}).get("code") in OVERRIDABLE]
    if item.files and wanted.route != Route.TEXT_ONLY.value and not usable and not open_again:
        code = problem.get("code") or "refused"
        raise StateConflict(
            f"No file of the item can be read ({code}), so there is nothing to override. Send new files in a new item with "
            f"`supersedes: {item.id}`, or choose the route text_only.",
            item,
        )
    has_files = bool(usable or open_again)
    route = item.route if item.route not in {None, Route.HUMAN.value} else None
    return _Override(
        {**decision, **verdict},
        [file.record.id for file in open_again],
        route or (Route.AGENT.value if has_files else Route.TEXT_ONLY.value),
    )


def _screened(item: Item) -> list[ScreenedFile]:
    return [
        ScreenedFile(file, Screening.from_json(file.screening)) for file in item.files if file.screening is not None
    ]


def _by(connection: Connection, wanted: Retry, actor: str) -> dict[str, Any]:
    return {"by": actor, "at_ms": item_store.now_ms(connection), "reason": wanted.reason}
