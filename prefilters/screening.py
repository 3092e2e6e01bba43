"""What is known about one file so far: the facts, the verdict on them, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from prefilters.facts import FactValue, Stage
from prefilters.media import Media, MediaKind
from prefilters.probes.text import TextReading
from prefilters.verdict import Check, CheckOutcome, Effect, Next, Verdict, VerdictKind


@dataclass(frozen=True, slots=True)
class Screening:
    """The outcome of `screen`. A later call takes it as `known` and goes on from there."""

    media: Media
    facts: Mapping[str, FactValue]
    verdict: Verdict
    reading: TextReading | None = None
    """The text that was read on the way, at depth `gate`; None where nothing was."""
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds per stage, and of the rules together."""
    measured: Stage = Stage.SNIFF
    """The dearest stage that was measured."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives the same screening back."""
        return {
            "media": {**asdict(self.media), "kind": self.media.kind.value},
            "facts": dict(self.facts),
            "verdict": _verdict_to_json(self.verdict),
            "reading": self.reading.to_json() if self.reading else None,
            "timings_ms": dict(self.timings_ms),
            "measured": self.measured.name.lower(),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Screening:
        """The screening that `to_json` wrote. Raises `KeyError`, `TypeError` or `ValueError` on anything else."""
        return cls(
            media=Media(**{**raw["media"], "kind": MediaKind(raw["media"]["kind"])}),
            facts=dict(raw["facts"]),
            verdict=_verdict_from_json(raw["verdict"]),
            reading=TextReading.from_json(raw["reading"]) if raw["reading"] else None,
            timings_ms=dict(raw["timings_ms"]),
            measured=_stage(raw["measured"]),
        )


def _stage(name: str) -> Stage:
    return Stage[name.upper()]


def _verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    checks = [{**asdict(check), "stage": check.stage.name.lower()} for check in verdict.checks]
    return {**asdict(verdict), "stage": verdict.stage.name.lower(), "notes": list(verdict.notes), "checks": checks}


def _verdict_from_json(raw: Mapping[str, Any]) -> Verdict:
    typed = {
        "kind": VerdictKind(raw["kind"]),
        "stage": _stage(raw["stage"]),
        "next": Next(raw["next"]) if raw["next"] else None,
        "notes": tuple(raw["notes"]),
        "checks": tuple(_check_from_json(check) for check in raw["checks"]),
    }
    return Verdict(**{**raw, **typed})


def _check_from_json(raw: Mapping[str, Any]) -> Check:
    typed = {
        "stage": _stage(raw["stage"]),
        "effect": Effect(raw["effect"]),
        "outcome": CheckOutcome(raw["outcome"]),
    }
    return Check(**{**raw, **typed})
