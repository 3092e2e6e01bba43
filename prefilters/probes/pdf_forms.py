"""How often a PDF's pages would draw their forms: a form that draws itself twice keeps a renderer busy for ever."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any

import pikepdf

MOST_DRAWINGS = 50_000
"""Drawings of forms on one page. A dense map needs some thousands."""
_RENDERER_DEPTH = 40
"""How deep pdfium follows forms in forms before it gives up on a branch."""
_MOST_PAGES = 50
_MOST_FORMS = 400
_MOST_CONTENT_BYTES = 1 << 18
_MOST_STREAMS = 32
_DRAWS = re.compile(rb"/([^\s/<>\[\](){}%]+)\s+Do\b")

_Id = tuple[int, int]


def draws_without_end(document: pikepdf.Pdf) -> bool:
    """Whether one of the first 50 pages would draw more than `MOST_DRAWINGS` forms, counted without drawing any."""
    drawn: dict[_Id, list[_Id]] = {}
    for index in range(min(len(document.pages), _MOST_PAGES)):
        page = document.pages[index].obj
        roots = _drawn_by(_page_streams(page), _inherited_resources(page), drawn)
        if _drawings(roots, drawn) > MOST_DRAWINGS:
            return True
    return False


def _drawings(roots: list[_Id], drawn: dict[_Id, list[_Id]]) -> int:
    """Drawings that the roots lead to, as deep as a renderer follows; stops counting above `MOST_DRAWINGS`."""
    counts = dict.fromkeys(drawn, 1)
    for _ in range(_RENDERER_DEPTH):
        deeper = {form: min(MOST_DRAWINGS + 1, 1 + sum(counts[c] for c in inner)) for form, inner in drawn.items()}
        if deeper == counts:
            break
        counts = deeper
    return sum(counts[root] for root in roots)


def _drawn_by(streams: Iterator[Any], resources: Any, drawn: dict[_Id, list[_Id]]) -> list[_Id]:
    """The forms that these streams draw, one entry a drawing. Whatever those draw is added to `drawn`."""
    forms = _forms(resources)
    if not forms:
        return []
    content = b"\n".join(_content(stream) for stream in streams)
    called = [forms[name] for name in _DRAWS.findall(content) if name in forms]
    for form in called:
        if form.objgen not in drawn and len(drawn) < _MOST_FORMS:
            drawn[form.objgen] = []
            own_resources = form.get("/Resources")
            drawn[form.objgen] = _drawn_by(iter((form,)), resources if own_resources is None else own_resources, drawn)
    return [form.objgen for form in called if form.objgen in drawn]


def _forms(resources: Any) -> dict[bytes, Any]:
    named = resources.get("/XObject") if isinstance(resources, pikepdf.Dictionary) else None
    if not isinstance(named, pikepdf.Dictionary):
        return {}
    found = ((key, named.get(key)) for key in named.keys())  # noqa: SIM118 (not a Python mapping)
    return {
        key[1:].encode("latin-1", "replace"): form
        for key, form in found
        if isinstance(form, pikepdf.Stream) and form.get("/Subtype") == "/Form"
    }


def _page_streams(page: Any) -> Iterator[Any]:
    contents = page.get("/Contents")
    if isinstance(contents, pikepdf.Stream):
        yield contents
    elif isinstance(contents, pikepdf.Array):
        for index in range(min(len(contents), _MOST_STREAMS)):
            if isinstance(contents[index], pikepdf.Stream):
                yield contents[index]


def _inherited_resources(page: Any) -> Any:
    node = page
    for _ in range(_RENDERER_DEPTH):
        if not isinstance(node, pikepdf.Dictionary):
            return None
        resources = node.get("/Resources")
        if resources is not None:
            return resources
        node = node.get("/Parent")
    return None


def _content(stream: Any) -> bytes:
    """The start of a stream's content; b"" where it is packed in a way that takes more than zlib to open."""
    try:
        raw: bytes = stream.read_raw_bytes()
        filters = stream.get("/Filter")
        if filters is None or (isinstance(filters, pikepdf.Array) and len(filters) == 0):
            return raw[:_MOST_CONTENT_BYTES]
        if filters == "/FlateDecode" or (
            isinstance(filters, pikepdf.Array) and len(filters) == 1 and filters[0] == "/FlateDecode"
        ):
            return zlib.decompressobj().decompress(raw, _MOST_CONTENT_BYTES)
    except (pikepdf.PdfError, zlib.error):
        return b""
    return b""
