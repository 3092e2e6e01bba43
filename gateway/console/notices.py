"""What went otherwise than the reviewer wanted, in words that say what is now and what can be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from gateway.console import choices, words
from gateway.console.visit import Visit
from gateway.escalation import EscalationRecord, EscalationStatus
from gateway.review import errors
from gateway.review.errors import ReviewError


@dataclass(frozen=True, slots=True)
class Notice:
    """A message above the case, with the ways on that it offers."""

    kind: str
    """`info`, `warn` or `bad`."""
    title: str
    text: str
    detail: str | None = None
    is_locking: bool = False
    """Whether the form is for reading only from now on; what was written stays in it."""
    offers_claim: bool = False
    offers_reload: bool = False
    offers_reopen: bool = False


def refused(error: ReviewError, visit: Visit, *, chosen: str | None = None) -> Notice:
    """Why the queue did not do what was asked."""
    say = visit.say
    match error:
        case errors.AlreadyResolved():
            return decided(error.record, visit, chosen=chosen)
        case errors.AlreadyClaimed():
            return held(error.record, visit)
        case errors.LeaseLost():
            return lost(error.record, visit)
        case errors.Withdrawn():
            return withdrawn(visit)
        case errors.StaleVersion():
            return Notice(
                "warn",
                say("This case has changed since you opened it."),
                say("Nothing was sent. What you wrote is kept; look at the case again before you decide."),
                offers_reload=True,
            )
        case _:
            return Notice("bad", say("That did not work."), error.public)


def held(record: EscalationRecord, visit: Visit) -> Notice:
    """Somebody else has it; or the submitter has to answer first."""
    say = visit.say
    if record.status is EscalationStatus.WAITING_SUBMITTER:
        return _asked(record, visit)
    return Notice(
        "warn",
        say("{name} has this case.", name=words.who(record.holder, say)),
        say("It is free again at {time} at the latest. You can read it and write; nothing can be sent.",
            time=words.clock(record.lease_expires_ms)),
        is_locking=True,
    )  # fmt: skip


def _asked(record: EscalationRecord, visit: Visit) -> Notice:
    say = visit.say
    question = str((record.resolution or {}).get("question") or "")
    return Notice(
        "info",
        say("The submitter was asked."),
        say("The clock stands still until they answer."),
        question or None,
        is_locking=True,
    )


def lost(record: EscalationRecord, visit: Visit) -> Notice:
    """The lease ended while the reviewer was at it."""
    say = visit.say
    is_taken = record.status is EscalationStatus.CLAIMED and record.holder != visit.holder
    if is_taken:
        title = say("{name} took this case.", name=words.who(record.holder, say))
        return Notice("warn", title, say("Your draft is kept; the form is for reading only."), is_locking=True)
    return Notice(
        "warn",
        say("Your time with this case is over."),
        say("Nobody has it now. Your draft is kept."),
        offers_claim=True,
    )


def withdrawn(visit: Visit) -> Notice:
    """The item ended elsewhere."""
    say = visit.say
    return Notice(
        "info",
        say("Nothing is left to decide."),
        say("The item was cancelled or finished elsewhere while you were reading."),
        is_locking=True,
    )


def decided(record: EscalationRecord, visit: Visit, *, chosen: str | None = None) -> Notice:
    """Somebody, or the clock, was first; with what would have differed."""
    say = visit.say
    resolution = record.resolution or {}
    name = choices.name_of(resolution.get("action"), resolution.get("route"), say)
    by = words.who(resolution.get("by") or record.decided_by, say)
    at = words.clock(resolution.get("at_ms") or record.decided_ms)
    text = say("{what}, by {name} at {time}.", what=name, name=by, time=at)
    wanted = choices.known(chosen or "")
    difference = None
    if wanted is not None:
        mine = say(wanted.label)
        difference = (
            say("You wanted the same.")
            if mine == name
            else say("You wanted: {mine}. Nothing of it was sent.", mine=mine)
        )
    return Notice("info", say("This was decided already."), text, difference, is_locking=True)


def standing(record: EscalationRecord, visit: Visit, *, is_held_by_other: bool, can_reopen: bool) -> Notice | None:
    """What a reader has to know of the case before anything is done."""
    say = visit.say
    match record.status:
        case EscalationStatus.OPEN | EscalationStatus.CLAIMED:
            if is_held_by_other:
                return held(record, visit)
            if record.apply_problem:
                detail = str(record.apply_problem.get("detail") or "")
                return Notice("bad", say("The last decision could not take effect, so the case is open again."), detail)
            if not visit.can_review:
                return Notice("info", say("You are looking only."), say("A reviewer decides here."), is_locking=True)
            return None
        case EscalationStatus.WAITING_SUBMITTER:
            return _asked(record, visit)
        case EscalationStatus.WITHDRAWN:
            return withdrawn(visit)
        case EscalationStatus.EXPIRED:
            text = say("Nobody answered in time, so the rule of its profile was applied. No person decided this.")
            return Notice("info", say("The time ran out."), text, is_locking=True, offers_reopen=can_reopen)
        case EscalationStatus.RESOLVED | EscalationStatus.APPLIED:
            made = decided(record, visit)
            return Notice(made.kind, made.title, made.text, made.detail, is_locking=True, offers_reopen=can_reopen)
        case _:
            assert_never(record.status)
