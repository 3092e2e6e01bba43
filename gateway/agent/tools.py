"""The agent's tools: each says what it takes, what it does to the world, and does it through the decoders' pool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.decision import ScreenedFile
from gateway.item import Effect as Change
from gateway.item import Item
from gateway.profiles import Profile
from gateway.submission import attribute_text
from gateway.wiring import Services
from guard import Effect, ToolTraits
from prefilters import reading
from prefilters.errors import ProbeError
from prefilters.media import MediaKind
from prefilters.probes.text import TextReading
from prefilters.transcript import Transcriber, TranscriptionFailed
from prefilters.verdict import VerdictKind

MAX_TEXT_CHARS = 8_000
"""Of one tool result; what is longer is cut and says so."""
VISION_GROUP = "vision"
LOW_CONFIDENCE = "LOW_CONFIDENCE"
_LEAST_CONFIDENCE = 0.6


class ToolFailed(Exception):
    """The tool could not do it; `message` is for the model."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.details = dict(details or {})


@dataclass(slots=True)
class Workbench:
    """What the tools of one run work on."""

    services: Services
    item: Item
    profile: Profile
    files: Sequence[ScreenedFile]
    read_texts: dict[str, str] = field(default_factory=dict)
    """Text that was read so far, by part, for `lookup_attributes`."""
    stated: dict[str, str] = field(default_factory=dict)
    """Attributes that the agent stated, for the same."""

    def file(self, name: str, *kinds: MediaKind) -> ScreenedFile:
        """The usable file of this part name or id. Raises `ToolFailed`."""
        usable = [file for file in self.files if file.verdict.kind is not VerdictKind.REJECT]
        for file in usable:
            if name in {file.record.part, file.record.id}:
                if file.screening.media.kind in kinds:
                    return file
                raise ToolFailed(
                    "WRONG_KIND",
                    f"{name} is {file.screening.media.description_en}; this tool reads {', '.join(kinds)} files.",
                    retryable=False,
                )
        fitting = [file.record.part for file in usable if file.screening.media.kind in kinds]
        raise ToolFailed(
            "NO_SUCH_FILE",
            f"There is no usable file {name[:64]!r}. Files for this tool: {', '.join(fitting) or 'none'}.",
            retryable=False,
        )

    def arguments(self, file: ScreenedFile) -> tuple[Any, Any, Any]:
        """Pool, path and limits: the first arguments of every reading."""
        path = self.services.blobs.path(self.item.tenant, file.record.sha256)
        return self.services.pool, path, self.profile.decode_limits


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


Kind = TypeVar("Kind", bound=_Arguments)


_File = Annotated[str, Field(max_length=64, description="Part name (p1 …) or file id")]
_Share = Annotated[float, Field(ge=0, le=1)]


class OcrArguments(_Arguments):
    """Where to read, and how to prepare the picture."""

    file: _File
    region: Annotated[
        tuple[_Share, _Share, _Share, _Share] | None,
        Field(description="x0, y0, x1, y1 as fractions 0..1 of the picture; without it, all of it"),
    ] = None
    contrast: Annotated[float, Field(ge=0.1, le=10, description="1 leaves it as it is")] = 1.0
    threshold: Annotated[int | None, Field(ge=0, le=255, description="Black and white at this tone")] = None
    rotate: Annotated[float, Field(ge=-360, le=360, description="Degrees clockwise")] = 0


class FileArguments(_Arguments):
    """One file."""

    file: _File


class PdfArguments(_Arguments):
    """One document, and which of its pages."""

    file: _File
    pages: Annotated[
        list[Annotated[int, Field(ge=1, le=10_000)]] | None,
        Field(max_length=20, description="Page numbers from 1; without it, the first 20"),
    ] = None


class LookupArguments(_Arguments):
    """What to look for."""

    query: Annotated[str, Field(min_length=1, max_length=200)]


class AttributeArguments(_Arguments):
    """What to state, and where it stands."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    value: Annotated[str, Field(min_length=1, max_length=2000)]
    source: Annotated[str, Field(min_length=1, max_length=200, description="p1 or title or text or attribute:NAME")]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with its traits. `run` gives JSON for the model, or raises `ToolFailed`."""

    name: str
    description: str
    schema: Mapping[str, Any]
    traits: ToolTraits
    run: Callable[[Workbench, Mapping[str, Any]], Any]
    is_final: bool = False
    """Its success ends the run; the result is the item's copy."""


