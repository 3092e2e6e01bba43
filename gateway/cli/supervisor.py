"""`sluicegate up`: API and worker as children, restarted when they die, ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from types import FrameType

from gateway.settings import Settings
from gateway.store import migrate
from gateway.store.engine import Database

SUPERVISOR_VARIABLE = "SLUICEGATE_SUPERVISOR_PID"
"""By this a child knows whom it belongs to."""

_ROLES = ("serve", "worker")
_STOP_S = 25.0
_FIRST_DELAY_S, _MOST_DELAY_S = 0.2, 5.0
_HEALTHY_S = 10.0
"""A child that lived so long did not die of its start, and is started again without delay."""
_READY_S = 120.0
_LOOK_S = 0.1
CONFIGURATION_ERROR = 2


@dataclass(slots=True)
class _Child:
    role: str
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    failures: int = 0
    restart_at: float | None = None


class Supervisor:
    """Runs the two processes until it is told to stop, or until one of them cannot be configured."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._port = settings.port or _free_port(settings.host)
        self._stopping = False
        self._children: list[_Child] = []

    def run(self) -> int:
        """Blocks; gives the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        _check_port(self._settings.host, self._port)
        _prepare_database(self._settings)
        self._children = [_Child(role, self._start(role)) for role in _ROLES]
        status = self._wait_ready()
        while status is None and not self._stopping:
            time.sleep(_LOOK_S)
            status = self._mend()
        self._end_all()
        return status or 0

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            SUPERVISOR_VARIABLE: str(os.getpid()),
            "SLUICEGATE_PORT": str(self._port),
        }
        return subprocess.Popen([sys.executable, "-m", "gateway", role], env=environment)  # noqa: S603 - our own interpreter and module

    def _wait_ready(self) -> int | None:
        deadline = time.monotonic() + _READY_S
        while not self._stopping:
            if _is_ready(self._settings.host, self._port):
                print(ready_line(self._settings.host, self._port), flush=True)
                return None
            if time.monotonic() > deadline:
                print("sluicegate: the service did not get ready; see the messages above", file=sys.stderr)
                return 1
            status = self._mend()
            if status is not None:
                return status
            time.sleep(_LOOK_S)
        return None

    def _mend(self) -> int | None:
        """Restart what died, later each time; an exit status ends everything."""
        now = time.monotonic()
        for child in self._children:
            code = child.process.poll()
            if code is None or self._stopping:
                continue
            if code == CONFIGURATION_ERROR:
                return code
            if child.restart_at is None:
                child.failures = 0 if now - child.started > _HEALTHY_S else child.failures + 1
                delay_s = min(_MOST_DELAY_S, _FIRST_DELAY_S * 2 ** max(child.failures - 1, 0))
                child.restart_at = now + delay_s
                print(f"sluicegate: {child.role} ended ({code}); starting it again", file=sys.stderr)
            elif now >= child.restart_at:
                child.process, child.started, child.restart_at = self._start(child.role), now, None
        return None

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _end_all(self) -> None:
        self._stopping = True
        for child in self._children:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + _STOP_S
        for child in self._children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def ready_line(host: str, port: int) -> str:
    """The line that tells a person, or a script, where the service is."""
    shown = f"[{host}]" if ":" in host else host
    return f"Sluicegate is ready at http://{shown}:{port}"


def _prepare_database(settings: Settings) -> None:
    """Once, before both children would; done here because `gateway.wiring` takes two seconds to load, and this is started
    again after a kill. Raises `SchemaMismatch` and what the database raises."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(settings.sqlalchemy_url)
    if database.is_sqlite:
        migrate.upgrade(database)
    migrate.check(database)
    database.close()


def _is_ready(host: str, port: int) -> bool:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    try:
        with urllib.request.urlopen(f"http://{reachable}:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _check_port(host: str, port: int) -> None:
    """Raise `OSError` where the address is taken, before anything is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{host}:{port} (SLUICEGATE_HOST, SLUICEGATE_PORT)") from error


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
