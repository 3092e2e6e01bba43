"""An item's files as a reviewer sees them: large pictures, measured chips, what cannot be shown and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.api.render import file_json
from gateway.artifacts import MOST_PAGES
from gateway.console import words
from gateway.console.words import Say
from gateway.item import FileRecord, Item


class Sort(StrEnum):
    """How a file can be looked at."""

    IMAGE = "image"
    DOCUMENT = "document"
    SOUND = "sound"
    OTHER = "other"


_SORTS = {Sort.IMAGE: "Photo", Sort.DOCUMENT: "Document", Sort.SOUND: "Recording", Sort.OTHER: "File"}


class State(StrEnum):
    """How a measured value stands to what is needed."""

    GOOD = "good"
    POOR = "poor"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Chip:
    """One measured value, with what would have been needed."""

    label: str
    value: str
    state: State
    needs: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """One file."""

    id: str
    part: str
    name: str
    role: str
    sort: Sort
    large: str | None
    """Address of the large picture; None where there is nothing to look at."""
    small: str | None
    pages: tuple[str, ...]
    """Addresses of further pages of a document."""
    text: str | None
    """Address of what was read from it."""
    exif: str | None
    chips: tuple[Chip, ...]
    verdict: str | None
    problem: str | None
    """In words, where it was refused or takes another way."""
    sha256: str
    bytes: int
    media_type: str

    @property
    def alt(self) -> str:
        """What a reader who does not see it is told."""
        return f"{self.role}: {self.name}"


def pictures_of(item: Item, say: Say, *, language: str) -> list[Picture]:
    """All files of an item, in the order in which they were sent."""
    return [_picture(item, record, say, language) for record in item.files]


def cover_of(item: Item) -> str | None:
    """Address of a small picture that stands for the item; None where there is none."""
    for record in item.files:
        if _sort(record) in {Sort.IMAGE, Sort.DOCUMENT} and record.screening is not None and record.verdict != "reject":
            return _small(item, record)
    return None


def _picture(item: Item, record: FileRecord, say: Say, language: str) -> Picture:
    document = file_json(record, language=language)
    sort = _sort(record)
    is_shown = record.screening is not None and record.verdict != "reject"
    facts = document["facts"]
    pages: tuple[str, ...] = ()
    if sort is Sort.DOCUMENT and is_shown:
        count = min(int(facts.get("pdf.pages", 0)), MOST_PAGES)
        pages = tuple(_artifact(item, record, f"page_image_{page}") for page in range(1, count + 1))
    large = small = None
    if is_shown and sort is Sort.IMAGE:
        large, small = _artifact(item, record, "normalized_image"), _small(item, record)
    elif pages:
        large, small = pages[0], pages[0]
    readings = {Sort.IMAGE: "ocr_text", Sort.DOCUMENT: "pdf_text"}
    problem = document["problem"]
    return Picture(
        id=record.id,
        part=record.part,
        name=words.plain(record.file_name or record.part),
        role=words.plain(record.role or say(_SORTS[sort])),
        sort=sort,
        large=large,
        small=small,
        pages=pages,
        text=_artifact(item, record, readings[sort]) if is_shown and sort in readings else None,
        exif=_artifact(item, record, "exif_summary") if is_shown and sort is Sort.IMAGE else None,
        chips=tuple(_chips(document, say)),
        verdict=document["verdict"],
        problem=None if problem is None else str(problem["user_message"].get(language) or problem["user_message"].get("en")),
        sha256=record.sha256,
        bytes=record.bytes,
        media_type=record.media_type,
    )  # fmt: skip


def _sort(record: FileRecord) -> Sort:
    kind = record.media_type.partition("/")[0]
    if kind == "image":
        return Sort.IMAGE
    if record.media_type == "application/pdf":
        return Sort.DOCUMENT
    return Sort.SOUND if kind == "audio" else Sort.OTHER


def _artifact(item: Item, record: FileRecord, kind: str) -> str:
    return f"/v1/items/{item.id}/artifacts/art_{record.id.removeprefix('fil_')}_{kind}"


def _small(item: Item, record: FileRecord) -> str:
    return _artifact(item, record, "thumbnail" if _sort(record) is Sort.IMAGE else "page_image_1")


_MEASURED = (
    ("image.sharpness", "sharpness", "{:.2f}"),
    ("image.brightness", "brightness", "{:.2f}"),
    ("text.tokens", "words read", "{:.0f}"),
    ("pdf.pages", "pages", "{:.0f}"),
    ("audio.speech_s", "speech", "{:.0f} s"),
)
_ALWAYS = {"image.sharpness", "text.tokens", "pdf.pages", "audio.speech_s"}


def _chips(document: Mapping[str, Any], say: Say) -> Iterator[Chip]:
    facts, checks = document["facts"], document["checks"]
    failed = {check["fact"]: check for check in checks if check["outcome"] in {"fail", "warn"}}
    if document["width"]:
        is_small = bool({"image.short_side", "image.long_side", "image.pixels"} & set(failed))
        limit = failed.get("image.short_side", {}).get("limit")
        yield Chip(
            "",
            f"{document['width']} × {document['height']}",
            State.POOR if is_small else State.PLAIN,
            None if limit is None else say("needs {limit} px", limit=limit),
        )
    for fact, label, form in _MEASURED:
        value = facts.get(fact)
        if not isinstance(value, int | float) or (fact not in _ALWAYS and fact not in failed):
            continue
        check = failed.get(fact)
        held = check is not None or any(each["fact"] == fact for each in checks)
        state = State.POOR if check is not None else State.GOOD if held else State.PLAIN
        limit = None if check is None else check["limit"]
        yield Chip(say(label), form.format(value), state, None if limit is None else say("needs {limit}", limit=limit))
    for code in document["notes"]:
        yield Chip("", say(str(code).replace("_", " ")), State.PLAIN)
