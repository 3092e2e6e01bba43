"""The book that is kept outside of the service: what was sent, what was answered, and every request to the model.

Run as a process of its own it is the model: an OpenAI-compatible endpoint at a free port, which writes down each request
before it answers. Its answers follow from the request alone, so what an item costs without kills is known beforehand.

    python -m tests.chaos.ledger FOLDER        prints its address
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.acceptance.talking_model import Message, calls, completion, saves, says
from tests.chaos.plan import Kind
from tests.gateway.model_stub import COPY

MARKER = re.compile(r"c\d+x\d{5}[a-z]")
REQUESTS_WITHOUT_KILLS = {Kind.TITLE: 1, Kind.DOCUMENT: 2, Kind.PHOTO: 2, Kind.REFUSED: 0, Kind.STUBBORN: 4}
_LEAST_S, _SPAN_S = 0.05, 0.4
"""How long an answer takes: long enough to be hit by kills."""


class Book:
    """A file of lines that only grows; a line is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **entry: object) -> None:
        line = json.dumps({"at": round(time.time(), 3), **entry}) + "\n"
        os.write(self._file, line.encode())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self.path.open("r", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def model_book(folder: Path) -> Book:
    """Requests to the model, by marker."""
    return Book(folder / "model.jsonl")


def requests_by_marker(folder: Path) -> Counter[str]:
    """How often the model was asked about each product."""
    return Counter(entry["marker"] for entry in model_book(folder))


def answer_to(request: dict[str, Any]) -> Message:
    """What the model says, by the product's kind and what the conversation holds already."""
    kind = Kind(marker_in(request)[-1])
    if not request.get("tools"):
        return says(json.dumps(COPY))
    is_first = not any(message["role"] == "assistant" for message in request["messages"])
    if kind is Kind.STUBBORN:
        return calls(("read_pdf", {"file": "p9"}))
    if is_first and kind is Kind.DOCUMENT:
        return calls(("read_pdf", {"file": "p1"}))
    if is_first and kind is Kind.PHOTO:
        return calls(("ocr_extract", {"file": "p1"}))
    return saves()


def marker_in(request: dict[str, Any]) -> str:
    """The one product that a request is about."""
    found = set(MARKER.findall(json.dumps(request["messages"])))
    assert len(found) == 1, found
    return found.pop()


def serve(folder: Path) -> None:
    """Answer until SIGTERM."""
    book = model_book(folder)

    class Model(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            marker = marker_in(request)
            book.write(marker=marker, messages=len(request["messages"]))
            time.sleep(_LEAST_S + _SPAN_S * (zlib.crc32(marker.encode()) % 100) / 100)
            body = completion(answer_to(request))
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # whoever asked was killed

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that was killed resets its connection: nothing to say."""
            if not isinstance(sys.exception(), OSError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Model)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
