"""Size, frames and orientation of a picture from its header bytes alone: nothing is decoded, no decoder is loaded.

This runs inside the service process on whatever a stranger sends, so each loop has a bound and each read a size. What
a header says is not trusted: it only decides whether a decoder, in its own process, gets to see the file at all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from errno import EINVAL
from pathlib import Path
from typing import BinaryIO

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import FactValue
from prefilters.limits import DecodeLimits
from prefilters.media import Media
from prefilters.probes.cost import image_costs

_MOST_SEGMENTS = 2_000
"""JPEG segments before the picture; a 25 MB file of full-sized ones has 400."""
_MOST_FILL_BYTES = 16
"""Before one marker; the standard allows any number, encoders write none."""
_MOST_CHUNKS = 4_000
"""PNG and WebP chunks that are walked over."""
_MOST_SUB_BLOCKS = 20_000
"""GIF sub-blocks that are walked over: about 5 ms. Beyond it the number of frames is left to the child."""
_MOST_META_BYTES = 1 << 20
"""An ISO-BMFF `meta` box; an iPhone's has about 5 KB."""
_MOST_BOXES = 4_000
_MOST_EXIF_ENTRIES = 512


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the header claims. `width` and `height` are as stored, before `orientation` is applied."""

    width: int
    height: int
    mode: str | None = None
    """In Pillow's names; None where the header alone does not tell."""
    orientation: int = 1
    frames: int | None = 1
    """None where counting would cost too much here."""

    @property
    def is_turned(self) -> bool:
        return self.orientation >= 5


def header(path: Path | str, media: Media, limits: DecodeLimits) -> dict[str, FactValue]:
    """The `image.*` facts of cost class HEADER. Reads a few KB; no pixel is decoded. About 0.05 ms for a JPEG.

    Frames are counted up to `limits.max_frames` + 1. Raises `ProbeError`: `empty`, `truncated` or `corrupt`.
    """
    with open(path, "rb") as file:
        return header_facts(read_header(file, media.format, most_frames=limits.max_frames + 1))


def header_facts(found: ImageHeader) -> dict[str, FactValue]:
    """The facts that follow from a header. Raises `ProbeError` (`corrupt`) where a side is zero."""
    if found.width <= 0 or found.height <= 0:
        raise ProbeError(DecodeStatus.CORRUPT, f"a picture of {found.width} x {found.height}")
    width, height = (found.height, found.width) if found.is_turned else (found.width, found.height)
    facts: dict[str, FactValue] = {
        "image.width": width,
        "image.height": height,
        "image.short_side": min(width, height),
        "image.long_side": max(width, height),
        "image.pixels": width * height,
        "image.aspect": max(width, height) / min(width, height),
        "image.orientation": found.orientation,
        **image_costs(width, height),
    }
    if found.frames is not None:
        facts["image.frames"] = found.frames
        facts["image.animated"] = found.frames > 1
    if found.mode is not None:
        facts["image.mode"] = found.mode
    return facts


def read_header(file: BinaryIO, image_format: str, *, most_frames: int, patient: bool = False) -> ImageHeader:
    """What the header of `file` claims. `patient` counts the frames of a GIF to the end, which may take a second.

    Raises `ProbeError`, as `header`.
    """
    most_blocks = 50 * _MOST_SUB_BLOCKS if patient else _MOST_SUB_BLOCKS
    try:
        if image_format == "gif":
            return _gif(file, most_frames, most_blocks=most_blocks)
        return _READERS[image_format](file, most_frames)
    except (struct.error, OverflowError, ValueError) as exc:
        raise _corrupt("a size in the header does not fit") from exc
    except OSError as exc:
        if exc.errno != EINVAL:  # a lying offset makes the seek invalid; anything else is the disk's fault
            raise
        raise _corrupt("an offset in the header points nowhere") from exc


def _take(file: BinaryIO, size: int) -> bytes:
    """Exactly `size` bytes from where `file` stands."""
    taken = file.read(size)
    if len(taken) < size:
        raise ProbeError(DecodeStatus.TRUNCATED, "the file ends within its header")
    return taken


