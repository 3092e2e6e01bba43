"""The text layer of one PDF page: its words, what a person would see of it, and whether it reads as words."""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
import pypdfium2.raw as pdfium
from numpy.typing import NDArray

from prefilters.probes.text import Box, Word

MOST_CHARS = 20_000
"""Characters of one page that are looked at; a dense broadsheet page has half as many."""
SMALLEST_PT = 2.0
"""Font size under which nobody reads."""
LEAST_CONTRAST = 16
"""Grey levels of 256 that have to lie between a text and what is around it."""
MOST_OWN_COLOUR = 0.67
"""Share of a text's box that its own ink can fill: the boldest letters take half of it, white on white all."""
VISIBILITY_DPI = 108.0
_MOST_RENDERED_SIDE = 1_600
_GRID = 1 << 20
_PROBE_PT = 500.0


class Visibility(Enum):
    """What becomes of a run of text on the page that a person sees."""

    SEEN = "seen"
    HIDDEN = "hidden"
    UNDER_PICTURE = "under picture"
    """Drawn invisibly where a picture shows something: the layer that scanning programs lay behind a scan."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one page's text layer is worth."""

    words: tuple[Word, ...]
    """The words that a person sees. Lines are numbered from 0."""
    chars: int
    """Characters in the layer but blanks, seen or not."""
    quality: float | None
    """Share 0..1 of the seen characters that read as words; None without any."""
    hidden: bool
    """Some text cannot be seen, and is no scanning program's layer either."""
    has_ink: bool
    """The page is not one even tone."""


@dataclass(slots=True)
class _Run:
    """Characters that one text object of the page draws."""

    text_object: Any
    chars: list[tuple[str, Box, bool]] = field(default_factory=list)
    """Character, its box as fractions of the page as shown (y downwards), and whether a code had no character."""
    height_pt: float = 0.0
    visibility: Visibility = Visibility.SEEN


def read_layer(page: Any) -> Layer:
    """The text layer of a `pypdfium2.PdfPage`. Renders the page once, at 108 dpi or less, to see what can be seen."""
    shown = _rendered_grey(page)
    text_page = page.get_textpage()
    runs = list(_runs(page, text_page))
    for run in runs:
        run.visibility = _visibility(run, shown)
    inked = [run for run in runs if any(not char.isspace() for char, _, _ in run.chars)]
    shown_runs = [piece for run in runs if run.visibility is Visibility.SEEN for piece in run.chars]
    seen = [piece for piece in shown_runs if piece[0].isspace() or _is_on_page(piece[1])]
    words = tuple(_words(seen))
    return Layer(
        words=words,
        chars=sum(not char.isspace() for run in inked for char, _, _ in run.chars),
        quality=_quality(words, unmapped=sum(bad for _, _, bad in seen)),
        hidden=len(seen) < len(shown_runs) or any(run.visibility is Visibility.HIDDEN for run in inked),
        has_ink=_contrast(shown) >= LEAST_CONTRAST,
    )


def _rendered_grey(page: Any) -> NDArray[np.uint8]:
    longest_pt = max(page.get_size())
    scale = min(VISIBILITY_DPI / 72.0, _MOST_RENDERED_SIDE / longest_pt)
    bitmap = page.render(scale=scale, grayscale=True)
    grey = np.array(bitmap.to_numpy(), dtype=np.uint8).reshape(bitmap.height, bitmap.width)
    bitmap.close()
    return grey


def _runs(page: Any, text_page: Any) -> Iterator[_Run]:
    """Consecutive characters of one text object; blanks and line ends that pdfium adds go with the run before them."""
    run: _Run | None = None
    last_object: int | None = None
    corners = _Corners(page)
    for index in range(min(text_page.count_chars(), MOST_CHARS)):
        text_object = pdfium.FPDFText_GetTextObject(text_page, index)
        address = ctypes.cast(text_object, ctypes.c_void_p).value if text_object else None
        if run is None or (address is not None and address != last_object):
            if run is not None:
                yield run
            run, last_object = _Run(text_object), address
        char = _character(text_page, index)
        box, height_pt = corners.box(text_page, index)
        run.height_pt = max(run.height_pt, height_pt)
        run.chars.append((char, box, bool(address and pdfium.FPDFText_HasUnicodeMapError(text_page, index) == 1)))
    if run is not None:
        yield run


def _character(text_page: Any, index: int) -> str:
    code = pdfium.FPDFText_GetUnicode(text_page, index)
    if code == 2 or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:  # 2: pdfium's mark for a hyphen at a line's end
        return "-" if code == 2 else "\ufffd"
    return chr(code)


class _Corners:
    """Turns pdfium's character boxes into fractions of the page as it is shown, rotated and cropped."""

    def __init__(self, page: Any) -> None:
        self._rect = pdfium.FS_RECTF()
        x0, y0 = _shown_at(page, 0, 0)
        x1, y1 = _shown_at(page, _PROBE_PT, 0)
        x2, y2 = _shown_at(page, 0, _PROBE_PT)
        self._x = ((x1 - x0) / _PROBE_PT, (x2 - x0) / _PROBE_PT, x0)
        self._y = ((y1 - y0) / _PROBE_PT, (y2 - y0) / _PROBE_PT, y0)

    def box(self, text_page: Any, index: int) -> tuple[Box, float]:
        """The box of a character, and the longer of its sides in points, which is about its font size."""
        rect = self._rect
        if not pdfium.FPDFText_GetLooseCharBox(text_page, index, rect):
            return (0.0, 0.0, 0.0, 0.0), 0.0
        left, top, right, bottom = rect.left, rect.top, rect.right, rect.bottom
        (ax, bx, cx), (ay, by, cy) = self._x, self._y
        x0, y0 = ax * left + bx * top + cx, ay * left + by * top + cy
        x1, y1 = ax * right + bx * bottom + cx, ay * right + by * bottom + cy
        return (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)), max(abs(right - left), abs(top - bottom))


