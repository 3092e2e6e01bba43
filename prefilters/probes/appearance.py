"""What a picture shows at a glance: its colours by name, its background, and the outline of what stands on it.

It decodes, so it runs in a child of the decoder pool.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from prefilters.limits import DecodeLimits
from prefilters.probes.image import load_upright
from prefilters.probes.look import BUSY, Appearance, ColourShare, Shape

__all__ = ["Appearance", "ColourShare", "Shape", "appearance"]

Rgb = NDArray[np.uint8]
Lab = NDArray[np.float32]
"""CIELAB (D65): L 0..100, a and b about -110..110; one unit is about the least difference that an eye sees."""
Mask = NDArray[np.bool_]

_MEASURED_SIDE = 256

_NAMES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "white": ((255, 255, 255), (242, 242, 242)),
    "light grey": ((205, 205, 205),),
    "grey": ((136, 136, 136),),
    "dark grey": ((76, 76, 76),),
    "black": ((0, 0, 0), (32, 32, 32)),
    "cream": ((250, 243, 215), (240, 228, 195)),
    "beige": ((222, 200, 165), (200, 178, 145)),
    "brown": ((139, 90, 50), (110, 66, 38), (165, 120, 80)),
    "dark brown": ((62, 38, 25),),
    "red": ((220, 30, 35), (255, 0, 0), (180, 20, 25), (205, 65, 60)),
    "dark red": ((120, 15, 25), (85, 10, 20), (130, 0, 0)),
    "orange": ((245, 130, 25), (255, 165, 0), (215, 95, 25)),
    "yellow": ((250, 220, 40), (255, 255, 0), (225, 180, 40), (250, 235, 120)),
    "olive": ((115, 115, 45), (85, 85, 30), (150, 145, 75), (107, 142, 35)),
    "light green": ((150, 215, 130), (180, 230, 160), (160, 220, 70)),
    "green": ((40, 145, 60), (0, 200, 0), (0, 255, 0), (75, 155, 85)),
    "dark green": ((20, 75, 40), (40, 88, 60), (10, 45, 25), (0, 95, 0)),
    "turquoise": ((40, 175, 170), (64, 224, 208), (20, 125, 130), (0, 255, 255)),
    "light blue": ((150, 200, 235), (110, 175, 225), (185, 215, 240)),
    "blue": ((30, 90, 190), (0, 0, 255), (60, 125, 205), (40, 70, 150), (75, 105, 150)),
    "navy": ((20, 30, 80), (0, 0, 128), (25, 35, 60)),
    "purple": ((110, 40, 140), (128, 0, 128), (75, 30, 95), (75, 0, 130), (150, 60, 170)),
    "lilac": ((195, 165, 220), (225, 215, 245), (170, 135, 200)),
    "pink": ((245, 150, 180), (250, 190, 205), (235, 70, 140), (255, 105, 180)),
}
"""Everyday names, each with the sRGB colours that stand for it: a colour takes the name of the nearest one."""
_LIGHTNESS_WEIGHT = 0.6
"""Light and shade on one thing change L most, its name least."""
_LEAST_SHARE, _MOST_COLOURS = 0.05, 5

_BORDER = 0.04
"""Width of the border that the background is judged on, of the short side."""
_PLAIN_SHARE = 0.7
"""Of the border that one ground must make up; the thing itself may reach over one edge."""
_SAME = 7.0
"""CIELAB distance from the ground within which a place is ground."""
_FALLING_LIGHT, _SHADOW = 16.0, 35.0
"""L by which light that falls off along the border, and a soft shadow, may differ from the ground."""
_SHADE_CHROMA, _SHADE_STEP = 7.0, 3.0
"""a and b by which either may, and the difference from pixel to pixel: the edge of a thing is steeper."""
_WHITE_LIGHTNESS, _WHITE_CHROMA = 93.0, 6.0
_LIGHT, _DARK, _COLOURLESS_CHROMA = 75.0, 32.0, 10.0

_SPECK_SHARE = 0.002
"""Of the picture; what is smaller and does not belong to anything is dust."""
_MAIN_SHARE = 0.7
"""Of all that stands on the ground; the largest thing must be so large to be the one that the picture is of."""
_LONG_SIDED = 1.25
_SQUARE_FILL = 0.88
_ROUND_OVERLAP = 0.92
_LEAST_OUTLINE = 8
"""Pixels of the long side below which an outline says nothing."""


def appearance(path: Path | str, limits: DecodeLimits) -> Appearance:
    """The look of the picture at `path`, the same each time. Raises `ProbeError`. About 30 ms after decoding."""
    lab = _to_lab(load_upright(path, limits, max_side=_MEASURED_SIDE))
    ground = _plain_ground(lab)
    if ground is None:
        return Appearance(_colours(lab.reshape(-1, 3)), BUSY, Shape.UNKNOWN, None)
    things = _things(_reached_ground(lab, ground))
    counted = _inner(things & ~_is_same(lab, ground))
    return Appearance(
        colours=_colours(lab[counted] if counted.any() else lab.reshape(-1, 3)),
        background=_ground_name(ground),
        shape=_shape(things),
        object_share=round(float(things.mean()), 3),
    )


def _to_lab(rgb: Rgb) -> Lab:
    return np.asarray(cv2.cvtColor(rgb.astype(np.float32) / 255, cv2.COLOR_RGB2LAB), np.float32)


# --- colours ---------------------------------------------------------------------------------------------------------

_WEIGHTS = np.array([_LIGHTNESS_WEIGHT, 1, 1], np.float32)
_ANCHOR_NAMES = tuple(name for name, anchors in _NAMES.items() for _ in anchors)
_ANCHORS = _to_lab(np.array([[rgb for anchors in _NAMES.values() for rgb in anchors]], np.uint8))[0] * _WEIGHTS


def _colours(lab: Lab) -> tuple[ColourShare, ...]:
    """The names of these pixels, n x 3, by how many bear them; equal ones in the order of the table."""
    counts = np.bincount(_nearest_anchors(lab), minlength=len(_ANCHORS))
    by_name = dict.fromkeys(_NAMES, 0)
    for name, count in zip(_ANCHOR_NAMES, counts, strict=True):
        by_name[name] += int(count)
    ranked = sorted(by_name.items(), key=lambda named: -named[1])[:_MOST_COLOURS]
    shares = ((name, count / len(lab)) for name, count in ranked)
    return tuple(ColourShare(name, round(share, 3)) for name, share in shares if share >= _LEAST_SHARE)


def _nearest_anchors(lab: Lab) -> NDArray[np.intp]:
    """By |p - q|^2 = |p|^2 - 2 pq + |q|^2, whose first term is the same for every anchor."""
    farther = np.square(_ANCHORS).sum(axis=1) - 2 * (lab * _WEIGHTS) @ _ANCHORS.T
    return np.asarray(farther.argmin(axis=1))


# --- background ------------------------------------------------------------------------------------------------------


def _plain_ground(lab: Lab) -> Lab | None:
    """The colour that most of the border has; None where no colour does."""
    width = max(1, round(_BORDER * min(lab.shape[:2])))
    border = np.ones(lab.shape[:2], np.bool_)
    border[width:-width, width:-width] = False
    ground = np.median(lab[border], axis=0).astype(np.float32)
    return ground if _may_be_ground(lab, ground, _FALLING_LIGHT)[border].mean() >= _PLAIN_SHARE else None


def _is_same(lab: Lab, ground: Lab) -> Mask:
    return np.asarray(np.square(lab - ground).sum(axis=2) <= _SAME**2)


def _may_be_ground(lab: Lab, ground: Lab, lightness: float) -> Mask:
    """Where the ground's colour is, or changes softly into a shade of it whose L differs by `lightness` at most."""
    off = np.abs(lab - ground)
    in_shade = (off[..., 0] <= lightness) & (np.hypot(off[..., 1], off[..., 2]) <= _SHADE_CHROMA)
    return np.asarray(_is_same(lab, ground) | (in_shade & (_steps(lab) <= _SHADE_STEP)))