def _corrupt(message: str) -> ProbeError:
    return ProbeError(DecodeStatus.CORRUPT, message)


# --- JPEG (ITU-T T.81, annex B) ---

_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}


def _jpeg(file: BinaryIO, most_frames: int) -> ImageHeader:
    orientation = 1
    for marker, size in _jpeg_segments(file):
        if marker in _FRAME_MARKERS:
            _precision, height, width, components = struct.unpack(">BHHB", _take(file, 6))
            return ImageHeader(width, height, _JPEG_MODES.get(components), orientation)
        if marker == 0xE1 and orientation == 1:
            start = file.tell()
            segment = file.read(size)
            if segment.startswith(b"Exif\0"):
                orientation = _exif_orientation(segment[6:])
            file.seek(start + size)
        elif marker in (0xD9, 0xDA):
            raise _corrupt("a JPEG without a frame header")
        else:
            file.seek(size, 1)
    raise _corrupt("a JPEG with too many segments")


def _jpeg_segments(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Marker and body size of each segment; the consumer leaves `file` behind the body."""
    _take(file, 2)
    for _ in range(_MOST_SEGMENTS):
        byte = _take(file, 1)[0]
        if byte != 0xFF:
            raise _corrupt("no marker where a JPEG segment should begin")
        for _ in range(_MOST_FILL_BYTES):
            if byte != 0xFF:
                break
            byte = _take(file, 1)[0]
        if byte in _BARE_MARKERS:
            continue
        size = 2 if byte == 0xD9 else int.from_bytes(_take(file, 2), "big")
        if size < 2:
            raise _corrupt("a JPEG segment shorter than its own length")
        yield byte, size - 2


def _exif_orientation(tiff: bytes) -> int:
    """Tag 274 of the first directory; 1 where it is missing or makes no sense, as viewers do."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, start)
    for index in range(min(count, _MOST_EXIF_ENTRIES)):
        at = start + 2 + 12 * index
        if at + 12 > len(tiff):
            return 1
        tag, kind = struct.unpack_from(order + "HH", tiff, at)
        if tag == 274:
            value = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, at + 8)[0]
            return value if 1 <= value <= 8 else 1
    return 1


# --- PNG (W3C PNG, third edition) ---

_PNG_MODES = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}


def _png(file: BinaryIO, most_frames: int) -> ImageHeader:
    _take(file, 8)
    size, kind = struct.unpack(">I4s", _take(file, 8))
    if kind != b"IHDR" or size != 13:
        raise _corrupt("a PNG that does not begin with its header")
    width, height, depth, colour = struct.unpack(">IIBB3x", _take(file, 13))
    mode = {1: "1", 16: "I;16"}.get(depth, "L") if colour == 0 else _PNG_MODES.get(colour)
    found = ImageHeader(width, height, mode)
    _take(file, 4)
    return _with_png_extras(file, found)


def _with_png_extras(file: BinaryIO, found: ImageHeader) -> ImageHeader:
    """Frames of an APNG and the EXIF orientation, as far as they stand before the pixels."""
    for _ in range(_MOST_CHUNKS):
        size, kind = struct.unpack(">I4s", _take(file, 8))
        if kind in (b"IDAT", b"IEND"):
            return found
        if kind == b"acTL" and size == 8:
            (frames,) = struct.unpack(">I4x", _take(file, 8))
            found = replace(found, frames=max(1, frames))
            file.seek(4, 1)
        elif kind == b"eXIf" and size <= _MOST_META_BYTES:
            found = replace(found, orientation=_exif_orientation(_take(file, size)))
            file.seek(4, 1)
        else:
            file.seek(size + 4, 1)
    raise _corrupt("a PNG with too many chunks")


# --- GIF (GIF89a) ---


