"""How sharp a picture is, whatever its size and however white its background."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

Grey = NDArray[np.uint8]
Plane = NDArray[np.float32]

MEASURED_SIDE = 512
"""Long side, px, at which sharpness is defined."""

_NOISE_SIGMA = 0.7
_LEAST_STEP = 4.0
"""Grey levels between neighbours below which a step is noise."""
_STEP_PERCENTILE = 97.0
_STEP_SHARE = 0.25
_AVERAGED_TAPS = 9
_NEIGHBOURHOOD: NDArray[np.uint8] = np.ones((3, 3), np.uint8)


def sharpness(grey: Grey) -> float | None:
    """Edge-masked re-blur ratio, 0..1, higher is sharper; None where there is no edge to measure on.

    `grey` is upright, on white, its long side at most 512 px by area averaging. A sharp edge loses most of its
    steepness when it is blurred once more, a blurred one hardly any: per axis, over the pixels around clear steps, this
    is the share of the step that a 9-tap average takes away; the worse axis counts, since motion blurs only one.

    The constants, and the bands of use (>= .45 fine, .36-.45 soft, < .36 blurry, < .30 very blurry), are measured on
    labelled photos and synthetic blur: AUC .99 on motion, .999 on a Gaussian of 2 px; the median sharp photo has .59,
    the same under that Gaussian .29. `benchmarks/sharpness.py` measures it again. The idea of re-blurring is Crete et
    al., "The blur effect", SPIE 6492 (2007); without the mask a white background counts as blur. About 2 ms.
    """
    smooth = cv2.GaussianBlur(grey.astype(np.float32), (0, 0), _NOISE_SIGMA)
    along_rows = _lost_share(smooth[:, 1:], smooth[:, :-1], cv2.blur(smooth, (_AVERAGED_TAPS, 1)), axis=1)
    along_columns = _lost_share(smooth[1:], smooth[:-1], cv2.blur(smooth, (1, _AVERAGED_TAPS)), axis=0)
    return min((share for share in (along_rows, along_columns) if share is not None), default=None)


def _lost_share(after: Plane, before: Plane, averaged: Plane, *, axis: int) -> float | None:
    """The share of the steps from `before` to `after` that are gone in `averaged`; None where no step is clear."""
    if after.size == 0:
        return None
    steps = cv2.absdiff(after, before)
    edges = np.asarray(steps > max(_LEAST_STEP, _STEP_SHARE * _percentile(steps, _STEP_PERCENTILE)), np.uint8)
    if not edges.any():
        return None
    near_edges = cv2.dilate(edges, _NEIGHBOURHOOD)
    left = cv2.absdiff(averaged[:, 1:], averaged[:, :-1]) if axis else cv2.absdiff(averaged[1:], averaged[:-1])
    lost = cv2.max(cv2.subtract(steps, left), 0.0)
    return float(cv2.mean(lost, near_edges)[0] / cv2.mean(steps, near_edges)[0])


def _percentile(steps: Plane, percent: float) -> float:
    """By histogram, to 1/16 of a grey level: a tenth of the cost of sorting."""
    counts = cv2.calcHist([np.ascontiguousarray(steps)], [0], None, [4096], [0, 256]).ravel()
    return float(np.searchsorted(np.cumsum(counts), counts.sum() * percent / 100)) / 16
