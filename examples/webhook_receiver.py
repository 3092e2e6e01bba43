"""A receiver of webhooks: verifies, drops what it has seen or what is stale, answers at once. Python's standard library only.

    SLUICEGATE_WEBHOOK_SECRET=whsec_… python examples/webhook_receiver.py 9000

`verify` can be copied into any service. It wants the raw bytes of the body, before any framework has read them as JSON.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOLERANCE_S = 300


class NotVerified(Exception):
    """Not from the service, or not from just now. The message says which."""


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> dict[str, Any]:
    """The event in `body`, only if it was signed with `secret` (`whsec_…`) within five minutes of now."""
    given = {name.lower(): value for name, value in headers.items()}
    message_id, sent_at, signatures = (given.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not (message_id and signatures and sent_at.isascii() and sent_at.isdigit()):
        raise NotVerified("webhook-id, webhook-timestamp or webhook-signature is missing")
    age_s = (time.time() if now is None else now) - int(sent_at)
    if age_s > TOLERANCE_S:
        raise NotVerified(f"sent {age_s:.0f} s ago: a replay, or this clock is fast")
    if age_s < -TOLERANCE_S:
        raise NotVerified(f"sent {-age_s:.0f} s in the future: this clock is slow")
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{message_id}.{sent_at}.".encode() + body, hashlib.sha256)
    expected = b"v1," + base64.b64encode(digest)
    if not any(hmac.compare_digest(expected, one.encode()) for one in signatures.split()):
        raise NotVerified("no signature fits: another secret, or the body was changed on its way")
    event = json.loads(body)
    assert isinstance(event, dict)
    return event


class Inbox:
    """What was told so far. Keep it in a database: a process forgets."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._versions: dict[str, tuple[int, int]] = {}

    def is_news(self, event: Mapping[str, Any]) -> bool:
        """False for an event that came before (delivery is at least once) or is older than what is known of its resource."""
        place = (event["resource_version"], event["seq"])
        if event["id"] in self._ids or place <= self._versions.get(event["resource"], (0, 0)):
            return False
        self._ids.add(event["id"])
        self._versions[event["resource"]] = place
        return True


def serve(secret: str, port: int) -> ThreadingHTTPServer:
    """A server on loopback that prints each event once."""
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            try:
                event = verify(secret, dict(self.headers.items()), body)
            except NotVerified as error:
                print(f"refused: {error}", flush=True)
                self.send_error(400, "not verified")
                return
            # Store the event here, answer, and do the work afterwards: an answer has to come within 15 seconds.
            if inbox.is_news(event):
                print(f"{event['seq']} {event['type']} {event['resource']} v{event['resource_version']}", flush=True)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Events are printed, requests are not."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Receive until Ctrl-C."""
    server = serve(os.environ["SLUICEGATE_WEBHOOK_SECRET"], int(sys.argv[1]) if len(sys.argv) > 1 else 9000)
    print(f"listening at http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
