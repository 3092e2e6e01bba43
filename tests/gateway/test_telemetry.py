"""What an operator sees of a running service: spans at a collector, log lines that belong together, no secrets in either."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.redaction import redacted
from tests.gateway.model_stub import model_server
from tests.gateway.running import command, running, settled, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    """An OTLP collector: takes spans over HTTP and keeps them."""

    def __init__(self) -> None:
        collector = self
        self.spans: list[tuple[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, request: Any) -> None:
        for resource in request.resource_spans:
            about = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(about["sluicegate.role"], one) for one in scope.spans if path == "/v1/traces"]

    def named(self, name: str) -> list[tuple[str, Any]]:
        return [(role, one) for role, one in self.spans if one.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.server.shutdown()
    started.server.server_close()


def attributes(span: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value or str(pair.value.int_value) for pair in span.attributes}


def test_request_item_and_model_request_are_spans_and_log_lines_of_theirs_carry_their_ids(
    tmp_path: Path, collector: Collector
) -> None:
    with (
        model_server() as stub,
        running(
            "up", tmp_path / "data", otlp_url=collector.url, model_url=stub.url, model_api_key="sk-kept-secret"
        ) as service,
        service.client() as client,
    ):
        answer = client.post(
            "/v1/items",
            json={"title": "Oat drink", "attributes": {"brand": "Fil"}},
            headers={"traceparent": PARENT},
        )
        item = settled(client, answer.json()["id"])
        until(lambda: collector.named("item") and collector.named("POST /v1/items"))
        log = service.log.read_text()
    assert item["status"] == "succeeded"
    (role, request), *_ = collector.named("POST /v1/items")
    assert (role, request.trace_id.hex(), request.parent_span_id.hex()) == ("api", PARENT[3:35], PARENT[36:52])
    assert attributes(request)["sluicegate.request_id"] == answer.headers["Request-Id"]
    assert attributes(request)["http.response.status_code"] == str(answer.status_code)
    role, work = collector.named("item")[-1]
    assert (role, attributes(work)["sluicegate.item_id"]) == ("worker", item["id"])
    ((_, asked),) = collector.named("model.request")
    assert (asked.trace_id, asked.parent_span_id) == (work.trace_id, work.span_id)
    shown = "".join(str(one) for _, one in collector.spans)
    assert "Oat drink" not in shown + log
    assert "kept-secret" not in shown + log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    (done,) = [line for line in lines if line["event"] == "request.done" and line["path"] == "/v1/items"]
    assert (done["request_id"], done["status"]) == (answer.headers["Request-Id"], answer.status_code)
    assert done["item_id"] == answer.json()["id"]


def test_collector_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    with running("up", tmp_path / "data", otlp_url="http://127.0.0.1:9") as service, service.client() as client:
        answer = client.post("/v1/items", json={"title": "Mug", "mode": "prepare"})
        assert settled(client, answer.json()["id"])["status"] == "ready"


_ENDS_AFTER_SPANS = """
import sys, time
from gateway import tracing

end = tracing.start(sys.argv[1], "worker")
for number in range(1500):
    with tracing.span("item", number=number):
        pass
began = time.monotonic()
end()
print(time.monotonic() - began)
"""


def test_collector_that_never_answers_holds_no_process_back_that_is_told_to_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ended = subprocess.run(
            [sys.executable, "-c", _ENDS_AFTER_SPANS, url], capture_output=True, text=True, timeout=60, check=True
        )
    assert float(ended.stdout) < 8  # each of several batches would take five seconds to be given up


def test_log_level_that_is_none_ends_the_start_with_a_line(tmp_path: Path) -> None:
    ended = command("serve", data_dir=tmp_path, log_level="LOUD")
    assert (ended.returncode, "SLUICEGATE_LOG_LEVEL" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("authorization", "Bearer sgk_abc", "[removed]"),
        ("set-cookie", "a=b", "[removed]"),
        ("model_api_key", "x", "[removed]"),
        ("password", None, None),
        ("error", "401 for Bearer abcdefghijkl, sorry", "401 for Bearer [removed], sorry"),
        ("error", "key sk-proj-0123456789abcdef is wrong", "key sk-[removed] is wrong"),
        ("url", "postgresql://gate:pass word@db/x", "postgresql://gate:pass word@db/x"),
        ("url", "postgresql://gate:hunter2@db/x", "postgresql://gate:[removed]@db/x"),
        (
            "request",
            {"headers": {"Authorization": "Basic eA=="}, "n": 3},
            {"headers": {"Authorization": "[removed]"}, "n": 3},
        ),
        ("seen", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], ["whsec_[removed]"]),
        ("input_tokens", 17, 17),
        ("token_budget", 5, 5),
    ],
)
def test_secrets_are_taken_out_of_log_lines_and_the_rest_is_left(name: str, value: Any, shown: Any) -> None:
    assert redacted(name, value) == shown


def test_endless_text_is_cut_and_endless_nesting_ends() -> None:
    nested: dict[str, Any] = {}
    nested["again"] = nested
    assert len(redacted("error", "x" * 100_000)) < 5_000
    assert "…" in json.dumps(redacted("event", nested), ensure_ascii=False)
