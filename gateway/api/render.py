"""Items, files, events and profiles as JSON, in the words of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from gateway.decision import ScreenedFile, file_problem
from gateway.item import FileRecord, Item, Status
from gateway.profiles import Profile
from prefilters.screening import Screening
from prefilters.verdict import CheckOutcome


def timestamp(ms: int | None) -> str | None:
    """RFC 3339, UTC, with milliseconds."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def language_of(accept_language: str | None) -> str:
    """`zh` or `en`, whichever the header prefers; English when it says neither."""
    ranked: list[tuple[float, int, str]] = []
    for position, token in enumerate((accept_language or "").split(",")[:20]):
        tag, _, parameter = token.strip().partition(";")
        primary = tag.split("-")[0].lower()
        if primary in {"en", "zh"}:
            ranked.append((-_weight(parameter), position, primary))
    return min(ranked)[2] if ranked else "en"


def _weight(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 1.0


def item_json(item: Item, *, language: str) -> dict[str, Any]:
    """An item as its owner sees it."""
    base = f"/v1/items/{item.id}"
    return {
        "id": item.id,
        "external_id": item.external_id,
        "status": item.status.value,
        "reason": item.reason,
        "version": item.version,
        "mode": item.mode.value,
        "profile": item.profile,
        "profile_version": item.profile_version,
        "route": item.route,
        "attempt": item.attempt,
        "claims": item.claims,
        "title": item.title,
        "language": item.submission.get("language"),
        "attributes": item.submission.get("attributes", {}),
        "metadata": item.submission.get("metadata", {}),
        "notes": list(item.notes),
        "decision": decision_json(item.decision, language),
        "files": [file_json(record, language=language) for record in item.files],
        "result": item.result,
        "failure": item.failure,
        "usage": asdict(item.usage),
        "escalation": item.escalation_id,
        "duplicate_of": item.duplicate_of,
        "supersedes": item.supersedes,
        "superseded_by": item.superseded_by,
        "attempts": attempts_json(item),
        "effects": [
            {"tool": effect.tool, "arguments": effect.arguments, "step": effect.seq, "at": timestamp(effect.at_ms)}
            for effect in item.effects
        ],
        "info_requested": _inquiry_json(item),
        "links": {
            "self": base,
            "events": f"{base}/events",
            "explanation": f"{base}/explanation",
            "llm_payload": f"{base}/llm-payload",
            "artifacts": f"{base}/artifacts",
        },
        "created_at": timestamp(item.created_ms),
        "updated_at": timestamp(item.updated_ms),
        "expires_at": timestamp(item.expires_ms),
        "purged_at": timestamp(item.purged_ms),
    }


def attempts_json(item: Item) -> list[dict[str, Any]]:
    """All attempts, the first one first: who began each and why, and where each ended; None at the current one.

    Lists, which do not look the later attempts up, show none.
    """
    if item.attempt > 1 and not item.attempts:
        return []
    shown: list[dict[str, Any]] = [
        {
            "attempt": 1,
            "action": "submit",
            "by": None,
            "reason": None,
            "route": item.route,
            "budget": item.submission.get("budget"),
            "started_at": timestamp(item.created_ms),
            "ended": None,
        }
    ]
    for attempt in item.attempts:
        before = attempt.before
        shown[-1]["route"] = before.get("route")
        shown[-1]["ended"] = {
            "status": before.get("status"), "reason": before.get("reason"), "at": timestamp(attempt.started_ms),
        }  # fmt: skip
        shown.append(
            {
                "attempt": attempt.number,
                "action": attempt.action,
                "by": attempt.actor,
                "reason": attempt.reason,
                "route": item.route if attempt.number == item.attempt else attempt.route,
                "budget": attempt.budget,
                "started_at": timestamp(attempt.started_ms),
                "ended": None,
            }
        )
    return shown


def _inquiry_json(item: Item) -> dict[str, Any] | None:
    """What the submitter is asked."""
    if item.inquiry is None:
        return None
    return {"question": item.inquiry["question"], "until": timestamp(item.inquiry["until_ms"])}


def _overridden_json(overridden: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Who used a file, or an item, that a rule refuses."""
    if overridden is None:
        return None
    return {"by": overridden["by"], "at": timestamp(overridden["at_ms"]), "reason": overridden["reason"]}


def decision_json(decision: Mapping[str, Any] | None, language: str) -> dict[str, Any] | None:
    """The decision, with `fix` in the caller's language."""
    if decision is None:
        return None
    return {
        **decision,
        "problem": problem_json(decision.get("problem"), language),
        **({"overridden": _set_aside_json(decision["overridden"], language)} if decision.get("overridden") else {}),
        "reason": problem_json(decision.get("reason"), language),
    }


def _set_aside_json(overridden: Mapping[str, Any], language: str) -> dict[str, Any]:
    """A refusal that a person has set aside, with what it had said."""
    problem = problem_json(overridden.get("problem"), language)
    return {**(_overridden_json(overridden) or {}), "code": overridden.get("code"), "problem": problem}


def problem_json(problem: Mapping[str, Any] | None, language: str) -> dict[str, Any] | None:
    """A file's problem: `user_message` in both languages, `fix` in the caller's."""
    if problem is None:
        return None
    fix = problem["fix"]
    return {**problem, "fix": fix.get(language) or fix.get("en")}


def screened(record: FileRecord) -> ScreenedFile | None:
    """The record with its stored screening; None before anything was measured."""
    if record.screening is None:
        return None
    return ScreenedFile(record, Screening.from_json(record.screening))


def file_json(record: FileRecord, *, language: str) -> dict[str, Any]:
    """One file with its verdict, the checks that were made, and what is wrong with it."""
    file = screened(record)
    facts = {} if file is None else dict(file.screening.facts)
    return {
        "id": record.id,
        "part": record.part,
        "role": record.role,
        "file_name": record.file_name,
        "sha256": record.sha256,
        "media_type": record.media_type,
        "bytes": record.bytes,
        "width": facts.get("image.width"),
        "height": facts.get("image.height"),
        "verdict": file.verdict.kind.value if file is not None and file.is_decided else None,
        "overridden": _overridden_json(record.overridden),
        "problem": None if file is None or not file.is_decided else problem_json(file_problem(file), language),
        "notes": [] if file is None else list(file.verdict.notes),
        "checks": [] if file is None else checks_json(file),
        "facts": facts,
        "timings_ms": {} if file is None else dict(file.screening.timings_ms),
    }


def checks_json(file: ScreenedFile) -> list[dict[str, Any]]:
    """The rules that were held against this file; those whose facts are unknown are left out."""
    return [
        {
            "rule": check.rule,
            "code": check.code,
            "outcome": check.outcome.value,
            "fact": check.fact,
            "value": check.value,
            "limit": check.limit,
        }
        for check in file.verdict.checks
        if check.outcome is not CheckOutcome.UNKNOWN
    ]


def explanation_json(item: Item, history: list[sa.Row[Any]], *, language: str) -> dict[str, Any]:
    """Why the item is where it is: each rule in order with measured value, threshold, effect and what would have passed."""
    steps = []
    for record in item.files:
        file = screened(record)
        if file is None:
            continue
        for check in file.verdict.checks:
            steps.append(
                {
                    "file": record.id,
                    "part": record.part,
                    "stage": check.stage.name.lower(),
                    "rule": {"id": check.rule, "ruleset": file.verdict.ruleset},
                    "code": check.code,
                    "outcome": check.outcome.value,
                    "fact": check.fact,
                    "measured": check.value,
                    "threshold": check.limit,
                    "effect": check.effect.value if check.outcome is not CheckOutcome.PASS else None,
                    "decided": check.rule == file.verdict.rule,
                    "overridden": _overridden_json(record.overridden) if check.rule == file.verdict.rule else None,
                    "would_pass_if": check.passes_when or None,
                }
            )
    return {
        "item": item.id,
        "status": item.status.value,
        "route": item.route,
        "decision": decision_json(item.decision, language),
        "steps": steps,
        "counterfactuals": [
            {"part": step["part"], "code": step["code"], "would_pass_if": step["would_pass_if"]}
            for step in steps
            if step["decided"] and step["would_pass_if"]
        ],
        "history": [
            {
                "at": timestamp(row.at_ms),
                "from": row.from_status,
                "to": row.to_status,
                "version": row.version,
                "actor": row.actor,
                "reason": row.reason,
            }
            for row in history
        ],
    }


def event_json(row: sa.Row[Any]) -> dict[str, Any]:
    """One event, thin: ids, status and reason, no content."""
    return {
        "id": row.id,
        "seq": row.seq,
        "type": row.type,
        "timestamp": timestamp(row.at_ms),
        "resource": row.resource,
        "resource_version": row.resource_version,
        "data": row.data,
    }


def profile_json(profile: Profile) -> dict[str, Any]:
    """A profile as a caller may see it: limits, budget, policies and the schema of its output."""
    return profile.model_dump(mode="json", exclude={"prompt"})


def strict_problem(item: Item, *, language: str, request_id: str) -> dict[str, Any]:
    """The problem document of a rejected item for a caller who asked for one error path."""
    assert item.decision is not None
    problem = problem_json(item.decision["problem"], language) or {}
    message = problem.get("user_message", {})
    return {
        **problem,
        "status": 422,
        "detail": message.get(language) or message.get("en") or "The item was rejected.",
        "retryable": problem.get("next") == "retry",
        "instance": f"/v1/items/{item.id}",
        "request_id": request_id,
        "item_id": item.id,
        "saved": item.decision.get("saved"),
    }


def is_over(status: Status) -> bool:
    """Whether events of this item end here."""
    return status in {Status.SUCCEEDED, Status.REJECTED, Status.READY, Status.FAILED, Status.CANCELLED, Status.EXPIRED}
