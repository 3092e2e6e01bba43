"""A pseudo-terminal with a command in it: what a person sees is read, what they type is sent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping

_ROWS, _COLUMNS = 40, 160


class Terminal:
    """One command at a terminal of its own."""

    def __init__(self, arguments: tuple[str, ...], variables: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**inherited, **variables, "TERM": "xterm-256color"},
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def sees(self, text: str, *, within_s: float = 60.0) -> None:
        """Waits until the text stands on the screen; fails otherwise."""
        self._read_until(lambda: text in self.seen, f"{text!r}", within_s)

    def types(self, text: str) -> None:
        """What a person types; `\\x03` is Ctrl-C."""
        os.write(self._ours, text.encode())

    def ends(self, *, within_s: float = 60.0) -> int:
        """The command's exit status."""
        self._read_until(lambda: self._process.poll() is not None, "the end", within_s)
        return self._process.wait()

    def close(self) -> None:
        """Nothing of it stays behind."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def _read_until(self, is_true: Callable[[], bool], what: str, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not is_true():
            assert time.monotonic() < deadline, f"{what} did not come; seen: {self.seen!r}"
            if select.select([self._ours], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):  # Linux says EIO once the other side is closed
                    self.seen += os.read(self._ours, 65536).decode("utf-8", "replace")


@contextlib.contextmanager
def at_a_terminal(*arguments: str, **variables: str) -> Iterator[Terminal]:
    """`sluicegate` with these arguments, for as long as the block lasts."""
    terminal = Terminal(arguments, variables)
    try:
        yield terminal
    finally:
        terminal.close()
