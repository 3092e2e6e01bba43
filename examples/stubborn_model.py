"""A model that never gives up: an OpenAI-compatible endpoint that reads the same smeared print again, and again, and again.

    python examples/stubborn_model.py [--port 8090]
    SLUICEGATE_MODEL_URL=http://127.0.0.1:8090/v1 ./dev serve

Offered tools, it calls `ocr_extract` on the small print of the soap label with ever another contrast, whatever it is told.
Asked without tools, it writes product copy from the text that it was given, and from nothing else. It costs nothing; the
tokens that it reports are reckoned at four characters each.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

NAME = "stubborn-1"
TOOL = "ocr_extract"
FILE = "p1"
CONTRASTS = (1.0, 1.5)
"""Between these the contrast wanders, and never comes to the same place twice."""
TOKENS_OF_A_PICTURE = 765
"""What a picture of about 1,000 pixels costs with models that look at tiles of 512."""
_GOLDEN = 0.6180339887
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Counters:
    """What the endpoint was asked, and what it answered with."""

    requests: int = 0
    """Completions asked for."""
    calls: int = 0
    """Tool calls that it answered with."""
    contrasts: list[float] = field(default_factory=list)
    """Of those calls, in order."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class StubbornModel:
    """What the endpoint says. Every answer follows from the request alone, so a repeated request gets the same one."""

    def __init__(self, region: Sequence[float]) -> None:
        self.region = [round(side, 4) for side in region]
        self.counters = Counters()
        self._lock = threading.Lock()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The chat completion for a request's JSON."""
        messages = request.get("messages") or []
        with self._lock:
            self.counters.requests += 1
            number = self.counters.requests
            if request.get("tools"):
                message = self._call(messages)
            else:
                message = {"role": "assistant", "content": json.dumps(copy_from(_texts(messages)), ensure_ascii=False)}
            usage = _usage(messages, message)
            self.counters.prompt_tokens += usage["prompt_tokens"]
            self.counters.completion_tokens += usage["completion_tokens"]
        reason = "tool_calls" if "tool_calls" in message else "stop"
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": NAME,
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": usage,
        }

    def _call(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        asked_before = sum(len(message.get("tool_calls") or ()) for message in messages)
        contrast = contrast_of(asked_before)
        self.counters.calls += 1
        self.counters.contrasts.append(contrast)
        arguments = json.dumps({"file": FILE, "region": self.region, "contrast": contrast})
        function = {"name": TOOL, "arguments": arguments}
        call = {"id": f"call_{asked_before + 1}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


def contrast_of(number: int) -> float:
    """The contrast of the call after `number` others: it wanders, without ever coming back."""
    least, most = CONTRASTS
    return round(least + (most - least) * (number * _GOLDEN % 1), 4)


# --- copy from what was said -----------------------------------------------------------------------------------------

_FENCED = re.compile(r"<(data-[0-9a-f]+) source=\"([^\"]*)\"[^>]*>\n(.*?)\n</\1>", re.DOTALL)
_LANGUAGE = re.compile(r"Language of the copy: ([\w-]{2,20})")


def copy_from(text: str) -> dict[str, Any]:
    """Product copy that says what the fenced parts of a request say, each claim with its source."""
    language = _LANGUAGE.search(text)
    told = [(source, " ".join(said.split())) for _, source, said in _FENCED.findall(text) if said.strip()]
    title = next((said for source, said in told if source == "title"), "Product without a title")[:120]
    claims = [(_claim(source, said), source) for source, said in told if source != "title"]
    while len(claims) < 3:
        claims.append((title, "title"))
    bullets = claims[:5]
    words = dict.fromkeys(re.findall(r"[^\W\d_][\w-]{2,}", " ".join([title, *(said for _, said in told)]).lower()))
    return {
        "title": title,
        "bullets": [claim for claim, _ in bullets],
        "description": (title + ". " + " ".join(f"{claim}." for claim, _ in dict.fromkeys(claims)))[:4000],
        "keywords": list(words)[:10],
        "language": language[1] if language else "en",
        "grounded_in": [{"claim": claim, "source": source} for claim, source in dict.fromkeys(bullets)],
    }


def _claim(source: str, said: str) -> str:
    name = source.removeprefix("attribute:").replace("_", " ")
    return f"{name[:1].upper()}{name[1:]}: {said}"[:300] if source.startswith("attribute:") else said[:300]


def _texts(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(part["text"] for part in _parts(messages) if isinstance(part.get("text"), str))


def _parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield {"type": "text", "text": content}
        elif isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))


def _usage(messages: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> dict[str, int]:
    pictures = sum(part.get("type") == "image_url" for part in _parts(messages))
    calls = sum(len(json.dumps(message.get("tool_calls") or "")) for message in messages)
    asked = (len(_texts(messages)) + calls) // 4 + pictures * TOKENS_OF_A_PICTURE
    answered = max(len(json.dumps(answer)) // 4, 1)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


# --- the endpoint ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running endpoint."""

    url: str
    """What `SLUICEGATE_MODEL_URL` takes."""
    model: StubbornModel

    @property
    def counters(self) -> Counters:
        """What it was asked so far."""
        return self.model.counters


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away; whatever else is wrong is still told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(model: StubbornModel, *, port: int = 0) -> Iterator[Endpoint]:
    """The model at 127.0.0.1 until the context is left; port 0 takes a free one."""
    server = _Server(("127.0.0.1", port), _handler(model))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{server.server_address[1]}/v1", model)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(model: StubbornModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = {"object": "list", "data": [{"id": NAME, "object": "model", "owned_by": "examples"}]}
            self._send(200 if self.path.rstrip("/") == "/v1/models" else 404, known)

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > _MOST_BYTES:
                self.close_connection = True
                self._send(411, _error("Send a body with its length."))
                return
            body = self.rfile.read(int(length))
            if self.path.rstrip("/") != "/v1/chat/completions":
                self._send(404, _error(f"There is only /v1/chat/completions here, not {self.path}."))
                return
            try:
                request = json.loads(body)
                answer = model.answer(request)
            except (ValueError, AttributeError, TypeError, KeyError):
                self._send(400, _error("The body is no chat completion request."))
                return
            self._send(200, answer)

        def _send(self, status: int, document: Mapping[str, Any]) -> None:
            raw = json.dumps(document).encode()
            with suppress(ConnectionError):  # whoever asked is gone
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: what there is to say is counted."""

    return Handler


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


def main() -> int:
    """The command line: serve until Ctrl-C or SIGTERM."""
    from examples import catalogue

    parser = argparse.ArgumentParser(description="An OpenAI-compatible model that never gives up.")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _as_interrupt)
    with serving(StubbornModel(catalogue.HALF_LEGIBLE_REGION), port=options.port) as endpoint:
        print(f"{NAME} answers at {endpoint.url}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    counted = endpoint.counters
    print(f"asked {counted.requests} times, answered with {counted.calls} calls")
    return 0


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
