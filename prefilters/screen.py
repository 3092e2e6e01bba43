"""One file in, one verdict out: measure the cheap things first, judge, and stop as soon as the verdict stands."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import FactValue, Stage
from prefilters.limits import DecodeLimits
from prefilters.media import Media, MediaKind, sniff_file, type_mismatch
from prefilters.messages import with_words
from prefilters.pool import Bulkhead, DecoderPool
from prefilters.probes import tasks
from prefilters.probes.image_header import header as image_header
from prefilters.probes.tasks import Findings
from prefilters.probes.text import text_facts
from prefilters.rules import RuleSet, evaluate
from prefilters.screening import Screening
from prefilters.transcript import Transcriber, TranscriptionFailed

__all__ = ["Screening", "screen"]

_log = logging.getLogger(__name__)


def screen(
    path: Path,
    *,
    rules: RuleSet,
    pool: DecoderPool,
    limits: DecodeLimits,
    declared_type: str | None = None,
    file_name: str | None = None,
    through: Stage = Stage.TEXT,
    known: Screening | None = None,
    transcriber: Transcriber | None = None,
) -> Screening:
    """The verdict on the file at `path`, measuring no further than it takes, and not beyond stage `through`.

    `declared_type` and `file_name` are what the sender says; neither is believed. With `known`, the outcome of an
    earlier call, nothing is measured twice. Sniffing and an image's header run here, in well under a millisecond;
    everything else in a child of `pool`. Recordings with speech in them are written down by `transcriber`. What a file
    does wrong is part of the verdict; only what is not its fault is raised (`OSError` where it cannot be read,
    `ImportError`, `PoolClosed`).
    """
    found = known or _sniffed(path, rules, declared_type, file_name)
    found = _judged(found, rules)
    for stage in (Stage.HEADER, Stage.PIXELS, Stage.TEXT):
        if found.verdict.decided or stage > through:
            break
        if stage > found.measured:
            found = _judged(_measured(found, stage, path, rules, pool, limits, transcriber), rules)
    return replace(found, verdict=with_words(found.verdict, rules, found.facts, found.media, file_name))


def _sniffed(path: Path, rules: RuleSet, declared_type: str | None, file_name: str | None) -> Screening:
    started = time.perf_counter()
    media = sniff_file(path)
    facts: dict[str, FactValue] = {
        "file.bytes": os.path.getsize(path),
        "media.kind": media.kind.value,
        "media.format": media.format,
        "media.supported": media.supported,
        "media.type_mismatch": type_mismatch(media, declared_type, file_name),
    }
    verdict = evaluate(facts, rules, through=Stage.SNIFF)
    return Screening(media, facts, verdict, timings_ms={"sniff": _ms_since(started)})


def _measured(
    found: Screening,
    stage: Stage,
    path: Path,
    rules: RuleSet,
    pool: DecoderPool,
    limits: DecodeLimits,
    transcriber: Transcriber | None,
) -> Screening:
    """`found` with the facts of `stage`; what goes wrong becomes the fact `decode.status`, for a rule to judge."""
    started = time.perf_counter()
    try:
        findings = _probe(stage, path, found.media, rules, pool, limits)
        if transcriber is not None and float(findings.facts.get("audio.speech_s", 0)) >= _min_speech_s(rules):
            findings = _written_down(findings, transcriber, path, limits)
    except ProbeError as exc:
        findings = Findings({"decode.status": exc.status.value})
    return replace(
        found,
        facts={**found.facts, **findings.facts},
        reading=findings.reading or found.reading,
        timings_ms={**found.timings_ms, stage.name.lower(): _ms_since(started)},
        measured=stage,
    )


def _probe(stage: Stage, path: Path, media: Media, rules: RuleSet, pool: DecoderPool, limits: DecodeLimits) -> Findings:
    """The findings of one stage for one kind of media. Raises `ProbeError`."""
    if stage is Stage.HEADER and media.kind is MediaKind.IMAGE:
        return Findings(image_header(path, media, limits))
    if stage is Stage.HEADER and media.kind is MediaKind.PDF:
        return Findings({})  # a PDF has no header worth the name: its index stands at its end
    wall_s = limits.decode_wall_s
    if stage is Stage.HEADER:
        return pool.run(tasks.read_header, path, media, limits, wall_s=wall_s)
    if stage is Stage.PIXELS:
        findings = pool.run(tasks.decode, path, media, limits, wall_s=wall_s)
        return replace(findings, facts={"decode.status": DecodeStatus.OK.value, **findings.facts})
    min_tokens = int(rules.parameters["min_text_tokens"])
    if media.kind is MediaKind.PDF:
        by_layer = pool.run(tasks.read_text_layer, path, limits, min_tokens, wall_s=wall_s)
        if by_layer is not None:  # most documents need no OCR, and then do not wait behind those that do
            return by_layer
    return pool.run(tasks.read_text, path, media, limits, min_tokens, bulkhead=Bulkhead.OCR, wall_s=wall_s)


def _min_speech_s(rules: RuleSet) -> float:
    return float(rules.parameters["min_speech_s"])


def _written_down(findings: Findings, transcriber: Transcriber, path: Path, limits: DecodeLimits) -> Findings:
    """Where nothing can be written down now, the recording is judged as it would be without a transcriber, and noted."""
    try:
        reading = transcriber.transcribe(path, limits)
    except (TranscriptionFailed, ProbeError) as exc:
        _log.warning("screen.transcription_failed", extra={"transcriber": transcriber.name, "cause": str(exc)})
        return replace(findings, facts={**findings.facts, "audio.transcribed": False})
    return Findings({**findings.facts, **text_facts(reading), "audio.transcribed": True}, reading)


def _judged(found: Screening, rules: RuleSet) -> Screening:
    started = time.perf_counter()
    verdict = evaluate(found.facts, rules, through=found.measured)
    spent = found.timings_ms.get("rules", 0.0) + _ms_since(started)
    return replace(found, verdict=verdict, timings_ms={**found.timings_ms, "rules": round(spent, 3)})


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
