"""Text on pages: Tesseract with Debian's data files, in-process by tesserocr or through its command by pytesseract.

Good and cheap on clean print (a third of the photo engine's cost), useless on hand-held photos.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from prefilters.probes.text import MIN_CONFIDENCE, Box, Depth, TextReading, Word, evidence_tokens, is_cjk

Rgb = npt.NDArray[np.uint8]
Grey = npt.NDArray[np.uint8]

LANGUAGES = ("eng", "deu", "fra", "chi_sim")
"""Used where their data files are installed; Tesseract asks a later one only where an earlier one is unsure."""
DATA_FOLDERS = (
    Path("/usr/share/tesseract-ocr/5/tessdata"),
    Path("/usr/share/tesseract-ocr/4.00/tessdata"),
    Path("/usr/share/tessdata"),
    Path("/usr/local/share/tessdata"),
)
RESOLUTION_DPI = 150
"""Told to Tesseract, which otherwise guesses and warns."""
BANDS = 4
"""The gate reads the busiest of so many horizontal bands before it reads the whole page."""


def data_folder() -> Path | None:
    """The folder of `*.traineddata` files, or None where none is installed."""
    named = os.environ.get("TESSDATA_PREFIX")
    folders = (Path(named), Path(named) / "tessdata", *DATA_FOLDERS) if named else DATA_FOLDERS
    return next((folder for folder in folders if _installed(folder)), None)


def languages(folder: Path) -> str:
    """The installed ones of `LANGUAGES`, as Tesseract takes them: `eng+chi_sim`."""
    return "+".join(_installed(folder))


def _installed(folder: Path) -> list[str]:
    return [name for name in LANGUAGES if (folder / f"{name}.traineddata").is_file()]


@dataclass(frozen=True, slots=True)
class TesserOcr:
    """The engine for pages, in this process."""

    name: str = "tesserocr"

    def gate(self, rgb: Rgb, *, min_tokens: int) -> TextReading:
        """Read the busiest band, and the whole page only if that has too little."""
        return _gate(self, rgb, min_tokens)

    def read(self, rgb: Rgb) -> TextReading:
        """Read the page."""
        grey = _grey(rgb)
        api = _api()
        height, width = grey.shape
        api.SetImageBytes(grey.tobytes(), width, height, 1, width)
        api.SetSourceResolution(RESOLUTION_DPI)
        try:
            api.Recognize()
            table = api.GetTSVText(0)
        finally:
            api.Clear()
        return _reading(table, (width, height), self.name)


@dataclass(frozen=True, slots=True)
class PyTesseract:
    """The engine for pages on hosts that have Tesseract's command but no tesserocr wheel; about four times the cost."""

    name: str = "pytesseract"

    def gate(self, rgb: Rgb, *, min_tokens: int) -> TextReading:
        """Read the busiest band, and the whole page only if that has too little."""
        return _gate(self, rgb, min_tokens)

    def read(self, rgb: Rgb) -> TextReading:
        """Read the page."""
        import pytesseract

        folder = _folder()
        table = pytesseract.image_to_data(
            _grey(rgb), lang=languages(folder), config=f'--tessdata-dir "{folder}" --oem 1 --dpi {RESOLUTION_DPI}'
        )
        return _reading(table, (rgb.shape[1], rgb.shape[0]), self.name)


def installed_engine() -> TesserOcr | PyTesseract | None:
    """The better of the two that this host can run, ready to read; None without engine or sound language data.

    The first call loads the data, about 0.1 s.
    """
    if data_folder() is None:
        return None
    if importlib.util.find_spec("tesserocr"):
        try:
            _api()
        except NoLanguageData:
            return None
        return TesserOcr()
    has_command = shutil.which("tesseract") is not None and importlib.util.find_spec("pytesseract") is not None
    return PyTesseract() if has_command else None


class NoLanguageData(Exception):
    """Tesseract was asked for, but none of its data files is installed, or they are damaged."""


def _folder() -> Path:
    folder = data_folder()
    if folder is None:
        raise NoLanguageData("no *.traineddata file found; install tesseract-ocr or set TESSDATA_PREFIX")
    return folder


