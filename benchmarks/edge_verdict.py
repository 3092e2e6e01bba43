"""What an edge verdict without OCR costs, beside the fastest full colour decode of the same file in the same run.

    python benchmarks/edge_verdict.py [--json]

Wall time is the caller's, through the pool; the ratio compares CPU time in one process, taken in turns, so that a busy
machine troubles both alike.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prefilters import DecodeLimits, DecoderPool, RuleSet, Screening, Stage, load_rules, screen
from tests import media

LIMITS = DecodeLimits()
ROUNDS = 7


class SameProcess(DecoderPool):
    """Runs each task right here, where its CPU time can be seen."""

    def run(self, task: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return task(*args)


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of an edge verdict")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    cv2.setNumThreads(1)
    rules = load_rules()
    with tempfile.TemporaryDirectory() as folder, DecoderPool(limits=LIMITS) as pool:
        files = written(Path(folder))
        pool.warm()
        rows = [row(path, rules, pool) for path in files]
        task_ms = min(timed(lambda: pool.run(math.sqrt, 4.0), time.perf_counter) for _ in range(500))
    if asked.json:
        print(json.dumps({"pool_task_ms": task_ms, "files": rows}))
        return
    print(f"one task in a warm pool: {task_ms:.2f} ms\n")
    print(f"{'file':28}{'verdict':24}{'wall ms':>9}{'CPU ms':>9}{'decode ms':>11}{'ratio':>8}")
    for found in rows:
        decode = "" if found["decode_ms"] is None else f"{found['decode_ms']:11.1f}{found['ratio']:8.2f}"
        print(f"{found['file']:28}{found['verdict']:24}{found['wall_ms']:9.2f}{found['cpu_ms']:9.2f}{decode}")


def written(folder: Path) -> list[Path]:
    """The files that are judged: 12 MP in three formats, one cut, one without its end marker, one tiny, one bomb."""
    large = media.high_resolution()
    picture = Image.open(io.BytesIO(large))
    for name, options in (("12 MP.png", {}), ("12 MP.webp", {"quality": 85})):
        picture.save(folder / name, **options)
    contents = {
        "12 MP.jpg": large,
        "12 MP, cut at 60 %.jpg": large[: len(large) * 6 // 10],
        "12 MP, no end marker.jpg": large[:-2],
        "48 px.jpg": media.thumbnail(),
        "bomb.gif": media.gif_bomb(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return sorted(folder.iterdir())


def row(path: Path, rules: RuleSet, pool: DecoderPool) -> dict[str, Any]:
    def judged(by: DecoderPool) -> Screening:
        return screen(path, rules=rules, pool=by, limits=LIMITS, through=Stage.PIXELS)

    verdict = judged(pool).verdict
    wall_ms = min(timed(lambda: judged(pool), time.perf_counter) for _ in range(ROUNDS))
    here = SameProcess(limits=LIMITS)
    decoders = (by_opencv, by_pillow) if verdict.code is None and not verdict.notes else ()
    cpu, decodes = [], []
    for _ in range(ROUNDS):
        cpu.append(timed(lambda: judged(here), time.process_time))
        decodes += [timed(lambda decode=decode: decode(path), time.process_time) for decode in decoders]
    decode_ms = min(decodes, default=None)
    return {
        "file": path.name,
        "verdict": f"{verdict.kind.value} {verdict.code or ', '.join(verdict.notes)}".strip(),
        "wall_ms": round(wall_ms, 2),
        "cpu_ms": round(min(cpu), 2),
        "decode_ms": decode_ms and round(decode_ms, 1),
        "ratio": decode_ms and round(min(cpu) / decode_ms, 2),
    }


def by_opencv(path: Path) -> None:
    cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)


def by_pillow(path: Path) -> None:
    Image.open(path).convert("RGB")


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return (clock() - started) * 1000


if __name__ == "__main__":
    main()