def _steps(lab: Lab) -> NDArray[np.float32]:
    """The largest distance of each pixel to one of the four beside it."""
    largest = np.zeros(lab.shape[:2], np.float32)
    across = np.sqrt(np.square(np.diff(lab, axis=1)).sum(axis=2))
    down = np.sqrt(np.square(np.diff(lab, axis=0)).sum(axis=2))
    for beside, step in (
        (largest[:, 1:], across),
        (largest[:, :-1], across),
        (largest[1:], down),
        (largest[:-1], down),
    ):
        np.maximum(beside, step, out=beside)
    return largest


def _reached_ground(lab: Lab, ground: Lab) -> Mask:
    """The ground as far as one can walk on it from the border: what is enclosed belongs to the thing around it."""
    _, labels = cv2.connectedComponents(_may_be_ground(lab, ground, _SHADOW).astype(np.uint8), connectivity=4)
    edges = np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])
    return np.asarray(np.isin(labels, np.unique(edges[edges > 0])))


def _ground_name(ground: Lab) -> str:
    lightness, chroma = float(ground[0]), float(np.hypot(ground[1], ground[2]))
    if lightness >= _WHITE_LIGHTNESS and chroma <= _WHITE_CHROMA:
        return "plain white"
    if chroma <= _COLOURLESS_CHROMA and lightness >= _LIGHT:
        return "plain light"
    if chroma <= _COLOURLESS_CHROMA and lightness <= _DARK:
        return "plain dark"
    return f"plain {_ANCHOR_NAMES[_nearest_anchors(ground[np.newaxis])[0]]}"


