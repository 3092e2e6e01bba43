"""The far side of the decoder pool: a small process that has the decoders loaded and forks a worker on demand.

It is started with a clean environment and is single-threaded, so a fork of it is safe and costs milliseconds. It ends
when the service that started it does, however that ended, and its workers end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import pickle
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from prefilters.errors import ProbeError

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_ORPHAN_CHECK_S = 1.0
_MOST_FILE_BYTES = 256 * 1024 * 1024
"""What a worker may write to one temporary file."""
_MOST_OPEN_FILES = 256

MESSAGE_BYTES = 4096
"""Upper bound of one message on the control socket."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one task ended. Plain values only: the service unpickles nothing else that a worker sends."""

    kind: str
    """`value`, `probe_error` or `raised`."""
    value: Any = None
    status: str = ""
    message: str = ""
    trace: str = ""
    bases: tuple[str, ...] = ()
    """Names of the exception's classes, most special first."""


def main(control_fd: int, service_pid: int, preload: Sequence[str], niceness: int = 0) -> None:
    """Serve fork requests on `control_fd` until the service is gone.

    `preload` names modules, or functions of modules (`module:function`), that all workers are to find loaded.
    """
    control = socket.socket(fileno=control_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    level = _confine()
    for name in preload:
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()
    _calm_decoders()
    try:
        control.send(json.dumps(level).encode())
    except BrokenPipeError:  # the service was killed while the decoders were being loaded
        return
    workers: set[int] = set()
    try:
        while _service_lives(control, service_pid):
            message, fds, _flags, _address = socket.recv_fds(control, MESSAGE_BYTES, 1)
            if not message:
                break
            request = json.loads(message)
            if request["op"] == "start":
                control.send(json.dumps({"pid": _start_worker(fds[0], control, workers)}).encode())
            else:
                control.send(json.dumps({"status": _end_worker(request["pid"], workers)}).encode())
    finally:
        for pid in tuple(workers):
            _end_worker(pid, workers)


def _confine() -> dict[str, bool]:
    """Give up what a decoder never needs, as far as this machine allows; the answer says how far."""
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Without CAP_SYS_ADMIN a user namespace of its own is needed first; files stay readable, since access goes by the
    # user's kernel id, which does not change.
    no_network = libc.unshare(_CLONE_NEWNET) == 0 or libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0
    return {"no_new_privileges": no_new_privileges, "no_network": no_network}


def _calm_decoders() -> None:
    """One thread per worker: a fork must find no thread pool, and the pool itself is what spreads over the cores."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(1)


def _service_lives(control: socket.socket, service_pid: int) -> bool:
    """Wait for the next request; false once the service is gone.

    A closed socket says so at once. The parent's pid is the second belt, should another process hold the socket open.
    """
    while True:
        ready, _, _ = select.select([control], [], [], _ORPHAN_CHECK_S)
        if os.getppid() != service_pid:
            return False
        if ready:
            return True


def _start_worker(fd: int, control: socket.socket, workers: set[int]) -> int:
    pid = os.fork()
    if pid == 0:
        control.close()
        _work(fd)
    os.close(fd)
    workers.add(pid)
    return pid


def _end_worker(pid: int, workers: set[int]) -> int:
    """Kill the worker with its process group and give its wait status.

    Only this process reaps it, so the number cannot belong to anyone else by now.
    """
    if pid not in workers:
        return 0
    workers.discard(pid)
    done, status = os.waitpid(pid, os.WNOHANG)
    # The group outlives its leader where a decoder had started a program of its own.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if done == 0:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return status


def _work(fd: int) -> NoReturn:
    """A worker's life: one task after the other until its connection closes."""
    host = os.getppid()
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != host:  # it died before the line above
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_OPEN_FILES, _MOST_OPEN_FILES))
    _silence()
    connection = Connection(fd)
    try:
        while True:
            _serve_one(connection)
    except (EOFError, OSError):
        os._exit(0)
    finally:
        os._exit(1)


def _silence() -> None:
    """Decoders print warnings with words from the file; those do not belong into the service's log."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)


def _serve_one(connection: Connection) -> None:
    task, args, memory_bytes, cpu_s = pickle.loads(connection.recv_bytes())  # noqa: S301 - from our own service
    _allow(memory_bytes, cpu_s)
    connection.send_bytes(pickle.dumps(_run(task, args), protocol=5))


def _allow(memory_bytes: int, cpu_s: int) -> None:
    """Bound what the next task may add to this process."""
    with open("/proc/self/statm", "rb") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, hard))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(spent.ru_utime + spent.ru_stime) + cpu_s + 1, hard))


def _run(task: Any, args: tuple[Any, ...]) -> Answer:
    try:
        return Answer("value", task(*args))
    except ProbeError as exc:
        return Answer("probe_error", status=exc.status.value, message=exc.message)
    except BaseException as exc:  # noqa: BLE001 - whatever a decoder raises is an answer about its file
        text = io.StringIO()
        traceback.print_exception(exc, file=text, limit=20)
        return Answer(
            "raised",
            message=f"{type(exc).__name__}: {exc}"[:2_000],
            trace=text.getvalue()[:20_000],
            bases=tuple(base.__name__ for base in type(exc).__mro__),
        )


def boot(arguments: Mapping[str, Any]) -> None:
    """Entry point of the host process."""
    main(int(arguments["control"]), int(arguments["service"]), list(arguments["preload"]), int(arguments["niceness"]))
