"""Uploads per second of 300 KB photos: the gateway with `respond-async` and no worker, against a bare Starlette endpoint.

The yardstick is the least that a durable upload can be: receive the body, write it to a file, fsync, answer. Both servers
are uvicorn with one process, asked in turn by the same client over kept-alive connections, several rounds each.

    python benchmarks/uploads.py [--seconds 5] [--rounds 3] [--connections 16] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
from PIL import Image

BARE = """
import os, tempfile
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

FOLDER = os.environ["BARE_FOLDER"]

def keep(body):
    descriptor, name = tempfile.mkstemp(dir=FOLDER)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    return name

async def upload(request):
    return JSONResponse({"name": await run_in_threadpool(keep, await request.body())}, status_code=202)

async def ready(request):
    return JSONResponse({})

app = Starlette(routes=[Route("/v1/items", upload, methods=["POST"]), Route("/readyz", ready)])
"""


def photo(size: int) -> bytes:
    """A JPEG of about `size` bytes."""
    rng = np.random.default_rng(7)
    pixels = rng.integers(0, 255, (160, 240, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((1600, 1067), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    for quality in range(95, 20, -3):
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=quality)
        if out.tell() <= size:
            break
    return out.getvalue()


def variant(base: bytes, number: int) -> bytes:
    """The same picture as another file: its number stands in a comment segment."""
    comment = b"%032d" % number
    return base[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + base[2:]


class Server:
    """One uvicorn process on a free port."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = {**os.environ, **environment, "SLUICEGATE_PORT": str(self.port)}
        command = [part.replace("{port}", str(self.port)) for part in command]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2)
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("a server did not start")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


async def one_connection(port: int, base: bytes, numbers: iter, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        body = variant(base, next(numbers))
        started = time.monotonic()
        writer.write(
            b"POST /v1/items HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: image/jpeg\r\nPrefer: respond-async\r\n"
            b"Content-Length: %d\r\n\r\n" % (port, len(body))
        )
        writer.write(body)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 20" not in head.split(b"\r\n", 1)[0]:
            raise SystemExit(head.decode())
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        await reader.readexactly(length)
        times.append(time.monotonic() - started)
    writer.close()


async def load(port: int, base: bytes, numbers: iter, seconds: float, connections: int) -> tuple[float, list[float]]:
    times: list[float] = []
    started = time.monotonic()
    until = started + seconds
    await asyncio.gather(*(one_connection(port, base, numbers, until, times) for _ in range(connections)))
    return len(times) / (time.monotonic() - started), times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    base = photo(300_000)
    numbers = iter(range(10**9))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "bare_upload.py").write_text(BARE)
        (root / "files").mkdir()
        bare = Server(
            [
                sys.executable,
                "-m",
                "uvicorn",
                "bare_upload:app",
                "--app-dir",
                folder,
                "--port",
                "{port}",
                "--log-level",
                "error",
            ],
            {"BARE_FOLDER": str(root / "files")},
        )
        ours = Server(
            [sys.executable, "-m", "gateway", "serve"],
            {"SLUICEGATE_DATA_DIR": str(root / "data"), "SLUICEGATE_LOG_LEVEL": "WARNING"},
        )
        try:
            rates: dict[str, list[float]] = {"bare": [], "ours": []}
            p95: dict[str, list[float]] = {"bare": [], "ours": []}
            for server in (bare, ours):
                asyncio.run(load(server.port, base, numbers, 1.0, options.connections))
            for _ in range(options.rounds):
                for name, server in (("bare", bare), ("ours", ours)):
                    rate, times = asyncio.run(load(server.port, base, numbers, options.seconds, options.connections))
                    rates[name].append(rate)
                    p95[name].append(sorted(times)[int(len(times) * 0.95)] * 1000)
        finally:
            bare.stop()
            ours.stop()
    ratios = [ours_rate / bare_rate for ours_rate, bare_rate in zip(rates["ours"], rates["bare"], strict=True)]
    figures = {
        "photo_bytes": len(base),
        "connections": options.connections,
        "bare_per_s": round(statistics.median(rates["bare"]), 1),
        "gateway_per_s": round(statistics.median(rates["ours"]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "bare_p95_ms": round(statistics.median(p95["bare"]), 1),
        "gateway_p95_ms": round(statistics.median(p95["ours"]), 1),
    }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"Uploads of {len(base):,} bytes, {options.connections} connections, median of {options.rounds} rounds")
    print(f"{'server':<34}{'uploads/s':>10}{'p95 ms':>9}{'ratio':>8}")
    print(f"{'bare Starlette, write + fsync':<34}{figures['bare_per_s']:>10}{figures['bare_p95_ms']:>9}{1.0:>8}")
    print(
        f"{'gateway, respond-async':<34}{figures['gateway_per_s']:>10}{figures['gateway_p95_ms']:>9}{figures['ratio']:>8}"
    )


if __name__ == "__main__":
    main()
