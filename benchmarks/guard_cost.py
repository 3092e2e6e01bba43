"""What the guard costs per call, beside a yardstick in the same run.

    python benchmarks/guard_cost.py [--json]

The yardstick is the least that any comparison of calls needs: `json.dumps(args, sort_keys=True)`, SHA-256 of it and of
the result text. Calls have arguments of at most 300 bytes and results of at most 1 KB; all detectors are on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from guard import Effect, Guard, GuardPolicy, Outcome, ToolCall, ToolTraits

SAMPLE = 2_000
LENGTHS = (10, 1_000, 10_000, 100_000)
WORDS = (
    "green",
    "tea",
    "fresh",
    "mild",
    "taste",
    "twenty",
    "bags",
    "label",
    "price",
    "origin",
    "size",
    "colour",
    "box",
    "bottle",
    "cream",
    "oat",
    "milk",
)
TOOLS = {
    "ocr_extract": ToolTraits(Effect.READ_ONLY, group="vision"),
    "lookup_attributes": ToolTraits(Effect.READ_ONLY),
    "save_copy": ToolTraits(Effect.MUTATING),
}


def calls(seed: int) -> Iterator[tuple[str, dict[str, Any], str]]:
    """An endless mixed run: tuned reads, lookups, now and then a write; new and repeated results."""
    rng = random.Random(seed)
    for number in range(sys.maxsize):
        kind = rng.choices(("ocr_extract", "lookup_attributes", "save_copy"), (6, 3, 1))[0]
        text = " ".join(rng.choices(WORDS, k=rng.randint(60, 190)))[:950]
        if kind == "ocr_extract":
            args: dict[str, Any] = {
                "file": f"p{rng.randint(1, 20)}",
                "region": [rng.randint(0, 900), rng.randint(0, 900), rng.randint(0, 900), rng.randint(0, 900)],
                "contrast": round(rng.uniform(0.5, 2.0), 2),
                "threshold": rng.random(),
                "rotate": rng.choice((0, 90, 180)),
            }
        elif kind == "lookup_attributes":
            args = {"query": f"{' '.join(rng.choices(WORDS, k=3))} {number}", "limit": 20}
        else:
            args = {"title": f"Title {number}", "bullets": rng.choices(WORDS, k=3), "description": text[:150]}
        yield (
            kind,
            args,
            f'{{"text": "{text}", "confidence": {rng.random():.2f}, "took": "{rng.randint(1, 99)} ms"}}'[:1_000],
        )


def yardstick(args: dict[str, Any], result: str) -> None:
    hashlib.sha256(json.dumps(args, sort_keys=True).encode()).hexdigest()
    hashlib.sha256(result.encode()).hexdigest()


def median_us(
    sample: list[tuple[str, dict[str, Any], str]], run: Callable[[int, str, dict[str, Any], str], None]
) -> float:
    costs = []
    for number, (tool, args, result) in enumerate(sample):
        start = time.perf_counter_ns()
        run(number, tool, args, result)
        costs.append(time.perf_counter_ns() - start)
    return statistics.median(costs) / 1_000


def one_call(guard: Guard, number: int, tool: str, args: dict[str, Any], result: str) -> None:
    call = ToolCall(tool, args, call_id=f"c{number}", turn=number)
    if guard.before(call).execute:
        guard.after(call, Outcome.ok(result))
    elif guard.is_halted:
        guard.resume()


def measure(length: int) -> dict[str, float]:
    """Medians after `length` steps. Short runs are measured over many guards, so that the sample is as large."""
    stream = calls(length)
    sample = [next(stream) for _ in range(SAMPLE)]
    base = median_us(sample, lambda _n, _t, args, result: yardstick(args, result))
    guard = Guard(GuardPolicy(), tools=TOOLS, keep_trace=False)
    if length <= SAMPLE // 10:
        guards = [Guard(GuardPolicy(), tools=TOOLS, keep_trace=False) for _ in range(SAMPLE // length)]
        cost = median_us(sample, lambda n, t, a, r: one_call(guards[n // length % len(guards)], n, t, a, r))
    else:
        for number in range(length - SAMPLE if length > SAMPLE else 0):
            one_call(guard, number, *next(stream))
        cost = median_us(sample, lambda n, t, a, r: one_call(guard, length + n, t, a, r))
    return {"steps": length, "guard_us": cost, "yardstick_us": base, "ratio": cost / base}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    as_json = parser.parse_args().json
    rows = [measure(length) for length in LENGTHS]
    growth = rows[-1]["guard_us"] / rows[0]["guard_us"]
    if as_json:
        print(json.dumps({"rows": rows, "growth": growth}))
        return
    print(f"{'steps':>8} {'before+after':>14} {'yardstick':>10} {'ratio':>6}")
    for row in rows:
        print(f"{row['steps']:>8} {row['guard_us']:>11.1f} µs {row['yardstick_us']:>7.1f} µs {row['ratio']:>6.1f}")
    print(f"at {LENGTHS[-1]:,} steps {growth:.2f} × the cost at {LENGTHS[0]} (wanted: ≤ 1.2; ratio wanted: ≤ 10)")


if __name__ == "__main__":
    main()
