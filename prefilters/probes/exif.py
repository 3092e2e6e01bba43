"""What a picture's metadata says, as far as it may be shown: never where it was taken, and no text of unbounded length.

It opens the file, so it runs in a child of the decoder pool.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import Path

from PIL import ExifTags, Image

from prefilters.limits import DecodeLimits
from prefilters.media import sniff_file
from prefilters.probes.image import opened

_MOST_CHARS = 80
_SHOWN: Mapping[str, int] = {
    "make": ExifTags.Base.Make,
    "model": ExifTags.Base.Model,
    "software": ExifTags.Base.Software,
    "taken_at": ExifTags.Base.DateTimeOriginal,
    "changed_at": ExifTags.Base.DateTime,
}


def exif_summary(path: Path, limits: DecodeLimits) -> dict[str, object]:
    """Camera, program, times and orientation as stated; of the place only whether there is one. Raises `ProbeError`."""
    with opened(path, sniff_file(path), limits) as image:
        exif = image.getexif()
        inner = exif.get_ifd(ExifTags.IFD.Exif)
        stated = {name: _plain(exif.get(tag, inner.get(tag))) for name, tag in _SHOWN.items()}
        orientation = exif.get(ExifTags.Base.Orientation)
        return {
            **{name: value for name, value in stated.items() if value},
            "orientation": orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1,
            "has_place": bool(exif.get_ifd(ExifTags.IFD.GPSInfo)),
            "has_colour_profile": bool(image.info.get("icc_profile")),
            "has_comment": _has_comment(image, inner),
        }


def _has_comment(image: Image.Image, inner: Mapping[int, object]) -> bool:
    return bool(image.info.get("comment") or image.info.get("xmp") or inner.get(ExifTags.Base.UserComment))


def _plain(value: object) -> str:
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value) if isinstance(value, str) else ""
    return "".join(char for char in text if unicodedata.category(char)[0] != "C").strip()[:_MOST_CHARS]
