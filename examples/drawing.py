"""What a product photo is made of: print, a box or a jar on a table, light, and the faults of a hand-held camera.

Everything is drawn, nothing is loaded: only numpy, OpenCV (whose wheel carries a Latin and a CJK font) and zxing-cpp.
Pictures are float32 RGB in 0..1, height x width x 3; flat print is uint8 RGB. Randomness comes in as a seeded
generator, so the same call draws the same picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import zxingcpp

Picture = npt.NDArray[np.floating[Any]]
Print = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

INK: Colour = (38, 34, 32)


def rng(seed: int) -> np.random.Generator:
    """A generator that draws the same numbers on every machine."""
    return np.random.Generator(np.random.PCG64(seed))


# --- print -----------------------------------------------------------------------------------------------------------


def sheet(width: int, height: int, colour: Colour) -> Print:
    """An empty flat of one colour."""
    return np.full((height, width, 3), colour, np.uint8)


_FACES: dict[str, Any] = {}


def _face(name: str) -> Any:
    if name not in _FACES:
        _FACES[name] = cv2.FontFace(name)
    return _FACES[name]


def text_width(text: str, size: int, *, weight: int = 400, face: str = "sans") -> int:
    """Pixels that `write` would take."""
    box = cv2.getTextSize((4000, 400), text, (0, 200), _face(face), size, weight)
    return int(box[2])


def write(
    flat: Print,
    text: str,
    at: tuple[int, int],
    size: int,
    *,
    weight: int = 400,
    colour: Colour = INK,
    face: str = "sans",
    align: str = "left",
) -> None:
    """Print `text` with its baseline at `at`; `align` says what of the text stands there: `left`, `centre`, `right`."""
    x, y = at
    if align != "left":
        width = text_width(text, size, weight=weight, face=face)
        x -= width if align == "right" else width // 2
    cv2.putText(flat, text, (x, y), colour, _face(face), size, weight)


def paragraph(
    flat: Print, lines: Sequence[str], at: tuple[int, int], size: int, *, leading: float = 1.45, **style: Any
) -> int:
    """Print `lines` below each other; returns the y of the next baseline."""
    x, y = at
    for line in lines:
        write(flat, line, (x, y), size, **style)
        y += round(size * leading)
    return y


def ean13(code: str, *, module: int = 3, height: int = 110) -> Print:
    """An EAN-13 with its digits, `module` pixels a bar, on white with quiet zones."""
    symbol = zxingcpp.write_barcode_to_image(
        zxingcpp.create_barcode(code, zxingcpp.BarcodeFormat.EAN13), scale=1, add_hrt=False, add_quiet_zones=True
    )
    row = np.asarray(symbol)[20]
    bars = np.repeat(np.repeat(row[None, :], height, axis=0), module, axis=1)
    label = np.full((height + 12 * module, bars.shape[1], 3), 255, np.uint8)
    label[:height] = bars[..., None]
    write(
        label,
        code[0] + "  " + code[1:7] + "  " + code[7:],
        (label.shape[1] // 2, label.shape[0] - 2 * module),
        9 * module,
        weight=500,
        colour=(20, 20, 20),
        align="centre",
    )
    return label


def paste(flat: Print, patch: Print, at: tuple[int, int]) -> None:
    """Put `patch` on `flat` with its upper left corner at `at`."""
    x, y = at
    flat[y : y + patch.shape[0], x : x + patch.shape[1]] = patch


def leaf(flat: Print, at: tuple[float, float], length: float, angle_deg: float, colour: Colour, vein: Colour) -> None:
    """A pointed leaf with its midrib, its stalk at `at`."""
    t = np.linspace(0, 1, 40)
    half = 0.24 * np.sin(np.pi * t**0.8) * (1 - 0.25 * t)
    outline = np.concatenate([np.stack([t, half], 1), np.stack([t[::-1], -half[::-1]], 1)]) * length
    turn = np.deg2rad(angle_deg)
    turned = outline @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) + np.array(at)
    cv2.fillPoly(flat, [np.round(turned * 16).astype(np.int32)], colour, cv2.LINE_AA, 4)
    tip = np.array(at) + length * 0.94 * np.array([np.cos(turn), np.sin(turn)])
    cv2.line(flat, _fixed(at), _fixed((tip[0], tip[1])), vein, max(1, round(length / 60)), cv2.LINE_AA, 4)


def _fixed(point: tuple[float, float]) -> tuple[int, int]:
    return round(point[0] * 16), round(point[1] * 16)


# --- materials -------------------------------------------------------------------------------------------------------


def soft_noise(shape: tuple[int, int], cell: tuple[float, float], random: np.random.Generator) -> Picture:
    """Smooth noise in about -1..1 whose blobs are `cell` = (height, width) pixels large."""
    height, width = shape
    small = random.normal(0, 0.5, (max(2, int(height / cell[0]) + 2), max(2, int(width / cell[1]) + 2)))
    return cv2.resize(small.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)


def wood(width: int, height: int, tone: Colour, random: np.random.Generator) -> Picture:
    """Oiled boards with grain along the width."""
    figure = (
        soft_noise((height, width), (5, 420), random) * 0.45 + soft_noise((height, width), (1.6, 160), random) * 0.35
    )
    bend = soft_noise((height, width), (90, 300), random) * 14
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    figure = cv2.remap(figure, x, y + bend, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    board = height // 5
    tones = random.normal(0, 0.05, height // board + 2)
    boards = tones[(y[:, :1].astype(int) // board)]
    seam = (y[:, :1].astype(int) % board < max(2, board // 70)).astype(np.float32)
    shade = (1 + 0.16 * figure + boards) * (1 - 0.55 * seam)
    return np.clip(np.array(tone, np.float32) / 255 * shade[..., None], 0, 1).astype(np.float32)


def wall(width: int, height: int, tone: Colour, random: np.random.Generator) -> Picture:
    """A room far out of focus: an even wall, window light from the left, and two blurred things."""
    if width > 600:  # nothing here is sharper than a thumbnail shows
        small = wall(width // 4, height // 4, tone, random)
        return cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    glow = 1.06 - 0.34 * (x / width) - 0.12 * (y / height)
    picture = np.array(tone, np.float32) / 255 * glow[..., None]
    for _ in range(2):
        spot = np.zeros((height, width), np.float32)
        centre = (int(random.uniform(0.05, 0.95) * width), int(random.uniform(0.25, 0.5) * height))
        cv2.ellipse(spot, centre, (int(width * random.uniform(0.08, 0.16)), int(height * 0.2)), 0, 0, 360, 1.0, -1)
        spot = blurred(spot, width / 28)[..., None]
        hue = np.array(random.uniform(0.25, 0.6, 3), np.float32)
        picture = picture * (1 - 0.5 * spot) + hue * 0.5 * spot
    return picture.astype(np.float32)


def blurred(picture: Picture, sigma: float) -> Picture:
    """Gaussian blur; a wide one is made on a smaller copy, which the eye cannot tell."""
    shrink = max(1, int(sigma / 3))
    height, width = picture.shape[:2]
    if shrink > 1:
        size = (max(1, width // shrink), max(1, height // shrink))
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    soft = cv2.GaussianBlur(picture, (0, 0), sigma / shrink)
    return cv2.resize(soft, (width, height), interpolation=cv2.INTER_CUBIC) if shrink > 1 else soft


# --- camera ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Camera:
    """A pinhole camera. Millimetres, x to the right, y up, z towards the viewer; the table is y = 0."""

    eye: tuple[float, float, float]
    target: tuple[float, float, float]
    focal_px: float
    width: int
    height: int
    roll_deg: float = 0.0

    def project(self, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Pixel positions (n x 2) of points (n x 3)."""
        eye = np.array(self.eye)
        forward = np.array(self.target) - eye
        forward = forward / np.linalg.norm(forward)
        right = np.cross(forward, (0, 1, 0))
        right = right / np.linalg.norm(right)
        up = np.cross(right, forward)
        turn = np.deg2rad(self.roll_deg)
        right, up = np.cos(turn) * right + np.sin(turn) * up, np.cos(turn) * up - np.sin(turn) * right
        away = np.asarray(points, float) - eye
        depth = away @ forward
        return np.stack(
            [
                self.width / 2 + self.focal_px * (away @ right) / depth,
                self.height / 2 - self.focal_px * (away @ up) / depth,
            ],
            axis=1,
        )


