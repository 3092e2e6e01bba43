"""Edge verdicts a second that workers bring: 1 worker and 2 workers beside one API, over the same photos, text read and all.

The API only accepts (`SLUICEGATE_EDGE_WALL_S` is next to nothing), so that workers do the measuring; the queue is filled first,
and the clock runs from the workers' start to the last verdict. The yardstick is one worker with as many decoders as the
machine has cores; with `--decoders 1` each worker has one decoder and one OCR process, so that a second one shows.

    python benchmarks/throughput.py [--items 60] [--decoders 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from _service import Process, free_port, label_photo, service, table, variant


def upload(port: int, picture: bytes) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/items?mode=prepare",
        data=picture,
        headers={"Content-Type": "image/jpeg", "Prefer": "respond-async"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        if answer.status not in {201, 202}:
            raise SystemExit(f"an upload was answered with {answer.status}")


def ready(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/items?status=ready&limit=200", timeout=60) as answer:
        page: dict[str, Any] = json.load(answer)
    return len(page["items"])


def verdicts_per_s(workers: int, items: int, decoders: int) -> float:
    """From the first verdict to the last, so that a worker's start does not count."""
    picture = label_photo()
    settings = {"edge_wall_s": 0.0001, "decoder_workers": decoders, "ocr_workers": decoders}
    with service("serve", **settings) as (port, data_dir):
        for number in range(items):
            upload(port, variant(picture, number))
        running = [Process("worker", Path(data_dir), free_port(), **settings) for _ in range(workers)]
        try:
            while not (first := ready(port)):
                time.sleep(0.02)
            started = time.monotonic()
            while ready(port) < items:
                time.sleep(0.05)
            return (items - first) / (time.monotonic() - started)
        finally:
            for process in running:
                process.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--decoders", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = {workers: verdicts_per_s(workers, options.items, options.decoders) for workers in (1, 2)}
    rows = [
        {"workers": workers, "verdicts/s": round(rate, 2), "ratio": round(rate / rates[1], 2)}
        for workers, rate in rates.items()
    ]
    print(json.dumps(rows) if options.json else table("Verdicts on 900 px label photos, text read", rows))


if __name__ == "__main__":
    main()
