"""Facts about a PDF, its text as a person would see it, and its pages as pictures.

All of this runs in a child of the decoder pool: pdfium ends the process on a failed allocation and is not thread-safe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pikepdf
import pypdfium2
import pypdfium2.raw as pdfium
from numpy.typing import NDArray

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import FactValue
from prefilters.limits import DecodeLimits
from prefilters.probes.pdf_active import has_active_content
from prefilters.probes.pdf_content import unpacks_without_end
from prefilters.probes.pdf_forms import draws_without_end
from prefilters.probes.pdf_layer import Layer, read_layer, reads_as_word
from prefilters.probes.pdf_patterns import paints_without_end
from prefilters.probes.text import Depth, Source, TextReading, Word, evidence_tokens

ENGINE = "pdfium"
FIRST_PAGES = 10
"""Pages whose text layer and pictures `document` looks at."""
MEASURED_PAGES = 50
GOOD_QUALITY = 0.7
"""Share of a text layer that has to read as words before it is trusted; below it the page is read by OCR."""
STAMP_CHARS = 200
"""A page that is mostly picture needs more text than this (a stamp, a page number) to count as typed."""
OCR_GATE_SIDE = 1_600
OCR_READ_SIDE = 2_200
"""Long side in pixels of a page rendered for OCR: about 140 and 190 dpi on A4."""
_TRIED_PAGES = 5
_MOST_OBJECTS = 2_000
_NO_TRAILER = "unable to find trailer dictionary"
_END_BYTES = 2_048
_TOLD_LENGTH = re.compile(rb"/Linearized\b[^>]{0,200}?/L (\d{1,12})\b")


def document(path: Path | str, limits: DecodeLimits) -> dict[str, FactValue]:
    """The `pdf.*` facts. About 5 ms for a short document.

    Raises `ProbeError`: `empty`; `encrypted` where the empty password does not open it; `corrupt` (`truncated` if the
    end of the file is missing) where neither pdfium nor, after mending, pikepdf opens any page, or where there is none;
    `resource_limit` where its forms draw each other, or its patterns paint, without end.
    """
    if Path(path).stat().st_size == 0:
        raise ProbeError(DecodeStatus.EMPTY)
    damaged, active = _second_look(path)
    if damaged and _ends_before_its_length(path):
        raise ProbeError(
            DecodeStatus.TRUNCATED, "a linearised file shorter than it says: the first pages are there only"
        )
    with _opened(path) as (pdf, mended):
        facts: dict[str, FactValue] = {
            "decode.status": DecodeStatus.OK.value,
            "pdf.pages": len(pdf),
            "pdf.page_side_pt": _longest_side_pt(pdf),
            "pdf.encrypted": False,
            "pdf.owner_password": pdfium.FPDF_GetSecurityHandlerRevision(pdf) != -1,
            "pdf.repaired": mended or damaged,
            "pdf.active_content": active or _acts_by_pdfium(pdf),
        }
        chars, has_pictures = 0, False
        for page in _pages(pdf, range(min(len(pdf), FIRST_PAGES))):
            chars += len("".join(page.get_textpage().get_text_bounded().split()))
            has_pictures = has_pictures or next(_pictures(page), None) is not None
        facts["pdf.text_chars"] = chars
        facts["pdf.scanned"] = chars == 0 and has_pictures
        return facts


@dataclass(frozen=True, slots=True)
class PdfText:
    """What was read, and what the text layer was worth."""

    reading: TextReading
    facts: dict[str, FactValue]
    """`text.quality` (unknown without a layer) and `text.hidden`."""


def text(path: Path | str, limits: DecodeLimits, *, min_tokens: int | None, max_pages: int) -> TextReading:
    """The text of the first `max_pages` pages as a person sees it; see `read_text`, which also gives the facts."""
    return read_text(path, limits, min_tokens=min_tokens, max_pages=max_pages).reading


def read_text(path: Path | str, limits: DecodeLimits, *, min_tokens: int | None, max_pages: int) -> PdfText:
    """The text of the first `max_pages` pages as a person sees it: by the text layer, else by OCR of the rendered page.

    A page goes to OCR where its layer holds glyph codes, cannot be seen, or is missing though there is ink. With
    `min_tokens` reading stops at the page where there are as many; layers come first, since OCR costs a hundred times
    more. Raises `ProbeError` as `document` does.
    """
    with _opened(path) as (pdf, _):
        return _PageReader(pdf, min_tokens, max_pages).read()


def read_layers(path: Path | str, limits: DecodeLimits, *, min_tokens: int | None, max_pages: int) -> PdfText | None:
    """What `read_text` gives, by text layers alone; None where that takes OCR. About 10 ms a page."""
    with _opened(path) as (pdf, _):
        return _PageReader(pdf, min_tokens, max_pages).read_layers()


def page_texts(path: Path | str, limits: DecodeLimits, pages: Iterable[int]) -> list[str]:
    """The seen text of each of these 0-based pages, by the text layer only; "" where there is none."""
    with _opened(path) as (pdf, _):
        return [_lines(read_layer(page).words) if page is not None else "" for page in map(_loader(pdf), pages)]


def render_page(path: Path | str, limits: DecodeLimits, page: int, *, max_side: int) -> NDArray[np.uint8]:
    """A 0-based page as RGB picture, its long side `max_side` pixels.

    Raises `ProbeError` as `document` does, and `corrupt` where that page cannot be opened.
    """
    with _opened(path) as (pdf, _):
        loaded = _loader(pdf)(page)
        if loaded is None:
            raise ProbeError(DecodeStatus.CORRUPT, f"page {page} of {len(pdf)} cannot be opened")
        return _rendered(loaded, max_side)


@contextmanager
def _opened(path: Path | str) -> Iterator[tuple[Any, bool]]:
    """The document in pdfium, and whether it had to be mended first."""
    if Path(path).stat().st_size == 0:
        raise ProbeError(DecodeStatus.EMPTY)
    pdf, mended = _open_in_pdfium(Path(path)), False
    if pdf is None:
        pdf, mended = _open_in_pdfium(_mended(path)), True
    if pdf is None:
        raise ProbeError(DecodeStatus.CORRUPT, "mending did not help pdfium to open a page")
    with pdf:
        yield pdf, mended


def _open_in_pdfium(source: Path | bytes) -> Any | None:
    """The document, or None where none of its first pages can be opened. Raises `ProbeError`: `encrypted`."""
    _forget_last_error()
    try:
        pdf = pypdfium2.PdfDocument(source, password="")
    except pypdfium2.PdfiumError as exc:
        if exc.err_code in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY):
            raise ProbeError(DecodeStatus.ENCRYPTED, str(exc)) from exc
        return None
    if next(_pages(pdf, range(min(len(pdf), _TRIED_PAGES))), None) is not None:
        return pdf
    pdf.close()
    return None


def _forget_last_error() -> None:
    """A document without a page sets no error, so that of an earlier file, locked perhaps, would be told for it."""
    pdfium.FPDF_LoadMemDocument64(b"-", 1, None)  # no document: leaves "wrong format" behind


def _mended(path: Path | str) -> bytes:
    """The document as pikepdf writes it anew.

    Without a trailer qpdf takes the first catalogue that it meets, and of a file cut short the pages before the cut:
    to accept that would lose pages in silence. Raises `ProbeError`: `encrypted`, `truncated`, or `corrupt`.
    """
    try:
        with pikepdf.open(path, suppress_warnings=True) as document:
            if not len(document.pages):
                raise ProbeError(DecodeStatus.CORRUPT, "no pages")
            if any(_NO_TRAILER in warning for warning in document.get_warnings()):
                raise ProbeError(_cut_or_corrupt(path), "nothing says which object is the document")
            written = BytesIO()
            document.save(written)
            return written.getvalue()
    except pikepdf.PasswordError as exc:
        raise ProbeError(DecodeStatus.ENCRYPTED, str(exc)) from exc
    except (pikepdf.PdfError, RuntimeError, ValueError, TypeError, AttributeError, KeyError) as exc:
        raise ProbeError(_cut_or_corrupt(path), f"no reader opens it: {exc}") from exc


def _cut_or_corrupt(path: Path | str) -> DecodeStatus:
    with open(path, "rb") as file:
        file.seek(max(0, Path(path).stat().st_size - _END_BYTES))
        return DecodeStatus.CORRUPT if b"%%EOF" in file.read() else DecodeStatus.TRUNCATED


def _ends_before_its_length(path: Path | str) -> bool:
    """Whether a linearised file, which tells its length at its start (ISO 32000-1, F.3.3), is shorter than that."""
    with open(path, "rb") as file:
        told = _TOLD_LENGTH.search(file.read(_END_BYTES))
    return told is not None and int(told[1]) > Path(path).stat().st_size


def _second_look(path: Path | str) -> tuple[bool, bool]:
    """Whether the file is damaged (its index had to be rebuilt), and whether it carries active content, by pikepdf.

    Raises `ProbeError`: `resource_limit` where a page draws forms without end, before pdfium falls for it.
    """
    try:
        with pikepdf.open(path, suppress_warnings=True) as document:
            if draws_without_end(document):
                raise ProbeError(DecodeStatus.RESOURCE_LIMIT, "forms draw forms without end")
            if unpacks_without_end(document):
                raise ProbeError(DecodeStatus.RESOURCE_LIMIT, "a page's contents unpack without end")
            if paints_without_end(document):
                raise ProbeError(DecodeStatus.RESOURCE_LIMIT, "patterns paint without end")
            active = has_active_content(document)
            return any("damaged" in warning or "reconstruct" in warning for warning in document.get_warnings()), active
    except (pikepdf.PdfError, pikepdf.PasswordError, RuntimeError, ValueError, TypeError, AttributeError, KeyError):
        return True, False


def _longest_side_pt(pdf: Any) -> float:
    longest = 0.0
    for number in range(min(len(pdf), MEASURED_PAGES)):
        with suppress(pypdfium2.PdfiumError):  # a page that is not there has no size
            longest = max(longest, *pdf.get_page_size(number))
    return round(longest, 2)


def _acts_by_pdfium(pdf: Any) -> bool:
    return bool(pdfium.FPDFDoc_GetJavaScriptActionCount(pdf) > 0 or pdfium.FPDFDoc_GetAttachmentCount(pdf) > 0)


def _loader(pdf: Any) -> Any:
    def load(number: int) -> Any | None:
        if not 0 <= number < len(pdf):
            return None
        try:
            return pdf.get_page(number)
        except pypdfium2.PdfiumError:
            return None

    return load


def _pages(pdf: Any, numbers: Sequence[int]) -> Iterator[Any]:
    """Those of these pages that can be opened."""
    return (page for page in map(_loader(pdf), numbers) if page is not None)


def _pictures(page: Any) -> Iterator[Any]:
    objects = page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3)
    return islice(objects, _MOST_OBJECTS)


def _picture_share(page: Any) -> float:
    """Share of the page that its largest picture covers."""
    width, height = page.get_size()
    largest = 0.0
    for picture in _pictures(page):
        left, bottom, right, top = picture.get_bounds()
        largest = max(largest, max(0.0, right - left) * max(0.0, top - bottom))
    return min(1.0, largest / (width * height)) if width > 0 and height > 0 else 0.0


def _rendered(page: Any, max_side: int) -> NDArray[np.uint8]:
    longest = max(page.get_size())
    bitmap = page.render(scale=max_side / longest if longest > 0 else 1.0, rev_byteorder=True)
    picture = np.array(bitmap.to_numpy(), dtype=np.uint8)[:max_side, :max_side, :3]
    bitmap.close()
    return picture


class _PageReader:
    """One pass over the pages: text layers first, then OCR of those that need it, while more is wanted."""

    def __init__(self, pdf: Any, min_tokens: int | None, max_pages: int) -> None:
        self._pdf = pdf
        self._min_tokens = min_tokens
        self._numbers = range(min(len(pdf), max_pages))
        self._layers: dict[int, Layer] = {}
        self._readings: dict[int, TextReading] = {}
        self._for_ocr: list[int] = []

    def read_layers(self) -> PdfText | None:
        for number in self._numbers:
            self._read_layer(number)
            if self._has_enough():
                break
        return PdfText(self._joined(), self._facts()) if self._has_enough() or not self._for_ocr else None

    def read(self) -> PdfText:
        by_layers = self.read_layers()
        if by_layers is not None:
            return by_layers
        for number in self._for_ocr:
            if self._has_enough():
                break
            self._readings[number] = self._read_by_ocr(number)
        return PdfText(self._joined(), self._facts())

    def _read_layer(self, number: int) -> None:
        page = _loader(self._pdf)(number)
        if page is None:
            return
        layer = self._layers[number] = read_layer(page)
        if _needs_ocr(page, layer):
            self._for_ocr.append(number)
        else:
            self._readings[number] = _layer_reading(layer)
        page.close()

    def _read_by_ocr(self, number: int) -> TextReading:
        from prefilters.probes import ocr  # loads the engines, which most documents do not need

        page = self._pdf.get_page(number)
        if self._min_tokens is None:
            reading = ocr.read_array(_rendered(page, OCR_READ_SIDE), page=True)
        else:
            missing = self._min_tokens - self._tokens()
            reading = ocr.gate_array(_rendered(page, OCR_GATE_SIDE), min_tokens=missing)
        return replace(reading, words=tuple(word for word in reading.words if reads_as_word(word.text)))

    def _tokens(self) -> int:
        return evidence_tokens([word for reading in self._readings.values() for word in reading.words])

    def _has_enough(self) -> bool:
        return self._min_tokens is not None and self._tokens() >= self._min_tokens

    def _joined(self) -> TextReading:
        readings = [self._readings[number] for number in sorted(self._readings)]
        by_ocr = [reading for reading in readings if reading.source is Source.OCR]
        leading = max(readings, key=lambda reading: len(reading.words), default=None)
        return TextReading(
            words=tuple(_renumbered(readings)),
            unread=sum(reading.unread for reading in readings),
            share=sum(reading.share for reading in readings) / len(readings) if readings else 0.0,
            engine=leading.engine if leading else ENGINE,
            depth=Depth.READ if self._min_tokens is None else Depth.GATE,
            source=leading.source if leading else Source.TEXT_LAYER,
            rotation=by_ocr[0].rotation if len(by_ocr) == len(readings) == 1 else 0,
            pages=len(self._layers),
            hidden=sum(reading.hidden for reading in readings),
        )

    def _facts(self) -> dict[str, FactValue]:
        in_layer = any(layer.hidden for layer in self._layers.values())
        in_picture = any(reading.hidden for reading in self._readings.values())
        facts: dict[str, FactValue] = {"text.hidden": in_layer or in_picture}
        weighed = [(layer.quality, len(layer.words)) for layer in self._layers.values() if layer.quality is not None]
        if weighed:
            facts["text.quality"] = round(sum(q * words for q, words in weighed) / sum(w for _, w in weighed), 4)
        return facts


def _needs_ocr(page: Any, layer: Layer) -> bool:
    if not layer.words:
        return layer.has_ink
    if layer.quality is not None and layer.quality < GOOD_QUALITY:
        return True
    seen = sum(len(word.text) for word in layer.words)
    return seen < STAMP_CHARS and _picture_share(page) > 0.5


def _layer_reading(layer: Layer) -> TextReading:
    share = sum((w.box[2] - w.box[0]) * (w.box[3] - w.box[1]) for w in layer.words)
    return TextReading(
        layer.words, unread=0, share=min(1.0, share), engine=ENGINE, depth=Depth.READ, source=Source.TEXT_LAYER
    )


def _renumbered(readings: list[TextReading]) -> Iterator[Word]:
    """The words of several pages with their lines counted through."""
    offset = 0
    for reading in readings:
        for word in reading.words:
            yield replace(word, line=word.line + offset)
        offset += max((word.line for word in reading.words), default=-1) + 1


def _lines(words: tuple[Word, ...]) -> str:
    lines: dict[int, list[str]] = {}
    for word in words:
        lines.setdefault(word.line, []).append(word.text)
    return "\n".join(" ".join(line) for line in lines.values())