def lay(scene: Picture, flat: Picture, quad: npt.ArrayLike) -> None:
    """Put `flat` into `scene` by perspective; its corners go to `quad`, clockwise from the upper left."""
    height, width = flat.shape[:2]
    there = np.asarray(quad, np.float32)
    x0, y0 = np.clip(np.floor(there.min(axis=0)) - 1, 0, None).astype(int)
    x1, y1 = np.ceil(there.max(axis=0)).astype(int) + 2
    window = scene[y0:y1, x0:x1]
    there = there - np.array([x0, y0], np.float32)
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32) - 0.5
    matrix = cv2.getPerspectiveTransform(corners, there)
    size = (window.shape[1], window.shape[0])
    picture = cv2.warpPerspective(flat, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    cover = polygon_mask(window.shape, there)[..., None]
    window *= 1 - cover
    window += picture * cover


def polygon_mask(shape: tuple[int, ...], corners: npt.ArrayLike, *, blur: float = 0.0) -> Picture:
    """1 inside the polygon, 0 outside, with a smooth edge."""
    mask = np.zeros(shape[:2], np.uint8)
    cv2.fillPoly(mask, [np.round(np.asarray(corners) * 16).astype(np.int32)], 255, cv2.LINE_AA, 4)
    soft = mask.astype(np.float32) / 255
    return blurred(soft, blur) if blur else soft


def as_picture(flat: Print) -> Picture:
    """A flat as a picture."""
    return (flat.astype(np.float32) / 255).astype(np.float32)


# --- things on a table -----------------------------------------------------------------------------------------------


def table_scene(camera: Camera, *, seed: int, tone: Colour = (150, 108, 72), room: Colour = (202, 198, 190)) -> Picture:
    """A wooden table in front of a wall, sharp near the middle and out of focus behind."""
    random = rng(seed)
    scene = wall(camera.width, camera.height, room, random)
    board = wood(1500, 1000, tone, random)
    far, near = -420.0, camera.eye[2] - 150.0
    quad = camera.project([(-620, 0, far), (620, 0, far), (620, 0, near), (-620, 0, near)])
    lay(scene, board, quad)
    soft = blurred(scene, camera.width / 130)
    focus_line = camera.project([(0, 0, -70), (0, 0, 10)])[:, 1]
    y = np.arange(camera.height, dtype=np.float32)
    sharp = np.clip((y - focus_line[0]) / (focus_line[1] - focus_line[0]), 0, 1)[:, None, None]
    return (scene * sharp + soft * (1 - sharp)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Carton:
    """A folding box that stands on the table, turned by `yaw_deg`; its front shows the label."""

    front: Print
    side: Colour
    width_mm: float
    height_mm: float
    depth_mm: float
    yaw_deg: float
    at: tuple[float, float] = (0.0, 0.0)

    def corners(self, x: float, y: float, z: float) -> npt.NDArray[np.float64]:
        """A corner of the unit box (x, y, z in 0..1) in the room."""
        turn = np.deg2rad(self.yaw_deg)
        across, deep = (x - 0.5) * self.width_mm, (z - 0.5) * self.depth_mm
        return np.array([
            self.at[0] + across * np.cos(turn) + deep * np.sin(turn),
            y * self.height_mm,
            self.at[1] - across * np.sin(turn) + deep * np.cos(turn),
        ])  # fmt: skip

    def face(self, camera: Camera, corners: Sequence[tuple[float, float, float]]) -> npt.NDArray[np.float64]:
        """Pixels of corners of the unit box."""
        return camera.project([self.corners(*corner) for corner in corners])


FRONT = ((0, 1, 1), (1, 1, 1), (1, 0, 1), (0, 0, 1))
_RIGHT = ((1, 1, 1), (1, 1, 0), (1, 0, 0), (1, 0, 1))
_LEFT = ((0, 1, 0), (0, 1, 1), (0, 0, 1), (0, 0, 0))
_TOP = ((0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1))
_FOOT = ((0, 0, 0), (1, 0, 0), (1, 0, 1), (0, 0, 1))


def stand(scene: Picture, camera: Camera, carton: Carton, *, seed: int) -> None:
    """Put a carton on the table, with its shadow to the right and the light from the upper left."""
    random = rng(seed)
    foot = np.array([carton.corners(*corner) for corner in _FOOT])
    cast = np.concatenate([foot, foot + np.array([carton.height_mm * 0.5, 0, -carton.height_mm * 0.16])])
    hull = cv2.convexHull(camera.project(cast).astype(np.float32))[:, 0]
    unit = camera.width / 1200
    scene *= 1 - 0.42 * polygon_mask(scene.shape, hull, blur=26 * unit)[..., None]
    scene *= 1 - 0.5 * polygon_mask(scene.shape, camera.project(foot) + np.array([4, 6]), blur=9 * unit)[..., None]
    side = np.array(carton.side, np.float32) / 255
    visible_side = _RIGHT if carton.yaw_deg < 0 else _LEFT
    for corners, light in ((visible_side, 0.62 if carton.yaw_deg < 0 else 0.9), (_TOP, 1.1)):
        grain = 1 + 0.02 * soft_noise((300, 200), (3, 3), random)
        fade = np.linspace(1.04, 0.86, 300, dtype=np.float32)[:, None]
        lay(
            scene,
            np.clip(side * light * (grain * fade)[..., None], 0, 1).astype(np.float32),
            carton.face(camera, corners),
        )
    front = as_picture(carton.front)
    height, width = front.shape[:2]
    fade = (
        np.linspace(1.05, 0.88, width, dtype=np.float32)[None, :]
        * np.linspace(1.03, 0.95, height, dtype=np.float32)[:, None]
    )
    fibre = 1 + 0.012 * soft_noise((height, width), (2, 5), random)
    lay(scene, np.clip(front * (fade * fibre)[..., None], 0, 1).astype(np.float32), carton.face(camera, FRONT))
    _worn_edges(scene, carton, camera)


def _worn_edges(scene: Picture, carton: Carton, camera: Camera) -> None:
    """The light that the folded edges of a carton catch."""
    edges = np.zeros(scene.shape[:2], np.float32)
    quad = np.round(carton.face(camera, FRONT) * 16).astype(np.int32)
    cv2.polylines(edges, [quad], True, 1.0, max(1, round(camera.width / 700)), cv2.LINE_AA, 4)
    scene += 0.16 * blurred(edges, camera.width / 1200)[..., None]


@dataclass(frozen=True, slots=True)
class Jar:
    """A glass jar with a lid and a label around it, upright before the camera. Lengths are pixels of the picture."""

    label: Print
    content: Colour
    lid: Colour
    centre: tuple[int, int]
    radius: int
    height: int


def stand_jar(scene: Picture, jar: Jar) -> None:
    """Draw a jar into the scene: glass and content, shadow, label, lid, and one window mirrored in it."""
    (centre_x, centre_y), radius, height = jar.centre, jar.radius, jar.height
    shape = scene.shape
    y, x = np.mgrid[0 : shape[0], 0 : shape[1]].astype(np.float32)
    across = (x - centre_x) / radius
    round_off = np.sqrt(np.clip(1 - across**2, 0, 1))
    bow = 0.16 * radius * round_off
    top, bottom = centre_y - height / 2, centre_y + height / 2
    foot = np.zeros(shape[:2], np.float32)
    cv2.ellipse(
        foot, (centre_x + radius // 3, int(bottom + 4)), (int(radius * 1.3), int(radius * 0.3)), 0, 0, 360, 1.0, -1
    )
    scene *= 1 - 0.5 * blurred(foot, radius / 12)[..., None]
    body = _edge(1 - np.abs(across), 1.5 / radius) * _edge(y - (top + bow), 1) * _edge(bottom + bow - y, 1)
    shade = (0.35 + 0.65 * round_off) * (1.08 - 0.3 * across)
    glass = np.array(jar.content, np.float32) / 255 * shade[..., None]
    scene[:] = scene * (1 - body[..., None]) + glass * body[..., None]
    _wrap_label(scene, jar, across, y, bow, shade)
    lid_top, lid_bottom = top - height * 0.13, top + height * 0.02
    lid = (
        _edge(1.02 - np.abs(across), 1.5 / radius)
        * _edge(y - (lid_top - bow * 0.4), 1)
        * _edge(lid_bottom + bow - y, 1)
    )
    ridges = 1 + 0.07 * np.sin(np.arcsin(np.clip(across, -1, 1)) * 90)
    sheen = shade * ridges * (0.85 + 0.5 * np.exp(-(((across + 0.4) / 0.12) ** 2)))
    metal = np.clip(np.array(jar.lid, np.float32) / 255 * sheen[..., None], 0, 1)
    scene[:] = scene * (1 - lid[..., None]) + metal * lid[..., None]
    window = np.exp(-(((across + 0.62) / 0.07) ** 2)) * body * 0.5
    scene += window[..., None]


def _wrap_label(scene: Picture, jar: Jar, across: Picture, y: Picture, bow: Picture, shade: Picture) -> None:
    label_height, label_width = jar.label.shape[:2]
    band = jar.height * 0.62
    top = jar.centre[1] - jar.height / 2 + jar.height * 0.2
    angle = np.arcsin(np.clip(across, -0.999, 0.999))
    column = (angle / 1.25 + 1) / 2 * label_width
    line = (y - top - bow) / band * label_height
    inside = (
        _edge(1.25 - np.abs(angle), 0.01) * _edge(line, 2) * _edge(label_height - line, 2) * (np.abs(across) < 0.999)
    )
    print_ = cv2.remap(as_picture(jar.label), column, line, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    lit = print_ * np.clip(shade * 1.02, 0, 1.1)[..., None]
    scene[:] = scene * (1 - inside[..., None]) + lit * inside[..., None]


def _edge(distance: Any, softness: float) -> Picture:
    """0 outside, 1 inside, smooth over `softness` pixels around distance 0."""
    return np.clip(np.asarray(distance, np.float32) / softness + 0.5, 0, 1).astype(np.float32)


# --- the camera's own faults -----------------------------------------------------------------------------------------


def defocus(picture: Picture, radius: float) -> Picture:
    """Out of focus by a disc of `radius` pixels, as a lens does it."""
    size = int(np.ceil(radius)) * 2 + 1
    y, x = np.mgrid[0:size, 0:size] - size // 2
    disc = _edge(radius - np.hypot(x, y), 1)
    return cv2.filter2D(picture, -1, disc / disc.sum())


def shake(picture: Picture, length: float, angle_deg: float) -> Picture:
    """Camera shake along a line of `length` pixels."""
    size = int(length) | 1
    kernel = np.zeros((size, size), np.float32)
    turn, half = np.deg2rad(angle_deg), (size - 1) / 2
    reach = np.array([np.cos(turn), np.sin(turn)]) * half
    start, end = (half - reach[0], half - reach[1]), (half + reach[0], half + reach[1])
    cv2.line(kernel, _fixed(start), _fixed(end), 1.0, 1, cv2.LINE_AA, 4)
    return cv2.filter2D(picture, -1, kernel / kernel.sum())


def expose(picture: Picture, *, seed: int, grain: float = 0.012, falloff: float = 0.22) -> Print:
    """What the sensor makes of it: light falling off to the corners, grain that is coarser in colour, 8 bits."""
    random = rng(seed)
    height, width = picture.shape[:2]
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    off = ((x / width - 0.46) ** 2 + (y / height - 0.44) ** 2) / 0.5
    lit = picture * (1 - falloff * off)[..., None]
    luma = random.standard_normal((height, width, 1), np.float32) * grain
    colour = random.standard_normal((height // 2 + 1, width // 2 + 1, 3), np.float32) * grain
    lit = lit + luma + cv2.resize(colour, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.clip(lit * 255 + 0.5, 0, 255).astype(np.uint8)


def jpeg(picture: Print, quality: int = 88) -> bytes:
    """The picture as a baseline JPEG, colour at half resolution like a phone's."""
    _, data = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return bytes(data)
