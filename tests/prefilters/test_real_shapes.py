"""Every shape in which real files come, through the whole screening: the verdict, and what is noted on the way."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from prefilters import Screening
from tests import media

Screened = Callable[..., Screening]


def ycck() -> bytes:
    """A CMYK JPEG stored as YCCK, as Adobe's programs do. Pillow writes plain CMYK only, so the bands are turned by hand."""
    cyan, magenta, yellow, black = Image.open(io.BytesIO(media.cmyk_jpeg())).split()
    bands = Image.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split()
    turned = Image.merge("CMYK", [*(Image.eval(band, lambda level: 255 - level) for band in bands), black])
    out = io.BytesIO()
    turned.save(out, "JPEG", quality=92)
    whole = bytearray(out.getvalue())
    whole[whole.index(b"Adobe") + 11] = 2
    return bytes(whole)


def with_profile() -> bytes:
    out = io.BytesIO()
    picture = Image.open(io.BytesIO(media.label_photo(long_side=900)))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture.save(out, "JPEG", quality=88, icc_profile=profile)
    return out.getvalue()


def png_in(mode: str) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(media.label_photo(long_side=900))).convert(mode).save(out, "PNG")
    return out.getvalue()


def interlaced() -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(media.label_photo(long_side=900))).convert("P").save(out, "GIF", interlace=True)
    return out.getvalue()


LABELS: dict[str, tuple[Callable[[], bytes], dict[str, Any], set[str]]] = {
    **{f"exif {n}": (lambda n=n: media.exif_rotated(n), {"image.orientation": n}, set()) for n in range(1, 9)},
    "cmyk": (media.cmyk_jpeg, {"image.mode": "CMYK"}, set()),
    "ycck": (ycck, {"image.mode": "CMYK"}, set()),
    "16 bit": (media.png16, {"image.mode": "I;16"}, set()),
    "palette": (media.palette_png, {"image.mode": "P"}, set()),
    "grey and alpha": (lambda: png_in("LA"), {"image.mode": "LA"}, set()),
    "one bit": (lambda: png_in("1"), {"image.mode": "1"}, set()),
    "dark print on transparency": (media.alpha_text, {"image.mode": "RGBA"}, set()),
    "light print on transparency": (lambda: media.alpha_text(light=True), {"image.mode": "RGBA"}, set()),
    "colour profile": (with_profile, {"image.mode": "RGB"}, set()),
    "progressive": (media.progressive_jpeg, {"image.frames": 1}, set()),
    "gif": (lambda: media.animated_gif(frames=4), {"image.frames": 4}, {"animated"}),
    "interlaced gif": (interlaced, {"image.frames": 1}, set()),
    "webp": (lambda: media.animated_webp(frames=5), {"image.frames": 5}, {"animated"}),
    "apng": (lambda: media.animated_png(frames=6), {"image.frames": 6}, {"animated"}),
    "heic": (media.heic, {"media.format": "heic"}, set()),
    "avif": (media.avif, {"media.format": "avif"}, set()),
    "tiff of 3 pages": (lambda: media.tiff(pages=3), {"image.frames": 3}, {"animated"}),
    "bmp": (media.bmp, {"media.format": "bmp"}, set()),
    "jpeg without its end": (media.missing_end_marker, {"image.near_complete": True}, {"repairable_damage"}),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_label_is_accepted_in_every_shape(name: str, screened: Screened) -> None:
    build, facts, notes = LABELS[name]
    found = screened(build(), "upload")
    assert (found.verdict.kind.value, found.verdict.code) == ("accept", None)
    assert {fact: found.facts[fact] for fact in facts} == facts
    assert notes <= set(found.verdict.notes)
    assert found.facts["text.tokens"] >= 4


def speech_at(rate: int) -> np.ndarray:
    heard, recorded = media.speech_samples("This is a linen bath towel, stone washed.")
    return np.interp(np.arange(0, len(heard), recorded / rate), np.arange(len(heard)), heard).astype(np.float32)


SPOKEN = speech_at(16_000)


def index_last(data: bytes) -> bytes:
    """The M4A with its index behind the sound, as recorders write it; it must be so already, or this fails."""
    assert data.index(b"mdat") < data.index(b"moov")
    return data


def with_riff_extras(data: bytes) -> bytes:
    extra = b"bext" + struct.pack("<I", 5) + b"hello\0"
    return data[:12] + extra + data[12:]


RECORDINGS: dict[str, Callable[[], bytes]] = {
    **{f"wav {coding}": lambda coding=coding: media.wav(SPOKEN, coding=coding)
       for coding in ("u8", "s16", "s24", "s32", "f32", "alaw", "mulaw")},
    "wav behind other chunks": lambda: with_riff_extras(media.wav(SPOKEN)),
    "aiff": lambda: media.aiff(SPOKEN),
    "mp3 behind a picture": lambda: b"ID3\x04\0\0\0\0\x1f\x76" + bytes(4_086) + media.mp3(SPOKEN),
    "mp3 and an old tag": lambda: media.mp3(SPOKEN) + b"TAG" + bytes(125),
    "m4a, index at its end": lambda: index_last(media.m4a(SPOKEN)),
    "ogg vorbis": lambda: media.ogg(SPOKEN),
    "ogg opus": lambda: media.opus(SPOKEN),
    "flac": lambda: media.flac(SPOKEN),
    "webm without duration": lambda: media.webm(SPOKEN, live=True),
    "webm": lambda: media.webm(SPOKEN, live=False),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDINGS)
def test_spoken_note_is_accepted_in_every_shape(name: str, screened: Screened) -> None:
    data = RECORDINGS[name]()
    found = screened(data, "note")
    assert (found.verdict.kind.value, found.verdict.code) == ("accept", None)
    assert found.facts["audio.duration_s"] == pytest.approx(len(SPOKEN) / 16_000, abs=0.15)
    assert float(found.facts["audio.speech_s"]) > 0.5


@pytest.mark.parametrize("build", [media.mp3, media.webm, media.wav, media.flac])
def test_recording_cut_in_half_is_measured_by_what_is_there(build: Callable[..., bytes], screened: Screened) -> None:
    data = build(np.concatenate([SPOKEN, SPOKEN, SPOKEN]))
    found = screened(data[: len(data) // 2], "note")
    assert found.verdict.kind.value == "accept"
    assert float(found.facts["audio.duration_s"]) < 2 * len(SPOKEN) / 16_000
