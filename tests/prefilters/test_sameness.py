"""The same photo is known again after what shops and phones do to it, and not taken for another one like it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from prefilters import DecodeLimits, DecoderPool, reading
from tests import media

LIMITS = DecodeLimits()
LABEL = media.label_photo(long_side=1000)


def changed(change: str) -> bytes:
    picture = Image.open(io.BytesIO(LABEL)).convert("RGB")
    out = io.BytesIO()
    if change == "webp":
        picture.save(out, "WEBP", quality=75)
    elif change == "half":
        picture.resize((picture.width // 2, picture.height // 2)).save(out, "JPEG", quality=85)
    elif change == "thumbnail":
        picture.resize((240, 240 * picture.height // picture.width)).save(out, "JPEG", quality=80)
    elif change == "another colour":
        levels = np.asarray(picture.convert("HSV")).copy()
        levels[..., 0] += 80
        Image.fromarray(levels, "HSV").convert("RGB").save(out, "JPEG", quality=88)
    elif change == "another word":
        ImageDraw.Draw(picture).text((picture.width // 3, picture.height // 2), "Vanilla", fill="red", font_size=40)
        picture.save(out, "JPEG", quality=88)
    elif change == "cropped":
        picture.crop((60, 60, picture.width, picture.height)).save(out, "JPEG", quality=88)
    elif change == "turned":
        return media.rotated(LABEL, 90)
    return out.getvalue()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("webp", True),
        ("half", True),
        ("thumbnail", True),
        ("another colour", False),
        ("another word", False),
        ("cropped", False),
        ("turned", False),
    ],
)
def test_a_photo_is_known_again_and_not_confused(
    change: str, same: bool, tmp_path: Path, shared_pool: DecoderPool
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(LABEL)
    other.write_bytes(changed(change))
    assert reading.is_same_picture(shared_pool, one, other, LIMITS) is same
