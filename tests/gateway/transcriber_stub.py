"""A real HTTP server that speaks OpenAI's `/audio/transcriptions`, answers what a test wrote down, and keeps what it got."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SPOKEN = "This is a linen bath towel, stone washed, seventy by one hundred and forty centimetres."


@dataclass(frozen=True)
class Heard:
    """One request."""

    path: str
    authorization: str | None
    fields: dict[str, str]
    file_name: str | None
    sound: bytes


class TranscriberStub:
    """Answers that wait, and requests that came. Without an answer of a test's own it heard `SPOKEN`."""

    def __init__(self) -> None:
        self.requests: list[Heard] = []
        self.answers: deque[tuple[int, bytes]] = deque()
        self.url = ""

    def script(self, *answers: tuple[int, bytes]) -> None:
        self.requests.clear()
        self.answers = deque(answers)


def said(text: str) -> tuple[int, bytes]:
    return 200, json.dumps({"text": text}).encode()


@contextlib.contextmanager
def transcriber_server() -> Iterator[TranscriberStub]:
    """The stub at a free port of this machine."""
    stub = TranscriberStub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            parts = {part.get_param("name", header="content-disposition"): part for part in _parts(head + body)}
            sound = parts["file"]
            fields = {name: part.get_content().strip() for name, part in parts.items() if name != "file"}
            heard = Heard(
                self.path,
                self.headers.get("Authorization"),
                fields,
                sound.get_filename(),
                sound.get_payload(decode=True),
            )
            stub.requests.append(heard)
            status, answer = stub.answers.popleft() if stub.answers else said(SPOKEN)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

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
        server.shutdown()
        thread.join()
        server.server_close()


def _parts(message: bytes):  # type: ignore[no-untyped-def]
    return BytesParser(policy=HTTP).parsebytes(message).iter_parts()
