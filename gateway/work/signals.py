"""Wake-ups between the processes of one machine: datagrams with an item id, lost without harm.

A process that waits binds a socket in a folder that both sides derive from the database's address; a sender writes to
every socket of that kind. What a signal says is always in the database too, so whoever misses one finds it by looking.

The folder goes with the last process that leaves it. Whoever is killed leaves its socket behind; the next process that
starts or leaves, of this service or of another one of the same user, removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import stat
import tempfile
from pathlib import Path

_MAX_DATAGRAM = 256
_TRIES = 100
"""To bind a socket while others remove the folder that was just made for it."""


def signal_folder(database_url: str) -> Path:
    """The folder of this service's sockets: short (a socket's path has 107 bytes at most), private to this user."""
    digest = hashlib.sha256(database_url.encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"{_prefix()}{digest}"


def _prefix() -> str:
    return f"sluicegate-{os.getuid()}-"


class Listener:
    """One process's ear for signals of a kind (`api` or `worker`)."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = folder / f"{kind}-{secrets.token_hex(6)}"  # a name that no other process ever has
        self._bind(folder)

    def _bind(self, folder: Path) -> None:
        for attempt in range(1, _TRIES + 1):
            _make(folder)
            try:
                self.socket.bind(str(self._path))
                return
            except FileNotFoundError:  # whoever left last has removed the folder in between
                if attempt == _TRIES:
                    raise

    def wait(self, timeout_s: float) -> bool:
        """Whether a signal came within the time; takes all that have come."""
        self.socket.settimeout(timeout_s)
        try:
            self.socket.recv(_MAX_DATAGRAM)
        except TimeoutError:
            return False
        self.drain()
        return True

    def drain(self) -> list[str]:
        """All signals that have come, without waiting."""
        self.socket.setblocking(False)
        received = []
        with contextlib.suppress(BlockingIOError):
            while True:
                received.append(self.socket.recv(_MAX_DATAGRAM).decode("ascii", "replace"))
        return received

    def leave(self) -> None:
        """Be found by no sender any more; may be called by any thread, and twice."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()
        self.leave()


class Signals:
    """Sends signals; never blocks, never fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._listeners: list[Listener] = []

    def listen(self, kind: str) -> Listener:
        """An ear for signals of this kind in this process. Raises `PermissionError` where the folder is not ours."""
        _remove_abandoned()
        made = Listener(self.folder, kind)
        self._listeners.append(made)
        return made

    def send(self, kind: str, item_id: str) -> None:
        """Tell every process of a kind that something happened to an item."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.folder):
                if name.startswith(f"{kind}-"):
                    self._send_to(self.folder / name, item_id)

    def _send_to(self, path: Path, item_id: str) -> None:
        try:
            self._socket.sendto(item_id.encode("ascii"), str(path))
        except (BlockingIOError, FileNotFoundError):
            return  # its buffer is full, so it is awake already; or it has just left
        except OSError:
            path.unlink(missing_ok=True)  # nobody listens any more: left by a killed process

    def close(self) -> None:
        """Give the socket back, and remove the folder if nobody else is there."""
        self._socket.close()
        for listener in self._listeners:
            listener.leave()
        _remove_if_abandoned(self.folder)


def _make(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        if not _is_ours(folder):
            raise PermissionError(f"{folder} belongs to another user; remove it")


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    return found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)


def _remove_abandoned() -> None:
    """What services of this user left behind that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder in which nobody listens. One that is about to listen there makes it anew."""
    with contextlib.suppress(OSError):
        if not _is_ours(folder):
            return
        for path in folder.iterdir():
            if path.is_socket() and _is_deserted(path):
                path.unlink(missing_ok=True)
        folder.rmdir()  # refuses where somebody is left


def _is_deserted(path: Path) -> bool:
    """Whether no process has this socket any more. Names are never used twice, so that what is deserted stays so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
