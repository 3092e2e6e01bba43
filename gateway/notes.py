"""Notes on an item's files that no file's own facts can tell: the same photo twice, or too small for a marketplace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from gateway.decision import DUPLICATE, ScreenedFile
from gateway.item import Item
from gateway.profiles import Profile
from gateway.wiring import Services
from prefilters import reading
from prefilters.errors import ProbeError
from prefilters.facts import Stage
from prefilters.media import MediaKind
from prefilters.verdict import Check, CheckOutcome, Effect, VerdictKind

log = structlog.get_logger()

NEAR_BITS = 8
"""Of 64 by which the perceptual hashes of two photos may differ before they are compared in full. Over the samples,
re-encoding and resizing change 2, and different photos differ by 22 and more."""
_MINIMUM = "marketplace_minimum"


def with_notes(services: Services, item: Item, profile: Profile, files: Sequence[ScreenedFile]) -> list[ScreenedFile]:
    """The files with the notes of this item and profile in their verdicts, which stay what they are."""
    return [_with_minimums(file, profile) for file in _with_duplicates(services, item, profile, files)]


def _with_duplicates(
    services: Services, item: Item, profile: Profile, files: Sequence[ScreenedFile]
) -> list[ScreenedFile]:
    """Of files that show the same, the most useful one stays as it is; the others are noted and not looked at again."""
    kept: list[ScreenedFile] = []
    noted: dict[str, ScreenedFile] = {}
    for file in sorted(files, key=_usefulness):
        if file.is_refused:
            continue
        original = next((other for other in kept if _is_same(services, item, profile, other, file)), None)
        if original is None:
            kept.append(file)
        else:
            noted[file.record.id] = _with_note(file, _duplicate_of(original))
    return [noted.get(file.record.id, file) for file in files]


def _usefulness(file: ScreenedFile) -> tuple[bool, int]:
    """Smallest first: what is accepted, then what has most pixels; equals stay in the order of the item."""
    return file.verdict.kind is not VerdictKind.ACCEPT, -int(file.screening.facts.get("image.pixels", 0))


def _is_same(services: Services, item: Item, profile: Profile, one: ScreenedFile, other: ScreenedFile) -> bool:
    if one.record.sha256 == other.record.sha256:
        return True
    hashes = [file.screening.facts.get("image.phash") for file in (one, other)]
    if not all(isinstance(found, str) for found in hashes):
        return False
    if (int(str(hashes[0]), 16) ^ int(str(hashes[1]), 16)).bit_count() > NEAR_BITS:
        return False
    paths = [services.blobs.path(item.tenant, file.record.sha256) for file in (one, other)]
    try:
        return reading.is_same_picture(services.pool, paths[0], paths[1], profile.decode_limits)
    except ProbeError as error:
        log.warning("item.comparison_failed", item_id=item.id, file_id=other.record.id, status=error.status.value)
        return False


def _duplicate_of(original: ScreenedFile) -> Check:
    return Check(
        rule="item.duplicate_file",
        code=DUPLICATE,
        stage=Stage.PIXELS,
        effect=Effect.NOTE,
        outcome=CheckOutcome.WARN,
        fact=None,
        value=original.record.part,
        limit=None,
        passes_when=f"it shows something else than {original.record.part}",
    )


def _with_minimums(file: ScreenedFile, profile: Profile) -> ScreenedFile:
    if file.screening.media.kind is not MediaKind.IMAGE or file.is_refused:
        return file
    for minimum in profile.marketplace_minimums:
        for fact, needed in (("image.short_side", minimum.short_side), ("image.long_side", minimum.long_side)):
            measured = file.screening.facts.get(fact)
            if needed is not None and isinstance(measured, int) and measured < needed:
                check = Check(
                    rule=f"profile.marketplace_minimum.{minimum.name}",
                    code=_MINIMUM,
                    stage=Stage.HEADER,
                    effect=Effect.NOTE,
                    outcome=CheckOutcome.WARN,
                    fact=fact,
                    value=measured,
                    limit=needed,
                    passes_when=f"{fact} >= {needed} ({minimum.label}, as of {minimum.as_of.isoformat()})",
                )
                file = _with_note(file, check)
    return file


def _with_note(file: ScreenedFile, check: Check) -> ScreenedFile:
    verdict = file.verdict
    if any(known.rule == check.rule and known.fact == check.fact for known in verdict.checks):
        return file  # an item that is looked at again has it from the last time
    notes = verdict.notes if check.code in verdict.notes else (*verdict.notes, check.code)
    verdict = replace(verdict, notes=notes, checks=(*verdict.checks, check))
    return replace(file, screening=replace(file.screening, verdict=verdict))
