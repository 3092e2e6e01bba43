"""Text in pictures: a cheap gate that stops early, a full read, and the choice of who reads.

Photos go to rapidocr, pages (clean scans, PDF renders) to Tesseract: on hand-held label photos Tesseract finds nothing,
on pages it costs a third. The gate is rapidocr's in both cases, since looking small and reading a few lines beats any
whole page.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol, assert_never

import cv2
import numpy as np
import numpy.typing as npt

from prefilters.limits import DecodeLimits
from prefilters.probes import ocr_rapid, ocr_tesseract
from prefilters.probes.image import load_upright
from prefilters.probes.page import looks_like_page, skew
from prefilters.probes.text import WHOLE, Box, TextReading, token_count
from prefilters.probes.view import View, box_back, view_of
from prefilters.probes.visible import contrast, least_contrast

Rgb = npt.NDArray[np.uint8]

GATE_MAX_SIDE = 1600
"""Long side in pixels to which a picture is reduced before its gate; of a long picture, a piece."""
READ_MAX_SIDE = 2800
"""The same before a full read: a letter page at 250 dpi."""

CONTRAST_RANGE = (0.1, 10.0)
THRESHOLD_RANGE = (0, 255)


class OcrEngine(Protocol):
    """Somebody who reads. Pictures are RGB, upright; places come back as fractions of the picture."""

    @property
    def name(self) -> str:
        """What the fact `text.engine` says."""
        ...

    def gate(self, rgb: Rgb, *, min_tokens: int) -> TextReading:
        """Read until `min_tokens` tokens of confident words are there, or nothing is left."""
        ...

    def read(self, rgb: Rgb) -> TextReading:
        """Read everything."""
        ...


class EngineChoice(StrEnum):
    """Who reads; `auto` looks at the picture first."""

    AUTO = "auto"
    RAPIDOCR = "rapidocr"
    TESSEROCR = "tesserocr"
    PYTESSERACT = "pytesseract"


def preload() -> None:
    """Load models, language data and the token table (about 1 s), so that the first picture does not pay for it.

    May run before a fork: it starts no thread.
    """
    token_count("")
    ocr_rapid.preload()
    ocr_tesseract.installed_engine()


def gate(path: Path, limits: DecodeLimits, *, min_tokens: int, engine: EngineChoice = EngineChoice.AUTO) -> TextReading:
    """The text of a picture file until there are `min_tokens` tokens. Raises `ProbeError` as decoding does."""
    return gate_array(load_for_gate(path, limits), min_tokens=min_tokens, engine=engine)


def load_for_gate(path: Path, limits: DecodeLimits) -> Rgb:
    """The upright pixels as small as a gate can do with; `gate_array` takes them."""
    return _load_reduced(path, limits, GATE_MAX_SIDE)


def _load_reduced(path: Path, limits: DecodeLimits, side: int) -> Rgb:
    """The picture with a long side of at most `side`; a long one, which is read in pieces, with so much for a piece."""
    rgb = load_upright(path, limits, max_side=side)
    longest, shortest = max(rgb.shape[:2]), min(rgb.shape[:2])
    if longest < side or longest <= ocr_rapid.LONG * shortest:
        return rgb
    return load_upright(path, limits, max_side=side * longest // (2 * shortest))


def gate_array(rgb: Rgb, *, min_tokens: int, engine: EngineChoice = EngineChoice.AUTO) -> TextReading:
    """`gate` for pixels."""
    return _engine(engine).gate(rgb, min_tokens=min_tokens)


def read(
    path: Path,
    limits: DecodeLimits,
    *,
    region: Box | None = None,
    contrast: float = 1.0,
    threshold: int | None = None,
    rotate: int = 0,
    engine: EngineChoice = EngineChoice.AUTO,
) -> TextReading:
    """All text of a picture file, words in reading order, places in fractions of the whole upright picture.

    `region` reads only that part (x0, y0, x1, y1 in fractions), at full resolution. `contrast` 0.1..10 spreads the
    tones about the middle, `threshold` 0..255 then makes all lighter pixels white and the rest black, `rotate` turns
    the part clockwise by so many degrees before reading. Raises `ValueError` outside those ranges, `ProbeError` as
    decoding does.
    """
    _check(region, contrast, threshold)
    whole = _load_reduced(path, limits, READ_MAX_SIDE) if region is None else load_upright(path, limits)
    view = view_of(whole, region or WHOLE, rotate)
    toned = _toned(view.rgb, contrast, threshold)
    return _placed(read_array(toned, page=looks_like_page(view.rgb), engine=engine), view, rotate)


def read_array(rgb: Rgb, *, page: bool | None = None, engine: EngineChoice = EngineChoice.AUTO) -> TextReading:
    """`read` for pixels. `page` says whether it is one (clean print on paper); None looks for itself."""
    if engine is not EngineChoice.AUTO:
        return _engine(engine).read(rgb)
    is_page = looks_like_page(rgb) if page is None else page
    page_engine = ocr_tesseract.installed_engine() if is_page else None
    return _read_page(rgb, page_engine) if page_engine else ocr_rapid.RapidOcr().read(rgb)


def _engine(choice: EngineChoice) -> OcrEngine:
    match choice:
        case EngineChoice.AUTO | EngineChoice.RAPIDOCR:
            return ocr_rapid.RapidOcr()
        case EngineChoice.TESSEROCR:
            return ocr_tesseract.TesserOcr()
        case EngineChoice.PYTESSERACT:
            return ocr_tesseract.PyTesseract()
        case _:
            assert_never(choice)


CONVINCING = 0.75
"""Mean confidence below which a page may stand turned, or be no page."""
TOLERATED_SKEW = 1
"""Degrees that Tesseract takes without loss; by 12 it reads nothing."""
TURN_TOKENS = 12
"""Tokens that are looked at to tell how a page is turned."""


def _read_page(rgb: Rgb, engine: OcrEngine) -> TextReading:
    """Tesseract's reading of the page set straight; where it does not convince, set upright; or else rapidocr's."""
    askew = skew(rgb)
    straight = _read_turned(rgb, engine, -askew if abs(askew) > TOLERATED_SKEW else 0)
    if _is_convincing(straight):
        return straight
    photo_engine = ocr_rapid.RapidOcr()
    turn = photo_engine.gate(rgb, min_tokens=TURN_TOKENS).rotation
    if turn:
        upright = _read_turned(rgb, engine, -turn)
        if _is_convincing(upright):
            return upright
    return photo_engine.read(rgb)


def _read_turned(rgb: Rgb, engine: OcrEngine, degrees: int) -> TextReading:
    view = view_of(rgb, WHOLE, degrees)
    return _placed(_seen(engine.read(view.rgb), view.rgb), view, degrees)


def _seen(reading: TextReading, rgb: Rgb) -> TextReading:
    """The reading without words that a person would not see; the photo engine looks at that by itself."""
    least, (height, width) = least_contrast(rgb), rgb.shape[:2]
    scale = (width, height, width, height)
    words = tuple(
        word
        for word in reading.words
        if contrast(rgb, *(edge * side for edge, side in zip(word.box, scale, strict=True))) >= least
    )
    return replace(reading, words=words, hidden=reading.hidden + len(reading.words) - len(words))


def _is_convincing(reading: TextReading) -> bool:
    length = sum(len(word.text) for word in reading.words)
    return length > 0 and sum(word.confidence * len(word.text) for word in reading.words) / length >= CONVINCING


def _check(region: Box | None, contrast: float, threshold: int | None) -> None:
    if region is not None:
        x0, y0, x1, y1 = region
        if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
            raise ValueError(f"region must be x0, y0, x1, y1 in 0..1 with x0 < x1 and y0 < y1, not {region}")
    if not CONTRAST_RANGE[0] <= contrast <= CONTRAST_RANGE[1]:
        raise ValueError(f"contrast must be {CONTRAST_RANGE[0]} to {CONTRAST_RANGE[1]}, not {contrast}")
    if threshold is not None and not THRESHOLD_RANGE[0] <= threshold <= THRESHOLD_RANGE[1]:
        raise ValueError(f"threshold must be {THRESHOLD_RANGE[0]} to {THRESHOLD_RANGE[1]}, not {threshold}")


def _toned(rgb: Rgb, contrast: float, threshold: int | None) -> Rgb:
    if contrast != 1.0:
        rgb = cv2.convertScaleAbs(np.clip((rgb.astype(np.float32) - 127.5) * contrast + 127.5, 0, 255)).astype(np.uint8)
    if threshold is not None:
        grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        rgb = np.repeat(np.where(grey >= threshold, 255, 0).astype(np.uint8)[:, :, np.newaxis], 3, axis=2)
    return rgb


def _placed(reading: TextReading, view: View, rotate: int) -> TextReading:
    """The reading with its places and its turn told of the whole picture."""
    words = tuple(replace(word, box=box_back(word.box, view.back)) for word in reading.words)
    return replace(reading, words=words, rotation=(reading.rotation - rotate) % 360)
