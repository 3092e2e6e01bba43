"""The catalogue's photographs: each function takes one picture, the good ones and the bad ones."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from examples import labels
from examples.drawing import (
    Camera,
    Carton,
    Jar,
    Picture,
    Print,
    blurred,
    defocus,
    expose,
    shake,
    sheet,
    stand,
    stand_jar,
    table_scene,
)

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 as fractions 0..1 of the upright picture."""

_TEA_CAMERA = Camera(eye=(30, 190, 430), target=(8, 67, 0), focal_px=3250, width=1200, height=1600, roll_deg=0.7)


@lru_cache(maxsize=2)
def tea_carton(ean: str) -> Print:
    """A sharp, well lit photo of a tea carton, 1200 x 1600: the one that goes through."""
    scene = table_scene(_TEA_CAMERA, seed=11)
    stand(scene, _TEA_CAMERA, Carton(labels.tea(ean), (40, 88, 60), 90, 140, 56, -21), seed=12)
    return expose(scene, seed=13)


def jasmine_carton(ean: str) -> Print:
    """The same for a carton with Chinese print, from the other side."""
    camera = Camera(eye=(-40, 200, 420), target=(-6, 67, 0), focal_px=3050, width=1200, height=1600, roll_deg=-1.1)
    scene = table_scene(camera, seed=21, tone=(112, 78, 54), room=(190, 196, 198))
    stand(scene, camera, Carton(labels.jasmine_tea(ean), (150, 34, 30), 90, 140, 56, 17), seed=22)
    return expose(scene, seed=23)


def soap_carton(ean: str, *, smeared: bool = True) -> Print:
    """A sharp photo of a soap carton, 1200 x 1500; with `smeared`, its small print has run and nobody can read it."""
    scene = table_scene(_SOAP_CAMERA, seed=31, tone=(176, 148, 118), room=(208, 206, 198))
    stand(scene, _SOAP_CAMERA, _soap(labels.soap(ean, smeared=smeared)), seed=32)
    return expose(scene, seed=33)


_SOAP_CAMERA = Camera(eye=(20, 170, 400), target=(6, 52, 0), focal_px=3250, width=1200, height=1500, roll_deg=-0.6)


def _soap(front: Print) -> Carton:
    return Carton(front, (104, 112, 60), 85, 110, 34, -16)


def soap_small_print() -> Box:
    """Where the ingredients of `soap_carton` are in the picture."""
    x0, y0, x1, y1 = labels.SOAP_SMALL_PRINT
    height, width = 880, 680
    carton = _soap(sheet(width, height, (0, 0, 0)))
    corners = [(x / width, 1 - y / height, 1.0) for x in (x0, x1) for y in (y0, y1)]
    spots = carton.face(_SOAP_CAMERA, corners) / (_SOAP_CAMERA.width, _SOAP_CAMERA.height)
    left, top = spots.min(axis=0)
    right, bottom = spots.max(axis=0)
    return round(float(left), 3), round(float(top), 3), round(float(right), 3), round(float(bottom), 3)


def candle_carton(*, width: int = 480) -> Print:
    """A small photo of a candle carton, square."""
    camera = Camera(eye=(30, 150, 400), target=(4, 47, 0), focal_px=2.5 * width, width=width, height=width)
    scene = table_scene(camera, seed=41, tone=(96, 88, 84), room=(214, 206, 200))
    stand(scene, camera, Carton(labels.candle(), (50, 54, 64), 80, 100, 80, -28), seed=42)
    return expose(scene, seed=43)


def thumbnail(picture: Print, side: int) -> Print:
    """The middle square of a picture, reduced as a shop system does it for its lists."""
    height, width = picture.shape[:2]
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    square = picture[top : top + edge, left : left + edge]
    return cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA).astype(np.uint8)


def honey_jar(ean: str) -> Print:
    """A sharp photo of a honey jar, 1200 x 1200."""
    scene = _jar_scene(51, Jar(labels.honey(ean), (206, 122, 20), (214, 196, 150), (590, 640), 300, 720))
    return expose(scene, seed=53)


def jam_jar(ean: str, *, blur: float = 1.0) -> Print:
    """A photo of a jam jar, 1200 x 1200; `blur` 1 is hopelessly out of focus and shaken, 0 is sharp."""
    scene = _jar_scene(61, Jar(labels.jam(ean), (122, 16, 26), (178, 176, 172), (610, 640), 300, 700))
    if blur > 0:
        scene = shake(defocus(scene, 17 * blur), 46 * blur, 24)
    return expose(scene, seed=63, grain=0.016)


def _jar_scene(seed: int, jar: Jar) -> Picture:
    camera = Camera(eye=(0, 170, 520), target=(0, 62, 0), focal_px=3000, width=1200, height=1200)
    scene = table_scene(camera, seed=seed, tone=(158, 122, 88))
    stand_jar(scene, jar)
    return scene


def mug_packshot(*, size: int = 1200, glaze: tuple[int, int, int] = (92, 126, 134)) -> Print:
    """A stoneware mug on pure white as studios deliver it: a smooth body, a sharp edge, no print at all."""
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) / size
    picture = np.ones((size, size, 3), np.float32)
    _floor_shadow(picture, x, y)
    _handle(picture, x, y, np.array(glaze, np.float32) / 255)
    _mug_body(picture, x, y, np.array(glaze, np.float32) / 255)
    return np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)


