"""Collect what an item says: its own words, the text read from its files, and the pictures, as its route allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from fallback.route import Capabilities
from fallback.text_only import Brief, Picture, SourceText
from gateway.decision import ScreenedFile
from gateway.item import Item
from gateway.profiles import Profile
from gateway.submission import attribute_text
from gateway.wiring import Services
from prefilters import reading
from prefilters.errors import ProbeError
from prefilters.facts import FactValue
from prefilters.media import MediaKind
from prefilters.probes.cost import LOOK_SIDE
from prefilters.verdict import VerdictKind

log = structlog.get_logger()


def language_of(item: Item, profile: Profile) -> str:
    """The language in which the copy is to be written."""
    return str(item.submission.get("language") or profile.default_language)


def gather(
    services: Services,
    item: Item,
    profile: Profile,
    files: Sequence[ScreenedFile],
    capabilities: Capabilities,
    *,
    read_pictures: bool,
    read_documents: bool = True,
    max_side: int = LOOK_SIDE,
) -> Brief:
    """The brief for one item. Refused files and those that show the same as another are left out.

    So are files that were never screened: workers were lost over them, and a person chose to go on without.
    `read_pictures` adds the text in pictures and their barcodes.
    """
    usable = [file for file in files if file.is_worth_reading and file.record.screening is not None]
    sources: list[SourceText] = []
    pictures: list[Picture] = []
    for file in usable:
        sources.extend(
            _texts(services, item, profile, file, read_pictures=read_pictures, read_documents=read_documents)
        )
        if capabilities.images and file.screening.media.kind is MediaKind.IMAGE:
            pictures.extend(_pictures(services, item, profile, file, max_side))
    sources.extend(
        SourceText("submitter", "answer", told["text"])
        for told in item.submission.get("information", ())
        if told.get("text")
    )
    return Brief(
        language=language_of(item, profile),
        title=item.title,
        text=item.submission.get("text"),
        attributes={name: attribute_text(value) for name, value in item.submission.get("attributes", {}).items()},
        sources=sources,
        pictures=pictures,
    )


def _texts(
    services: Services, item: Item, profile: Profile, file: ScreenedFile, *, read_pictures: bool, read_documents: bool
) -> list[SourceText]:
    kind = file.screening.media.kind
    path = services.blobs.path(item.tenant, file.record.sha256)
    limits = profile.decode_limits
    part = file.record.part
    try:
        if kind is MediaKind.PDF and read_documents:
            read = reading.read_document(services.pool, path, limits)
            return _named(part, read.source.value, read.confident_text)
        if kind is MediaKind.AUDIO and read_documents and file.screening.reading is not None:
            return _named(part, file.screening.reading.source.value, file.screening.reading.confident_text)
        if kind is MediaKind.IMAGE and read_pictures:
            return _picture_texts(services, item, profile, file)
    except ProbeError as error:
        log.warning("item.read_failed", item_id=item.id, file_id=file.record.id, status=error.status.value)
    return []


def _picture_texts(services: Services, item: Item, profile: Profile, file: ScreenedFile) -> list[SourceText]:
    path = services.blobs.path(item.tenant, file.record.sha256)
    found = file.screening.reading
    if file.verdict.kind is VerdictKind.ACCEPT or found is None:
        found = reading.read_picture(services.pool, path, profile.decode_limits)
    texts = _named(file.record.part, found.source.value, found.confident_text)
    for barcode in reading.read_barcodes(services.pool, path, profile.decode_limits):
        texts.extend(_named(file.record.part, "barcode", f"{barcode.format} {barcode.text}"))
    return texts


def _named(part: str, kind: str, text: str) -> list[SourceText]:
    return [SourceText(part, kind, text)] if text.strip() else []


def _pictures(services: Services, item: Item, profile: Profile, file: ScreenedFile, max_side: int) -> list[Picture]:
    """The picture for the model; none where it cannot be decoded any more, such as for want of memory."""
    path = services.blobs.path(item.tenant, file.record.sha256)
    try:
        made = reading.picture_for_model(services.pool, path, profile.decode_limits, max_side=max_side)
    except ProbeError as error:
        log.warning("item.picture_failed", item_id=item.id, file_id=file.record.id, status=error.status.value)
        return []
    return [Picture(file.record.part, "image/jpeg", made.jpeg, made.width, made.height)]


def seen_facts(files: Iterable[ScreenedFile]) -> list[tuple[str, dict[str, FactValue]]]:
    """Per usable file: its part name and its measured facts."""
    return [(file.record.part, dict(file.screening.facts)) for file in files if file.is_worth_reading]
