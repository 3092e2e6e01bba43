"""Restarts under load: `sluicegate up` is ended by SIGTERM and started again, ten times, while clients go on submitting.

Clients behave as the documentation asks of them: an idempotency key for each submission, and the same request again after a
connection error or a 5xx. Counted is what they saw in the end; a submission fails when it has no answer 60 s later.

    python benchmarks/rolling_restart.py [--restarts 10] [--clients 4] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from _service import Process, free_port, quantile, table, wait_ready

PATIENCE_S = 60.0


@dataclass
class Tally:
    """What the clients saw."""

    answered: dict[str, str] = field(default_factory=dict)
    """Item by idempotency key."""
    longest_ms: list[float] = field(default_factory=list)
    again: int = 0
    failed: list[str] = field(default_factory=list)


async def submit(client: httpx.AsyncClient, key: str, tally: Tally) -> None:
    started = time.monotonic()
    document = {"title": f"Linen towel {key}", "mode": "prepare", "attributes": {"brand": "Fil"}}
    while time.monotonic() - started < PATIENCE_S:
        try:
            answer = await client.post(
                "/v1/items", json=document, headers={"Idempotency-Key": key, "Prefer": "respond-async"}
            )
        except httpx.TransportError:
            tally.again += 1
            await asyncio.sleep(0.1)
            continue
        if answer.status_code < 300:
            tally.answered[key] = answer.json()["id"]
            tally.longest_ms.append((time.monotonic() - started) * 1000)
            return
        if answer.status_code < 500 and answer.status_code not in {409, 429}:
            break
        tally.again += 1
        await asyncio.sleep(float(answer.headers.get("retry-after", 0.2)))
    tally.failed.append(key)


async def one_client(url: str, name: int, is_over: asyncio.Event, tally: Tally) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        number = 0
        while not is_over.is_set():
            await submit(client, f"restart-{name}-{number}", tally)
            number += 1
            await asyncio.sleep(0.02)


async def final_states(url: str, tally: Tally) -> dict[str, int]:
    """How many items ended how, once all have."""
    counts: dict[str, int] = {}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for item_id in tally.answered.values():
            item = (await client.get(f"/v1/items/{item_id}", headers={"Prefer": "wait=25"})).json()
            counts[item["status"]] = counts.get(item["status"], 0) + 1
    return counts


async def run(restarts: int, clients: int, data_dir: Path) -> tuple[Tally, list[float], dict[str, int]]:
    port, tally, stops = free_port(), Tally(), []
    url = f"http://127.0.0.1:{port}"
    running = Process("up", data_dir, port)
    try:
        await asyncio.to_thread(wait_ready, port)
        is_over = asyncio.Event()
        load = [asyncio.create_task(one_client(url, name, is_over, tally)) for name in range(clients)]
        for _ in range(restarts):
            await asyncio.sleep(1.0)  # under load, between two restarts
            stops.append(await asyncio.to_thread(running.stop))
            running = Process("up", data_dir, port)
            await asyncio.to_thread(wait_ready, port)
        await asyncio.sleep(1.0)
        is_over.set()
        await asyncio.gather(*load)
        return tally, stops, await final_states(url, tally)
    finally:
        running.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as folder:
        tally, stops, ended = asyncio.run(run(options.restarts, options.clients, Path(folder) / "data"))
    row: dict[str, object] = {
        "restarts": len(stops),
        "submissions": len(tally.answered) + len(tally.failed),
        "items": len(set(tally.answered.values())),
        "failed": len(tally.failed),
        "sent again": tally.again,
        "p50 ms": round(quantile(tally.longest_ms, 0.5), 1),
        "longest ms": round(max(tally.longest_ms)),
        "stop max s": round(max(stops), 1),
        "ended": ", ".join(f"{count} {status}" for status, count in sorted(ended.items())),
    }
    print(json.dumps(row) if options.json else table("Restarts of API and worker under load", [row]))


if __name__ == "__main__":
    main()
