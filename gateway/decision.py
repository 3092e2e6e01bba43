"""From the verdicts on an item's files to one decision: the route, and why, in a form that is stored and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fallback.route import FileOutcome, Route, RouteDecision, choose_route
from gateway.agent.prices import Prices
from gateway.item import FileRecord
from gateway.profiles import Profile
from prefilters import messages
from prefilters.screening import Screening
from prefilters.verdict import Verdict, VerdictKind

DUPLICATE = "duplicate_file"
OVERRIDDEN = "overridden"
_VERDICT_OF_ROUTE = {
    Route.AGENT: "accept",
    Route.SINGLE_LOOK: "single_look",
    Route.TEXT_ONLY: "text_only",
    Route.HUMAN: "human",
}


@dataclass(frozen=True, slots=True)
class ScreenedFile:
    """One file with what was measured of it and decided about it."""

    record: FileRecord
    screening: Screening

    @property
    def verdict(self) -> Verdict:
        """The verdict on this file so far; a person's word counts more than a rule's."""
        if self.record.overridden is None:
            return self.screening.verdict
        found = self.screening.verdict
        return replace(found, kind=VerdictKind.ACCEPT, decided=True, notes=(*found.notes, OVERRIDDEN))

    @property
    def is_refused(self) -> bool:
        """Whether it is of no use at all."""
        return self.verdict.kind is VerdictKind.REJECT

    @property
    def is_worth_reading(self) -> bool:
        """Whether it is usable and shows more than another file of the item does."""
        return not self.is_refused and DUPLICATE not in self.verdict.notes

    @property
    def is_decided(self) -> bool:
        """Whether no dearer probe could change it."""
        return self.screening.verdict.decided


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of an item, and the document that explains it to a caller."""

    route: RouteDecision
    document: Mapping[str, Any]

    @property
    def is_rejected(self) -> bool:
        """Nothing further is started."""
        return self.route.route is None

    @property
    def code(self) -> str | None:
        """The code of the verdict that decided."""
        problem = self.document["problem"] or self.document["reason"]
        return None if problem is None else str(problem["code"])


def is_settled_by_edge(files: Sequence[ScreenedFile], profile: Profile) -> bool:
    """Whether the verdicts so far already reject the item, whatever the undecided files would turn out to be."""
    refused = [file for file in files if file.verdict.kind is VerdictKind.REJECT and file.is_decided]
    if not refused:
        return False
    return profile.require_all_files or len(refused) == len(files)


def decide(files: Sequence[ScreenedFile], profile: Profile, prices: Prices, *, ruleset: str) -> Decision:
    """The decision on an item whose files are all screened (or that is already rejected by the first ones)."""
    outcomes = [FileOutcome(file.record.id, file.verdict.kind) for file in files]
    route = choose_route(outcomes, require_all_files=profile.require_all_files)
    deciding = next((file for file in files if file.record.id == route.deciding_file), None)
    explained = None if deciding is None else file_problem(deciding)
    rejected = route.route is None
    document: dict[str, Any] = {
        "verdict": "reject" if route.route is None else _VERDICT_OF_ROUTE[route.route],
        "stage": _stage(deciding),
        "ruleset": ruleset if deciding is None else deciding.verdict.ruleset,
        "problem": explained if rejected else None,
        "reason": None if rejected else explained,
        "notes": [{"file": file.record.id, "code": code} for file in files for code in file.verdict.notes],
        "saved": _saved(files, route, profile, prices),
    }
    return Decision(route, document)


def file_problem(file: ScreenedFile) -> dict[str, Any] | None:
    """The problem object of one file, for a refusal and for a detour alike; None for an accepted file."""
    verdict = file.verdict
    if verdict.code is None or verdict.kind is VerdictKind.ACCEPT:
        return None
    return {
        "type": f"/problems/{verdict.code}",
        "code": verdict.code,
        "title": messages.title(verdict.code)["en"],
        "user_message": messages.told(verdict),
        "file": file.record.id,
        "part": file.record.part,
        "file_name": file.record.file_name,
        "measured": dict(verdict.measured),
        "limit": dict(verdict.limit),
        "rule": verdict.rule,
        "next": None if verdict.next is None else verdict.next.value,
        "fix": dict(verdict.fix),
    }


def _stage(deciding: ScreenedFile | None) -> str:
    """`edge` for what the cheap rules decided, `text` where reading was needed; `none` for an item without files."""
    if deciding is None:
        return "none"
    return "text" if deciding.verdict.stage.name == "TEXT" else "edge"


def _saved(
    files: Sequence[ScreenedFile], route: RouteDecision, profile: Profile, prices: Prices
) -> Mapping[str, Any] | None:
    if route.route is Route.AGENT or not files:
        return None
    spent = route.capabilities.max_requests or 0
    return prices.saved(profile, [file.screening.facts for file in files], spent_requests=spent)
