"""Overload at the door: how long accepted uploads and refusals take at ten times the load that the worker can carry.

First the worker's own pace is measured, with a queue that never runs dry. Then uploads arrive at a fixed pace (an open loop:
nobody waits for an answer before sending the next) of half of it, and after that of ten times of it, with room for
only a few waiting items. The yardstick is the quiet phase of the same run.

    python benchmarks/overload.py [--seconds 20] [--waiting 40] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
from _service import label_photo, quantile, service, table, variant


@dataclass
class Phase:
    """Answers of one phase: milliseconds by kind, and how many of each status."""

    name: str
    per_s: float
    accepted_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    others: list[int] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        return {
            "phase": self.name,
            "uploads/s": round(self.per_s, 1),
            "accepted": len(self.accepted_ms),
            "p50 ms": round(quantile(self.accepted_ms, 0.5), 1),
            "p95 ms": round(quantile(self.accepted_ms, 0.95), 1),
            "refused": len(self.refused_ms),
            "refused p95 ms": round(quantile(self.refused_ms, 0.95), 1),
            "refused max ms": round(max(self.refused_ms, default=float("nan")), 1),
            "other answers": len(self.others),
        }


async def upload(client: httpx.AsyncClient, picture: bytes, number: int, phase: Phase) -> None:
    body = variant(picture, number)
    started = time.monotonic()
    headers = {"Content-Type": "image/jpeg", "Prefer": "respond-async"}
    answer = await client.post("/v1/items", params={"mode": "prepare"}, content=body, headers=headers)
    taken_ms = (time.monotonic() - started) * 1000
    if answer.status_code in {200, 201, 202}:
        phase.accepted_ms.append(taken_ms)
    elif answer.status_code in {429, 503} and answer.headers.get("retry-after"):
        phase.refused_ms.append(taken_ms)
    else:
        phase.others.append(answer.status_code)


async def arrive(client: httpx.AsyncClient, picture: bytes, first: int, seconds: float, phase: Phase) -> int:
    """Uploads at the phase's pace; gives the next number."""
    tasks: list[asyncio.Task[None]] = []
    started = time.monotonic()
    for place in range(int(seconds * phase.per_s)):
        await asyncio.sleep(max(0.0, started + place / phase.per_s - time.monotonic()))
        tasks.append(asyncio.create_task(upload(client, picture, first + place, phase)))
    await asyncio.gather(*tasks)
    return first + len(tasks)


async def waiting(client: httpx.AsyncClient) -> int:
    text = (await client.get("/metrics")).text
    return int(
        float(next(line.split()[-1] for line in text.splitlines() if line.startswith("sluicegate_queue_depth ")))
    )


async def drained(client: httpx.AsyncClient) -> None:
    while await waiting(client):
        await asyncio.sleep(0.5)


async def pace_of_the_worker(client: httpx.AsyncClient, picture: bytes, items: int) -> float:
    """Items a second, from the first upload until none waits."""
    phase = Phase("pace", 0.0)
    started = time.monotonic()
    await asyncio.gather(*(upload(client, picture, number, phase) for number in range(items)))
    while True:
        page = (await client.get("/v1/items", params={"status": "ready", "limit": 200})).json()
        if len(page["items"]) >= items:
            return items / (time.monotonic() - started)
        await asyncio.sleep(0.1)


async def measure(port: int, seconds: float, paced_items: int) -> tuple[float, Sequence[Phase]]:
    picture = label_photo()
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        pace = await pace_of_the_worker(client, picture, paced_items)
        quiet, overload = Phase("quiet (half)", pace / 2), Phase("overload (10 x)", pace * 10)
        number = await arrive(client, picture, 10_000, seconds, quiet)
        await drained(client)
        await arrive(client, picture, number, seconds, overload)
    return pace, (quiet, overload)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--waiting", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with service("up", max_waiting_items=options.waiting, tenant_max_waiting_items=options.waiting) as (port, _):
        pace, (quiet, overload) = asyncio.run(measure(port, options.seconds, options.waiting - 5))
    ratio = quantile(overload.accepted_ms, 0.95) / quantile(quiet.accepted_ms, 0.95)
    rows = [quiet.row(), overload.row()]
    if options.json:
        print(json.dumps({"worker_per_s": round(pace, 2), "phases": rows, "accepted_p95_ratio": round(ratio, 2)}))
        return
    print(table(f"One API process and one worker that carries {pace:.1f} photos a second", rows))
    print(f"accepted, p95 under overload / quiet: {ratio:.2f}")


if __name__ == "__main__":
    main()
