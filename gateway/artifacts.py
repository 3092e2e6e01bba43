"""What can be made of an item's files for looking at: pictures rebuilt from pixels, and the text that was read.

Nothing is stored: each is made anew in the decoders' pool when it is asked for, from a file that never changes, so its
content hash never changes either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from gateway.decision import ScreenedFile
from gateway.item import Item
from gateway.profiles import Profile
from gateway.wiring import Services
from prefilters import reading
from prefilters.media import MediaKind
from prefilters.probes.text import Source, TextReading

MOST_PAGES = 20
"""Pages of a document that can be looked at."""
NORMALIZED_SIDE = 2048
THUMBNAIL_SIDE = 320
PAGE_SIDE = 1600
"""Pixels of the long side."""
_JPEG = "image/jpeg"
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


class ArtifactKind(StrEnum):
    """What it shows."""

    NORMALIZED_IMAGE = "normalized_image"
    """The picture as it was judged: upright, in sRGB, without metadata."""
    THUMBNAIL = "thumbnail"
    OCR_TEXT = "ocr_text"
    OCR_WORDS = "ocr_words"
    """The words with their confidence and their boxes, in fractions of the upright picture."""
    PDF_TEXT = "pdf_text"
    """What a person sees of a document's text."""
    PAGE_IMAGE = "page_image"
    TRANSCRIPT = "transcript"
    EXIF_SUMMARY = "exif_summary"
    """What the metadata says; of the place only whether there is one."""


MEDIA_TYPES = {
    ArtifactKind.NORMALIZED_IMAGE: _JPEG,
    ArtifactKind.THUMBNAIL: _JPEG,
    ArtifactKind.OCR_TEXT: _TEXT,
    ArtifactKind.OCR_WORDS: _JSON,
    ArtifactKind.PDF_TEXT: _TEXT,
    ArtifactKind.PAGE_IMAGE: _JPEG,
    ArtifactKind.TRANSCRIPT: _TEXT,
    ArtifactKind.EXIF_SUMMARY: _JSON,
}
_OF_PICTURES = (
    ArtifactKind.NORMALIZED_IMAGE,
    ArtifactKind.THUMBNAIL,
    ArtifactKind.OCR_TEXT,
    ArtifactKind.OCR_WORDS,
    ArtifactKind.EXIF_SUMMARY,
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """One thing that can be made of one file."""

    kind: ArtifactKind
    file: ScreenedFile
    page: int | None = None
    """From 1, of a document."""

    @property
    def id(self) -> str:
        """Opaque to callers: the file's id without its prefix, what it shows, and the page."""
        suffix = "" if self.page is None else f"_{self.page}"
        return f"art_{self.file.record.id.removeprefix('fil_')}_{self.kind.value}{suffix}"

    @property
    def media_type(self) -> str:
        """Of its content."""
        return MEDIA_TYPES[self.kind]

    @property
    def file_name(self) -> str:
        """A name to save it under, made of nothing that a stranger wrote."""
        ending = {_JPEG: "jpg", _TEXT: "txt", _JSON: "json"}[self.media_type]
        page = "" if self.page is None else f"-{self.page}"
        return f"{self.file.record.id}-{self.kind.value}{page}.{ending}"


def artifacts_of(files: Sequence[ScreenedFile]) -> list[Artifact]:
    """All that can be made of an item's files. Of a refused file nothing is: it may be what no decoder should open again."""
    return [artifact for file in files if not file.is_refused for artifact in _of_file(file)]


def _of_file(file: ScreenedFile) -> Iterator[Artifact]:
    kind = file.screening.media.kind
    if kind is MediaKind.IMAGE:
        yield from (Artifact(each, file) for each in _OF_PICTURES)
    elif kind is MediaKind.PDF:
        yield Artifact(ArtifactKind.PDF_TEXT, file)
        pages = int(file.screening.facts.get("pdf.pages", 0))
        yield from (Artifact(ArtifactKind.PAGE_IMAGE, file, page) for page in range(1, min(pages, MOST_PAGES) + 1))
    elif file.screening.reading is not None and file.screening.reading.source is Source.TRANSCRIPT:
        yield Artifact(ArtifactKind.TRANSCRIPT, file)


def make(services: Services, item: Item, profile: Profile, artifact: Artifact) -> bytes:
    """The content of an artifact; blocks for 0.1 to 3 s. Raises `ProbeError` where the file cannot be read that way."""
    pool, limits = services.pool, profile.decode_limits
    path = services.blobs.path(item.tenant, artifact.file.record.sha256)
    match artifact.kind:
        case ArtifactKind.NORMALIZED_IMAGE:
            return reading.picture_for_model(pool, path, limits, max_side=NORMALIZED_SIDE).jpeg
        case ArtifactKind.THUMBNAIL:
            return reading.picture_for_model(pool, path, limits, max_side=THUMBNAIL_SIDE).jpeg
        case ArtifactKind.OCR_TEXT:
            return reading.read_picture(pool, path, limits).confident_text.encode()
        case ArtifactKind.OCR_WORDS:
            return _words(reading.read_picture(pool, path, limits))
        case ArtifactKind.PDF_TEXT:
            return reading.read_document(pool, path, limits).confident_text.encode()
        case ArtifactKind.PAGE_IMAGE:
            return reading.page_picture(pool, path, limits, (artifact.page or 1) - 1, max_side=PAGE_SIDE).jpeg
        case ArtifactKind.TRANSCRIPT:
            found = artifact.file.screening.reading
            return b"" if found is None else found.confident_text.encode()
        case ArtifactKind.EXIF_SUMMARY:
            return _json(reading.read_exif(pool, path, limits))
        case _:
            assert_never(artifact.kind)


def _words(found: TextReading) -> bytes:
    words = [
        {"text": word.text, "confidence": round(word.confidence, 3), "box": list(word.box), "line": word.line}
        for word in found.words
    ]
    return _json({"engine": found.engine, "rotation": found.rotation, "unread": found.unread, "words": words})


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
