"""HTTP by hand: bytes over a socket, for what no client library would send."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RawAnswer:
    """One answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def head(method: str, path: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    """A request's first line and headers."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def read_answer(connection: socket.socket) -> RawAnswer:
    """The next answer on a connection, by its declared length or chunks."""
    with connection.makefile("rb") as stream:
        first = stream.readline()
        if not first:
            raise ConnectionError("closed without an answer")
        status = int(first.split()[1])
        headers: dict[str, str] = {}
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if status == 100:
            return RawAnswer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(stream.readline(), 16):
                body += stream.read(size)
                stream.readline()
            return RawAnswer(status, headers, body)
        return RawAnswer(status, headers, stream.read(int(headers.get("content-length", "0"))))


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def multipart(*parts: tuple[str, bytes], boundary: str = "b0undary", end: bool = True) -> bytes:
    """A multipart body from (part headers after `form-data; `, content)."""
    made = b"".join(
        b"--%s\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (boundary.encode(), disposition.encode(), content)
        for disposition, content in parts
    )
    return made + (b"--%s--\r\n" % boundary.encode() if end else b"")
