"""Files that mean harm, made by hand and by rule: bombs of each kind, cuts at each structural boundary, flipped bits, lies.

Each is a name and its bytes. The same seed gives the same files.
"""

from __future__ import annotations

import io
import random
import re
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from PIL import Image, PngImagePlugin

from examples import paperwork
from tests import media

_LIES = (0, 1, 0x7F, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
"""What a size field is made to say."""


@dataclass(frozen=True)
class Hostile:
    """One file."""

    kind: str
    """`bomb`, `cut`, `flip`, `lie` or `splice`."""
    name: str
    data: bytes


# --- small honest files of every format -------------------------------------------------------------------------------


def seeds() -> dict[str, bytes]:
    """One small file per format and shape that is taken."""
    sound = media.tone(0.6)
    return {
        "jpeg": media.label_photo(long_side=320),
        "progressive jpeg": media.progressive_jpeg(long_side=320),
        "cmyk jpeg": media.cmyk_jpeg(long_side=320),
        "exif jpeg": media.exif_rotated(6, long_side=320),
        "png": media.png(long_side=240),
        "palette png": media.palette_png(long_side=240),
        "16 bit png": media.png16(),
        "apng": media.animated_png(frames=3, long_side=160),
        "gif": media.animated_gif(frames=3, long_side=160),
        "webp": media.webp(long_side=240),
        "animated webp": media.animated_webp(frames=3, long_side=160),
        "avif": media.avif(long_side=240),
        "heic": media.heic(long_side=240),
        "tiff": media.tiff(pages=2, long_side=200),
        "bmp": media.bmp(long_side=160),
        "pdf": media.pdf_text(),
        "scanned pdf": media.pdf_scan(),
        "locked pdf": media.pdf_user_password(),
        "wav": media.wav(sound),
        "aiff": media.aiff(sound),
        "mp3": media.mp3(sound),
        "m4a": media.m4a(sound),
        "ogg": media.ogg(sound),
        "opus": media.opus(sound),
        "flac": media.flac(sound),
        "webm": media.webm(sound),
    }


# --- bombs ------------------------------------------------------------------------------------------------------------


def bombs(names: Collection[str] | None = None) -> Iterator[Hostile]:
    """Small files that ask for much, and files that are several things or none: all, or those of these names."""
    for name in _BOMBS if names is None else names:
        yield Hostile("bomb", name, _BOMBS[name]())


def _zeros(megabytes: int) -> bytes:
    packer = zlib.compressobj(1)
    block = bytes(1 << 20)
    return b"".join([*(packer.compress(block) for _ in range(megabytes)), packer.flush()])


def _png_with(name: bytes, body: bytes) -> bytes:
    whole = media.png(long_side=160)
    chunk = struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return whole[:33] + chunk + whole[33:]


def _filled(size: tuple[int, int], format_: str, mode: str = "L", **options: object) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, 255 if mode in "L1" else 0).save(out, format_, **options)
    return out.getvalue()


def _noted_png() -> bytes:
    notes = PngImagePlugin.PngInfo()
    for number in range(2_000):
        notes.add_text(f"k{number}", "x" * 400, zip=True)
    out = io.BytesIO()
    Image.new("L", (160, 160)).save(out, "PNG", pnginfo=notes)
    return out.getvalue()


def _pdf(*objects: bytes) -> bytes:
    return paperwork.pdf_file([b"<< /Type /Catalog /Pages 2 0 R >>", *objects])


def _page(contents: bytes, resources: bytes = b"<< >>") -> bytes:
    return (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 500 500] /Resources "
        + resources
        + b" /Contents "
        + contents
        + b" >>"
    )


_ONE_KID = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"


def _flate(packed: bytes, *, filters: bytes = b"/FlateDecode", more: bytes = b"") -> bytes:
    head = b"<< /Length %d /Filter " % len(packed) + filters + more + b" >>\nstream\n"
    return head + packed + b"\nendstream"


def pdf_flate_bomb(megabytes: int = 300) -> bytes:
    """A page whose content is hundreds of megabytes of blanks."""
    return _pdf(_ONE_KID, _page(b"4 0 R"), _flate(_zeros(megabytes)))


def pdf_flate_twice() -> bytes:
    """The same, packed twice: a kilobyte for gigabytes."""
    return _pdf(
        _ONE_KID, _page(b"4 0 R"), _flate(zlib.compress(_zeros(400), 9), filters=b"[/FlateDecode /FlateDecode]")
    )


def pdf_cyclic_pages() -> bytes:
    """A page tree that holds itself."""
    return _pdf(
        b"<< /Type /Pages /Kids [2 0 R 3 0 R] /Count 9999999 /Parent 3 0 R >>",
        b"<< /Type /Pages /Kids [2 0 R] /Count 5 >>",
    )


