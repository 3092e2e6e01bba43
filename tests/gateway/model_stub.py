"""A real HTTP server that speaks OpenAI's chat completions, answers what a test wrote down, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COPY: dict[str, Any] = {
    "title": "A title of the model",
    "bullets": ["First point", "Second point", "Third point"],
    "description": "What the model says about the product.",
    "keywords": ["one", "two"],
    "language": "en",
    "grounded_in": [{"claim": "First point", "source": "title"}],
}
USAGE = {"prompt_tokens": 1200, "completion_tokens": 300, "total_tokens": 1500}


@dataclass(frozen=True)
class Scripted:
    """One answer. A `delay_s` is ended early when the stub closes; `cut` closes the connection in the middle of the body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: bool = False


def completion(content: str | None = None, *, usage: Mapping[str, int] | None = USAGE) -> Scripted:
    """A whole answer with this text, by default a valid piece of copy."""
    message = {"role": "assistant", "content": json.dumps(COPY) if content is None else content}
    document: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5-mini-2026-01-01",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }
    if usage is not None:
        document["usage"] = dict(usage)
    return Scripted(body=json.dumps(document).encode())


def failure(status: int, **headers: str) -> Scripted:
    """An answer of the kind that a provider gives when it cannot serve."""
    body = json.dumps({"error": {"message": "secret inside of the provider", "type": "server_error"}}).encode()
    return Scripted(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


class ModelStub:
    """The server's state: answers that wait, and requests that came."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.closing = threading.Event()
        self._answers: deque[Scripted] = deque()
        self._lock = threading.Lock()
        self.url = ""

    def script(self, *answers: Scripted) -> None:
        """Forget what was, and answer these in turn; then valid copy for ever."""
        with self._lock:
            self.requests.clear()
            self.authorizations.clear()
            self._answers = deque(answers)

    def take(self, request: dict[str, Any], authorization: str | None) -> Scripted:
        with self._lock:
            self.requests.append(request)
            self.authorizations.append(authorization)
            return self._answers.popleft() if self._answers else completion()


@contextlib.contextmanager
def model_server() -> Iterator[ModelStub]:
    """The stub at a free port of this machine."""
    stub = ModelStub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            asked = json.loads(self.rfile.read(length))
            answer = stub.take({"path": self.path, **asked}, self.headers.get("Authorization"))
            if answer.delay_s:
                stub.closing.wait(answer.delay_s)
            with contextlib.suppress(ConnectionError):
                self._send(answer)

        def _send(self, answer: Scripted) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer.body) * (2 if answer.cut else 1)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
            self.close_connection = answer.cut

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield stub
    finally:
        stub.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
