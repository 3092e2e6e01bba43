"""What the OCR gate costs, and whether its verdicts hold: CPU seconds against rapidocr's default read, in one run.

    .venv/bin/python benchmarks/ocr_gate.py [--folder FOLDER] [--json]

Pictures come from FOLDER (its `img_*` files, and `SOURCES.tsv` for the verdicts that are right), or are drawn when
there is no such folder. A second pair of columns holds a full read against the bare engine with the same settings on
the same pixels. Decoding is not counted.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import cv2  # noqa: E402
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402

from prefilters.errors import ProbeError  # noqa: E402
from prefilters.limits import DecodeLimits  # noqa: E402
from prefilters.probes import ocr, ocr_rapid  # noqa: E402
from prefilters.probes.image import load_upright  # noqa: E402
from prefilters.probes.text import WHOLE, Word, evidence_tokens  # noqa: E402

Rgb = npt.NDArray[np.uint8]

MIN_TOKENS = 4
GATE_AIM = 0.15
READ_AIM = 1.15


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture and the verdict that is right for it: accept, text_only, or either."""

    name: str
    rgb: Rgb
    expected: str


@dataclass(frozen=True, slots=True)
class Row:
    """What one picture cost, in CPU seconds, and the verdicts."""

    name: str
    expected: str
    default_s: float
    single_s: float
    """rapidocr's default read on one thread."""
    gate_s: float
    default_tokens: int
    gate_tokens: int
    bare_read_s: float
    read_s: float

    @property
    def is_right(self) -> bool:
        """Whether the gate's verdict is one of the right ones."""
        accepted = self.gate_tokens >= MIN_TOKENS
        return self.expected == "either" or accepted == (self.expected == "accept")

    @property
    def agrees(self) -> bool:
        """Whether gate and default read come to the same verdict."""
        return (self.gate_tokens >= MIN_TOKENS) == (self.default_tokens >= MIN_TOKENS)


def sample_pictures(folder: Path) -> Iterator[Picture]:
    """The decodable pictures of the folder."""
    with (folder / "SOURCES.tsv").open(encoding="utf-8", newline="") as table:
        expected = {row["file"]: row["expected"] for row in csv.DictReader(table, delimiter="\t")}
    for path in sorted(folder.glob("img_*")):
        try:
            rgb = load_upright(path, DecodeLimits())
        except ProbeError:
            continue
        verdict = expected.get(path.name, "either")
        yield Picture(path.name, rgb, verdict if verdict in ("accept", "text_only") else "either")


def drawn_pictures() -> Iterator[Picture]:
    """Pictures that the project draws itself."""
    from tests import media

    drawn: tuple[tuple[str, bytes, str], ...] = (
        ("label", media.label_photo(), "accept"),
        ("label, small", media.label_photo(long_side=400), "accept"),
        ("label, Chinese", media.chinese_label_photo(), "accept"),
        ("label, lying", media.rotated(media.label_photo(), 90), "accept"),
        ("label, half legible", media.half_legible(), "accept"),
        ("scan", media.scan(), "accept"),
        ("packshot", media.packshot(), "text_only"),
        ("out of focus", media.blurred(), "text_only"),
        ("plain", media.plain_photo(640, 480), "text_only"),
    )
    for name, encoded, expected in drawn:
        picture = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
        yield Picture(name, np.array(picture.convert("RGB")), expected)