def pdf_nested_forms(depth: int = 60) -> bytes:
    """Forms in forms, each drawn twice: 2 to the power of `depth` drawings."""
    forms = [
        paperwork.stream(
            b"/X Do /X Do",
            f"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X {6 + n} 0 R >> >>",
        )
        for n in range(depth)
    ]
    last = paperwork.stream(b"0 0 1 1 re f", "/Type /XObject /Subtype /Form /BBox [0 0 9 9]")
    return _pdf(_ONE_KID, _page(b"4 0 R", b"<< /XObject << /X 5 0 R >> >>"), paperwork.stream(b"/X Do"), *forms, last)


def pdf_tiling_pattern() -> bytes:
    """A tiling pattern that paints with itself, twice."""
    pattern = paperwork.stream(
        b"/Pattern cs /P scn 0 0 9 9 re f /P scn 0 0 9 9 re f",
        "/Type /Pattern /PatternType 1 /PaintType 1 /TilingType 1 /BBox [0 0 9 9] /XStep 1 /YStep 1 "
        "/Resources << /Pattern << /P 5 0 R >> >>",
    )
    return _pdf(
        _ONE_KID,
        _page(b"4 0 R", b"<< /Pattern << /P 5 0 R >> >>"),
        paperwork.stream(b"/Pattern cs /P scn 0 0 500 500 re f"),
        pattern,
    )


def pdf_fine_tiling() -> bytes:
    """An honest pattern in steps so small that a page takes hundreds of millions of tiles."""
    pattern = paperwork.stream(
        b"0 0 1 1 re f",
        "/Type /Pattern /PatternType 1 /PaintType 1 /TilingType 1 /BBox [0 0 1 1] /XStep 0.001 /YStep 0.001 /Resources << >>",
    )
    return _pdf(
        _ONE_KID,
        _page(b"4 0 R", b"<< /Pattern << /P 5 0 R >> >>"),
        paperwork.stream(b"/Pattern cs /P scn 0 0 500 500 re f"),
        pattern,
    )


def pdf_large_image() -> bytes:
    """A picture of 40,000 x 40,000 px that a few kilobytes of zeros fill."""
    image = _flate(
        _zeros(200),
        more=b" /Type /XObject /Subtype /Image /Width 40000 /Height 40000 /BitsPerComponent 1 /ColorSpace /DeviceGray",
    )
    return _pdf(
        _ONE_KID,
        _page(b"4 0 R", b"<< /XObject << /I 5 0 R >> >>"),
        paperwork.stream(b"500 0 0 500 0 0 cm /I Do"),
        image,
    )


def pdf_deep_arrays() -> bytes:
    """Arrays in arrays, a hundred thousand deep."""
    return _pdf(_ONE_KID, _page(b"[" * 100_000 + b"4 0 R" + b"]" * 100_000), paperwork.stream(b""))


def pdf_many_states() -> bytes:
    """A page that saves its state a million times."""
    return _pdf(_ONE_KID, _page(b"4 0 R"), _flate(zlib.compress(b"q " * 3_000_000, 9)))


def wav_lying(size: int) -> bytes:
    """A WAV whose data chunk says another size than it has."""
    whole = bytearray(media.wav(media.tone(0.5)))
    whole[40:44] = struct.pack("<I", size)
    return bytes(whole)


def wav_absurd(rate: int, channels: int, bits: int) -> bytes:
    """A WAV with a header that no recorder writes."""
    whole = bytearray(media.wav(media.tone(0.5)))
    whole[22:36] = struct.pack("<HIIHH", channels, rate, 0xFFFFFFFF, 0, bits)
    return bytes(whole)


def _tiff_strips() -> bytes:
    """A TIFF of 7,000 x 7,000 px in one deflated strip."""
    return _filled((7_000, 7_000), "TIFF", compression="tiff_adobe_deflate")


def _jpeg_scans(count: int = 1_500) -> bytes:
    """A progressive JPEG that repeats its last scan."""
    whole = media.progressive_jpeg(long_side=320)
    at = whole.rindex(b"\xff\xda")
    return whole[:at] + whole[at:-2] * count + b"\xff\xd9"


def _webm_of_unknown_sizes() -> bytes:
    return media.webm(media.tone(0.3))[:60] + b"\x1f\x43\xb6\x75\x01" + b"\xff" * 7 + bytes(5_000)


def _m4a_of_many_samples() -> bytes:
    told = b"stsz\0\0\0\0\0\0\0\1\x7f\xff\xff\xff"
    return media.m4a(media.tone(0.3)).replace(b"stsz\0\0\0\0", told, 1)


def _polyglot(front: bytes, behind: bytes) -> bytes:
    return front + behind


