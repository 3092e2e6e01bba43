"""A webhook receiver for tests: a real HTTP server that answers by a script and remembers what came."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gateway.strict_json import loads


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def event(self) -> dict[str, Any]:
        value = loads(self.body)
        assert isinstance(value, dict)
        return value


@dataclass(frozen=True)
class Answer:
    """What the receiver says."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    after_s: float = 0.0


class Receiver:
    """Answers with what `answer` gives for a request."""

    def __init__(self, answer: Callable[[Received], Answer]) -> None:
        self.answer = answer
        self.received: list[Received] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.take(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/hook"

    def of_type(self, kind: str) -> list[Received]:
        return [each for each in list(self.received) if each.event["type"] == kind]

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length") or 0)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        body = handler.rfile.read(length)
        if len(body) < length:
            return  # its sender was killed in the middle of it
        request = Received(handler.path, headers, body, time.time())
        with self._lock:
            self.received.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = self.answer(request)
            time.sleep(answer.after_s)
            with contextlib.suppress(OSError):
                handler.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(answer.body)
        finally:
            with self._lock:
                self._at_once -= 1

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def always(status: int = 204, **more: Any) -> Callable[[Received], Answer]:
    """The same answer to everything."""
    return lambda request: Answer(status, **more)


def one_by_one(*answers: Answer) -> Callable[[Received], Answer]:
    """These answers in order, the last one for ever."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


@contextlib.contextmanager
def receiving(answer: Callable[[Received], Answer] | None = None) -> Iterator[Receiver]:
    receiver = Receiver(answer or always())
    try:
        yield receiver
    finally:
        receiver.close()
