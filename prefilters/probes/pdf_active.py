"""Whether a PDF carries things that act: JavaScript, launch actions, attachments. They are counted, never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pikepdf

_ACTING = frozenset(
    {"/JavaScript", "/Launch", "/ImportData", "/SubmitForm", "/GoToE", "/Rendition", "/RichMediaExecute"}
)
_MOST_PAGES = 50
_MOST_ANNOTATIONS = 200
_MOST_FIELDS = 500
_MOST_CHAINED = 32


def has_active_content(document: pikepdf.Pdf) -> bool:
    """Whether the catalogue, a form field or one of the first 50 pages holds an action that acts, or a file."""
    return _holds_files(document) or any(_acts(action) for action in _actions(document))


def _holds_files(document: pikepdf.Pdf) -> bool:
    names = _dictionary(document.Root, "/Names")
    if "/JavaScript" in names or "/EmbeddedFiles" in names or "/AF" in document.Root:
        return True
    return any(annotation.get("/Subtype") in ("/FileAttachment", "/RichMedia") for annotation in _annotations(document))


def _actions(document: pikepdf.Pdf) -> Iterator[Any]:
    yield document.Root.get("/OpenAction")
    yield from _triggered(document.Root)
    for page in _first(document.pages, _MOST_PAGES):
        yield from _triggered(page.obj)
    for holder in (*_annotations(document), *_fields(document)):
        yield holder.get("/A")
        yield from _triggered(holder)


def _triggered(holder: Any) -> Iterator[Any]:
    triggers = _dictionary(holder, "/AA")
    for key in list(triggers.keys())[:_MOST_FIELDS]:
        yield triggers.get(key)


def _annotations(document: pikepdf.Pdf) -> Iterator[Any]:
    for page in _first(document.pages, _MOST_PAGES):
        yield from _dictionaries(page.obj.get("/Annots"), _MOST_ANNOTATIONS)


def _fields(document: pikepdf.Pdf) -> Iterator[Any]:
    yield from _dictionaries(_dictionary(document.Root, "/AcroForm").get("/Fields"), _MOST_FIELDS)


def _acts(action: Any) -> bool:
    """Whether this action, or one of those that follow it, does more than turn pages and open web links."""
    waiting, seen = [action], 0
    while waiting and seen < _MOST_CHAINED:
        action, seen = waiting.pop(), seen + 1
        if isinstance(action, pikepdf.Array):
            waiting.extend(_dictionaries(action, _MOST_CHAINED))
        elif isinstance(action, pikepdf.Dictionary):
            if str(action.get("/S")) in _ACTING:
                return True
            waiting.append(action.get("/Next"))
    return False


def _dictionary(holder: Any, key: str) -> Any:
    value = holder.get(key) if isinstance(holder, pikepdf.Dictionary) else None
    return value if isinstance(value, pikepdf.Dictionary) else pikepdf.Dictionary()


def _dictionaries(array: Any, most: int) -> Iterator[Any]:
    if isinstance(array, pikepdf.Array):
        yield from (entry for entry in _first(array, most) if isinstance(entry, pikepdf.Dictionary))


def _first(sequence: Any, most: int) -> Iterator[Any]:
    for index in range(min(len(sequence), most)):
        yield sequence[index]
