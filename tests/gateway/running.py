"""A real process of the service for tests: started, talked to, stopped, and looked after."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import sqlalchemy as sa

from gateway.store.engine import Database

T = TypeVar("T")

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
READY_S = 90.0
STOP_S = 30.0
SETTLED = {"rejected", "ready", "succeeded", "failed", "cancelled", "expired", "halted", "awaiting_human"}


def until(look: Callable[[], T | None], *, within_s: float = 30.0, every_s: float = 0.03) -> T:
    """What `look` gives as soon as it gives something; fails the test after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{getattr(look, '__name__', 'this')} did not come true within {within_s} s")
        time.sleep(every_s)


def settled(client: httpx.Client, item_id: str, *, within_s: float = 40.0, **headers: str) -> dict[str, Any]:
    """The item once no worker is busy with it any more."""

    def look() -> dict[str, Any] | None:
        item = client.get(f"/v1/items/{item_id}", headers={"Prefer": "wait=5", **headers}).json()
        return item if item["status"] in SETTLED else None

    return until(look, within_s=within_s)


@dataclass
class Service:
    """One process that was started by a test, with its children."""

    role: str
    data_dir: Path
    process: subprocess.Popen[str]
    url: str
    log: Path
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def incoming(self) -> list[Path]:
        """Uploads that are neither kept nor removed."""
        return list((self.data_dir / "blobs" / "incoming").iterdir())

    @property
    def blobs(self) -> set[str]:
        """Digests of everything that was kept."""
        return {path.name for path in (self.data_dir / "blobs" / "by-tenant").rglob("*") if path.is_file()}

    def client(self, **options: Any) -> httpx.Client:
        made = httpx.Client(base_url=self.url, timeout=60.0, trust_env=False, **options)
        self.clients.append(made)
        return made

    def connect(self, timeout_s: float = 20.0) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def children(self, role: str) -> list[int]:
        """Process ids of one role (`serve` or `worker`) under this supervisor."""
        wanted = f"-m gateway {role}".split()
        return [pid for pid in _session(self.process.pid) if _command_line(pid)[-3:] == wanted]

    @contextlib.contextmanager
    def helpers_stopped(self) -> Iterator[None]:
        """All children of the process that was started stand still, and theirs: the decoders of an API."""
        helpers = _descendants(self.process.pid)
        assert helpers, "there are none yet"
        _signal_all(helpers, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal_all(helpers, signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Memory of the process that answers requests."""
        pid = self.process.pid if self.role == "serve" else self.children("serve")[0]
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        """Descriptors of the process that answers requests."""
        pid = self.process.pid if self.role == "serve" else self.children("serve")[0]
        return len(os.listdir(f"/proc/{pid}/fd"))

    def stop(self) -> int:
        """End it as an operator does; gives the exit status. Fails where a process stays behind."""
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_S)
            until(lambda: not _session(self.process.pid), within_s=10.0)
            return status
        finally:
            self.end_remains()

    def kill(self) -> None:
        """End it as the kernel does when memory is short, with all its children."""
        self.end_remains()
        self.process.wait(STOP_S)

    def end_remains(self) -> None:
        for pid in _session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def complaints(self) -> str:
        """The end of what it logged."""
        return self.log.read_text("utf-8", "replace")[-3000:]


def environment(data_dir: Path, settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment with only these settings of the service, which loads nothing before it is needed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
    chosen = {"port": 0, "data_dir": data_dir, "warm_start": False, **settings}
    return {**inherited, **{f"SLUICEGATE_{name.upper()}": str(value) for name, value in chosen.items()}}


def start(role: str, data_dir: Path, **settings: object) -> Service:
    """Start `python -m gateway ROLE` and wait until it is ready."""
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / f"{role}-{time.monotonic_ns()}.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", role],
            env=environment(data_dir, settings),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            preexec_fn=_end_with_the_tests,
        )
    service = Service(role, data_dir, process, "", log)
    try:
        service.url = _worker_ready(service) if role == "worker" else _announced(service)
    except BaseException:
        service.end_remains()
        raise
    return service


@contextlib.contextmanager
def running(role: str, data_dir: Path, **settings: object) -> Iterator[Service]:
    """A service that ends with the block, in good order."""
    service = start(role, data_dir, **settings)
    try:
        yield service
    except BaseException:
        print(service.complaints(), file=sys.stderr)
        service.end_remains()
        raise
    assert service.stop() == 0, service.complaints()


def command(*arguments: str, data_dir: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env=environment(data_dir, settings),
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )


def make_key(data_dir: Path, tenant: str, *scopes: str) -> str:
    """The secret of a new key."""
    flags = [flag for scope in scopes for flag in ("--scope", scope)]
    made = command("keys", "create", "--tenant", tenant, *flags, data_dir=data_dir)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _end_with_the_tests() -> None:
    """Should the test run be killed, its services end as well."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _announced(service: Service) -> str:
    assert service.process.stdout is not None
    line = service.process.stdout.readline()
    if " at http://" not in line:
        raise AssertionError(f"the service is not ready: {line!r} {service.complaints()}")
    return line.rsplit(" ", 1)[1].strip()


def _worker_ready(service: Service) -> str:
    def started() -> bool:
        assert service.process.poll() is None, service.complaints()
        return "worker.started" in service.complaints()

    until(started, within_s=READY_S)
    return ""


def _session(leader: int) -> list[int]:
    """All live processes of the session that a process leads."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, _, _, session = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
                if int(session) == leader and state != "Z":
                    found.append(int(entry.name))
    return found


def _descendants(ancestor: int) -> list[int]:
    """All live processes below one, those in sessions of their own too."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found = [ancestor]
    for known in found:
        found.extend(pid for pid, parent in parents.items() if parent == known)
    return found[1:]


def _command_line(pid: int) -> list[str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    return []


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze_between_writes(pid: int, database: Database) -> None:
    """Stop a process where it holds no lock of the database: frozen in the middle of a write it would stop all others."""

    def is_frozen_well() -> bool:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", within_s=5)
        if _nobody_writes(database):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    until(is_frozen_well)


def _nobody_writes(database: Database) -> bool:
    if not database.is_sqlite:
        try:
            with database.engine.begin() as connection:
                connection.exec_driver_sql("SELECT id FROM items FOR UPDATE NOWAIT")
        except sa.exc.OperationalError:
            return False
        return True
    with contextlib.closing(sqlite3.connect(str(database.engine.url.database), timeout=0.3)) as raw:
        try:
            raw.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        raw.rollback()
        return True
