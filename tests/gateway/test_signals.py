"""Signals between processes: they arrive, and their folder goes with whoever leaves last, however it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.work.signals import Signals, signal_folder

LISTENING = """
import sys
from gateway.work.signals import Signals, signal_folder
listener = Signals(signal_folder(sys.argv[1])).listen("worker")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short, for paths of sockets are: other services of this user are not to be seen here."""
    with tempfile.TemporaryDirectory(prefix="sg-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def folder() -> Path:
    return signal_folder(uuid.uuid4().hex)


def killed_listener(address: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTENING, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)


def test_signal_reaches_all_of_its_kind(folder: Path) -> None:
    signals = Signals(folder)
    workers = [signals.listen("worker") for _ in range(2)]
    api = signals.listen("api")
    signals.send("worker", "itm_1")
    assert [listener.drain() for listener in [*workers, api]] == [["itm_1"], ["itm_1"], []]
    signals.close()


def test_folder_is_there_while_somebody_listens_and_gone_afterwards(folder: Path) -> None:
    one, other = Signals(folder), Signals(folder)
    assert not folder.exists()
    ear = one.listen("api")
    other.listen("worker")
    assert folder.stat().st_mode & 0o777 == 0o700
    one.close()
    assert len(os.listdir(folder)) == 1
    other.close()
    assert not folder.exists()
    ear.close()


def test_killed_process_leaves_nothing_once_another_one_left() -> None:
    killed_listener("first")
    folder = signal_folder("first")
    assert len(os.listdir(folder)) == 1
    signals = Signals(folder)
    signals.listen("worker")
    assert len(os.listdir(folder)) == 1
    signals.close()
    assert not folder.exists()


def test_folder_of_a_killed_service_goes_when_another_service_starts() -> None:
    killed_listener("first")
    signals = Signals(signal_folder("second"))
    signals.listen("api")
    assert not signal_folder("first").exists()
    assert signals.folder.exists()
    signals.close()


def test_those_who_come_while_others_leave_all_find_their_place(folder: Path) -> None:
    heard: list[bool] = []

    def come_and_go() -> None:
        for _ in range(150):
            signals = Signals(folder)
            ear = signals.listen("worker")
            signals.send("worker", "itm_1")
            heard.append("itm_1" in ear.drain())
            ear.close()
            signals.close()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [True] * 600
    assert not folder.exists()


def test_folder_that_is_not_ours_is_refused(folder: Path) -> None:
    folder.symlink_to(tempfile.gettempdir())
    with pytest.raises(PermissionError, match="remove it"):
        Signals(folder).listen("api")