@cache
def _api() -> Any:
    # OpenMP makes one page a little faster and its CPU time half as much again; it reads the variable when loaded.
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")
    import tesserocr

    tesserocr.set_leptonica_log_level(tesserocr.LeptLogLevel.NONE)
    folder = _folder()
    try:
        return tesserocr.PyTessBaseAPI(
            path=str(folder), lang=languages(folder), psm=tesserocr.PSM.AUTO, oem=tesserocr.OEM.LSTM_ONLY
        )
    except RuntimeError as exc:
        raise NoLanguageData(f"the language data in {folder} cannot be used") from exc


def _grey(rgb: Rgb) -> Grey:
    return np.ascontiguousarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), np.uint8)


def _gate(engine: TesserOcr | PyTesseract, rgb: Rgb, min_tokens: int) -> TextReading:
    first, last = busiest_band(_grey(rgb))
    band = _moved(engine.read(rgb[first:last]), first / len(rgb), (last - first) / len(rgb))
    if evidence_tokens(band.words) >= min_tokens:
        return band
    whole = engine.read(rgb)
    return TextReading(whole.words, whole.unread, whole.share, whole.engine, Depth.GATE)


def busiest_band(grey: Grey) -> tuple[int, int]:
    """First and last row of the quarter of the page where neighbouring pixels differ most."""
    rows = np.abs(np.diff(grey.astype(np.int16), axis=1)).sum(axis=1)
    height = max(1, -(-len(rows) // BANDS))
    sums = np.convolve(rows, np.ones(height), mode="valid")
    first = int(sums.argmax())
    return first, first + height


def _moved(reading: TextReading, top: float, height: float) -> TextReading:
    words = tuple(
        Word(word.text, word.confidence, _in_whole(word.box, top, height), word.line) for word in reading.words
    )
    return TextReading(words, reading.unread, reading.share * height, reading.engine, Depth.GATE)


def _in_whole(box: Box, top: float, height: float) -> Box:
    return box[0], top + box[1] * height, box[2], top + box[3] * height


@dataclass(frozen=True, slots=True)
class _Row:
    """One word of Tesseract's table; place in pixels, confidence 0..1."""

    line: tuple[str, ...]
    left: int
    top: int
    right: int
    bottom: int
    confidence: float
    text: str


WORD_LEVEL = "5"


def _rows(table: str) -> Iterator[_Row]:
    """The words of the table; level, page, block, paragraph, line, word, left, top, width, height, score, text."""
    for entry in table.splitlines():
        cells = entry.split("\t")
        if len(cells) < 12 or cells[0] != WORD_LEVEL or not cells[11].strip():
            continue
        left, top, width, height = map(int, cells[6:10])
        score = max(0.0, float(cells[10])) / 100
        yield _Row(tuple(cells[1:5]), left, top, left + width, top + height, score, cells[11].strip())


def _reading(table: str, size: tuple[int, int], engine: str) -> TextReading:
    width, height = size
    words: list[Word] = []
    unread = 0
    area = 0
    for number, (_, line) in enumerate(groupby(_rows(table), key=lambda row: row.line)):
        rows = list(line)
        area += sum((row.right - row.left) * (row.bottom - row.top) for row in rows)
        unread += sum(row.confidence < MIN_CONFIDENCE for row in rows)
        words += [_word(run, (width, height), number) for run in _runs(rows)]
    return TextReading(tuple(words), unread, min(1.0, area / (width * height)), engine, Depth.READ)


def _runs(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Words as rows of the table; Tesseract sets blanks into Chinese, so its neighbours are one word again."""
    run: list[_Row] = []
    for row in rows:
        if run and not (is_cjk(run[-1].text[-1]) and is_cjk(row.text[0])):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def _word(run: list[_Row], size: tuple[int, int], number: int) -> Word:
    text = "".join(row.text for row in run)
    confidence = sum(row.confidence * len(row.text) for row in run) / len(text)
    width, height = size
    box = (
        round(min(row.left for row in run) / width, 4),
        round(min(row.top for row in run) / height, 4),
        round(max(row.right for row in run) / width, 4),
        round(max(row.bottom for row in run) / height, 4),
    )
    return Word(text, round(confidence, 4), box, number)
