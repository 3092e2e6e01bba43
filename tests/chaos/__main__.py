"""`./dev chaos`: send products to a service whose processes are killed at random, and say whether it kept its promises."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.chaos.plan import PAUSE_S, Dispatch, Kill, Target, plan
from tests.chaos.run import run

_SETTINGS = {"decoder_workers": 1, "ocr_workers": 1, "max_waiting_items": 60, "warm_start": True}
"""Clients are told to come again rather than let a queue grow that takes longer than a minute. All else is as by default."""


def main() -> int:
    """Run and print; the last line is the verdict."""
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long products are sent and processes killed")
    parser.add_argument("--dispatch", type=Dispatch, choices=list(Dispatch), default=Dispatch.EMBEDDED)
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis", help="with --dispatch celery")
    parser.add_argument("--seed", type=int, default=None, help="for the same plan once more")
    parser.add_argument("--per-second", type=float, default=3.0, help="products sent per second")
    parser.add_argument(
        "--pause", type=float, nargs=2, default=PAUSE_S, metavar="S", help="least and most seconds between two kills"
    )
    parser.add_argument("--once", action="store_true", help="one kill, of everything at once, at the end (embedded)")
    parser.add_argument("--folder", type=Path, default=None, help="where ledger, data and logs are kept afterwards")
    options = parser.parse_args()
    seed = int(time.time()) % 1_000_000 if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="sluicegate-chaos-"))
    made = plan(
        seed,
        options.dispatch,
        seconds=60 * options.minutes,
        per_second=options.per_second,
        pause_s=tuple(options.pause),
    )
    if options.once:
        made = replace(made, kills=(Kill(made.seconds, Target.ALL, 0.0),))
    say(f"seed {seed}, {options.dispatch.value}: {len(made.products):,} products, {len(made.kills)} kills; in {folder}")
    verdict = run(made, folder, broker=options.broker, settings=_SETTINGS, say=say)
    for line in verdict.lines():
        print(line, flush=True)
    if verdict.is_good and options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if verdict.is_good else 1


def say(line: str) -> None:
    """Beside the verdict."""
    print(f"chaos: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
