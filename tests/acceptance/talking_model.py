"""A real HTTP endpoint that plays several conversations at once, each by the title of its product."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from examples import catalogue
from examples.stubborn_model import contrast_of
from tests.gateway.model_stub import COPY

Message = dict[str, Any]
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
REGION = [round(side, 4) for side in catalogue.HALF_LEGIBLE_REGION]


@dataclass(frozen=True)
class Raw:
    """An answer that is no completion: status, headers and the pieces of its body, sent as they stand."""

    pieces: Iterator[bytes] | Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    """Declared; None sends chunks until the pieces end."""


@dataclass
class Talk:
    """One conversation: what was asked, oldest first, and how it is answered."""

    behave: Callable[[Talk], Message | Raw]
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """Of the latest request."""
        found: list[Message] = self.requests[-1]["messages"]
        return found

    @property
    def calls_before(self) -> list[dict[str, Any]]:
        """All calls that the conversation holds."""
        return [call for message in self.messages for call in message.get("tool_calls") or ()]

    @property
    def offered(self) -> list[str]:
        """Names of the tools in the latest request."""
        return [tool["function"]["name"] for tool in self.requests[-1].get("tools") or ()]

    @property
    def last_result(self) -> str:
        """The latest tool result."""
        return str(next(message["content"] for message in reversed(self.messages) if message["role"] == "tool"))

    def was_told(self, words: str) -> bool:
        """Whether our side has said this since the first prompt."""
        return any(
            words in json.dumps(message, ensure_ascii=False) for message in self.messages if message["role"] == "user"
        )

    @property
    def pictures(self) -> int:
        """In the latest request."""
        return json.dumps(self.messages).count('"type": "image_url"')


def calls(*wanted: tuple[str, object], ids: Sequence[str | None] | None = None) -> Message:
    """A message with these calls; arguments that are text are sent as they stand."""
    made = []
    for number, (name, arguments) in enumerate(wanted):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = f"c{number}" if ids is None else ids[number]
        made.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": text}})
    return {"role": "assistant", "content": None, "tool_calls": made}


def says(text: str | None) -> Message:
    return {"role": "assistant", "content": text}


def saves(**changes: object) -> Message:
    """Hands in valid copy, with these changes."""
    return calls(("save_copy", {**COPY, **changes}))


def reads(contrast: float) -> Message:
    """Reads the small print."""
    return calls(("ocr_extract", {"file": "p1", "region": REGION, "contrast": contrast}))


def wanders(talk: Talk) -> Message:
    """Reads the small print for ever, each time with another contrast; without tools it writes copy."""
    if not talk.offered:
        return says(json.dumps(COPY))
    return reads(contrast_of(len(talk.calls_before)))


def fumbles(talk: Talk) -> Message:
    """The same loop at no cost: a region that is none, each time with another contrast; without tools it writes copy."""
    if not talk.offered:
        return says(json.dumps(COPY))
    contrast = contrast_of(len(talk.calls_before))
    return calls(("ocr_extract", {"file": "p1", "region": [0.6, 0.6, 0.2, 0.2], "contrast": contrast}))


def in_turn(*answers: Message | Raw) -> Callable[[Talk], Message | Raw]:
    """These answers, then valid copy for ever. By the number of requests, so retries count."""

    def behave(talk: Talk) -> Message | Raw:
        number = len(talk.requests) - 1
        if number < len(answers):
            return answers[number]
        return saves() if talk.offered else says(json.dumps(COPY))

    return behave


def always(answer: Message) -> Callable[[Talk], Message | Raw]:
    return lambda talk: answer


class TalkingModel:
    """The endpoint's state."""

    def __init__(self) -> None:
        self.url = ""
        self.closing = threading.Event()
        self._talks: dict[str, Talk] = {}
        self._lock = threading.Lock()

    def plays(self, title: str, behave: Callable[[Talk], Message | Raw]) -> Talk:
        """Answer whoever asks about the product of this title in this way."""
        talk = Talk(behave)
        with self._lock:
            self._talks[title] = talk
        return talk

    def answer(self, request: dict[str, Any]) -> Message | Raw:
        text = json.dumps(request["messages"], ensure_ascii=False)
        with self._lock:
            talk = next((talk for title, talk in self._talks.items() if title in text), None)
            if talk is None:
                return Raw([b'{"error": {"message": "nobody plays this"}}'], status=404, length=43)
            talk.requests.append(request)
        return talk.behave(talk)


def completion(message: Message) -> bytes:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    document = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-5-mini",
        "choices": [{"index": 0, "finish_reason": reason, "message": message}], "usage": USAGE,
    }  # fmt: skip
    return json.dumps(document).encode()


@contextlib.contextmanager
def talking_model() -> Iterator[TalkingModel]:
    """The endpoint at a free port of this machine."""
    model = TalkingModel()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = model.answer(request)
            if not isinstance(answer, Raw):
                body = completion(answer)
                answer = Raw([body], length=len(body))
            with contextlib.suppress(OSError):
                self._send(answer)

        def _send(self, answer: Raw) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.length is None:
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(answer.length))
            self.end_headers()
            sent = 0
            for piece in answer.pieces:
                if model.closing.is_set():
                    break
                self.wfile.write(piece)
                sent += len(piece)
            self.close_connection = answer.length is None or sent != answer.length

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that was killed resets its connection: nothing to say."""
            if not isinstance(sys.exception(), OSError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        model.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
