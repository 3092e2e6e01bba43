"""Whether two files show the same photo: re-encoded, resized or turned by its EXIF tag, but not another one like it.

It decodes, so it runs in a child of the decoder pool.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from prefilters.limits import DecodeLimits
from prefilters.probes.image import load_upright

_COMPARED_SIDE = 512
_CELL = 8
"""Pixels of a side of the places that are compared: a letter or two of a label."""
_SMOOTHING = 2.0
"""Sigma in pixels: what scaling and compression do to edges is evened out, what is printed there is not."""
MOST_DIFFERENCE = 14.0
"""Levels of 255 by which any place may differ, in any colour. Over 22 photos, JPEG at quality 85, WebP at 70, halving and
reduction to 200 px change no place by more than 12.5; another word on the same label changes one by 15 and more, another
colour of the same thing by 20."""
_MOST_ASPECT_CHANGE = 0.02


def is_same_picture(one: Path, other: Path, limits: DecodeLimits) -> bool:
    """Whether the pictures look the same in every place, in colour. Raises `ProbeError`."""
    return largest_difference(one, other, limits) <= MOST_DIFFERENCE


def largest_difference(one: Path, other: Path, limits: DecodeLimits) -> float:
    """Levels of 255 by which the most different place differs; 255 where the shapes do. Raises `ProbeError`."""
    first, second = (load_upright(path, limits, max_side=_COMPARED_SIDE) for path in (one, other))
    aspects = [picture.shape[1] / picture.shape[0] for picture in (first, second)]
    if abs(aspects[0] / aspects[1] - 1) > _MOST_ASPECT_CHANGE:
        return 255.0
    size = (min(first.shape[1], second.shape[1]), min(first.shape[0], second.shape[0]))
    apart = np.abs(_smooth(first, size) - _smooth(second, size)).max(axis=2)
    cells = (max(1, size[0] // _CELL), max(1, size[1] // _CELL))
    return float(cv2.resize(apart, cells, interpolation=cv2.INTER_AREA).max())


def _smooth(rgb: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.float32]:
    fitted = cv2.resize(rgb, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    return np.asarray(cv2.GaussianBlur(fitted, (0, 0), _SMOOTHING), np.float32)
