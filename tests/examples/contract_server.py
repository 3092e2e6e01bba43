"""A small real HTTP server that speaks the part of the contract which the pipeline needs, and misbehaves on request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Files = Mapping[str, tuple[str, bytes]]
"""Part name to (file name, content)."""


@dataclass(frozen=True)
class Misbehaviour:
    """What happens to one request instead of an answer; status 0 cuts the connection."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Service:
    """The server's memory. `judge` makes the finished part of an item out of a submission."""

    judge: Callable[[Mapping[str, Any], Files], Mapping[str, Any]]
    polls_until_done: int = 0
    misbehaviours: list[Misbehaviour] = field(default_factory=list)
    required_key: str | None = None
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_key: dict[str, str] = field(default_factory=dict)
    polls_left: dict[str, int] = field(default_factory=dict)
    posts: list[tuple[Mapping[str, str], list[str], Mapping[str, Any], Files]] = field(default_factory=list)
    gets: list[Mapping[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, key: str, item_part: Mapping[str, Any], files: Files) -> tuple[int, dict[str, Any], bool]:
        with self.lock:
            if key in self.by_key:
                return 201, self.items[self.by_key[key]], True
            item_id = f"itm_{len(self.items) + 1}"
            self.by_key[key] = item_id
            item = {"id": item_id, "status": "queued", "version": 1, "route": None,
                    "external_id": item_part.get("external_id"), "decision": None, "escalation": None,
                    "links": {"self": f"/v1/items/{item_id}"}}  # fmt: skip
            self.items[item_id] = item
            self.polls_left[item_id] = self.polls_until_done
            finished = dict(self.judge(item_part, files))
            if self.polls_until_done == 0:
                item.update(finished, version=2)
                return 201, item, False
            item["_finished"] = finished
            return 202, item, False

    def poll(self, item_id: str) -> dict[str, Any]:
        with self.lock:
            item = self.items[item_id]
            self.polls_left[item_id] -= 1
            if self.polls_left[item_id] <= 0 and "_finished" in item:
                item.update(item.pop("_finished"), version=2)
            return item


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """The base URL of the service while the context lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(service))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self._misbehaves() or self._is_locked_out():
                return
            order, item_part, files = _parts(self.headers["Content-Type"], body)
            service.posts.append((dict(self.headers), order, item_part, files))
            if order[:1] != ["item"]:
                self._answer(400, {"code": "malformed_multipart", "detail": "The part `item` comes first."})
                return
            status, item, replayed = service.submit(self.headers["Idempotency-Key"], item_part, files)
            headers = {"Location": f"/v1/items/{item['id']}"} | ({"Idempotent-Replayed": "true"} if replayed else {})
            self._answer(status, item, headers)

        def do_GET(self) -> None:
            if self._misbehaves():
                return
            service.gets.append(dict(self.headers))
            self._answer(200, service.poll(self.path.rpartition("/")[2]))

        def _is_locked_out(self) -> bool:
            if service.required_key in (None, self.headers.get("Authorization")):
                return False
            self._answer(401, {"code": "unauthenticated", "detail": "A valid API key is needed."})
            return True

        def _misbehaves(self) -> bool:
            with service.lock:
                what = service.misbehaviours.pop(0) if service.misbehaviours else None
            if what is None:
                return False
            if what.status:
                self._answer(what.status, what.body, what.headers)
            else:
                self.close_connection = True
            return True

        def _answer(self, status: int, document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
            body = json.dumps({name: value for name, value in document.items() if name != "_finished"}).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    return Handler


def _parts(content_type: str, body: bytes) -> tuple[list[str], Mapping[str, Any], Files]:
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    order: list[str] = []
    item_part: dict[str, Any] = {}
    files: dict[str, tuple[str, bytes]] = {}
    for part in message.iter_parts():
        name = str(part.get_param("name", header="Content-Disposition"))
        order.append(name)
        content = part.get_payload(decode=True) or b""
        if name == "item":
            assert part.get_content_type() == "application/json"
            item_part = json.loads(content)
        else:
            files[name] = (str(part.get_filename()), content)
    for entry in item_part.get("files", ()):
        assert hashlib.sha256(files[entry["part"]][1]).hexdigest() == entry["sha256"]
    return order, item_part, files


def copy_for(item_part: Mapping[str, Any]) -> dict[str, Any]:
    """What an item looks like once its copy is written."""
    return {
        "status": "succeeded",
        "route": "agent",
        "decision": {"verdict": "accept", "stage": "text", "problem": None, "reason": None, "saved": None},
        "result": {"title": f"Copy for {item_part.get('title')}", "bullets": ["a", "b", "c"]},
        "usage": {"steps": 1, "cost": "0.0021"},
    }


def refusal() -> dict[str, Any]:
    """A thumbnail, refused."""
    return {
        "status": "rejected",
        "decision": {
            "verdict": "reject", "stage": "edge", "reason": None, "saved": {"tokens": 3400, "cost": "0.0031"},
            "problem": {
                "code": "low_resolution", "measured": {"image.short_side": 48}, "limit": {"image.short_side": 64},
                "user_message": {"en": "The picture is too small.", "zh": "图片太小。"}, "next": "fix_input",
                "fix": {"en": "Upload the original photo.", "zh": "请上传原图。"},
            },
        },
    }  # fmt: skip