def _gif(file: BinaryIO, most_frames: int, *, most_blocks: int) -> ImageHeader:
    _take(file, 6)
    width, height, flags = struct.unpack("<HHBxx", _take(file, 7))
    if flags & 0x80:
        file.seek(3 << (flags & 7) + 1, 1)
    frames = 0
    left = most_blocks
    while frames < most_frames:
        introducer = file.read(1)
        if introducer == b",":
            x, y, frame_width, frame_height, local = struct.unpack("<HHHHB", _take(file, 9))
            if frames == 0:  # a frame may reach beyond the screen, and decoders grow the picture to it
                width, height = max(width, x + frame_width), max(height, y + frame_height)
            frames += 1
            file.seek((3 << (local & 7) + 1 if local & 0x80 else 0) + 1, 1)
        elif introducer == b"!":
            file.seek(1, 1)
        elif introducer in (b";", b"") or frames:
            break  # the trailer, a cut, or junk behind the first frame, which decoders ignore
        else:
            raise _corrupt("no GIF block where one should begin")
        left = _skip_sub_blocks(file, left)
        if left <= 0:
            return ImageHeader(width, height, "P", frames=None)
    if frames == 0:
        raise ProbeError(DecodeStatus.TRUNCATED, "a GIF that ends before its first frame")
    return ImageHeader(width, height, "P", frames=frames)


def _skip_sub_blocks(file: BinaryIO, left: int) -> int:
    while left > 0:
        size = file.read(1)
        left -= 1
        if not size or size == b"\0":
            break
        file.seek(size[0], 1)
    return left


# --- WebP (RFC 9649) ---


def _webp(file: BinaryIO, most_frames: int) -> ImageHeader:
    _take(file, 12)
    kind, size = struct.unpack("<4sI", _take(file, 8))
    if kind == b"VP8 ":
        return _webp_lossy(file)
    if kind == b"VP8L":
        return _webp_lossless(file)
    if kind != b"VP8X" or size < 10:
        raise _corrupt("a WebP without a picture chunk")
    flags = _take(file, 4)[0]
    width, height = (int.from_bytes(_take(file, 3), "little") + 1 for _ in range(2))
    file.seek(size - 10 + (size & 1), 1)
    found = ImageHeader(width, height, "RGBA" if flags & 0x10 else "RGB")
    return _with_webp_extras(file, found, most_frames, is_animated=bool(flags & 0x02))


def _webp_lossy(file: BinaryIO) -> ImageHeader:
    tag = _take(file, 3)
    if tag[0] & 1 or _take(file, 3) != b"\x9d\x01\x2a":
        raise _corrupt("a WebP whose first frame is no key frame")
    width, height = struct.unpack("<HH", _take(file, 4))
    return ImageHeader(width & 0x3FFF, height & 0x3FFF, "RGB")


