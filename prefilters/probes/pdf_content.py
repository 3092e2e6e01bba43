"""How large a PDF's page contents become once unpacked: a kilobyte may hold gigabytes of drawing commands."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pikepdf

MOST_CONTENT_BYTES = 64 * 1024 * 1024
"""Of one page; the densest drawings have some tens of megabytes, and a renderer takes a second for five."""
_MOST_RATIO = 1032
"""What zlib can pack into one byte at most, so most contents are known to be small without unpacking them."""
_MOST_PAGES = 50
_MOST_STREAMS = 200
_CHUNK_BYTES = 1 << 20


def unpacks_without_end(document: pikepdf.Pdf) -> bool:
    """Whether the contents of one of the first 50 pages come to more than `MOST_CONTENT_BYTES`. Nothing is kept of them."""
    return any(
        _unpacked_bytes(document.pages[index].obj.get("/Contents")) > MOST_CONTENT_BYTES
        for index in range(min(len(document.pages), _MOST_PAGES))
    )


def _unpacked_bytes(contents: Any) -> int:
    total = 0
    for stream in _streams(contents):
        total += _stream_bytes(stream, MOST_CONTENT_BYTES - total)
        if total > MOST_CONTENT_BYTES:
            break
    return total


def _streams(contents: Any) -> Iterator[Any]:
    if isinstance(contents, pikepdf.Stream):
        yield contents
    elif isinstance(contents, pikepdf.Array):
        for index in range(min(len(contents), _MOST_STREAMS)):
            if isinstance(contents[index], pikepdf.Stream):
                yield contents[index]


def _stream_bytes(stream: Any, room: int) -> int:
    raw: bytes = stream.read_raw_bytes()
    layers = _flate_layers(stream.get("/Filter"))
    if layers == 0 or len(raw) * _MOST_RATIO**layers <= room:
        return len(raw)
    return sum(map(len, _until(_unpacked(iter((raw,)), layers), room)))


def _flate_layers(filters: Any) -> int:
    """How often zlib packed it; other filters hardly pack, and count as none."""
    names = list(filters) if isinstance(filters, pikepdf.Array) else [filters]
    return min(3, sum(name in ("/FlateDecode", "/Fl") for name in names))


def _unpacked(pieces: Iterator[bytes], layers: int) -> Iterator[bytes]:
    for _ in range(layers):
        pieces = _inflated(pieces)
    return pieces


def _inflated(pieces: Iterator[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj()
    try:
        for piece in pieces:
            waiting = piece
            while waiting:
                yield unpacker.decompress(waiting, _CHUNK_BYTES)
                waiting = unpacker.unconsumed_tail
    except zlib.error:
        return


def _until(pieces: Iterator[bytes], room: int) -> Iterator[bytes]:
    """The pieces up to the one with which they pass `room`."""
    total = 0
    for piece in pieces:
        total += len(piece)
        yield piece
        if total > room:
            return
