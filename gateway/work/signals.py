"""Wake-ups between the processes of one machine: datagrams with an item id, lost without harm.

A process that waits binds a socket in a folder that both sides derive from the database's address; a sender writes to
every socket of that kind. What a signal says is always in the database too, so whoever misses one finds it by looking.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
from pathlib import Path

_MAX_DATAGRAM = 256


def signal_folder(database_url: str) -> Path:
    """The folder of this service's sockets: short (a socket's path has 107 bytes at most), private to this user."""
    digest = hashlib.sha256(database_url.encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"sluicegate-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; remove it")
    return folder


class Listener:
    """One process's ear for signals of a kind (`api` or `worker`)."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._path = folder / f"{kind}-{os.getpid()}"
        self._path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self._path))

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

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()
        self._path.unlink(missing_ok=True)


class Signals:
    """Sends signals; never blocks, never fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def listen(self, kind: str) -> Listener:
        """An ear for signals of this kind in this process."""
        return Listener(self.folder, kind)

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
        """Give the socket back."""
        self._socket.close()
