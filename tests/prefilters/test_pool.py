"""The pool outlives whatever its workers go through, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from prefilters import Bulkhead, DecoderPool, PoolClosed, ProbeError, Stage, load_rules, screen
from prefilters.errors import DecodeStatus
from prefilters.limits import DecodeLimits
from prefilters.pool import DecoderFault
from tests import media

LIMITS = DecodeLimits(decode_wall_s=10.0, decode_memory_bytes=256 * 1024 * 1024)


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(workers=2, ocr_workers=1, limits=LIMITS) as shared:
        yield shared


def add(one: int, other: int) -> int:
    return one + other


def own_pid() -> int:
    return os.getpid()


def own_group() -> tuple[int, int]:
    return os.getpid(), os.getpgid(0)


def environment() -> dict[str, str]:
    raw = Path("/proc/self/environ").read_bytes().decode()
    at_start = dict(pair.split("=", 1) for pair in raw.split("\0") if "=" in pair)
    return {**at_start, **os.environ}


def hang() -> None:
    while True:
        pass


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def leave() -> None:
    os._exit(3)


def eat_memory() -> int:
    return len(bytearray(1024 * 1024 * 1024))


def spawn_and_hang() -> None:
    subprocess.Popen(["sleep", "600"])
    hang()


def fail_as(kind: str) -> None:
    match kind:
        case "probe":
            raise ProbeError(DecodeStatus.ENCRYPTED, "locked")
        case "value":
            raise ValueError("no such chunk")
        case "file":
            raise FileNotFoundError("gone.jpg")
        case _:
            raise ModuleNotFoundError("no engine")


class Trap:
    """Unpickling this would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


def answer_with_trap() -> Trap:
    return Trap()


class ByName:
    """Pickled as `getattr(kind, name)`, which is how Python 3.11.0 to 3.11.3 pickles the members of enums."""

    def __init__(self, kind: type, name: str) -> None:
        self.kind = kind
        self.name = name

    def __reduce__(self) -> tuple[object, tuple[type, str]]:
        return getattr, (self.kind, self.name)


def answer_by_name(kind: type, name: str) -> ByName:
    return ByName(kind, name)


def picture() -> np.ndarray:
    return np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def sockets_reach_out() -> bool:
    import socket

    try:
        with socket.socket() as line:
            line.settimeout(1.0)
            line.connect(("127.0.0.1", 9))
    except ConnectionRefusedError:
        return True  # the host's own loopback answered
    except OSError:
        return False
    return True


def test_gives_what_the_task_gives(pool: DecoderPool) -> None:
    assert pool.run(add, 2, 3) == 5
    assert np.array_equal(pool.run(picture), picture())


def test_task_runs_in_another_process_with_a_group_of_its_own(pool: DecoderPool) -> None:
    pid, group = pool.run(own_group)
    assert pid != os.getpid()
    assert group == pid


def test_worker_is_used_again(pool: DecoderPool) -> None:
    assert pool.run(own_pid) == pool.run(own_pid)


def test_secrets_of_the_service_are_not_in_a_workers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_MODEL_API_KEY", "sk-secret")
    with DecoderPool(workers=1, limits=LIMITS) as pool:
        found = pool.run(environment)
    assert "sk-secret" not in str(found)
    assert found["OMP_THREAD_LIMIT"] == "1"


def test_no_network_where_the_host_allows_to_take_it_away(pool: DecoderPool) -> None:
    reaches_out = pool.run(sockets_reach_out)
    assert pool.confinement.keys() == {"no_new_privileges", "no_network"}
    assert reaches_out is not pool.confinement["no_network"]


def test_hanging_task_ends_as_timeout_and_the_next_one_runs(pool: DecoderPool) -> None:
    with pytest.raises(ProbeError) as caught:
        pool.run(hang, wall_s=0.2)
    assert caught.value.status is DecodeStatus.TIMEOUT
    assert pool.run(add, 1, 1) == 2


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_death_of_a_decoder_is_a_resource_limit_and_the_next_task_runs(pool: DecoderPool, number: int) -> None:
    with pytest.raises(ProbeError) as caught:
        pool.run(die, number)
    assert caught.value.status is DecodeStatus.RESOURCE_LIMIT
    assert signal.Signals(number).name in caught.value.message
    assert pool.run(add, 1, 1) == 2


