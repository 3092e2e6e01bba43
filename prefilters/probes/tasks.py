"""What the service asks the children of the decoder pool to do.

The service imports this module to name a task; the decoders behind it are loaded in the children only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefilters.facts import FactValue
from prefilters.limits import DecodeLimits
from prefilters.media import Media, MediaKind
from prefilters.probes.text import TextReading, text_facts

GATE_PAGES = 5
"""Pages of a PDF that are looked at for text; what describes a product stands in front."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What one probe brought."""

    facts: dict[str, FactValue]
    reading: TextReading | None = None


def read_header(path: Path, media: Media, limits: DecodeLimits) -> Findings:
    """The facts of cost class HEADER that need a library to read. Raises `ProbeError`."""
    if media.kind is MediaKind.AUDIO:
        from prefilters.probes import audio

        return Findings(audio.header(path, limits))
    return Findings({})


def decode(path: Path, media: Media, limits: DecodeLimits) -> Findings:
    """The facts of cost class PIXELS. Raises `ProbeError`."""
    if media.kind is MediaKind.IMAGE:
        from prefilters.probes import image

        return Findings(image.pixels(path, media, limits))
    if media.kind is MediaKind.PDF:
        from prefilters.probes import pdf

        return Findings(pdf.document(path, limits))
    from prefilters.probes import audio

    return Findings(audio.samples(path, limits))


def read_text(path: Path, media: Media, limits: DecodeLimits, min_tokens: int) -> Findings:
    """The facts of cost class TEXT, reading no further than `min_tokens` demands. Raises `ProbeError`."""
    if media.kind is MediaKind.IMAGE:
        return _text_of_image(path, limits, min_tokens)
    if media.kind is MediaKind.PDF:
        from prefilters.probes import pdf

        found = pdf.read_text(path, limits, min_tokens=min_tokens, max_pages=GATE_PAGES)
        return Findings({**text_facts(found.reading), **found.facts}, found.reading)
    from prefilters.probes import speech

    return Findings(speech.speech(path, limits))


def read_text_layer(path: Path, limits: DecodeLimits, min_tokens: int) -> Findings | None:
    """What `read_text` gives for a PDF whose text layer suffices; None where a page of it needs OCR."""
    from prefilters.probes import pdf

    found = pdf.read_layers(path, limits, min_tokens=min_tokens, max_pages=GATE_PAGES)
    return None if found is None else Findings({**text_facts(found.reading), **found.facts}, found.reading)


def _text_of_image(path: Path, limits: DecodeLimits, min_tokens: int) -> Findings:
    from prefilters.probes import barcode, image, ocr

    rgb = image.load_upright(path, limits, max_side=ocr.GATE_MAX_SIDE)
    codes = barcode.read_barcodes(rgb)
    reading = ocr.gate_array(rgb, min_tokens=min_tokens)
    return Findings({**text_facts(reading), "barcode.count": len(codes)}, reading)


def load_models() -> None:
    """Make the OCR engines load now what they load at first use, so that no upload waits for it."""
    from prefilters.probes import ocr

    ocr.preload()
