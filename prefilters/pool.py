"""Processes for decoders: whatever a hostile file does to one of them, the service sees no more than a `ProbeError`."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from enum import Enum, StrEnum
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from prefilters.decoder_host import MESSAGE_BYTES, Answer
from prefilters.errors import DecodeStatus, ProbeError
from prefilters.limits import DecodeLimits
from prefilters.probes import tasks

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

_BOOT = """
import json, sys
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments["path"]
from prefilters.decoder_host import boot
boot(arguments)
"""
_START_S = 60.0
"""Loading the decoders takes about a second; a machine under load may need many."""
_TASKS_PER_WORKER = 2_000
"""Decoders leak; a fresh fork costs a few milliseconds."""
_MODEL_MEMORY_FACTOR = 3
"""Recognition models and their work space come on top of the picture."""
_MOST_ANSWER_BYTES = 64 * 1024 * 1024
"""Facts and text are a few KB; a worker gone wrong must not fill the service's memory."""
_STALL = struct.pack("ll", 10, 0)
"""Seconds and microseconds that half an answer may hang on the line."""

_KEPT_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "TESSDATA_PREFIX", "TMPDIR", "LD_LIBRARY_PATH")
_ONE_THREAD = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Bulkhead(StrEnum):
    """Separate sets of workers, so that a jam in one never delays the other."""

    DECODE = "decode"
    OCR = "ocr"
    SPEECH = "speech"
    """Transcription by a model on this machine; its process starts with the first recording."""


_PRELOAD: Mapping[Bulkhead, tuple[str, ...]] = {
    Bulkhead.DECODE: (
        "prefilters.probes.image",
        "prefilters.probes.pdf",
        "prefilters.probes.audio",
        "prefilters.probes.barcode",
        "prefilters.probes.text:load_tokens",
    ),
    Bulkhead.OCR: (
        "prefilters.probes.image",
        "prefilters.probes.pdf",
        "prefilters.probes.ocr",
        "prefilters.probes.speech",
    ),
    Bulkhead.SPEECH: ("prefilters.probes.audio",),
}


class DecoderFault(Exception):
    """What a decoder raised in its process; the text is that process's traceback."""


class PoolClosed(Exception):
    """The pool was closed before or while the task ran."""

    code = "pool_closed"
    retryable = True


class _WorkerDied(Exception):
    """The worker ended or was ended in the middle of a task."""


class _HostDied(Exception):
    """The process that workers are forked from ended in the middle of a task, and the worker with it."""


