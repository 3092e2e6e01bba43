"""Latency of the guard over HTTP: 50 runs that make one tool call a second each, beside a toy endpoint in the same run.

The toy is the least that could remember a call: FastAPI, a pydantic body, SHA-256 of the arguments, one SQLite insert,
as durable as ours (WAL, `synchronous=FULL`). Both servers are uvicorn with one process; the same client asks them in turn,
on the same schedule, over one kept-alive connection a run. A call is two requests: before it, and after it.

    python benchmarks/guard_http.py [--runs 50] [--seconds 3] [--slices 10] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
AIM = 2.0

TOY = """
import hashlib, os, sqlite3, threading
from typing import Any
from fastapi import FastAPI
from pydantic import BaseModel

local = threading.local()

def connection():
    if not hasattr(local, "connection"):
        local.connection = sqlite3.connect(os.environ["TOY_DATABASE"], timeout=30, isolation_level=None)
        local.connection.execute("PRAGMA journal_mode=WAL")
        local.connection.execute("PRAGMA synchronous=FULL")
        local.connection.execute("CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, run, call, digest)")
    return local.connection

class Call(BaseModel):
    call_id: str
    tool: str = ""
    args: Any = None
    turn: int | None = None
    status: str = ""
    result: Any = None

app = FastAPI()

@app.get("/readyz")
def readyz():
    return {}

@app.post("/v1/guard/runs")
def opened():
    return {"run_id": os.urandom(8).hex()}

@app.post("/v1/guard/runs/{run}/{phase}")
def called(run: str, phase: str, call: Call):
    digest = hashlib.sha256(repr((call.args, call.result)).encode()).hexdigest()
    connection().execute("INSERT INTO calls (run, call, digest) VALUES (?, ?, ?)", (run, call.call_id, digest))
    return {"execute": True, "digest": digest}
"""


class Server:
    """One uvicorn process on a free port."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [part.replace("{port}", str(self.port)) for part in command],
            env={**os.environ, **environment, "SLUICEGATE_PORT": str(self.port)},
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2)
                return
            except OSError:
                time.sleep(0.1)
        self.stop()
        raise SystemExit("a server did not start")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Connection:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """The answer and the seconds that it took."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        started = time.perf_counter()
        self.writer.write(head.encode() + content)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        lines = answer.split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
        content = await self.reader.readexactly(length)
        took = time.perf_counter() - started
        if b" 20" not in lines[0]:
            raise SystemExit(content.decode())
        return json.loads(content), took

    def close(self) -> None:
        self.writer.close()


def arguments(number: int) -> dict[str, Any]:
    """Of one call: honest work, so that nothing is refused; about 200 bytes."""
    return {
        "file": f"p{number}",
        "region": [number, 40, 900, 700],
        "question": "which material is named on the label? " * 3,
    }


class Caller:
    """One run on one server, which lives as long as the benchmark."""

    def __init__(self, port: int, name: str) -> None:
        self.connection = Connection(port)
        self.name = name
        self.calls = 0

    async def open(self) -> None:
        await self.connection.open()
        body = {"agent": "benchmark", "external_run_id": self.name, "tools": [{"name": "look", "effect": "read"}]}
        self.run = (await self.connection.post("/v1/guard/runs", body))[0]["run_id"]

    async def slice(self, starts_at: float, seconds: int, times: dict[str, list[float]]) -> None:
        """One call a second, each at its time."""
        for second in range(seconds):
            await asyncio.sleep(max(0.0, starts_at + second - time.perf_counter()))
            self.calls += 1
            await self.call(self.calls, times)

    async def call(self, number: int, times: dict[str, list[float]]) -> None:
        path = f"/v1/guard/runs/{self.run}"
        call = {"call_id": f"c{number}", "tool": "look", "args": arguments(number), "turn": number}
        decision, took = await self.connection.post(f"{path}/before", call)
        times["before"].append(took)
        if not decision["execute"]:
            raise SystemExit(f"an honest call was refused: {decision}")
        told = {"call_id": f"c{number}", "status": "ok", "result": {"text": f"page {number} " * 60}}
        times["after"].append((await self.connection.post(f"{path}/after", told))[1])


async def load(ports: dict[str, int], runs: int, seconds: int, slices: int) -> dict[str, dict[str, list[float]]]:
    """The latencies of each server. They take turns of a few seconds, so that both meet the same noise of the machine."""
    callers = {name: [Caller(port, f"run-{n}") for n in range(runs)] for name, port in ports.items()}
    for some in callers.values():
        await asyncio.gather(*(caller.open() for caller in some))
    times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ports}
    for number in range(slices + 1):
        for name, some in callers.items():
            starts_at = time.perf_counter() + 0.1
            kept = times[name] if number else defaultdict(list)  # the first slice warms up
            offsets = [starts_at + n / runs for n in range(runs)]
            await asyncio.gather(*(c.slice(at, seconds, kept) for c, at in zip(some, offsets, strict=True)))
    for some in callers.values():
        for caller in some:
            caller.connection.close()
    return times


def quantile(times: list[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))] * 1000


def measure(runs: int, seconds: int, slices: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "toy.py").write_text(TOY)
        toy = [sys.executable, "-m", "uvicorn", "toy:app", "--app-dir", folder, "--port", "{port}", "--no-access-log"]
        servers: dict[str, Callable[[], Server]] = {
            "toy": lambda: Server(toy, {"TOY_DATABASE": f"{folder}/toy.db"}),
            "guard": lambda: Server(
                [sys.executable, "-m", "gateway", "serve"], {"SLUICEGATE_DATA_DIR": f"{folder}/data"}
            ),
        }
        started = {name: start() for name, start in servers.items()}
        try:
            ports = {name: server.port for name, server in started.items()}
            times = asyncio.run(load(ports, runs, seconds, slices))
        finally:
            for server in started.values():
                server.stop()
    rows = {
        f"{name} {phase}": {"p50_ms": quantile(some, 0.5), "p99_ms": quantile(some, 0.99), "requests": len(some)}
        for name, phases in times.items()
        for phase, some in [*phases.items(), ("all", [took for some in phases.values() for took in some])]
    }
    ratios = {q: rows["guard all"][f"{q}_ms"] / rows["toy all"][f"{q}_ms"] for q in ("p50", "p99")}
    return {"runs": runs, "seconds": seconds, "slices": slices, "rows": rows, "ratio": ratios, "aim_p99": AIM}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=3, help="of one slice")
    parser.add_argument("--slices", type=int, default=10, help="of each server, in turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.runs, options.seconds, options.slices)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{options.runs} runs, one call a second each, {options.slices} slices of {options.seconds} s")
    print(f"{'':14} {'p50 ms':>8} {'p99 ms':>8} {'requests':>9}")
    for name, row in found["rows"].items():
        print(f"{name:14} {row['p50_ms']:8.2f} {row['p99_ms']:8.2f} {row['requests']:9}")
    print(f"{'ratio':14} {found['ratio']['p50']:8.2f} {found['ratio']['p99']:8.2f}   aim: p99 at most {AIM}")


if __name__ == "__main__":
    main()