_MUG_X, _MUG_TOP, _MUG_BOTTOM, _MUG_RADIUS = 0.45, 0.26, 0.80, 0.235


def _floor_shadow(picture: Picture, x: Picture, y: Picture) -> None:
    across = (x - _MUG_X - 0.02) / 0.31
    down = (y - _MUG_BOTTOM - 0.018) / 0.05
    picture *= (1 - 0.34 * np.exp(-((across**2 + down**2) ** 1.2)))[..., None]


def _cover(distance: Picture, size: int) -> Picture:
    """0 outside, 1 inside of a shape whose signed distance (in picture heights) is positive within."""
    return np.clip(distance * size + 0.5, 0, 1).astype(np.float32)


def _over(picture: Picture, colour: Picture, cover: Picture) -> None:
    picture *= 1 - cover[..., None]
    picture += np.clip(colour, 0, 1) * cover[..., None]


def _handle(picture: Picture, x: Picture, y: Picture, glaze: Picture) -> None:
    ring_x, ring_y, middle, thick = _MUG_X + 0.225, 0.51, 0.135, 0.032
    out, down = (x - ring_x) / 0.92, (y - ring_y) / 1.12
    reach = np.hypot(out, down)
    tube = (reach - middle) / thick
    up = np.sqrt(np.clip(1 - tube**2, 0, 1))
    nx, ny = tube * out / np.maximum(reach, 1e-6), tube * down / np.maximum(reach, 1e-6)
    lit = np.clip(-0.55 * nx - 0.5 * ny + 0.67 * up, 0, 1)
    gloss = np.clip(-0.5 * nx - 0.62 * ny + 0.6 * up, 0, 1) ** 40
    colour = glaze * (0.30 + 0.82 * lit)[..., None] + 0.5 * gloss[..., None]
    _over(picture, colour, _cover(thick - np.abs(reach - middle), picture.shape[0]))


def _mug_body(picture: Picture, x: Picture, y: Picture, glaze: Picture) -> None:
    size = picture.shape[0]
    taper = _MUG_RADIUS * (1 - 0.09 * np.clip((y - _MUG_TOP) / (_MUG_BOTTOM - _MUG_TOP), 0, 1) ** 2.2)
    across = (x - _MUG_X) / taper
    bow = 0.040 * np.sqrt(np.clip(1 - across**2, 0, 1))
    inside = np.minimum(taper - np.abs(x - _MUG_X), np.minimum(y - _MUG_TOP, _MUG_BOTTOM + bow * 0.8 - y))
    facing = np.sqrt(np.clip(1 - across**2, 0, 1))
    lit = np.clip(-0.6 * across + 0.72 * facing, 0, 1)
    softbox = (
        np.exp(-(((across + 0.52) / 0.085) ** 4)) * np.clip((y - 0.31) * 14, 0, 1) * np.clip((0.71 - y) * 14, 0, 1)
    )
    rim_light = np.exp(-(((across - 0.95) / 0.05) ** 2)) * 0.22
    speckle = _speckle(size)
    shade = (0.26 + 0.86 * lit + rim_light) * (1.04 - 0.16 * (y - _MUG_TOP) / (_MUG_BOTTOM - _MUG_TOP))
    clay = np.array((0.80, 0.70, 0.58), np.float32)
    foot = np.clip((y - bow * 0.8 - (_MUG_BOTTOM - 0.052)) * size / 3, 0, 1)[..., None]
    surface = (glaze * speckle[..., None]) * (1 - foot) + clay * foot
    _over(picture, surface * shade[..., None] + (0.42 * softbox)[..., None] * (1 - foot), _cover(inside, size))
    _mouth(picture, x, y, glaze)


def _mouth(picture: Picture, x: Picture, y: Picture, glaze: Picture) -> None:
    size = picture.shape[0]
    across, down = (x - _MUG_X) / _MUG_RADIUS, (y - _MUG_TOP) / 0.052
    lip = (1 - np.hypot(across, down)) * 0.052
    light = 1.02 + 0.12 * across
    _over(picture, glaze * (light * 1.12)[..., None] + 0.12, _cover(lip, size))
    bore_across, bore_down = (x - _MUG_X) / (_MUG_RADIUS * 0.93), (y - _MUG_TOP - 0.001) / 0.0445
    bore = (1 - np.hypot(bore_across, bore_down)) * 0.045
    inner = (0.52 + 0.34 * bore_across) * (0.82 + 0.3 * np.clip(bore_down, -1, 1))
    cream = np.array((0.93, 0.90, 0.83), np.float32)
    _over(picture, cream * inner[..., None], _cover(bore, size))


def _speckle(size: int) -> Picture:
    """Iron specks of a stoneware glaze."""
    random = np.random.Generator(np.random.PCG64(71))
    dots = np.ones((size, size), np.float32)
    for cx, cy, r in zip(
        random.uniform(0, size, 420), random.uniform(0, size, 420), random.uniform(0.4, 1.9, 420), strict=True
    ):
        cv2.circle(dots, (round(cx * 16), round(cy * 16)), round(r * 16 * size / 1400), 0.78, -1, cv2.LINE_AA, 4)
    return blurred(dots, 0.8)
