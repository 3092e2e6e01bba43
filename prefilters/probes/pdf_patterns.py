"""What a PDF's tiling patterns would cost to paint: one that paints with itself, or in specks, keeps a renderer busy for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pikepdf

MOST_PAINTED = 2_000_000_000
"""Pixels, at the resolution in which pages are looked at, that one pattern may paint over a page: about 2.5 s in pdfium."""
_PIXELS_A_TILE = 250
"""What placing a tile costs beside its pixels: 0.3 us."""
_PIXELS_A_PT2 = 2.25
"""At 108 dpi."""
_DEEPEST = 3
"""Patterns within patterns. One level is a hatched letter; more are not seen in documents that people make."""
_MOST_PAGES = 50
_MOST_PATTERNS = 200
_MOST_FORMS = 200


def paints_without_end(document: pikepdf.Pdf) -> bool:
    """Whether a pattern of the first 50 pages paints with itself, too deep, or in more pixels than `MOST_PAINTED`."""
    for index in range(min(len(document.pages), _MOST_PAGES)):
        page = document.pages[index]
        width, height = (abs(float(page.mediabox[n + 2]) - float(page.mediabox[n])) for n in (0, 1))
        area_pt2 = max(width * height, 1.0)
        if any(_is_endless(pattern, area_pt2, 1) for pattern in _patterns_of(page.obj.get("/Resources"), set())):
            return True
    return False


def _is_endless(pattern: Any, area_pt2: float, depth: int) -> bool:
    if depth > _DEEPEST or _painted(pattern, area_pt2) > MOST_PAINTED:
        return True
    box_pt2 = _box_pt2(pattern)
    return any(_is_endless(inner, box_pt2, depth + 1) for inner in _patterns_of(pattern.get("/Resources"), set()))


def _painted(pattern: Any, area_pt2: float) -> float:
    """Pixels painted where this pattern covers `area_pt2`; a pattern without numbers is left to the renderer's time limit."""
    try:
        a, b, c, d = (float(number) for number in list(pattern.get("/Matrix", [1, 0, 0, 1, 0, 0]))[:4])
        step_pt2 = abs(float(pattern.get("/XStep")) * float(pattern.get("/YStep")))
    except (TypeError, ValueError):
        return 0.0
    scale = abs(a * d - b * c)
    tiles = area_pt2 / max(step_pt2 * scale, 1e-12)
    return tiles * (min(_box_pt2(pattern) * scale, area_pt2) * _PIXELS_A_PT2 + _PIXELS_A_TILE)


def _box_pt2(pattern: Any) -> float:
    try:
        left, bottom, right, top = (float(number) for number in list(pattern.get("/BBox"))[:4])
    except (TypeError, ValueError):
        return 1.0
    return abs(right - left) * abs(top - bottom)


def _patterns_of(resources: Any, seen: set[tuple[int, int]]) -> Iterator[Any]:
    """The tiling patterns that these resources name, and those of the forms that they name."""
    named = _dictionary(resources, "/Pattern")
    for key in list(named.keys())[:_MOST_PATTERNS]:
        pattern = named.get(key)
        if isinstance(pattern, pikepdf.Stream) and pattern.get("/PatternType") == 1:
            yield pattern
    forms = _dictionary(resources, "/XObject")
    for key in list(forms.keys())[:_MOST_FORMS]:
        form = forms.get(key)
        is_form = isinstance(form, pikepdf.Stream) and form.get("/Subtype") == "/Form"
        if is_form and form.objgen not in seen and len(seen) < _MOST_FORMS:
            seen.add(form.objgen)
            yield from _patterns_of(form.get("/Resources"), seen)


def _dictionary(holder: Any, key: str) -> Any:
    found = holder.get(key) if isinstance(holder, pikepdf.Dictionary) else None
    return found if isinstance(found, pikepdf.Dictionary) else pikepdf.Dictionary()
