"""What a page of print looks like, and how far it stands askew."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

Rgb = npt.NDArray[np.uint8]

PAGE_SIDE = 800
"""Long side in pixels at which the look of a page is judged."""
PAPER_SHARE = 0.6
"""Share of the picture that must be paper."""
PAPER_TONES = 28
"""Tones 0..255 by which paper may differ from its commonest tone."""
INK_TONES = 70
"""Tones by which ink is darker than paper at least."""
COLOURED = 60
"""Difference between the strongest and the weakest of red, green and blue from which a pixel is coloured."""
MAX_COLOUR_SHARE = 0.03
"""Share of the picture that may be coloured."""
MIN_STROKES = 25
"""Pieces of ink, letters mostly, that print has at least."""
MAX_STROKE = 0.08
"""Longest side of a letter as a share of the picture's."""
MIN_STROKE_AREA = 4
"""Pixels; less is dirt."""
MIN_STROKE_SHARE = 0.5
"""Share of the ink that must lie in letters."""
MAX_SKEW = 15
"""Degrees to either side between which a skew is looked for."""
MAX_INK_POINTS = 20_000
"""Pixels of ink that are weighed when a skew is looked for."""


def looks_like_page(rgb: Rgb) -> bool:
    """Whether this is clean print: even light paper, hardly any colour, and most of the ink in many small strokes.

    A packshot on white is one big blob, a photographed label has uneven paper: both are photos to us.
    """
    small = _reduced(rgb)
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
    paper = _paper_tone(grey)
    if np.mean(np.abs(grey.astype(np.int16) - paper) <= PAPER_TONES) < PAPER_SHARE:
        return False
    if np.mean(np.ptp(small, axis=2) > COLOURED) > MAX_COLOUR_SHARE:
        return False
    _, _, stats, _ = cv2.connectedComponentsWithStats((grey < paper - INK_TONES).astype(np.uint8), connectivity=8)
    sides = stats[1:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]].max(axis=1)
    areas = stats[1:, cv2.CC_STAT_AREA]
    strokes = (sides <= MAX_STROKE * max(grey.shape)) & (areas >= MIN_STROKE_AREA)
    return bool(strokes.sum() >= MIN_STROKES and areas[strokes].sum() >= MIN_STROKE_SHARE * areas.sum())


def skew(rgb: Rgb) -> int:
    """Degrees -15..15 by which the lines of a page stand turned clockwise.

    The right angle is the one along which ink falls into the sharpest rows (projection profile). About 10 ms.
    """
    grey = cv2.cvtColor(_reduced(rgb), cv2.COLOR_RGB2GRAY)
    ys, xs = np.nonzero(grey < _paper_tone(grey) - INK_TONES)
    if len(ys) == 0:
        return 0
    step = max(1, len(ys) // MAX_INK_POINTS)
    points = np.stack([xs[::step], ys[::step]]).astype(np.float32)
    return max(sorted(range(-MAX_SKEW, MAX_SKEW + 1), key=abs), key=lambda degrees: _row_sharpness(points, degrees))


def _row_sharpness(points: npt.NDArray[np.float32], degrees: int) -> float:
    angle = math.radians(degrees)
    across = points[1] * math.cos(angle) - points[0] * math.sin(angle)
    rows = np.bincount((across - across.min()).astype(np.intp)).astype(np.float64)
    return float(np.square(np.diff(rows)).sum())


def _reduced(rgb: Rgb) -> Rgb:
    scale = PAGE_SIDE / max(rgb.shape[:2])
    if scale >= 1:
        return rgb
    return np.asarray(cv2.resize(rgb, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)


def _paper_tone(grey: npt.NDArray[np.uint8]) -> int:
    return int(np.bincount(grey.ravel(), minlength=256)[128:].argmax()) + 128