def cpu_seconds(task: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least CPU time of all threads together, and what the task gave."""
    best, outcome = float("inf"), None
    for _ in range(repeats):
        start = time.process_time()
        outcome = task()
        best = min(best, time.process_time() - start)
    return best, outcome


def engine_tokens(result: Any) -> int:
    """Tokens of the confident words in what rapidocr itself returns: lines with one score each."""
    lines = zip(result.txts or (), result.scores or (), strict=True)
    return evidence_tokens(Word(word, score, WHOLE) for line, score in lines for word in line.split())


def rapidocr_engine(**params: Any) -> Any:
    """rapidocr as it comes, but for these parameters."""
    from rapidocr import RapidOCR

    return RapidOCR(params={"Global.log_level": "error", **params})


ONE_THREAD = {
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
}
SETTINGS_OF_READ = {**ONE_THREAD, "Det.limit_type": "max", "Det.limit_side_len": ocr_rapid.READ_SIDE}


def measure(pictures: list[Picture], repeats: int) -> list[Row]:
    """One row a picture.

    Each engine goes over all pictures before the next is made: the threads of rapidocr's default engine keep spinning
    for a while, and would be counted against whoever comes next.
    """
    ocr.preload()
    same = [brought_to(picture.rgb, ocr_rapid.READ_SIDE) for picture in pictures]
    rgb = [picture.rgb for picture in pictures]
    gates = timed(lambda each: ocr.gate_array(each, min_tokens=MIN_TOKENS), rgb, repeats)
    reads = timed(ocr_rapid.RapidOcr().read, same, repeats)
    bare = timed(rapidocr_engine(**SETTINGS_OF_READ), [bgr(each) for each in same], repeats)
    single = timed(rapidocr_engine(**ONE_THREAD), [bgr(each) for each in rgb], repeats)
    default = timed(rapidocr_engine(), [bgr(each) for each in rgb], repeats)
    return [
        Row(
            picture.name,
            picture.expected,
            default_s=default[number][0],
            single_s=single[number][0],
            gate_s=gates[number][0],
            default_tokens=engine_tokens(default[number][1]),
            gate_tokens=gates[number][1].tokens,
            bare_read_s=bare[number][0],
            read_s=reads[number][0],
        )
        for number, picture in enumerate(pictures)
    ]


def timed(task: Callable[[Rgb], Any], pictures: list[Rgb], repeats: int) -> list[tuple[float, Any]]:
    """For each picture the least CPU time of all threads together, and what the task gave; warm from the first."""
    task(pictures[0])
    return [cpu_seconds(partial(task, picture), repeats) for picture in pictures]


def bgr(rgb: Rgb) -> Rgb:
    """The channels in the order that rapidocr takes."""
    return np.ascontiguousarray(rgb[:, :, ::-1])


def brought_to(rgb: Rgb, side: int) -> Rgb:
    """The picture with this long side, so that neither engine has to scale it."""
    scale = side / max(rgb.shape[:2])
    return np.asarray(cv2.resize(rgb, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)


def summary(rows: list[Row]) -> dict[str, float | int]:
    """Sums and ratios."""
    default_s, gate_s = sum(row.default_s for row in rows), sum(row.gate_s for row in rows)
    single_s = sum(row.single_s for row in rows)
    bare_s, read_s = sum(row.bare_read_s for row in rows), sum(row.read_s for row in rows)
    return {
        "pictures": len(rows),
        "default_s": round(default_s, 2),
        "gate_s": round(gate_s, 2),
        "gate_ratio": round(gate_s / default_s, 3),
        "single_s": round(single_s, 2),
        "gate_ratio_single": round(gate_s / single_s, 3),
        "bare_read_s": round(bare_s, 2),
        "read_s": round(read_s, 2),
        "read_ratio": round(read_s / bare_s, 3),
        "right": sum(row.is_right for row in rows),
        "agree": sum(row.agrees for row in rows),
    }


def table(rows: list[Row], total: dict[str, float | int]) -> str:
    """The table for people."""
    head = f"{'picture':32} {'right is':9} {'default':>8} {'gate':>7} {'tokens':>9} {'':5} {'bare':>7} {'read':>7}"
    lines = [head, "-" * len(head)]
    for row in rows:
        tokens = f"{row.default_tokens}/{row.gate_tokens}"
        mark = "" if row.is_right else "WRONG"
        lines.append(
            f"{row.name:32} {row.expected:9} {row.default_s:8.3f} {row.gate_s:7.3f} {tokens:>9} {mark:5} "
            f"{row.bare_read_s:7.3f} {row.read_s:7.3f}"
        )
    lines += [
        "-" * len(head),
        f"CPU seconds. Gate / default read: {total['gate_s']} / {total['default_s']} = {total['gate_ratio']} "
        f"(aim {GATE_AIM}); with that on one thread / {total['single_s']} = {total['gate_ratio_single']}.",
        f"Full read / bare engine: {total['read_s']} / {total['bare_read_s']} = {total['read_ratio']} "
        f"(aim {READ_AIM}).",
        f"Verdicts right: {total['right']} of {total['pictures']}; the same as the default read's: {total['agree']}.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the table; 1 when an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default_folder = os.environ.get("SLUICEGATE_SAMPLES", str(ROOT.parent / "shared" / "samples"))
    parser.add_argument("--folder", type=Path, default=Path(default_folder), help="pictures with their SOURCES.tsv")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, of which the cheapest counts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    has_samples = (options.folder / "SOURCES.tsv").is_file()
    pictures = list(sample_pictures(options.folder) if has_samples else drawn_pictures())
    rows = measure(pictures, options.repeats)
    total = summary(rows)
    if options.json:
        print(json.dumps({"summary": total, "pictures": [asdict(row) for row in rows]}, indent=2))
    else:
        print(table(rows, total))
    is_met = total["gate_ratio"] <= GATE_AIM and total["read_ratio"] <= READ_AIM and total["right"] == len(rows)
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
