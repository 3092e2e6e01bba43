"""Whether verdicts are right: a confusion table per modality, over files that the project makes and, where given, samples.

    python benchmarks/verdicts.py [--folder FOLDER] [--json]

FOLDER holds files and `SOURCES.tsv` with the columns `file` and `expected`: `accept`, `text_only`, `reject:CODE`, or
`accept_or_text_only` where both are right. Rows are what is right, columns what was given.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from PIL import Image, ImageFilter

from prefilters import DecodeLimits, DecoderPool, load_rules, screen
from tests import media

LIMITS = DecodeLimits()
COLUMNS = ("accept", "text_only", "reject")
SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "samples"


@dataclass(frozen=True, slots=True)
class Case:
    """One file and the verdicts that are right for it: `accept`, `text_only` or `reject:CODE`."""

    origin: str
    name: str
    data: bytes
    right: tuple[str, ...]


def made() -> Iterator[Case]:
    """The synthetic set, modality by modality."""
    yield from _labels()
    yield from _without_print()
    yield from _bad_pictures()
    yield from _documents()
    yield from _recordings()


def _labels() -> Iterator[Case]:
    """The same label in every shape that real files have, and as people hold it."""
    label = media.label_photo()
    shapes: dict[str, bytes] = {
        "label": label,
        "label, 400 px": media.label_photo(long_side=400),
        "label, Chinese": media.chinese_label_photo(),
        "12 MP": media.high_resolution(),
        "label, quality 40": media.label_photo(quality=40),
        "half legible": media.half_legible(),
        "scan": media.scan(),
        "cmyk": media.cmyk_jpeg(),
        "grey": media.grey_jpeg(),
        "progressive": media.progressive_jpeg(),
        "png": media.png(),
        "16 bit png": media.png16(),
        "palette png": media.palette_png(),
        "webp": media.webp(),
        "avif": media.avif(),
        "heic": media.heic(),
        "tiff of 3 pages": media.tiff(pages=3),
        "bmp": media.bmp(),
        "gif of 4 frames": media.animated_gif(),
        "webp of 4 frames": media.animated_webp(),
        "apng of 4 frames": media.animated_png(),
        "dark text on transparency": media.alpha_text(),
        "light text on transparency": media.alpha_text(light=True),
        "no end marker": media.missing_end_marker(),
        **{f"orientation {number}": media.exif_rotated(number) for number in range(1, 9)},
        **{f"turned by {degrees}": media.rotated(label, degrees) for degrees in (-15, -8, 8, 15, 90, 180, 270)},
    }
    for name, data in shapes.items():
        yield Case("image", name, data, ("accept",))


def _without_print() -> Iterator[Case]:
    pictures = {
        "packshot": media.packshot(),
        "out of focus": media.blurred(),
        "plain": media.plain_photo(640, 480),
        "plain, another": media.plain_photo(1200, 900, seed=5),
        "one tone": media.flat_colour(),
        "black": media.flat_colour(colour=(0, 0, 0)),
        **{f"label, blur {sigma}": _blurred(media.label_photo(long_side=900), sigma) for sigma in (8, 12, 20)},
    }
    for name, data in pictures.items():
        yield Case("image", name, data, ("text_only",))


def _bad_pictures() -> Iterator[Case]:
    yield Case("image", "thumbnail", media.thumbnail(), ("reject:low_resolution",))
    yield Case("image", "strip", media.plain_photo(2_000, 70), ("accept", "text_only"))
    yield Case("image", "too long a strip", _plain_png(12_000, 100), ("reject:extreme_aspect",))
    yield Case("image", "nothing", b"", ("reject:empty",))
    yield Case("image", "web page", media.html_page(), ("reject:unsupported_type",))
    yield Case("image", "drawing", media.svg(), ("reject:unsupported_type",))
    yield Case("image", "archive", media.zip_archive(), ("reject:unsupported_type",))
    yield Case("image", "video", media.mp4_video(), ("reject:unsupported_type",))
    for name, data in {
        "jpeg": media.label_photo(),
        "png": media.png(),
        "webp": media.webp(),
        "heic": media.heic(),
    }.items():
        yield Case("image", f"{name} cut at 60 %", media.truncated(data), ("reject:corrupt",))
    yield Case("image", "damaged png", media.damaged_png(), ("reject:corrupt",))
    for name, data in {"png": media.png_bomb_header(), "gif": media.gif_bomb(), "webp": media.webp_bomb()}.items():
        yield Case("image", f"{name} bomb", data, ("reject:too_many_pixels",))
    yield Case("image", "gif of 500 frames", media.gif_frames(500), ("reject:too_many_frames",))


def _documents() -> Iterator[Case]:
    good = {
        "text": media.pdf_text(),
        "scan": media.pdf_scan(),
        "owner password": media.pdf_owner_password(),
        "script inside": media.pdf_javascript(),
        "attachment": media.pdf_attachment(),
        "hidden text": media.pdf_hidden_text(),
        "a few lines": media.pdf_lines(["Linen bath towel, stone washed", "70 x 140 cm"]),
    }
    for name, data in good.items():
        yield Case("pdf", name, data, ("accept",))
    yield Case("pdf", "glyph codes", media.pdf_glyph_codes(), ("accept", "text_only"))
    yield Case("pdf", "a word", media.pdf_lines(["Towel"]), ("text_only",))
    yield Case("pdf", "locked, AES-256", media.pdf_user_password(revision=6), ("reject:encrypted",))
    yield Case("pdf", "locked, RC4", media.pdf_user_password(), ("reject:encrypted",))
    yield Case("pdf", "no pages", media.pdf_zero_pages(), ("reject:empty", "reject:corrupt"))
    # Cut off before its index: pages after the cut could be missing, and nobody would know.
    yield Case("pdf", "cut before its index", media.pdf_no_xref(), ("reject:corrupt",))
    yield Case("pdf", "cut", media.pdf_truncated(), ("reject:corrupt",))
    yield Case("pdf", "300 pages", media.pdf_many_pages(300), ("reject:too_many_pages",))
    yield Case("pdf", "huge page", media.pdf_huge_page(), ("reject:too_many_pixels",))
    yield Case("pdf", "draws itself", media.pdf_recursive_form(), ("reject:resource_limit",))


def _recordings() -> Iterator[Case]:
    spoken = _spoken("This is a linen bath towel, stone washed, made in Norway.")
    forms = {
        **{f"wav {coding}": media.wav(spoken, coding=coding) for coding in ("u8", "s16", "s24", "s32", "f32", "alaw", "mulaw")},
        "aiff": media.aiff(spoken), "mp3": media.mp3(spoken), "m4a": media.m4a(spoken), "vorbis": media.ogg(spoken),
        "opus": media.opus(spoken), "flac": media.flac(spoken), "webm, live": media.webm(spoken),
        "webm": media.webm(spoken, live=False), "quiet": media.wav((spoken * 0.03).astype(spoken.dtype)),
    }  # fmt: skip
    for name, data in forms.items():
        yield Case("audio", f"speech, {name}", data, ("accept",))
    for name, sound in {
        "tone": media.tone(),
        "noise": media.noise(3.0),
        "loud noise": media.noise(2.0, peak_dbfs=-1.0),
    }.items():
        yield Case("audio", name, media.wav(sound), ("text_only",))
    faint = media.noise(3.0, peak_dbfs=-75.0)
    for name, samples in {"silence": media.silence(), "noise at -75 dBFS": faint}.items():
        yield Case("audio", name, media.wav(samples), ("reject:silent",))
        yield Case("audio", f"{name}, flac", media.flac(samples), ("reject:silent",))
    yield Case("audio", "a click", media.wav(media.tone(0.05)), ("reject:too_short",))
    yield Case("audio", "mp3 of nothing", b"", ("reject:empty",))
    yield Case("audio", "m4a cut before its index", media.m4a(spoken)[:2_000], ("reject:corrupt",))


def _spoken(text: str) -> media.Samples:
    """Speech at the 16 kHz that every encoder takes."""
    heard, rate = media.speech_samples(text)
    at = np.arange(0, len(heard), rate / 16_000)
    return np.interp(at, np.arange(len(heard)), heard).astype(np.float32)


def _blurred(data: bytes, sigma: float) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").filter(ImageFilter.GaussianBlur(sigma)).save(out, "JPEG", quality=90)
    return out.getvalue()


def _plain_png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.tile(np.arange(width, dtype=np.uint16).astype(np.uint8), (height, 1))).save(out, "PNG")
    return out.getvalue()


def samples(folder: Path) -> Iterator[Case]:
    """The files of a folder with the verdicts that its table calls right."""
    with (folder / "SOURCES.tsv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table, delimiter="\t"):
            name = row["file"]
            right = {"accept_or_text_only": ("accept", "text_only")}.get(row["expected"], (row["expected"],))
            yield Case(
                {"img": "image", "aud": "audio"}.get(name[:3], name[:3]), name, (folder / name).read_bytes(), right
            )


def judged(cases: Iterator[Case]) -> list[tuple[Case, str]]:
    rules, found = load_rules(), []
    with tempfile.TemporaryDirectory() as folder, DecoderPool(limits=LIMITS) as pool:
        path = Path(folder) / "case"
        for case in cases:
            path.write_bytes(case.data)
            verdict = screen(path, rules=rules, pool=pool, limits=LIMITS).verdict
            given = f"reject:{verdict.code}" if verdict.kind.value == "reject" else verdict.kind.value
            found.append((case, given))
    return found


def is_right(case: Case, given: str) -> bool:
    # The samples' table calls a picture that claims too much too large.
    return given in case.right or (given, "reject:too_large") == ("reject:too_many_pixels", case.right[0])


def confusion(found: list[tuple[Case, str]]) -> dict[str, Any]:
    """Per modality: what is right (one of two counts as given, where both are right) against what was given."""
    tables: dict[str, Counter[tuple[str, str]]] = {}
    for case, given in found:
        right = given if is_right(case, given) else case.right[0]
        cell = (right.partition(":")[0], given.partition(":")[0])
        tables.setdefault(case.origin, Counter())[cell] += 1
    return {
        "tables": {
            name: {f"{r} as {g}": count for (r, g), count in sorted(cells.items())} for name, cells in tables.items()
        },
        "files": len(found),
        "right": sum(is_right(case, given) for case, given in found),
        "wrong": [
            f"{case.name}: {given}, right is {' or '.join(case.right)}"
            for case, given in found
            if not is_right(case, given)
        ],
    }


def shown(title: str, found: list[tuple[Case, str]]) -> str:
    summary = confusion(found)
    lines = [f"{title}: {summary['right']} of {summary['files']} right"]
    for name, cells in summary["tables"].items():
        lines.append(f"\n{name:12}" + "".join(f"{column:>11}" for column in COLUMNS))
        lines += [
            f"{row:12}" + "".join(f"{cells.get(f'{row} as {column}', 0):11}" for column in COLUMNS) for row in COLUMNS
        ]
    return "\n".join([*lines, *(f"\nwrong: {line}" for line in summary["wrong"]), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="confusion tables of the edge verdicts")
    parser.add_argument("--folder", type=Path, default=SAMPLES, help="samples with their SOURCES.tsv")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    sets = {"made": judged(made())}
    if (asked.folder / "SOURCES.tsv").is_file():
        sets["samples"] = judged(samples(asked.folder))
    if asked.json:
        print(json.dumps({name: confusion(found) for name, found in sets.items()}))
    else:
        print("\n".join(shown(name, found) for name, found in sets.items()))


if __name__ == "__main__":
    main()