_BOMBS: Mapping[str, Callable[[], bytes]] = {
    "png header": media.png_bomb_header,
    "png full": media.png_bomb_full,
    "png of 49 megapixels": lambda: _filled((7_000, 7_000), "PNG"),
    "png of no size": lambda: media.png_header(0, 100),
    "png absurdly long": lambda: media.png_header(2_000_000_000, 1, body=b"x"),
    "png iTXt": lambda: _png_with(b"iTXt", b"k\0\1\0\0\0" + _zeros(120)),
    "png zTXt": lambda: _png_with(b"zTXt", b"k\0\0" + _zeros(120)),
    "png ICC": lambda: _png_with(b"iCCP", b"p\0\0" + _zeros(120)),
    "png of 2,000 notes": _noted_png,
    "png eXIf": lambda: _png_with(b"eXIf", b"II*\0\x08\0\0\0" + b"\xff" * 60_000),
    "gif": media.gif_bomb,
    "gif of 10,000 frames": lambda: media.gif_frames(10_000, side=64),
    "webp": media.webp_bomb,
    "webp of 49 megapixels": lambda: _filled((7_000, 7_000), "WEBP", "RGB", lossless=True),
    "tiff strips": _tiff_strips,
    "tiff header": lambda: struct.pack("<2sHIHHHIIHHIII", b"II", 42, 8, 2, 256, 4, 1, 99_999, 257, 4, 1, 99_999, 0),
    "bmp": lambda: b"BM" + bytes(12) + struct.pack("<IiiHHIIiiII", 40, 60_000, -60_000, 1, 24, 0, 0, 0, 0, 0, 0),
    "bmp RLE": lambda: b"BM" + bytes(8) + struct.pack("<IIiiHHIIiiII", 54, 40, 7_000, 7_000, 1, 8, 1, 0, 0, 0, 0, 0) + bytes(64),
    "jpeg of a thousand scans": _jpeg_scans,
    "jpeg with a huge ICC": lambda: _filled((200, 200), "JPEG", "RGB", icc_profile=b"\0" * 900_000),
    "heic of empty boxes": lambda: b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + b"\0\0\0\x08free" * 200_000,
    "avif of nothing": lambda: b"\0\0\0\x18ftypavif\0\0\0\0avifmif1" + bytes(4_000),
    "pdf flate": pdf_flate_bomb,
    "pdf flate twice": pdf_flate_twice,
    "pdf cyclic pages": pdf_cyclic_pages,
    "pdf recursive form": media.pdf_recursive_form,
    "pdf nested forms": pdf_nested_forms,
    "pdf tiling pattern": pdf_tiling_pattern,
    "pdf fine tiling": pdf_fine_tiling,
    "pdf large image": pdf_large_image,
    "pdf deep arrays": pdf_deep_arrays,
    "pdf many states": pdf_many_states,
    "pdf huge page": media.pdf_huge_page,
    "pdf many pages": lambda: media.pdf_many_pages(400),
    "pdf of nothing": lambda: b"%PDF-1.7\n" + bytes(10_000) + b"%%EOF",
    "pdf of objects without end": lambda: b"%PDF-1.7\n" + b"1 0 obj <<" * 200_000,
    "wav says 4 GB": lambda: wav_lying(0xFFFFFFFE),
    "wav says nothing": lambda: wav_lying(0),
    "wav of 65,535 channels": lambda: wav_absurd(4_000_000_000, 65_535, 32),
    "wav of no rate": lambda: wav_absurd(0, 1, 16),
    "wav of no channel": lambda: wav_absurd(16_000, 0, 0),
    "mp3 behind a tag of 256 MB": lambda: b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + media.mp3(media.tone(0.3)),
    "ogg of empty pages": lambda: (b"OggS" + bytes(23)) * 20_000,
    "webm of unknown sizes": lambda: _webm_of_unknown_sizes(),
    "m4a of a billion samples": lambda: _m4a_of_many_samples(),
    "png that is a zip": lambda: _polyglot(media.png(long_side=160), media.zip_archive()),
    "jpeg that is a pdf": lambda: _polyglot(media.label_photo(long_side=320), media.pdf_text()),
    "pdf that is a page of script": lambda: _polyglot(b"%PDF-1.4\n<script>alert(1)</script>\n", media.pdf_text()),
    "gif that is script": lambda: b"GIF89a/*" + bytes(200) + b"*/=1;alert(1)",
    "web page": media.html_page,
    "nothing": lambda: b"",
    "one byte": lambda: b"\xff",
    "a million blanks": lambda: b" " * 1_000_000,
}  # fmt: skip


# --- by rule ----------------------------------------------------------------------------------------------------------