class DecoderPool:
    """Runs tasks in killable processes with limits on memory, CPU and time.

    Thread-safe; `run` blocks its thread. Processes start with the first task, or with `warm`. The pool may be made in
    any thread of a server: nothing here forks this process. With a `niceness` above 0 (at most 19, as for `nice`) they
    leave the processor to this and other processes first.
    """

    def __init__(self, *, workers: int = 2, ocr_workers: int = 1, limits: DecodeLimits, niceness: int = 0) -> None:
        self._limits = limits
        sizes = {Bulkhead.DECODE: workers, Bulkhead.OCR: ocr_workers, Bulkhead.SPEECH: 1}
        self._bays = {bulkhead: _Bay(_PRELOAD[bulkhead], size, niceness) for bulkhead, size in sizes.items()}

    def run(
        self,
        task: Callable[..., _Result],
        *args: Any,
        bulkhead: Bulkhead = Bulkhead.DECODE,
        wall_s: float | None = None,
    ) -> _Result:
        """What `task(*args)` gives, computed in a worker. `task` is a function at the top level of a module.

        Waits for a free worker as long as need be; `wall_s` (default: the limits') counts from the start of the task.
        Raises `ProbeError`: the task's own; `timeout`; `resource_limit` where memory ran out or the worker died;
        `corrupt` for any other exception of a decoder, which is its cause. What is not the file's fault (a missing
        file or module) is raised as what it is. An idle worker takes about 0.1 ms.
        """
        wall_s = self._limits.decode_wall_s if wall_s is None else wall_s
        memory_bytes = self._limits.decode_memory_bytes
        if bulkhead is not Bulkhead.DECODE:
            memory_bytes *= _MODEL_MEMORY_FACTOR
        answer = self._bays[bulkhead].run(task, args, wall_s=wall_s, memory_bytes=memory_bytes)
        result: _Result = _result(answer)
        return result

    def warm(self, bulkheads: Collection[Bulkhead] = (Bulkhead.DECODE, Bulkhead.OCR)) -> Mapping[str, bool]:
        """Start the processes of these bulkheads, with the models of OCR; gives `confinement`. Takes seconds the first time."""
        for bulkhead in bulkheads:
            self._bays[bulkhead].start()
        if Bulkhead.OCR in bulkheads:
            self.run(tasks.load_models, bulkhead=Bulkhead.OCR, wall_s=_START_S)
        return self.confinement

    @property
    def confinement(self) -> Mapping[str, bool]:
        """What the decoders are kept from: known once they run, empty before."""
        levels = [bay.confinement for bay in self._bays.values() if bay.confinement]
        return {key: all(level[key] for level in levels) for key in levels[0]} if levels else {}

    def close(self) -> None:
        """End all processes at once; running tasks raise `PoolClosed`. May be called twice."""
        for bay in self._bays.values():
            bay.close()

    def __enter__(self) -> DecoderPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Worker:
    """One process of a bay and the line to it."""

    def __init__(self, host: _Host) -> None:
        ours, theirs = socket.socketpair()
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _STALL)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _STALL)
            self.pid = host.start_worker(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.host = host
        self.tasks = 0
        self.connection = Connection(ours.detach())

    def ask(self, message: bytes, wall_s: float) -> Answer:
        """Raises `TimeoutError`, or `_WorkerDied` where the line broke."""
        self.tasks += 1
        try:
            self.connection.send_bytes(message)
            if not self.connection.poll(wall_s):
                raise TimeoutError(f"no answer within {wall_s:g} s")
            raw = self.connection.recv_bytes(_MOST_ANSWER_BYTES)
        except TimeoutError:
            raise
        except (EOFError, OSError) as exc:
            raise _WorkerDied from exc
        return _load_answer(raw)

    def is_gone(self) -> bool:
        """Whether it ended while it had nothing to do."""
        return self.connection.poll(0)

    def end(self) -> int | None:
        """Kill it; gives its wait status, None where its host is gone too."""
        self.connection.close()
        return self.host.end_worker(self.pid)


class _Host:
    """The process that workers are forked from."""

    def __init__(self, preload: tuple[str, ...], niceness: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = {
            "control": theirs.fileno(),
            "service": os.getpid(),
            "preload": preload,
            "niceness": niceness,
            "path": _absolute_path(),
        }
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                [sys.executable, "-I", "-c", _BOOT, json.dumps(arguments)],
                pass_fds=(theirs.fileno(),),
                env=_clean_environment(),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()
        ours.settimeout(_START_S)
        self._control = ours
        self._lock = threading.Lock()
        try:
            self.confinement: Mapping[str, bool] = self._answer()
        except BaseException:
            self.close()
            raise

    def start_worker(self, line: socket.socket) -> int:
        with self._lock:
            socket.send_fds(self._control, [b'{"op": "start"}'], [line.fileno()])
            return int(self._answer()["pid"])

    def end_worker(self, pid: int) -> int | None:
        with self._lock:
            try:
                self._control.send(json.dumps({"op": "end", "pid": pid}).encode())
                return int(self._answer()["status"])
            except OSError:
                return None  # the host is gone, and its workers with it

    def _answer(self) -> dict[str, Any]:
        raw = self._control.recv(MESSAGE_BYTES)
        if not raw:
            raise ConnectionResetError("the decoder host ended")
        answer: dict[str, Any] = json.loads(raw)
        return answer

    def close(self) -> None:
        """End the host and all its workers."""
        self._control.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Bay:
    """The workers of one bulkhead. They are made when they are first needed, and again when one is lost."""

    def __init__(self, preload: tuple[str, ...], size: int, niceness: int) -> None:
        self._preload = preload
        self._niceness = niceness
        self._size = size
        # A place with no worker yet is None. Last in, first out keeps the warm ones busy.
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._lock = threading.Lock()
        self._host: _Host | None = None
        self._closed = False

    @property
    def confinement(self) -> Mapping[str, bool]:
        return self._host.confinement if self._host else {}

    def start(self) -> None:
        """Have all workers running."""
        places = [self._take() for _ in range(self._size)]
        for place in places:
            self._free.put(place)

    def run(self, task: Callable[..., Any], args: tuple[Any, ...], *, wall_s: float, memory_bytes: int) -> Answer:
        message = pickle.dumps((task, args, memory_bytes, 2 * ceil(wall_s)), protocol=5)
        try:
            return self._ask(message, wall_s)
        except _HostDied:  # ended from outside, as when memory is short, so the file is not to blame
            try:
                return self._ask(message, wall_s)
            except _HostDied as exc:
                raise ProbeError(DecodeStatus.RESOURCE_LIMIT, "the decoder's host died twice") from exc

    def _ask(self, message: bytes, wall_s: float) -> Answer:
        worker = self._take()
        try:
            answer = worker.ask(message, wall_s)
        except TimeoutError as exc:
            self._bury(worker)
            raise ProbeError(DecodeStatus.TIMEOUT, f"stopped after {wall_s:g} s") from exc
        except _WorkerDied as exc:
            status = self._bury(worker)
            if self._closed:
                raise PoolClosed("the decoder pool was closed") from exc
            if status is None:
                raise _HostDied from exc
            raise _death(status) from exc
        except BaseException:
            self._bury(worker)
            raise
        if worker.tasks < _TASKS_PER_WORKER:
            self._free.put(worker)
        else:
            self._bury(worker)
        return answer

    def _take(self) -> _Worker:
        place = self._free.get()
        try:
            with self._lock:
                if self._closed:
                    raise PoolClosed("the decoder pool was closed")
                if place is not None and place.is_gone():
                    place.end()
                    place = None
                return place or self._new_worker()
        except BaseException:
            self._free.put(place)
            raise

    def _new_worker(self) -> _Worker:
        if self._host is not None:
            try:
                return _Worker(self._host)
            except OSError:
                _log.warning("pool.host_lost")
                self._host.close()
        self._host = _Host(self._preload, self._niceness)
        return _Worker(self._host)

    def _bury(self, worker: _Worker) -> int | None:
        try:
            return worker.end()
        finally:
            self._free.put(None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            host, self._host = self._host, None
        if host is not None:
            host.close()


def _death(status: int) -> ProbeError:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return ProbeError(DecodeStatus.TIMEOUT, "the decoder used up its CPU time")
    cause = signal.Signals(number).name if number else f"exit {os.waitstatus_to_exitcode(status)}"
    return ProbeError(DecodeStatus.RESOURCE_LIMIT, f"the decoder died: {cause}")


_OUT_OF_MEMORY = ("Insufficient memory", "bad_alloc", "bad allocation", "Cannot allocate memory")
"""How decoders written in C++ say it."""
_NOT_THE_FILES_FAULT: Mapping[str, type[Exception]] = {
    "ImportError": ImportError,
    "FileNotFoundError": FileNotFoundError,
    "PermissionError": PermissionError,
}


def _result(answer: Answer) -> Any:
    if answer.kind == "value":
        return answer.value
    if answer.kind == "probe_error":
        raise ProbeError(DecodeStatus(answer.status), answer.message)
    fault = DecoderFault(answer.trace)
    if "MemoryError" in answer.bases or any(words in answer.message for words in _OUT_OF_MEMORY):
        raise ProbeError(DecodeStatus.RESOURCE_LIMIT, answer.message) from fault
    for name, kind in _NOT_THE_FILES_FAULT.items():
        if name in answer.bases:
            raise kind(answer.message) from fault
    raise ProbeError(DecodeStatus.CORRUPT, answer.message) from fault


class _AnswerLoader(pickle.Unpickler):
    """Loads data and nothing that acts: a worker that a file has taken over must not take over the service too."""

    _ARRAYS = frozenset(
        {
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "scalar"),
            ("numpy._core.numeric", "_frombuffer"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if (module, name) in self._ARRAYS:
            return super().find_class(module, name)
        if "." not in name and module.split(".")[0] == "prefilters":
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not taken from a worker")


def _enum_member(kind: object, name: str) -> Enum:
    """In place of `getattr`, by which Python 3.11.0 to 3.11.3 (Debian 12 has 3.11.2) pickles the members of enums."""
    if not isinstance(kind, type) or not issubclass(kind, Enum):
        raise pickle.UnpicklingError("only members of enums are looked up for a worker")
    return kind[name]


def _load_answer(raw: bytes) -> Answer:
    try:
        answer = _AnswerLoader(io.BytesIO(raw)).load()
    except Exception as exc:  # whatever bytes a worker makes up must end as one kind of error
        raise _WorkerDied("the worker's answer could not be read") from exc
    if not isinstance(answer, Answer):
        raise _WorkerDied("the worker answered something else")
    return answer


def _absolute_path() -> list[str]:
    return [str(Path(entry or ".").resolve()) for entry in sys.path]


def _clean_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return kept | dict.fromkeys(_ONE_THREAD, "1")
