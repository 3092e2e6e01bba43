"""What the benchmarks of a running service share: processes on free ports, made photos, quantiles, one table."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import media

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """`python -m gateway ROLE` with settings of its own, in a process group of its own."""

    def __init__(self, role: str, data_dir: Path, port: int, **settings: object) -> None:
        chosen = {"data_dir": data_dir, "port": port, "log_level": "WARNING", **settings}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        environment |= {f"SLUICEGATE_{name.upper()}": str(value) for name, value in chosen.items()}
        command = [sys.executable, "-m", "gateway", role]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def stop(self) -> float:
        """End it in good order; gives the seconds that this took."""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return time.monotonic() - started


def wait_ready(port: int, *, within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the service did not get ready")


@contextlib.contextmanager
def service(*roles: str, **settings: object) -> Iterator[tuple[int, Path]]:
    """Processes over one throw-away data folder; gives the port and the folder. The first role listens there."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-bench-") as folder:
        data_dir, port = Path(folder) / "data", free_port()
        running = [Process(roles[0], data_dir, port, **settings)]
        try:
            wait_ready(port)
            running += [Process(role, data_dir, free_port(), **settings) for role in roles[1:]]
            yield port, data_dir
        finally:
            for process in reversed(running):
                process.stop()


def label_photo() -> bytes:
    """A made photo of a label with enough print on it, about 60 KB."""
    return media.label_photo(long_side=900)


def variant(picture: bytes, number: int) -> bytes:
    """The same JPEG as another file: its number stands in a comment segment."""
    comment = b"%032d" % number
    return picture[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + picture[2:]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie; `nan` for none."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


def table(title: str, rows: Sequence[Mapping[str, object]]) -> str:
    """The rows under their names, aligned."""
    names = list(rows[0])
    cells = [[f"{row[name]:.3g}" if isinstance(row[name], float) else str(row[name]) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[place]) for line in cells)) for place, name in enumerate(names)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in [names, *cells]]
    return "\n".join([title, *lines])
