"""A part of a picture, perhaps turned, that knows the way back to the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from prefilters.probes.text import Box

Rgb = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class View:
    """A part of a picture, perhaps turned, with the way back."""

    rgb: Rgb
    back: npt.NDArray[np.float64]
    """3 x 3: from fractions of the view to fractions of the whole picture."""


def view_of(whole: Rgb, region: Box, rotate: int) -> View:
    height, width = whole.shape[:2]
    left, top = int(region[0] * width), int(region[1] * height)
    right, bottom = max(left + 1, math.ceil(region[2] * width)), max(top + 1, math.ceil(region[3] * height))
    part = np.ascontiguousarray(whole[top:bottom, left:right])
    turned, forth = turned_picture(part, rotate)
    shift = np.array([[1, 0, left], [0, 1, top], [0, 0, 1]], np.float64)
    to_fractions = np.diag([1 / width, 1 / height, 1.0])
    to_pixels = np.diag([float(turned.shape[1]), float(turned.shape[0]), 1.0])
    return View(turned, to_fractions @ shift @ np.linalg.inv(forth) @ to_pixels)


def turned_picture(rgb: Rgb, degrees: int) -> tuple[Rgb, npt.NDArray[np.float64]]:
    """The picture turned clockwise on a canvas that holds all of it, and the 3 x 3 matrix that does so."""
    height, width = rgb.shape[:2]
    if degrees % 360 == 0:
        return rgb, np.eye(3)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    new_width = round(abs(width * cos) + abs(height * sin))
    new_height = round(abs(width * sin) + abs(height * cos))
    matrix = np.array(
        [
            [cos, -sin, new_width / 2 - cos * width / 2 + sin * height / 2],
            [sin, cos, new_height / 2 - sin * width / 2 - cos * height / 2],
            [0, 0, 1],
        ],
        np.float64,
    )
    edge = np.median(np.concatenate([rgb[0], rgb[-1], rgb[:, 0], rgb[:, -1]]), axis=0)
    turned = cv2.warpAffine(
        rgb, matrix[:2], (new_width, new_height), flags=cv2.INTER_CUBIC, borderValue=tuple(map(float, edge))
    )
    return np.asarray(turned, np.uint8), matrix


def box_back(box: Box, back: npt.NDArray[np.float64]) -> Box:
    x0, y0, x1, y1 = box
    corners = back @ np.array([[x0, x1, x1, x0], [y0, y0, y1, y1], [1, 1, 1, 1]])
    places = np.clip(corners[:2], 0.0, 1.0)
    (left, top), (right, bottom) = places.min(axis=1), places.max(axis=1)
    return round(float(left), 4), round(float(top), 4), round(float(right), 4), round(float(bottom), 4)
