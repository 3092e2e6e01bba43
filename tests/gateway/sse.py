"""Reading an event stream as a browser does, byte by byte, with the time at which each thing came."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.raw_http import head


@dataclass(frozen=True)
class Sent:
    """One event or comment."""

    event: str | None
    id: int | None
    data: Any
    comment: str | None
    came: float


@dataclass
class Stream:
    """An open stream."""

    connection: socket.socket
    status: int
    headers: dict[str, str]
    headers_after_s: float
    raw: bytes
    rest: bytes = b""
    came: list[Sent] = field(default_factory=list)
    is_over: bool = False

    def next(self, within_s: float = 20.0) -> Sent | None:
        """The next event or comment; None where the stream ended first."""
        deadline = time.monotonic() + within_s
        while b"\n\n" not in self.rest:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise AssertionError(f"nothing came within {within_s} s; before: {self.came[-3:]}")
            self.connection.settimeout(left_s)
            try:
                piece = self._piece()
            except TimeoutError:
                continue
            if not piece:
                self.is_over = True
                return None
            self.rest += piece
        block, _, self.rest = self.rest.partition(b"\n\n")
        sent = _parsed(block.decode())
        self.came.append(sent)
        return sent

    def event(self, within_s: float = 20.0) -> Sent | None:
        """The next event, comments and `retry` left out."""
        deadline = time.monotonic() + within_s
        while True:
            sent = self.next(max(deadline - time.monotonic(), 0.01))
            if sent is None or sent.event is not None:
                return sent

    def until(self, kind: str, within_s: float = 20.0) -> list[Sent]:
        """All events up to the first of a kind."""
        events = []
        while not events or events[-1].event != kind:
            sent = self.event(within_s)
            assert sent is not None, f"the stream ended before {kind}: {[one.event for one in events]}"
            events.append(sent)
        return events

    def _piece(self) -> bytes:
        """The next bytes of the body, without their framing; none at its end."""
        is_chunked = self.headers.get("transfer-encoding") == "chunked"
        while True:
            if is_chunked and b"\r\n" in self.raw:
                size, _, after = self.raw.partition(b"\r\n")
                length = int(size, 16)
                if len(after) >= length + 2:
                    self.raw = after[length + 2 :]
                    return after[:length]
            elif not is_chunked and self.raw:
                body, self.raw = self.raw, b""
                return body
            received = self.connection.recv(65536)
            if not received:
                return b""
            self.raw += received


def _parsed(block: str) -> Sent:
    fields: dict[str, str] = {}
    comment = None
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        if name == "":
            comment = value.strip()
        else:
            fields[name] = value.removeprefix(" ")
    data = json.loads(fields["data"]) if "data" in fields else fields.get("retry")
    number = int(fields["id"]) if "id" in fields else None
    return Sent(fields.get("event"), number, data, comment, time.monotonic())


@contextlib.contextmanager
def stream(port: int, path: str, *headers: str, receive_bytes: int | None = None) -> Iterator[Stream]:
    """Open a stream and read its head."""
    with socket.socket() as connection:
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", port))
        started = time.monotonic()
        connection.sendall(head("GET", path, "Accept: text/event-stream", *headers))
        received = b""
        while b"\r\n\r\n" not in received:
            piece = connection.recv(65536)
            assert piece, received
            received += piece
        top, _, rest = received.partition(b"\r\n\r\n")
        first, *lines = top.decode("latin-1").split("\r\n")
        named = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        yield Stream(connection, int(first.split()[1]), named, time.monotonic() - started, rest)