def cuts(name: str, data: bytes) -> Iterator[Hostile]:
    """Ended at each structural boundary, one byte before and one byte after it."""
    places = sorted({at + near for at in boundaries(data) for near in (-1, 0, 1)})
    for at in places:
        if 0 < at < len(data):
            yield Hostile("cut", f"{name} cut at {at}", data[:at])


def lies(name: str, data: bytes) -> Iterator[Hostile]:
    """Each size field at a structural boundary made to say something else."""
    order = "little" if data[:4] in (b"RIFF", b"II*\0") else "big"
    for at in boundaries(data):
        for field in (at, at + 4):
            if field + 4 > len(data):
                continue
            for value in _LIES:
                told = value.to_bytes(4, order)  # type: ignore[arg-type]
                if data[field : field + 4] != told:
                    yield Hostile("lie", f"{name} says {value} at {field}", data[:field] + told + data[field + 4 :])


def flips(name: str, data: bytes, count: int, seed: int) -> Iterator[Hostile]:
    """One to twenty bits turned over, half of the time within the first kilobyte."""
    chance = random.Random(f"{name} {seed}")
    for number in range(count):
        changed = bytearray(data)
        within = min(len(data), 1024) if number % 2 else len(data)
        for _ in range(chance.choice((1, 2, 5, 20))):
            changed[chance.randrange(within)] ^= 1 << chance.randrange(8)
        yield Hostile("flip", f"{name} flipped, {seed}.{number}", bytes(changed))


def splices(files: Mapping[str, bytes], count: int, seed: int) -> Iterator[Hostile]:
    """The front of one file and the back of another; or a stretch left out, doubled or zeroed."""
    chance = random.Random(seed)
    names = sorted(files)
    for number in range(count):
        name = chance.choice(names)
        data = files[name]
        one, two = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        other = files[chance.choice(names)]
        made = chance.choice((
            data[:one] + other[chance.randrange(len(other)):],
            data[:one] + data[two:],
            data[:two] + data[one:],
            data[:one] + bytes(two - one) + data[two:],
        ))  # fmt: skip
        yield Hostile("splice", f"{name} spliced, {seed}.{number}", made)


def boundaries(data: bytes) -> list[int]:
    """Where one part of a file ends and the next begins: chunks, markers, boxes, pages, objects."""
    if data.startswith(b"\x89PNG"):
        return list(_chunks(data, 8, big=True, size_first=True, extra=12, padded=False))
    if data[:4] == b"RIFF" or data[:4] == b"FORM":
        return [0, *_chunks(data, 12, big=data[:4] == b"FORM", size_first=False, extra=8, padded=True)]
    if data.startswith(b"\xff\xd8"):
        return list(_markers(data))
    if data[4:8] == b"ftyp":
        return list(_boxes(data, 0, len(data)))
    if data.startswith(b"OggS"):
        return [match.start() for match in re.finditer(rb"OggS", data)]
    if data.startswith(b"%PDF"):
        return [
            match.start() for match in re.finditer(rb"\d+ 0 obj|endobj|stream|xref|trailer|startxref|%%EOF|/\w+ ", data)
        ]
    if data[:2] in (b"II", b"MM"):
        return list(range(0, min(len(data), 400), 12))
    return list(range(0, min(len(data), 200), 8))


def _chunks(data: bytes, at: int, *, big: bool, size_first: bool, extra: int, padded: bool) -> Iterator[int]:
    while at + 8 <= len(data):
        yield at
        field = data[at : at + 4] if size_first else data[at + 4 : at + 8]
        size = int.from_bytes(field, "big" if big else "little")
        at += size + extra + (size % 2 if padded else 0)


def _markers(data: bytes) -> Iterator[int]:
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        yield at
        if data[at + 1] == 0xDA:
            break
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _boxes(data: bytes, at: int, end: int, depth: int = 0) -> Iterator[int]:
    while at + 8 <= end:
        yield at
        size = int.from_bytes(data[at : at + 4], "big")
        if size < 8 or at + size > end:
            return
        inner = {b"meta": 12, b"moov": 8, b"trak": 8, b"mdia": 8, b"minf": 8, b"stbl": 8, b"iprp": 8, b"ipco": 8}
        if data[at + 4 : at + 8] in inner and depth < 6:
            yield from _boxes(data, at + inner[data[at + 4 : at + 8]], at + size, depth + 1)
        at += size


def by_rule(*, most_of_each: int, seed: int) -> Iterator[Hostile]:
    """Cuts, lies, flips and splices of every seed file: at most `most_of_each` of each kind a file, drawn by `seed`."""
    files = seeds()
    for name, data in files.items():
        for made in (list(cuts(name, data)), list(lies(name, data))):
            chance = random.Random(f"{name} {seed}")
            yield from chance.sample(made, min(most_of_each, len(made)))
        yield from flips(name, data, most_of_each, seed)
    yield from splices(files, most_of_each * len(files), seed)
