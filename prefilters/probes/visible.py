"""Whether a person would see print in a picture: text in nearly the colour of its ground is written for machines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rgb = npt.NDArray[np.uint8]

LEAST_CONTRAST = 32.0
"""Levels of 255, in the colour channel where they are most, that must lie between print and its ground. The faintest
confident word on 22 photos and pages has 54; engines read down to 14."""
LEAST_SHARE = 0.25
"""Of the picture's own range, where that is small: in a dark or foggy photo all print is faint."""
_LOW, _HIGH = 0.02, 0.98
_MOST_SAMPLED = 250_000


def least_contrast(rgb: Rgb) -> float:
    """Levels that print must differ from its ground by in this picture."""
    step = max(1, int((rgb.shape[0] * rgb.shape[1] / _MOST_SAMPLED) ** 0.5))
    return min(LEAST_CONTRAST, LEAST_SHARE * _spread(rgb[::step, ::step]))


def contrast(rgb: Rgb, left: float, top: float, right: float, bottom: float) -> float:
    """Levels between the darkest and the lightest of what lies in this box, given in pixels, but for the odd speck."""
    height, width = rgb.shape[:2]
    x0, y0 = min(max(0, int(left)), width - 1), min(max(0, int(top)), height - 1)
    return _spread(rgb[y0 : max(y0 + 1, int(bottom)), x0 : max(x0 + 1, int(right))])


def _spread(rgb: Rgb) -> float:
    return max(_range(rgb[:, :, channel]) for channel in range(3))


def _range(levels: npt.NDArray[np.uint8]) -> float:
    shares = np.cumsum(np.bincount(levels.ravel(), minlength=256)) / levels.size
    return float(np.searchsorted(shares, _HIGH) - np.searchsorted(shares, _LOW))
