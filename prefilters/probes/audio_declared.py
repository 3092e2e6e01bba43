"""What a recording's own header says of its length, kept apart from what FFmpeg would guess or correct."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from prefilters.media import HEAD_BYTES, behind_id3

_FRAME_COUNT_TAGS = (b"Xing", b"Info", b"VBRI")
_MOST_CHUNKS = 200
_STREAMED_FROM = 0x7FFFF000
"""WAV sizes from here on are what a recorder writes that cannot go back to fill in the real one."""


def declared_s(path: Path | str, container: Any, stream: Any) -> float | None:
    """Seconds by the header, None where it says nothing.

    FFmpeg guesses from the bit rate where an MP3 has no frame count, and lowers a WAV's size to that of the file;
    neither would show that a recording was cut off.
    """
    seconds: float | None
    if container.format.name in ("mp3", "aac") and not _has_frame_count(path):
        return None
    if container.format.name == "wav" and _is_riff(path):
        seconds = _wav_declared_s(path)
    elif stream.duration is not None and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    elif container.duration is not None:
        seconds = container.duration / 1_000_000
    else:
        return None
    return seconds if seconds and seconds > 0 else None


def is_cut_short(path: Path | str) -> bool:
    """Whether the last box of this ISO media file should reach beyond its end."""
    end = Path(path).stat().st_size
    with open(path, "rb") as file:
        at = 0
        for _ in range(_MOST_CHUNKS):
            file.seek(at)
            header = file.read(16)
            if len(header) < 8:
                return False
            size = int.from_bytes(header[:4], "big")
            if size == 1:
                size = int.from_bytes(header[8:16], "big")
            if size < 8:
                return False
            at += size
            if at > end:
                return True
    return False


def _has_frame_count(path: Path | str) -> bool:
    with open(path, "rb") as file:
        head = behind_id3(file, file.read(HEAD_BYTES))
    return any(tag in head for tag in _FRAME_COUNT_TAGS)


def _is_riff(path: Path | str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"RIFF"


def _wav_declared_s(path: Path | str) -> float | None:
    bytes_a_second = 0
    with open(path, "rb") as file:
        for name, size in _riff_chunks(file):
            if name == b"fmt " and size >= 12:
                bytes_a_second = struct.unpack("<8xI", file.read(12))[0]
            elif name == b"data":
                return size / bytes_a_second if bytes_a_second and 0 < size < _STREAMED_FROM else None
    return None


def _riff_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Name and size of each chunk, the file standing at the chunk's body."""
    at = 12
    for _ in range(_MOST_CHUNKS):
        file.seek(at)
        header = file.read(8)
        if len(header) < 8:
            return
        size = int.from_bytes(header[4:], "little")
        yield header[:4], size
        at += 8 + size + size % 2