def test_decoder_that_exits_is_a_resource_limit(pool: DecoderPool) -> None:
    with pytest.raises(ProbeError) as caught:
        pool.run(leave)
    assert caught.value.status is DecodeStatus.RESOURCE_LIMIT


def test_memory_bomb_is_a_resource_limit(pool: DecoderPool) -> None:
    with pytest.raises(ProbeError) as caught:
        pool.run(eat_memory)
    assert caught.value.status is DecodeStatus.RESOURCE_LIMIT


def test_probe_error_keeps_its_status(pool: DecoderPool) -> None:
    with pytest.raises(ProbeError) as caught:
        pool.run(fail_as, "probe")
    assert (caught.value.status, caught.value.message) == (DecodeStatus.ENCRYPTED, "locked")


def test_other_exception_of_a_decoder_means_corrupt_and_keeps_its_traceback(pool: DecoderPool) -> None:
    with pytest.raises(ProbeError) as caught:
        pool.run(fail_as, "value")
    assert caught.value.status is DecodeStatus.CORRUPT
    assert isinstance(caught.value.__cause__, DecoderFault)
    assert "no such chunk" in str(caught.value.__cause__)


@pytest.mark.parametrize(("kind", "expected"), [("file", FileNotFoundError), ("module", ImportError)])
def test_what_is_not_the_files_fault_is_raised_as_it_is(
    pool: DecoderPool, kind: str, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        pool.run(fail_as, kind)


def test_answer_that_would_run_code_in_the_service_is_refused(pool: DecoderPool) -> None:
    with pytest.raises(ProbeError) as caught:
        pool.run(answer_with_trap)
    assert caught.value.status is DecodeStatus.RESOURCE_LIMIT
    assert pool.run(add, 1, 1) == 2


def test_member_of_an_enum_is_taken_as_older_pythons_pickle_it(pool: DecoderPool) -> None:
    assert pool.run(answer_by_name, DecodeStatus, "TIMEOUT") is DecodeStatus.TIMEOUT


def test_attribute_of_anything_but_an_enum_is_refused(pool: DecoderPool) -> None:
    with pytest.raises(ProbeError):
        pool.run(answer_by_name, DecodeLimits, "__init__")


def test_worker_that_died_while_idle_costs_no_file_its_verdict(pool: DecoderPool) -> None:
    pid = pool.run(own_pid)
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert _wait_for_end(ended)
    assert pool.run(add, 1, 1) == 2


def end_the_host(marks: str, times: int) -> str:
    """End the process that this one was forked from, unless that was done so often already."""
    mark = Path(marks)
    count = len(mark.read_bytes())
    if count < times:
        with mark.open("ab") as file:
            file.write(b"x")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return "done"


def test_task_whose_host_is_killed_is_run_again_since_its_file_is_not_to_blame(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    with DecoderPool(workers=1, ocr_workers=1, limits=DecodeLimits()) as pool:
        marks.write_bytes(b"")
        assert pool.run(end_the_host, str(marks), 1) == "done"
        marks.write_bytes(b"")
        with pytest.raises(ProbeError) as caught:
            pool.run(end_the_host, str(marks), 9)
        assert (caught.value.status, len(marks.read_bytes())) == (DecodeStatus.RESOURCE_LIMIT, 2)


def test_lost_host_is_started_again() -> None:
    with DecoderPool(workers=1, limits=LIMITS) as pool:
        worker = pool.run(own_pid)
        ended = os.pidfd_open(worker)
        os.kill(_parent_of(worker), signal.SIGKILL)
        assert _wait_for_end(ended), "a worker outlives its host"
        assert pool.run(add, 1, 1) == 2


def test_jam_in_one_bulkhead_does_not_delay_the_other(pool: DecoderPool) -> None:
    pool.run(own_pid, bulkhead=Bulkhead.OCR)
    jam = threading.Thread(target=_ignore_probe_error, args=(pool, hang, 3.0, Bulkhead.OCR))
    jam.start()
    assert pool.run(add, 1, 1, wall_s=2.0) == 2
    assert jam.is_alive()
    jam.join()


def test_many_threads_share_the_workers(pool: DecoderPool) -> None:
    async def crowd() -> list[int]:
        return await asyncio.gather(*(asyncio.to_thread(pool.run, add, number, 1) for number in range(100)))

    assert asyncio.run(crowd()) == list(range(1, 101))


def test_programs_that_a_decoder_started_end_with_it(pool: DecoderPool, tmp_path: Path) -> None:
    before = _running("sleep 600")
    with pytest.raises(ProbeError):
        pool.run(spawn_and_hang, wall_s=1.0)
    assert _running("sleep 600") <= before


def test_close_leaves_no_process_behind() -> None:
    pool = DecoderPool(workers=2, limits=LIMITS)
    worker = pool.run(own_pid)
    host = _parent_of(worker)
    ended = [os.pidfd_open(worker), os.pidfd_open(host)]
    pool.close()
    assert all(_wait_for_end(process, seconds=0) for process in ended)
    with pytest.raises(PoolClosed):
        pool.run(add, 1, 1)
    pool.close()


def test_close_ends_a_running_task() -> None:
    pool = DecoderPool(workers=1, limits=LIMITS)
    pool.run(own_pid)
    with ThreadPoolExecutor(1) as threads:
        task = threads.submit(pool.run, hang)
        pool.close()
        with pytest.raises(PoolClosed):
            task.result(5.0)


def test_workers_end_by_themselves_when_the_service_is_killed() -> None:
    script = (
        "import sys; from prefilters import DecoderPool, DecodeLimits; from tests.prefilters.test_pool import own_pid\n"
        "pool = DecoderPool(workers=1, limits=DecodeLimits()); print(pool.run(own_pid), flush=True); sys.stdin.read()"
    )
    service = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert service.stdout is not None
    worker = int(service.stdout.readline())
    ended = [os.pidfd_open(worker), os.pidfd_open(_parent_of(worker))]
    service.kill()
    service.wait()
    assert all(_wait_for_end(process) for process in ended)


def test_service_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "from prefilters import DecoderPool, DecodeLimits\nimport math\n"
        "with DecoderPool(workers=1, limits=DecodeLimits()) as pool:\n    print(pool.run(math.sqrt, 49.0))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=60,
    )
    assert done.stdout.strip() == "7.0", done.stderr


def _ignore_probe_error(pool: DecoderPool, task: object, wall_s: float, bulkhead: Bulkhead) -> None:
    try:
        pool.run(task, wall_s=wall_s, bulkhead=bulkhead)  # type: ignore[arg-type]
    except ProbeError:
        return


def _wait_for_end(process: int, seconds: float = 10.0) -> bool:
    """Whether the process behind this pidfd ends in time."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _running(command: str) -> set[str]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip() == command:
                found.add(entry.parent.name)
        except OSError:
            continue
    return found


def test_jam_in_ocr_never_delays_a_refusal_by_header(pool: DecoderPool, tmp_path: Path) -> None:
    rules = load_rules()
    photo = tmp_path / "small.jpg"
    photo.write_bytes(media.thumbnail())

    def refused() -> float:
        started = time.perf_counter()
        found = screen(photo, rules=rules, pool=pool, limits=LIMITS)
        assert (found.verdict.code, found.measured) == ("low_resolution", Stage.HEADER)
        return time.perf_counter() - started

    refused()
    with ThreadPoolExecutor(3) as threads:
        jams = [threads.submit(pool.run, time.sleep, 1.0, bulkhead=Bulkhead.OCR) for _ in range(3)]
        spent = [refused() for _ in range(50)]
        assert not jams[-1].done()
        for jam in jams:
            jam.result()
    assert min(spent) < 0.005
    assert max(spent) < 0.5


def test_more_workers_take_more_tasks_at_once() -> None:
    with DecoderPool(workers=4, limits=LIMITS) as wide, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: wide.run(time.sleep, 0.2), range(4)))  # starts them
        started = time.monotonic()
        list(threads.map(lambda _: wide.run(time.sleep, 1.0), range(4)))
        assert time.monotonic() - started < 3.0