def _webp_lossless(file: BinaryIO) -> ImageHeader:
    signature, bits = struct.unpack("<BI", _take(file, 5))
    if signature != 0x2F:
        raise _corrupt("a lossless WebP without its signature")
    return ImageHeader((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, "RGBA" if bits >> 28 & 1 else "RGB")


def _with_webp_extras(file: BinaryIO, found: ImageHeader, most_frames: int, *, is_animated: bool) -> ImageHeader:
    frames, orientation = 0, 1
    for _ in range(_MOST_CHUNKS):
        head = file.read(8)
        if len(head) < 8 or frames >= most_frames:
            break
        kind, size = struct.unpack("<4sI", head)
        frames += kind == b"ANMF"
        if kind == b"EXIF" and size <= _MOST_META_BYTES:
            block = file.read(size + (size & 1))
            orientation = _exif_orientation(block[6:] if block.startswith(b"Exif\0\0") else block)
        else:
            file.seek(size + (size & 1), 1)
    return replace(found, orientation=orientation, frames=max(1, frames) if is_animated else 1)


# --- BMP ---


def _bmp(file: BinaryIO, most_frames: int) -> ImageHeader:
    _take(file, 14)
    (size,) = struct.unpack("<I", _take(file, 4))
    if size == 12:
        width, height, _planes, bits = struct.unpack("<HHHH", _take(file, 8))
    elif size >= 16:
        width, height, _planes, bits = struct.unpack("<iiHH", _take(file, 12))
    else:
        raise _corrupt("a BMP with an unknown header")
    mode = {1: "1", 4: "P", 8: "P", 16: "RGB", 24: "RGB", 32: "RGB"}.get(bits)
    return ImageHeader(width, abs(height), mode)


# --- TIFF 6.0 and BigTIFF ---


@dataclass(frozen=True, slots=True)
class _TiffLayout:
    order: str
    count: str
    offset: str
    entry_bytes: int

    def unpack(self, code: str, raw: bytes) -> int:
        return int(struct.unpack(self.order + code, raw)[0])


def _tiff(file: BinaryIO, most_frames: int) -> ImageHeader:
    head = _take(file, 4)
    order = "<" if head[:2] == b"II" else ">"
    if struct.unpack(order + "H", head[2:])[0] == 43:
        layout = _TiffLayout(order, "Q", "Q", 20)
        _take(file, 4)
    else:
        layout = _TiffLayout(order, "H", "I", 12)
    first = layout.unpack(layout.offset, _take(file, struct.calcsize(layout.offset)))
    tags = _tiff_tags(file, first, layout)
    orientation = tags.get(274, 1)
    return ImageHeader(
        tags.get(256, 0),
        tags.get(257, 0),
        _tiff_mode(tags),
        orientation if 1 <= orientation <= 8 else 1,
        _tiff_frames(file, first, layout, most_frames),
    )


def _tiff_tags(file: BinaryIO, at: int, layout: _TiffLayout) -> dict[int, int]:
    """The short and long tags of one directory, first value each."""
    file.seek(at)
    count = layout.unpack(layout.count, _take(file, struct.calcsize("=" + layout.count)))
    table = _take(file, min(count, _MOST_EXIF_ENTRIES) * layout.entry_bytes)
    tags: dict[int, int] = {}
    value_at = 8 if layout.entry_bytes == 12 else 12
    for start in range(0, len(table), layout.entry_bytes):
        tag, kind = struct.unpack_from(layout.order + "HH", table, start)
        code = {3: "H", 4: "I", 16: "Q"}.get(kind)
        if code is not None and (code != "Q" or layout.entry_bytes == 20):
            tags.setdefault(tag, struct.unpack_from(layout.order + code, table, start + value_at)[0])
    return tags


def _tiff_mode(tags: dict[int, int]) -> str | None:
    samples, bits, photometric = tags.get(277, 1), tags.get(258, 1), tags.get(262, 1)
    if photometric == 3:
        return "P"
    if samples == 1:
        return {1: "1", 8: "L", 16: "I;16"}.get(bits)
    if photometric == 5:
        return "CMYK"
    return {2: "LA", 3: "RGB", 4: "RGBA"}.get(samples)


def _tiff_frames(file: BinaryIO, at: int, layout: _TiffLayout, most_frames: int) -> int:
    """Directories in the chain, at most `most_frames`; a chain that bites its own tail ends there."""
    seen: set[int] = set()
    offset_bytes = struct.calcsize("=" + layout.offset)
    while at and at not in seen and len(seen) < most_frames:
        seen.add(at)
        file.seek(at)
        raw_count = file.read(struct.calcsize("=" + layout.count))
        if len(raw_count) < struct.calcsize("=" + layout.count):
            break
        file.seek(layout.unpack(layout.count, raw_count) % (1 << 32) * layout.entry_bytes, 1)
        raw_next = file.read(offset_bytes)
        at = layout.unpack(layout.offset, raw_next) % (1 << 62) if len(raw_next) == offset_bytes else 0
    return max(1, len(seen))


# --- HEIC and AVIF (ISO/IEC 23008-12: an image is an item whose properties say its size and turn) ---

_ORIENTATION_BY_TURN: dict[tuple[int, int | None], int] = {
    # (quarter turns anticlockwise, mirror axis: None, 0 = top to bottom, 1 = left to right), the turn comes first
    (0, None): 1,
    (1, None): 8,
    (2, None): 3,
    (3, None): 6,
    (0, 0): 4,
    (1, 0): 5,
    (2, 0): 2,
    (3, 0): 7,
    (0, 1): 2,
    (1, 1): 7,
    (2, 1): 4,
    (3, 1): 5,
}


def _heif(file: BinaryIO, most_frames: int) -> ImageHeader:
    is_sequence = _take(file, 12)[8:12] in (b"avis", b"msf1", b"hevc", b"hevx")
    file.seek(0)
    meta = _find_meta(file)
    items = dict(_boxes(meta, 4))
    properties = dict(_boxes(items.get(b"iprp", b""), 0))
    container = list(_boxes(properties.get(b"ipco", b""), 0))
    owned = _property_numbers(properties.get(b"ipma", b""), _primary_item(items.get(b"pitm", b"")))
    found = [container[number - 1] for number in owned if 0 < number <= len(container)]
    size = next((body for kind, body in found if kind == b"ispe" and len(body) >= 12), None)
    if size is None:
        raise _corrupt("no size is given for the primary picture")
    width, height = struct.unpack(">II", size[4:12])
    turn = next((body[0] & 3 for kind, body in found if kind == b"irot" and body), 0)
    mirror = next((body[0] & 1 for kind, body in found if kind == b"imir" and body), None)
    return ImageHeader(width, height, None, _ORIENTATION_BY_TURN[turn, mirror], None if is_sequence else 1)


def _find_meta(file: BinaryIO) -> bytes:
    for _ in range(_MOST_BOXES):
        head = _take(file, 8)
        size, kind = struct.unpack(">I4s", head)
        body = size - 8
        if size == 1:
            body = int.from_bytes(_take(file, 8), "big") - 16
        if body < 0:
            raise _corrupt("a box shorter than its own header")
        if kind == b"meta":
            if body > _MOST_META_BYTES:
                raise _corrupt("a picture index of absurd size")
            return _take(file, body)
        if body > 1 << 62:
            break
        file.seek(body, 1)
    raise _corrupt("no picture index")


def _boxes(raw: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    for _ in range(_MOST_BOXES):
        if at + 8 > len(raw):
            return
        size, kind = struct.unpack_from(">I4s", raw, at)
        if size < 8 or at + size > len(raw):
            raise _corrupt("a box that reaches beyond its parent")
        yield kind, raw[at + 8 : at + size]
        at += size


def _primary_item(pitm: bytes) -> int:
    if len(pitm) < 6:
        raise _corrupt("no primary picture is named")
    return int.from_bytes(pitm[4:8] if pitm[0] else pitm[4:6], "big")


def _property_numbers(ipma: bytes, item: int) -> list[int]:
    """1-based places in `ipco` of the properties that belong to `item`, in their order."""
    if len(ipma) < 8:
        return []
    wide_id, wide_index = ipma[0] > 0, ipma[3] & 1
    at = 8
    for _ in range(min(int.from_bytes(ipma[4:8], "big"), _MOST_BOXES)):
        id_bytes = 4 if wide_id else 2
        if at + id_bytes + 1 > len(ipma):
            break
        owner = int.from_bytes(ipma[at : at + id_bytes], "big")
        count = ipma[at + id_bytes]
        at += id_bytes + 1
        step = 2 if wide_index else 1
        raw = ipma[at : at + count * step]
        at += count * step
        if owner == item:
            mask = 0x7FFF if wide_index else 0x7F
            return [int.from_bytes(raw[i : i + step], "big") & mask for i in range(0, len(raw), step)]
    return []


_READERS: dict[str, Callable[[BinaryIO, int], ImageHeader]] = {
    "jpeg": _jpeg,
    "png": _png,
    "webp": _webp,
    "bmp": _bmp,
    "tiff": _tiff,
    "heic": _heif,
    "avif": _heif,
}