# --- what stands on it -----------------------------------------------------------------------------------------------


def _things(ground: Mask) -> Mask:
    """All that is not ground, without specks."""
    count, labels, stats, _ = cv2.connectedComponentsWithStats((~ground).astype(np.uint8), connectivity=8)
    large = [index for index in range(1, count) if stats[index, cv2.CC_STAT_AREA] >= _SPECK_SHARE * ground.size]
    return np.asarray(np.isin(labels, large))


def _inner(mask: Mask) -> Mask:
    """`mask` without its rim, whose colours are mixed with the ground; all of it where little else is left."""
    inner = cv2.erode(mask.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(np.bool_)
    return inner if 4 * inner.sum() >= mask.sum() else mask


def _shape(things: Mask) -> Shape:
    main = _main_thing(things)
    if main is None or max(main.shape) < _LEAST_OUTLINE:
        return Shape.UNKNOWN
    height, width = main.shape
    if height >= _LONG_SIDED * width:
        return Shape.TALL
    if width >= _LONG_SIDED * height:
        return Shape.WIDE
    if _overlap_with_ellipse(main) >= _ROUND_OVERLAP:
        return Shape.ROUND
    return Shape.SQUARE if main.mean() >= _SQUARE_FILL else Shape.IRREGULAR


def _main_thing(things: Mask) -> Mask | None:
    """The largest thing, cut to its bounding box; None where none stands out."""
    count, labels, stats, _ = cv2.connectedComponentsWithStats(things.astype(np.uint8), connectivity=8)
    if count < 2:
        return None
    largest = 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))
    left, top, width, height, area = (int(value) for value in stats[largest])
    if area < _MAIN_SHARE * things.sum():
        return None
    return np.asarray(labels[top : top + height, left : left + width] == largest)


def _overlap_with_ellipse(main: Mask) -> float:
    """Intersection over union with the ellipse that fills the bounding box."""
    height, width = main.shape
    y, x = np.ogrid[0:height, 0:width]
    ellipse = ((x + 0.5) / width * 2 - 1) ** 2 + ((y + 0.5) / height * 2 - 1) ** 2 <= 1
    return float((main & ellipse).sum() / (main | ellipse).sum())
