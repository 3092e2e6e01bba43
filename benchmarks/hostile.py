"""Hostile files in numbers: bombs, cuts, lies, flips and splices, what became of them, and what they cost.

    python benchmarks/hostile.py [--of-each 12] [--seed 1] [--json]

Each file is screened to its verdict in a pool as the service has it. The service's own process is this one; its growth is
the rise of its peak memory while files are screened, without what making them took.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prefilters import DecodeLimits, DecoderPool, Stage, load_rules, screen
from tests import hostile

LIMITS = DecodeLimits()


def main() -> None:
    parser = argparse.ArgumentParser(description="what hostile files do")
    parser.add_argument("--of-each", type=int, default=12, help="cuts, lies, flips and splices of each seed file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    found = tried(asked.of_each, asked.seed)
    print(json.dumps(found) if asked.json else table(found))


def tried(of_each: int, seed: int) -> dict[str, Any]:
    outcomes: dict[str, Counter[str]] = {}
    slowest: list[tuple[float, str]] = []
    wrong: list[str] = []
    growth = 0
    rules = load_rules()
    with tempfile.TemporaryDirectory() as folder, DecoderPool(workers=1, ocr_workers=1, limits=LIMITS) as pool:
        pool.warm()
        path = Path(folder) / "hostile"
        path.write_bytes(hostile.seeds()["jpeg"])
        screen(path, rules=rules, pool=pool, limits=LIMITS)
        for file in (*hostile.bombs(), *hostile.by_rule(most_of_each=of_each, seed=seed)):
            path.write_bytes(file.data)
            forget_peak()
            before, started = peak_bytes(), time.perf_counter()
            try:
                # Pages full of OCR take long and hurt nobody; what is not a bomb is read for text every tenth time.
                through = (
                    Stage.TEXT
                    if file.kind == "bomb" or sum(outcomes.get(file.kind, {}).values()) % 10 == 0
                    else Stage.PIXELS
                )
                found = screen(path, rules=rules, pool=pool, limits=LIMITS, through=through)
                outcome = found.verdict.code or found.verdict.kind.value
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                outcome = f"raised {type(error).__name__}"
                wrong.append(f"{file.name}: {error}")
            slowest.append((time.perf_counter() - started, file.name))
            growth = max(growth, peak_bytes() - before)
            if outcome == "timeout":
                wrong.append(f"{file.name}: timed out")
            outcomes.setdefault(file.kind, Counter())[outcome] += 1
    slowest.sort(reverse=True)
    return {
        "files": len(slowest),
        "by_kind": {kind: dict(counts.most_common()) for kind, counts in outcomes.items()},
        "wrong": wrong,
        "slowest_s": [(round(seconds, 2), name) for seconds, name in slowest[:5]],
        "median_ms": round(slowest[len(slowest) // 2][0] * 1000, 1),
        "largest_growth_mb": round(growth / 1e6, 1),
    }


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def table(found: dict[str, Any]) -> str:
    lines = [f"{found['files']} files, {len(found['wrong'])} of them crashed or timed out"]
    for kind, counts in found["by_kind"].items():
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        lines.append(f"  {kind:8}{sum(counts.values()):6}  {told}")
    lines.append(
        f"median {found['median_ms']} ms; slowest " + ", ".join(f"{s} s {name}" for s, name in found["slowest_s"])
    )
    lines.append(f"the service's process grew by {found['largest_growth_mb']} MB at most")
    return "\n".join([*lines, *found["wrong"]])


if __name__ == "__main__":
    main()