def _shown_at(page: Any, x_pt: float, y_pt: float) -> tuple[float, float]:
    x, y = ctypes.c_int(), ctypes.c_int()
    pdfium.FPDF_PageToDevice(page, 0, 0, _GRID, _GRID, 0, x_pt, y_pt, x, y)
    return x.value / _GRID, y.value / _GRID


def _visibility(run: _Run, shown: NDArray[np.uint8]) -> Visibility:
    boxes = [box for char, box, _ in run.chars if not char.isspace()]
    if not boxes or run.text_object is None:
        return Visibility.SEEN
    pixels = _pixels(_union(boxes), shown)
    contrast = _contrast(pixels)
    mode = pdfium.FPDFTextObj_GetTextRenderMode(run.text_object)
    if mode == pdfium.FPDF_TEXTRENDERMODE_INVISIBLE:
        return Visibility.UNDER_PICTURE if contrast >= LEAST_CONTRAST else Visibility.HIDDEN
    if run.height_pt < SMALLEST_PT or contrast < LEAST_CONTRAST:
        return Visibility.HIDDEN
    ink = _fill_luminance(run.text_object)
    is_filled = mode not in (pdfium.FPDF_TEXTRENDERMODE_STROKE, pdfium.FPDF_TEXTRENDERMODE_STROKE_CLIP)
    if is_filled and ink is not None and np.mean(np.abs(pixels - ink) < LEAST_CONTRAST) > MOST_OWN_COLOUR:
        return Visibility.HIDDEN
    return Visibility.SEEN


def _pixels(box: Box, shown: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The part of the page under a box, empty where the box lies beside the page."""
    height, width = shown.shape
    x0, x1 = max(0, int(box[0] * width)), min(width, int(box[2] * width) + 1)
    y0, y1 = max(0, int(box[1] * height)), min(height, int(box[3] * height) + 1)
    return shown[y0 : max(y0, y1), x0 : max(x0, x1)].astype(np.float32)


def _is_on_page(box: Box) -> bool:
    return box[0] < 1 and box[1] < 1 and box[2] > 0 and box[3] > 0


def _contrast(pixels: NDArray[Any]) -> float:
    return float(pixels.max()) - float(pixels.min()) if pixels.size else 0.0


def _fill_luminance(text_object: Any) -> float | None:
    red, green, blue, alpha = (ctypes.c_uint() for _ in range(4))
    if not pdfium.FPDFPageObj_GetFillColor(text_object, red, green, blue, alpha):
        return None
    return 0.299 * red.value + 0.587 * green.value + 0.114 * blue.value


def _union(boxes: list[Box]) -> Box:
    return (min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes))


def _words(pieces: list[tuple[str, Box, bool]]) -> Iterator[Word]:
    line, letters, boxes = 0, "", list[Box]()
    for char, box, _ in pieces:
        if not char.isspace():
            letters += char
            boxes.append(box)
            continue
        if letters:
            yield _word(letters, boxes, line)
            letters, boxes = "", []
        line += char == "\n"
    if letters:
        yield _word(letters, boxes, line)


def _word(letters: str, boxes: list[Box], line: int) -> Word:
    x0, y0, x1, y1 = _union(boxes)
    inside = (min(max(x0, 0.0), 1.0), min(max(y0, 0.0), 1.0), min(max(x1, 0.0), 1.0), min(max(y1, 0.0), 1.0))
    return Word(letters, 1.0, inside, line)


_GLYPH_CODES = re.compile(r"\(cid:\d+\)|(?:/[A-Za-z]{0,5}\d{1,5}){2,}|^/[A-Za-z]{1,5}\d{1,5}$|\\u[0-9a-fA-F]{4}")


def _quality(words: tuple[Word, ...], *, unmapped: int) -> float | None:
    """Share of the characters that stand in readable words. Dot leaders and rules count neither way."""
    counted = [word.text for word in words if len(set(word.text)) > 1 or word.text.isalnum()]
    total = sum(map(len, counted))
    if not total:
        return None if not words else 0.0 if all(_is_private(word.text[0]) for word in words) else 1.0
    unreadable = sum(len(word) for word in counted if not reads_as_word(word))
    return round(max(0.0, 1.0 - max(unreadable, min(unmapped, total)) / total), 4)


def reads_as_word(word: str) -> bool:
    """Whether this is made of characters, not of the codes of a font's glyphs."""
    if _GLYPH_CODES.search(word):
        return False
    odd = sum(_is_private(char) for char in word)
    signs = sum(unicodedata.category(char)[0] not in "LNM" for char in word)
    changes = sum(first != second for first, second in pairwise(word))
    return odd * 3 <= len(word) and not (signs == len(word) >= 4 and changes >= 3)


def _is_private(char: str) -> bool:
    return char == "\ufffd" or unicodedata.category(char) in ("Co", "Cn", "Cc", "Cs")
