"""The service's processes during a run: started by the documented commands, killed, and started again as a manager would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.plan import Kill, Target
from tests.gateway.running import environment

_AGAIN_S = 0.5
"""A service manager waits a moment before it starts something again."""
_STOP_S = 40.0
_HOST = "prefilters.decoder_host"


@dataclass
class Program:
    """One command that is to run all the time."""

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    again_at: float = 0.0
    starts: int = 0
    was_killed: bool = True
    """Whether the latest end was ours, or there was none yet."""
    own_ends: list[int] = field(default_factory=list)
    """Exit statuses of ends that were not ours."""

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.words, env=self.environment, stdout=output, stderr=output, start_new_session=True
            )
        self.starts += 1
        self.was_killed = False

    @property
    def pid(self) -> int | None:
        """Of the process, while it lives."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None


class Crew:
    """All programs of one run, with a thread that starts again what has ended."""

    def __init__(self, programs: list[Program]) -> None:
        self.programs = programs
        self.kills: dict[Target, int] = dict.fromkeys(Target, 0)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._mending = threading.Thread(target=self._mend, name="mend")

    def start(self) -> None:
        """Start everything, and keep it running from then on."""
        self._mending.start()

    def kill(self, kill: Kill) -> list[int]:
        """SIGKILL for what the plan names; gives the process ids that were hit, none where nothing of the kind runs."""
        with self._lock:
            victims = self._victims(kill)
            for pid in victims:
                for program in self.programs:
                    program.was_killed |= program.pid == pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if victims:
                self.kills[kill.target] += 1
            return victims

    def _victims(self, kill: Kill) -> list[int]:
        if kill.target is Target.ALL:
            return [pid for program in self.programs if program.pid for pid in [program.pid, *_below(program.pid)]]
        found = [pid for pid, target in self.running() if target is kill.target]
        if not found:
            return []
        chosen = found[int(kill.choice * len(found))]
        return (
            [chosen, *_below(chosen)] if kill.target is Target.BROKER else [chosen]
        )  # RabbitMQ's is a script around it

    def running(self) -> list[tuple[int, Target]]:
        """Every process that can be a target, with what it is."""
        named = [
            (pid, _role(pid, program))
            for program in self.programs
            if program.pid
            for pid in [program.pid, *_below(program.pid)]
        ]
        return [(pid, role) for pid, role in named if role is not None]

    def stop(self) -> dict[str, int]:
        """End all in good order; gives the exit statuses of our own that did not end well."""
        self._ending.set()
        self._mending.join()
        for program in self.programs:
            if program.pid:
                os.kill(program.pid, signal.SIGTERM)
        statuses = {}
        for program in self.programs:
            assert program.process is not None
            try:
                statuses[program.name] = program.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                statuses[program.name] = -signal.SIGKILL
                for pid in [program.process.pid, *_below(program.process.pid)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                program.process.wait()
        for program in self.programs:
            with contextlib.suppress(ProcessLookupError):
                assert program.process is not None
                os.killpg(program.process.pid, signal.SIGKILL)  # whatever a killed one has left behind
        ours = {program.name for program in self.programs if "gateway" in program.words}
        return {name: status for name, status in statuses.items() if status != 0 and name in ours}

    def _mend(self) -> None:
        while not self._ending.wait(0.05):
            with self._lock:
                now = time.monotonic()
                for program in self.programs:
                    if program.pid is None and program.process is not None and program.again_at == 0.0:
                        if not program.was_killed:
                            program.own_ends.append(program.process.returncode)
                        program.again_at = now + _AGAIN_S
                    elif program.pid is None and now >= program.again_at:
                        program.again_at = 0.0
                        program.start()


def service_program(name: str, folder: Path, settings: Mapping[str, object], *words: str) -> Program:
    """`sluicegate WORDS` with these settings."""
    return Program(
        name,
        (sys.executable, "-m", "gateway", *words),
        environment(folder / "data", settings),
        folder / f"{name}.log",
    )


def _role(pid: int, program: Program) -> Target | None:
    words = _words(pid)
    if program.name == "broker":
        return Target.BROKER if pid == program.pid else None
    if any(_HOST in word for word in words):
        return Target.DECODER if _HOST not in " ".join(_words(_parent(pid))) else None
    return {"up": Target.SUPERVISOR, "serve": Target.API, "worker": Target.WORKER}.get(words[3] if words[3:] else "")


def _below(pid: int) -> list[int]:
    """All descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        left += (below := children.get(left.pop(), []))
        found += below
    return found


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        state, parent = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()[:2]
        return 0 if state == "Z" else int(parent)
    return 0


def _words(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").rstrip("\0").split("\0")
    return []
