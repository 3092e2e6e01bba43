"""Everything that a file says, read in full: for writing from it, where a verdict needs only enough to judge by.

All of it runs in the pool's processes. Each call raises `ProbeError` where the file cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefilters.limits import DecodeLimits
from prefilters.pool import Bulkhead, DecoderPool

if TYPE_CHECKING:
    from prefilters.probes.look import Appearance, Barcode
    from prefilters.probes.text import Box, TextReading

MAX_PAGES_READ = 20
"""Pages of a document that are read for writing."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture for a model: JPEG, upright, in sRGB, rebuilt from pixels, so that it carries no metadata."""

    jpeg: bytes
    width: int
    height: int


def read_picture(pool: DecoderPool, path: Path, limits: DecodeLimits) -> TextReading:
    """All text in a picture. About 0.5 to 3 s."""
    return pool.run(_picture_text, path, limits, bulkhead=Bulkhead.OCR)


def read_region(
    pool: DecoderPool,
    path: Path,
    limits: DecodeLimits,
    *,
    region: Box | None,
    contrast: float,
    threshold: int | None,
    rotate: int,
) -> TextReading:
    """The text in a part of a picture, prepared as `probes.ocr.read` says."""
    return pool.run(_region_text, path, limits, region, contrast, threshold, rotate, bulkhead=Bulkhead.OCR)


def read_pages(pool: DecoderPool, path: Path, limits: DecodeLimits, pages: Sequence[int]) -> list[str]:
    """The text of some pages of a PDF, numbered from 0."""
    return pool.run(_page_texts, path, limits, tuple(pages))


def read_barcodes(pool: DecoderPool, path: Path, limits: DecodeLimits) -> tuple[Barcode, ...]:
    """The barcodes in a picture that were read with a valid checksum."""
    return pool.run(_barcodes, path, limits)


def read_appearance(pool: DecoderPool, path: Path, limits: DecodeLimits) -> Appearance:
    """The colours of a picture by name, its background, and the outline of what stands on a plain one. About 0.1 s."""
    return pool.run(_appearance, path, limits)


def is_same_picture(pool: DecoderPool, one: Path, other: Path, limits: DecodeLimits) -> bool:
    """Whether two files show the same photo, re-encoded or resized. About 0.1 s; ask where the perceptual hashes are near."""
    return pool.run(_is_same_picture, one, other, limits)


def read_document(pool: DecoderPool, path: Path, limits: DecodeLimits) -> TextReading:
    """The text of a PDF's first `MAX_PAGES_READ` pages, from its text layer or by OCR, without what a person would not see."""
    by_layer = pool.run(_document_layer, path, limits)
    return by_layer or pool.run(_document_text, path, limits, bulkhead=Bulkhead.OCR)


def picture_for_model(pool: DecoderPool, path: Path, limits: DecodeLimits, *, max_side: int) -> Picture:
    """The picture with its long side reduced to `max_side` pixels at most."""
    return pool.run(_model_picture, path, limits, max_side)


def page_picture(pool: DecoderPool, path: Path, limits: DecodeLimits, page: int, *, max_side: int) -> Picture:
    """A page of a PDF, numbered from 0, its long side `max_side` pixels."""
    return pool.run(_page_picture, path, limits, page, max_side)


def read_exif(pool: DecoderPool, path: Path, limits: DecodeLimits) -> dict[str, object]:
    """What a picture's metadata says, without the place where it was taken."""
    return pool.run(_exif, path, limits)


def _exif(path: Path, limits: DecodeLimits) -> dict[str, object]:
    from prefilters.probes import exif

    return exif.exif_summary(path, limits)


def _page_picture(path: Path, limits: DecodeLimits, page: int, max_side: int) -> Picture:
    import io

    from PIL import Image

    from prefilters.probes import pdf

    out = io.BytesIO()
    rendered = Image.fromarray(pdf.render_page(path, limits, page, max_side=max_side))
    rendered.save(out, "JPEG", quality=85)
    return Picture(out.getvalue(), rendered.width, rendered.height)


def _picture_text(path: Path, limits: DecodeLimits) -> TextReading:
    from prefilters.probes import ocr

    return ocr.read(path, limits)


def _region_text(
    path: Path, limits: DecodeLimits, region: Box | None, contrast: float, threshold: int | None, rotate: int
) -> TextReading:
    from prefilters.probes import ocr

    return ocr.read(path, limits, region=region, contrast=contrast, threshold=threshold, rotate=rotate)


def _page_texts(path: Path, limits: DecodeLimits, pages: tuple[int, ...]) -> list[str]:
    from prefilters.probes import pdf

    return pdf.page_texts(path, limits, pages)


def _barcodes(path: Path, limits: DecodeLimits) -> tuple[Barcode, ...]:
    from prefilters.probes import barcode, image

    return barcode.read_barcodes(image.load_upright(path, limits))


def _appearance(path: Path, limits: DecodeLimits) -> Appearance:
    from prefilters.probes import appearance

    return appearance.appearance(path, limits)


def _is_same_picture(one: Path, other: Path, limits: DecodeLimits) -> bool:
    from prefilters.probes import sameness

    return sameness.is_same_picture(one, other, limits)


def _document_layer(path: Path, limits: DecodeLimits) -> TextReading | None:
    from prefilters.probes import pdf

    found = pdf.read_layers(path, limits, min_tokens=None, max_pages=MAX_PAGES_READ)
    return None if found is None else found.reading


def _document_text(path: Path, limits: DecodeLimits) -> TextReading:
    from prefilters.probes import pdf

    return pdf.text(path, limits, min_tokens=None, max_pages=MAX_PAGES_READ)


def _model_picture(path: Path, limits: DecodeLimits, max_side: int) -> Picture:
    import io

    from PIL import Image

    from prefilters.probes import image

    jpeg = image.model_image(path, limits, max_side=max_side)
    with Image.open(io.BytesIO(jpeg)) as opened:
        return Picture(jpeg, opened.width, opened.height)
