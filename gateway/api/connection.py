"""One HTTP connection, held only as long as its client does its part: heads come whole, in time and within a size.

The server itself waits for a request's head for ever and keeps whatever has come of it; bodies are bounded by `IncomingBody`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway import __version__
from gateway.api.problems import KINDS, MEDIA_TYPE, problem_body
from gateway.ids import new_id

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's first line and headers, give or take one piece as it comes from the network."""
_TICKS = 4
"""A deadline is counted in so many pieces: when the process itself stood still, that costs the client one of them."""


class BoundedConnection(HttpToolsProtocol):
    """Closes connections whose client takes too long over a request's head, or over a body that nobody waits for any more."""

    head_s: ClassVar[float] = 15.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._awaits_head = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the parent
        """A client is there."""
        super().connection_made(transport)
        self._start()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self._stop()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """The next piece of a request."""
        if self._awaits_head:
            self._head_bytes += len(data)
            if self._timer is None:
                self._start()
        super().data_received(data)
        if self._awaits_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse("head_too_large", f"The request's head has more than {MAX_HEAD_BYTES:,} bytes.")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._timer is None:
            self._start()

    def on_headers_complete(self) -> None:
        """The head is there; how its body comes is not decided here."""
        self._awaits_head = False
        self._head_bytes = 0
        self._stop()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The whole request is there."""
        self._awaits_head = True
        self._stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is sent. What its request still brings is read by nobody, so it must not go on for ever."""
        super().on_response_complete()
        if not self._awaits_head and self._timer is None and not self.transport.is_closing():
            self._start()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP."""
        self._refuse("invalid_request", "The request is not valid HTTP, so it was not read.")

    def _start(self) -> None:
        self._ticks = _TICKS
        self._timer = self.loop.call_later(self.head_s / _TICKS, self._tick)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        if not self._is_answering:  # else the client has an answer to read first
            self._ticks -= 1
        if self._ticks:
            self._timer = self.loop.call_later(self.head_s / _TICKS, self._tick)
            return
        self._timer = None
        if self._awaits_head and self._head_bytes:
            self._refuse("request_timeout", "The request's head came too slowly, so it was not waited for any longer.")
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, code: str, detail: str) -> None:
        """Answer without the application, which has no request yet, and close."""
        self._stop()
        if self.transport.is_closing():
            return
        if not self._is_answering and (
            self._awaits_head or self._is_unanswered
        ):  # else it would end up in another answer
            self.transport.write(_answer(code, detail, self.server_state.default_headers))
        self.transport.close()

    @property
    def _is_answering(self) -> bool:
        """Whether an earlier request still waits for its answer, or for the rest of it."""
        return self._awaits_head and self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_unanswered(self) -> bool:
        """Whether the request whose body comes just now has had nothing of its answer."""
        return self.cycle is not None and not self.cycle.response_started


def bounded_connection(head_s: float) -> type[BoundedConnection]:
    """Connections whose heads have so many seconds."""
    return type("BoundedConnection", (BoundedConnection,), {"head_s": head_s})


def _answer(code: str, detail: str, defaults: Sequence[tuple[bytes, bytes]]) -> bytes:
    request_id = new_id("req")
    body = json.dumps(problem_body(code, detail, request_id=request_id)).encode()
    headers = [
        *defaults,
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"request-id", request_id.encode()),
        (b"sluicegate-version", __version__.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"connection", b"close"),
    ]
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return STATUS_LINE[KINDS[code].status] + lines + b"\r\n" + body
