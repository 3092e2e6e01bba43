"""Whether a picture's file is all there: cut off, or lacking only its end marker."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from pathlib import Path

from PIL import Image

_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_JPEG_END = b"\xff\xd9"
# Neither has the byte FF, which would begin a marker.
_FILLING = bytes(byte & 0x7F | 1 for byte in hashlib.sha512(b"filling").digest())
_COMPLEMENT = bytes(byte ^ 0xFF for byte in _FILLING)

Source = Path | str | io.BytesIO


def ends_early(source: Source, image_format: str, fault: Exception) -> bool:
    """Whether decoding failed with `fault` because the file is cut off, rather than damaged within."""
    if "truncated" in str(fault).lower():
        return True
    tail = _tail(source)
    match image_format:
        case "jpeg":
            return not tail.rstrip(b"\0\r\n").endswith(_JPEG_END)
        case "png":
            return b"IEND" not in tail
        case "gif":
            return not tail.rstrip(b"\0").endswith(b";")
        case "webp":
            return int.from_bytes(_head(source)[4:8], "little") + 8 > _size(source)
        case "bmp":
            return int.from_bytes(_head(source)[2:6], "little") > _size(source)
        case "heic" | "avif":
            return _boxes_reach_beyond(source)
        case _:
            return False


def lacks_only_end_marker(path: Path | str, image_format: str) -> bytes | None:
    """The file made whole, if nothing but its end marker is missing; else None. Only JPEG and PNG have such an end."""
    tail = _tail(path)
    if image_format == "jpeg" and _JPEG_END not in tail[-64:]:
        raw = Path(path).read_bytes()
        if raw.endswith(b"\xff"):  # half an end marker or half a byte of data: nobody can tell
            return None
        try:
            return raw + _JPEG_END if _has_all_scan_data(raw) else None
        except OSError:  # cut before its first scan
            return None
    if image_format == "png" and b"IEND" not in tail:
        raw = Path(path).read_bytes()
        return _with_png_end(raw)
    return None


def _has_all_scan_data(raw: bytes) -> bool:
    """Whether the entropy-coded data of a JPEG without an end is complete.

    libjpeg fills missing data in without an error. But where nothing is missing, whatever follows is ignored, and where
    even one bit is, two complementary fillings give two pictures. A reduced decode, which is cheap, tells most cuts.
    """
    return all(_same_picture(raw + _FILLING, raw + _COMPLEMENT, scale) for scale in (8, 1))


def _same_picture(one: bytes, other: bytes, scale: int) -> bool:
    return _decoded(one, scale) == _decoded(other, scale)


def _decoded(raw: bytes, scale: int) -> bytes:
    with Image.open(io.BytesIO(raw + _JPEG_END), formats=["JPEG"]) as image:
        image.draft(None, (max(1, image.width // scale), max(1, image.height // scale)))
        return image.tobytes()


def _with_png_end(raw: bytes) -> bytes | None:
    """`raw` with its end chunk, if it stops within that chunk or right before it and its pixel stream is complete."""
    at = 8
    stream = zlib.decompressobj()
    while at + 12 <= len(raw):
        size, kind = int.from_bytes(raw[at : at + 4], "big"), raw[at + 4 : at + 8]
        end = at + 12 + size
        if end > len(raw):
            break
        if kind == b"IDAT" and not _fed(stream, raw[at + 8 : end - 4]):
            return None
        at = end
    is_only_end_missing = stream.eof and _PNG_END.startswith(raw[at:])
    return raw[:at] + _PNG_END if is_only_end_missing else None


def _fed(stream: zlib._Decompress, piece: bytes) -> bool:
    """Run `piece` through `stream`, a bounded part at a time; what comes out is not kept."""
    try:
        stream.decompress(piece, 1 << 20)
        while stream.unconsumed_tail:
            stream.decompress(stream.unconsumed_tail, 1 << 20)
    except zlib.error:
        return False
    return True


def _boxes_reach_beyond(source: Source) -> bool:
    """Whether the top-level boxes of an ISO-BMFF file claim more bytes than there are."""
    size = _size(source)
    at = 0
    with _reader(source) as file:
        for _ in range(4_000):
            file.seek(at)
            head = file.read(16)
            if len(head) < 8:
                return False
            length = int.from_bytes(head[:4], "big")
            if length == 1:
                length = int.from_bytes(head[8:16], "big")
            if length < 8:
                return False
            at += length
            if at > size:
                return True
    return False


def _reader(source: Source) -> io.BytesIO | io.BufferedReader:
    return io.BytesIO(source.getvalue()) if isinstance(source, io.BytesIO) else open(source, "rb")


def _head(source: Source) -> bytes:
    with _reader(source) as file:
        return file.read(16)


def _tail(source: Source) -> bytes:
    with _reader(source) as file:
        file.seek(max(0, _size(source) - 4096))
        return file.read()


def _size(source: Source) -> int:
    return len(source.getvalue()) if isinstance(source, io.BytesIO) else os.path.getsize(source)