def ocr_extract(bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """The words of a picture or of a part of it."""
    wanted = _parsed(OcrArguments, arguments)
    if wanted.region is not None and not (wanted.region[0] < wanted.region[2] and wanted.region[1] < wanted.region[3]):
        raise ToolFailed("INVALID_ARGUMENTS", "region must have x0 < x1 and y0 < y1.")
    file = bench.file(wanted.file, MediaKind.IMAGE)
    found = reading.read_region(
        *bench.arguments(file),
        region=wanted.region,
        contrast=wanted.contrast,
        threshold=wanted.threshold,
        rotate=round(wanted.rotate),
    )
    confidence = _mean_confidence([(word.text, word.confidence) for word in found.words])
    is_seen = bool(found.words) or found.unread > 0
    if is_seen and (not found.confident_words or confidence < _LEAST_CONFIDENCE):
        raise ToolFailed(
            LOW_CONFIDENCE,
            f"Text is there, but it was read with a confidence of {confidence:.2f} only; {_LEAST_CONFIDENCE} is needed.",
            details={"confidence": round(confidence, 2), "unread": found.unread},
        )
    text = found.confident_text
    if text and wanted.region is None:
        bench.read_texts[file.record.part] = text
    return {"text": _cut(text), "confidence": round(confidence, 2), "unread_places": found.unread}


def image_facts(bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """What a picture looks like: colours by name, background, shape, and what was measured."""
    file = bench.file(_parsed(FileArguments, arguments).file, MediaKind.IMAGE)
    looks = reading.read_appearance(*bench.arguments(file))
    facts = file.screening.facts
    measured = {
        name: facts[name]
        for name in ("image.width", "image.height", "image.sharpness", "image.brightness", "text.share", "text.tokens")
        if name in facts
    }
    return {**looks.to_json(), "measured": measured}


def read_barcode(bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """The barcodes in a picture; an empty list when there is none."""
    file = bench.file(_parsed(FileArguments, arguments).file, MediaKind.IMAGE)
    found = reading.read_barcodes(*bench.arguments(file))
    return {"barcodes": [{"format": code.format, "text": code.text[:400]} for code in found]}


def read_pdf(bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """The text of a document."""
    wanted = _parsed(PdfArguments, arguments)
    file = bench.file(wanted.file, MediaKind.PDF)
    if wanted.pages is None:
        found = reading.read_document(*bench.arguments(file))
        text = found.confident_text
        bench.read_texts[file.record.part] = text
        return {"text": _cut(text), "source": found.source.value}
    count = int(file.screening.facts.get("pdf.pages", 0))
    beyond = [page for page in wanted.pages if page > count]
    if beyond:
        raise ToolFailed(
            "NO_SUCH_PAGE", f"The document has {count} pages; there is no page {beyond[0]}.", retryable=False
        )
    texts = reading.read_pages(*bench.arguments(file), [page - 1 for page in wanted.pages])
    return {"pages": [{"page": page, "text": _cut(text)} for page, text in zip(wanted.pages, texts, strict=True)]}


def transcribe(bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """What is said in a recording."""
    file = bench.file(_parsed(FileArguments, arguments).file, MediaKind.AUDIO)
    transcriber = bench.services.transcriber
    if transcriber is None:
        raise ToolFailed("NO_TRANSCRIBER", "No transcriber is configured; recordings cannot be read.", retryable=False)
    found = file.screening.reading
    if found is None:
        if "audio.transcribed" not in file.screening.facts:
            raise ToolFailed("NO_SPEECH", "There is no speech in this recording.", retryable=False)
        found = _transcribed(transcriber, bench, file)
    text = found.confident_text
    if text:
        bench.read_texts[file.record.part] = text
    return {"text": _cut(text), "source": found.source.value}


def _transcribed(transcriber: Transcriber, bench: Workbench, file: ScreenedFile) -> TextReading:
    """Once more, where it failed when the recording was judged."""
    _, path, limits = bench.arguments(file)
    try:
        return transcriber.transcribe(path, limits)
    except TranscriptionFailed as error:
        raise ToolFailed("TRANSCRIBER_UNAVAILABLE", error.public, retryable=error.retryable) from error


def lookup_attributes(bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """Where the words of a query stand in the item's own title, attributes, text and what was read from its files."""
    words = _words(_parsed(LookupArguments, arguments).query)
    submission = bench.item.submission
    sources = {
        "title": submission.get("title") or "",
        "text": submission.get("text") or "",
        **{f"attribute:{name}": attribute_text(value) for name, value in submission.get("attributes", {}).items()},
        **{f"stated:{name}": value for name, value in bench.stated.items()},
        **bench.read_texts,
    }
    scored = []
    for source, text in sources.items():
        hits = sum(word in f"{source} {text}".lower() for word in words)
        if hits and text:
            scored.append((-hits, source, text))
    return {"found": [{"source": source, "text": _cut(text, 600)} for _, source, text in sorted(scored)[:10]]}


def set_attribute(bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """State a property of the product that the seller did not; written down when the step ends."""
    wanted = _parsed(AttributeArguments, arguments)
    bench.stated[wanted.name] = wanted.value
    return {"stated": {wanted.name: wanted.value}}


def stated_by(change: Change) -> dict[str, str]:
    """The attribute that a stored effect stated; empty for other tools' effects."""
    if change.tool != "set_attribute":
        return {}
    return {str(change.arguments["name"]): str(change.arguments["value"])}


def save_copy(bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """Hold the copy against the profile's schema; its success ends the run."""
    copy = {name: value for name, value in arguments.items() if name != "produced_by"}
    problems = bench.profile.output_errors(copy)
    if problems:
        raise ToolFailed("INVALID_COPY", "The copy is not valid: " + "; ".join(problems[:6])[:1500], retryable=True)
    return {"saved": True}


def _toolbox(profile: Profile) -> tuple[Tool, ...]:
    vision = ToolTraits(effect=Effect.READ_ONLY, group=VISION_GROUP)
    read_only = ToolTraits(effect=Effect.READ_ONLY)
    return (
        Tool(
            "ocr_extract",
            "Read the text in a picture, or in a part of it. Fails with LOW_CONFIDENCE where print is there but cannot be "
            "read; changing contrast again and again does not mend a blurred picture.",
            OcrArguments.model_json_schema(),
            replace(vision, number_args=("contrast", "threshold", "rotate")),
            ocr_extract,
        ),
        Tool(
            "image_facts",
            "What a picture looks like: dominant colours, background, shape, size, sharpness, share of text.",
            FileArguments.model_json_schema(),
            vision,
            image_facts,
        ),
        Tool(
            "read_barcode",
            "Read the barcodes in a picture.",
            FileArguments.model_json_schema(),
            vision,
            read_barcode,
        ),
        Tool("read_pdf", "Read the text of a document.", PdfArguments.model_json_schema(), read_only, read_pdf),
        Tool(
            "transcribe", "Write down what a recording says.", FileArguments.model_json_schema(), read_only, transcribe
        ),
        Tool(
            "lookup_attributes",
            "Search what the seller stated and what was read so far.",
            LookupArguments.model_json_schema(),
            read_only,
            lookup_attributes,
        ),
        Tool(
            "set_attribute",
            "State a property of the product that the seller left out, with the place where you read it. It is kept with the "
            "product, so be sure.",
            AttributeArguments.model_json_schema(),
            ToolTraits(effect=Effect.MUTATING),
            set_attribute,
        ),
        Tool(
            "save_copy",
            "Hand in the finished copy. Ends the work.",
            {name: part for name, part in profile.output_schema.items() if name != "produced_by"},
            ToolTraits(effect=Effect.MUTATING, max_writes=1, retryable_codes=("INVALID_COPY",)),
            save_copy,
            is_final=True,
        ),
    )


def tools_of(profile: Profile) -> dict[str, Tool]:
    """The profile's tools by name, in its order; `save_copy` is always among them."""
    known = {tool.name: tool for tool in _toolbox(profile)}
    wanted = [name for name in profile.tools if name in known]
    return {name: known[name] for name in dict.fromkeys([*wanted, "save_copy"])}


def run_tool(tool: Tool, bench: Workbench, arguments: Mapping[str, Any]) -> Any:
    """The tool's JSON result. Raises `ToolFailed`, also for what its decoders ran into."""
    try:
        return tool.run(bench, arguments)
    except ProbeError as error:
        raise ToolFailed(
            f"FILE_{error.status.value.upper()}", "The file could not be read that way.", retryable=False
        ) from error


def _parsed(kind: type[Kind], arguments: Mapping[str, Any]) -> Kind:
    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()[:5])
        raise ToolFailed("INVALID_ARGUMENTS", f"The arguments are not valid: {wrong}"[:1000]) from error


def _mean_confidence(words: Sequence[tuple[str, float]]) -> float:
    """Weighted by length; 0 for no words at all."""
    total = sum(len(text) for text, _ in words)
    return sum(len(text) * confidence for text, confidence in words) / total if total else 0.0


def _words(query: str) -> list[str]:
    return [word for word in re.split(r"[\W_]+", query.lower()) if word]


def _cut(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    return text if len(text) <= limit else text[:limit].rstrip() + f" … [cut, {len(text):,} characters in all]"


def as_text(result: Any) -> str:
    """A tool's result as it is sent to the model."""
    return json.dumps(result, ensure_ascii=False, separators=(",", ":"))
