"""Text on photos: PP-OCR's detector, line turner and recogniser as the rapidocr wheel ships them, on onnxruntime.

rapidocr's own pipeline reads every box and enlarges small pictures first. Here the same models run on sessions of our
own (one thread, no spinning, nothing fetched), so that a gate can look small first and stop early.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from prefilters.probes.text import Box, Depth, TextReading, Word, evidence_tokens, is_cjk, is_confident, is_sure
from prefilters.probes.visible import contrast, least_contrast

Rgb = npt.NDArray[np.uint8]
Quad = npt.NDArray[np.float32]
"""Four corners in pixels, from the text's own top left, clockwise as it reads."""

GATE_SIDES = (320, 640)
"""Long sides in pixels at which the gate detects, one after the other while there is too little text."""
READ_SIDE = 960
"""Long side in pixels at which a full read detects."""
WORTH_A_SECOND_LOOK = 1.25
"""How much larger the second side must be for a second look."""
GATE_ENLARGEMENT = 1.5
READ_ENLARGEMENT = 2.0
"""Small pictures are enlarged at most so much: a 198 px thumbnail shows its small print only then."""
LONG = 3.0
"""Long side / short side from which a picture is looked at in pieces, since its print would vanish at a small size."""
OVERLAP = 0.15
"""Share of a piece that its neighbour shows as well."""
MAX_PARTS = 8
"""Pieces of the longest picture."""
MAX_GATE_LINES = 24
"""Lines that a gate tries at most; what it leaves counts as unread."""
MAX_READ_LINES = 300
"""Lines that a read takes at most, biggest first (some 10 s of CPU); what it leaves counts as unread."""
SAME_SIZE = 0.5
"""Share of a box's area from which another one in its place is the same box seen again."""
LINE_HEIGHT = 48
"""Height in pixels of a line as the recogniser takes it."""
MAX_LINE_WIDTH = 2400
"""A longer line is squeezed: beyond it the recogniser's cost is out of all proportion."""
MIN_LINE_WIDTH = 96
"""A shorter line is padded."""
TURNER_WIDTH = 192
"""Width in pixels of a line as the line turner takes it."""
TALL = 1.5
"""Height / width from which a box is taken for a line that runs up or down, as the models' authors do."""
SURE_TURN = 0.9
"""Score of the line turner below which both ways up are tried."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a picture, in pixels."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True, slots=True)
class Glyph:
    """One recognised character."""

    text: str
    confidence: float
    place: float
    """0..1 along the line."""


@dataclass(frozen=True, slots=True)
class Line:
    """One detected line, with what was read there."""

    quad: Quad
    glyphs: tuple[Glyph, ...]

    @property
    def confidence(self) -> float:
        """Mean over the characters; 0 where nothing was read."""
        return sum(glyph.confidence for glyph in self.glyphs) / len(self.glyphs) if self.glyphs else 0.0

    @property
    def is_settled(self) -> bool:
        """Whether a confident word was read."""
        return any(is_confident(word) for word in _words(self, (1, 1), 0))


@dataclass(frozen=True, slots=True)
class _Models:
    detector: Any
    turner: Any
    recogniser: Any
    alphabet: tuple[str, ...]
    boxes: Any


@dataclass(frozen=True, slots=True)
class RapidOcr:
    """The engine for photos; any script the shipped model knows (Chinese, Japanese, Latin and more), turned any way."""

    name: str = "rapidocr"

    def gate(self, rgb: Rgb, *, min_tokens: int) -> TextReading:
        """Read the biggest lines first, and stop once `min_tokens` tokens of confident words are there."""
        lines: list[Line] = []
        left: list[Quad] = []
        hidden = 0
        for part, side in _looks(rgb):
            seen, unseen = _told_apart(rgb, _detect(rgb, part, side, GATE_ENLARGEMENT))
            hidden += unseen
            fresh = [quad for quad in seen if not any(_is_same(quad, line) for line in lines)]
            lines = [line for line in lines if not any(_holds(line.quad, quad) for quad in fresh)]
            left = sorted(fresh, key=cv2.contourArea, reverse=True)
            while left and len(lines) < MAX_GATE_LINES:
                lines.append(_recognise(rgb, left.pop(0)))
                if evidence_tokens(_plain_words(lines)) >= min_tokens:
                    return replace(_reading(rgb, lines, left, depth=Depth.GATE), hidden=hidden)
            if left:
                break
        unread = _unread(lines) + len(left)
        return replace(_reading(rgb, lines, left, depth=Depth.GATE), unread=unread, hidden=hidden)

    def read(self, rgb: Rgb) -> TextReading:
        """Read every line, up to `MAX_READ_LINES`."""
        quads: list[Quad] = []
        hidden = 0
        for part in _parts(rgb):
            seen, unseen = _told_apart(rgb, _detect(rgb, part, READ_SIDE, READ_ENLARGEMENT))
            hidden += unseen
            quads += [quad for quad in seen if not any(_holds(known, quad) for known in quads)]
        quads.sort(key=cv2.contourArea, reverse=True)
        lines = [_recognise(rgb, quad) for quad in quads[:MAX_READ_LINES]]
        left = quads[MAX_READ_LINES:]
        unread = _unread(lines) + len(left)
        return replace(_reading(rgb, lines, left, depth=Depth.READ), unread=unread, hidden=hidden)


def _told_apart(rgb: Rgb, quads: Iterable[Quad]) -> tuple[list[Quad], int]:
    """The boxes whose print a person would see, and the number of the others, which nobody reads."""
    least = least_contrast(rgb)
    boxes = list(quads)
    seen = [quad for quad in boxes if contrast(rgb, *quad.min(axis=0), *quad.max(axis=0)) >= least]
    return seen, len(boxes) - len(seen)


# onnxruntime's Linux wheels from 1.29 on report each process and model to their maker, and keep an identifier in the
# home folder, unless this is set before the library is loaded.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def preload() -> None:
    """Load the models (about 0.2 s), so that the first picture does not pay for it."""
    _models()


@cache
def _models() -> _Models:
    from rapidocr.ch_ppocr_det.utils import DBPostProcess

    recogniser = _session("PP-OCRv6_rec_small.onnx")
    characters = recogniser.get_modelmeta().custom_metadata_map["character"].splitlines()
    return _Models(
        detector=_session("PP-OCRv6_det_small.onnx"),
        turner=_session("ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
        recogniser=recogniser,
        alphabet=("", *characters, " "),
        boxes=DBPostProcess(thresh=0.3, box_thresh=0.5, unclip_ratio=1.6, use_dilation=True),
    )


def _session(model: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # it would keep the peak, 100 MB, for 3 % of CPU
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    path = resources.files("rapidocr").joinpath("models", model)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, batch: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    output: npt.NDArray[np.float32] = session.run(None, {session.get_inputs()[0].name: batch})[0]
    return output


def _network_input(rgb: Rgb) -> npt.NDArray[np.float32]:
    """-1..1, channels first in the order blue, green, red, as the models were trained."""
    planes = rgb[:, :, ::-1].transpose(2, 0, 1).astype(np.float32)
    return np.ascontiguousarray(planes / 127.5 - 1.0)[np.newaxis]


def _looks(rgb: Rgb) -> Iterator[tuple[Part, int]]:
    """Where a gate looks, and at which long side, coarse before fine."""
    parts = _parts(rgb)
    longest = max(max(part.right - part.left, part.bottom - part.top) for part in parts)
    first, second = (min(side, round(longest * GATE_ENLARGEMENT)) for side in GATE_SIDES)
    sides = (first, second) if second >= WORTH_A_SECOND_LOOK * first else (first,)
    yield from ((part, side) for side in sides for part in parts)


def _parts(rgb: Rgb) -> list[Part]:
    """The picture, or for a long one (a product page as one picture, a banner) pieces that overlap."""
    height, width = rgb.shape[:2]
    longest, shortest = max(height, width), min(height, width)
    if longest <= LONG * shortest:
        return [Part(0, 0, width, height)]
    length = max(2 * shortest, math.ceil(longest / MAX_PARTS / (1 - OVERLAP)))
    count = max(2, math.ceil((longest - OVERLAP * length) / (length * (1 - OVERLAP))))
    starts = [round(number * (longest - length) / (count - 1)) for number in range(count)]
    if width > height:
        return [Part(start, 0, start + length, height) for start in starts]
    return [Part(0, start, width, start + length) for start in starts]


def _detect(rgb: Rgb, part: Part, side: int, enlargement: float) -> list[Quad]:
    """Boxes of text in the part with its long side brought to `side`, in pixels of `rgb`."""
    cut = rgb[part.top : part.bottom, part.left : part.right]
    height, width = cut.shape[:2]
    scale = min(enlargement, side / max(height, width))
    small_width, small_height = (max(32, round(length * scale / 32) * 32) for length in (width, height))
    small = cv2.resize(
        cut, (small_width, small_height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    )
    models = _models()
    boxes, _ = models.boxes(_run(models.detector, _network_input(small)), (height, width))
    quads = [np.asarray(box, np.float32) + np.array([part.left, part.top], np.float32) for box in boxes]
    return [quad for quad in quads if not _is_cut_off(quad, part, rgb)]


def _is_cut_off(quad: Quad, part: Part, rgb: Rgb) -> bool:
    """Whether the box ends at a cut between parts and is small enough for the neighbour to hold it whole."""
    height, width = rgb.shape[:2]
    (left, top), (right, bottom) = quad.min(axis=0).tolist(), quad.max(axis=0).tolist()
    if part.right - part.left < width:
        at_cut = (left <= part.left + 2 and part.left > 0) or (right >= part.right - 3 and part.right < width)
        return bool(at_cut and right - left < OVERLAP * (part.right - part.left))
    at_cut = (top <= part.top + 2 and part.top > 0) or (bottom >= part.bottom - 3 and part.bottom < height)
    return bool(at_cut and bottom - top < OVERLAP * (part.bottom - part.top))


def _holds(quad: Quad, other: Quad) -> bool:
    """Whether the middle of `other` lies in `quad`."""
    x, y = map(float, other.mean(axis=0))
    return cv2.pointPolygonTest(quad, (x, y), False) >= 0


def _is_same(quad: Quad, line: Line) -> bool:
    """Whether the box was looked at before: a line that read well, or one as big; a coarse look may merge lines."""
    if not _holds(line.quad, quad):
        return False
    return line.is_settled or cv2.contourArea(quad) >= SAME_SIZE * cv2.contourArea(line.quad)


def _recognise(rgb: Rgb, quad: Quad) -> Line:
    """What stands in the box; turned to the way up that reads better where the line turner is not sure."""
    upright = _as_line(quad)
    strip = _strip(rgb, upright)
    turned, sure = _is_upside_down(strip)
    flipped = np.roll(upright, 2, axis=0)
    first, second = (flipped, upright) if turned else (upright, flipped)
    line = Line(first, _glyphs(_flip(strip) if turned else strip))
    if sure or line.confidence >= SURE_TURN:
        return line
    return max(line, Line(second, _glyphs(strip if turned else _flip(strip))), key=lambda each: each.confidence)


def _flip(strip: Rgb) -> Rgb:
    return np.ascontiguousarray(strip[::-1, ::-1])


def _lengths(quad: Quad) -> tuple[float, float]:
    """Width and height of the box as it reads."""
    return float(np.linalg.norm(quad[1] - quad[0])), float(np.linalg.norm(quad[3] - quad[0]))


def _as_line(quad: Quad) -> Quad:
    """The same box with its corners numbered so that the text runs along it: a tall one is read bottom to top."""
    width, height = _lengths(quad)
    return np.roll(quad, 1, axis=0) if height >= TALL * width else quad


def _strip(rgb: Rgb, quad: Quad) -> Rgb:
    """The box cut out, straightened, and scaled to the recogniser's height."""
    width, height = (max(1, round(length)) for length in _lengths(quad))
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(quad, corners)
    cut = cv2.warpPerspective(rgb, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    strip_width = min(MAX_LINE_WIDTH, max(1, math.ceil(width * LINE_HEIGHT / height)))
    shrinks = height > LINE_HEIGHT
    return np.asarray(
        cv2.resize(cut, (strip_width, LINE_HEIGHT), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR),
        np.uint8,
    )


def _is_upside_down(strip: Rgb) -> tuple[bool, bool]:
    """Whether the line stands on its head, and whether that is sure."""
    canvas = np.full((LINE_HEIGHT, TURNER_WIDTH, 3), 127, np.uint8)
    width = min(TURNER_WIDTH, strip.shape[1])
    canvas[:, :width] = strip if strip.shape[1] == width else cv2.resize(strip, (width, LINE_HEIGHT))
    upright, turned = map(float, _run(_models().turner, _network_input(canvas))[0])
    return turned > upright, max(turned, upright) >= SURE_TURN


def _glyphs(strip: Rgb) -> tuple[Glyph, ...]:
    """Greedy CTC decoding of the recogniser's answer: repeated classes are one character, class 0 is none."""
    width = max(MIN_LINE_WIDTH, math.ceil(strip.shape[1] / 8) * 8)
    batch = np.zeros((1, 3, LINE_HEIGHT, width), np.float32)
    batch[:, :, :, : strip.shape[1]] = _network_input(strip)
    models = _models()
    scores = _run(models.recogniser, batch)[0]
    classes = scores.argmax(axis=1)
    starts = np.flatnonzero((classes != 0) & (np.diff(classes, prepend=0) != 0))
    steps_per_line = len(classes) * strip.shape[1] / width
    return tuple(
        Glyph(
            models.alphabet[classes[step]], float(scores[step, classes[step]]), min(1.0, (step + 0.5) / steps_per_line)
        )
        for step in starts
    )


def _plain_words(lines: Iterable[Line]) -> list[Word]:
    return [word for line in lines for word in _words(line, (1, 1), 0)]


def _words(line: Line, size: tuple[int, int], number: int) -> Iterator[Word]:
    """The line cut at blanks and between scripts that are counted by character and those that are not."""
    run: list[Glyph] = []
    for glyph in (*line.glyphs, Glyph(" ", 0.0, 1.0)):
        if run and (glyph.text.isspace() or _splits(run[-1].text, glyph.text)):
            yield _word(run, line, size, number)
            run = []
        if not glyph.text.isspace():
            run.append(glyph)


def _splits(left: str, right: str) -> bool:
    return is_cjk(left[-1]) != is_cjk(right[0]) and left.isalnum() and right.isalnum()


def _word(run: Sequence[Glyph], line: Line, size: tuple[int, int], number: int) -> Word:
    confidence = sum(glyph.confidence for glyph in run) / len(run)
    half = 0.5 / max(len(line.glyphs), 1)
    box = _span_box(line.quad, max(0.0, run[0].place - half), min(1.0, run[-1].place + half), size)
    return Word("".join(glyph.text for glyph in run), round(confidence, 4), box, number)


def _span_box(quad: Quad, start: float, end: float, size: tuple[int, int]) -> Box:
    """The upright box, in fractions of the picture, around one stretch of a line."""
    top, bottom = quad[1] - quad[0], quad[2] - quad[3]
    corners = np.array([quad[0] + top * start, quad[0] + top * end, quad[3] + bottom * end, quad[3] + bottom * start])
    fractions = np.clip(corners / np.array(size, np.float32), 0.0, 1.0)
    (x0, y0), (x1, y1) = fractions.min(axis=0), fractions.max(axis=0)
    return round(float(x0), 4), round(float(y0), 4), round(float(x1), 4), round(float(y1), 4)


def _reading(rgb: Rgb, lines: Sequence[Line], left: Sequence[Quad], *, depth: Depth) -> TextReading:
    height, width = rgb.shape[:2]
    rows, rotation = in_reading_order([line for line in lines if line.glyphs])
    words = tuple(
        word for number, row in enumerate(rows) for line in row for word in _words(line, (width, height), number)
    )
    covered = sum(cv2.contourArea(quad) for quad in (*left, *(line.quad for line in lines))) / (width * height)
    return TextReading(words, _unread(lines), min(1.0, covered), "rapidocr", depth, rotation=rotation)


def _unread(lines: Iterable[Line]) -> int:
    return sum(not any(map(is_sure, _words(line, (1, 1), 0))) for line in lines)


def in_reading_order(lines: Sequence[Line]) -> tuple[list[list[Line]], int]:
    """The lines in rows, top to bottom and left to right as the text stands, and its turn in degrees clockwise."""
    if not lines:
        return [], 0
    along = _main_direction(lines)
    down = np.array([-along[1], along[0]])
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda each: float(each.quad.mean(axis=0) @ down)):
        if rows and _same_row(rows[-1][0], line, down):
            rows[-1].append(line)
        else:
            rows.append([line])
    for row in rows:
        row.sort(key=lambda each: float(each.quad.mean(axis=0) @ along))
    return rows, round(math.degrees(math.atan2(along[1], along[0]))) % 360


def _main_direction(lines: Sequence[Line]) -> npt.NDArray[np.float64]:
    """The unit vector along which most of the sure text runs, weighted by how much stands on each line."""
    vectors = [(line.quad[1] - line.quad[0]) / max(_lengths(line.quad)[0], 1e-6) for line in lines]
    weights = [len(line.glyphs) * line.confidence for line in lines]
    quarters = [round(math.degrees(math.atan2(y, x)) / 90) % 4 for x, y in vectors]
    main = max(range(4), key=lambda quarter: sum(w for w, q in zip(weights, quarters, strict=True) if q == quarter))
    mean = sum(v * w for v, w, q in zip(vectors, weights, quarters, strict=True) if q == main)
    return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-6), np.float64)


def _same_row(first: Line, other: Line, down: npt.NDArray[np.float64]) -> bool:
    gap = abs(float((other.quad.mean(axis=0) - first.quad.mean(axis=0)) @ down))
    return gap < 0.5 * min(min(_lengths(first.quad)), min(_lengths(other.quad)))
