"""Spans for OpenTelemetry: one for each request, item, model request and tool call; nothing where no collector is set.

The API for spans is always there and does nothing by itself; `start` gives it the extra's SDK and an exporter. Spans carry
identifiers and codes, never contents. What a caller sends as `traceparent` becomes the parent of its request's span.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from opentelemetry import context, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import __version__

_PARENTS = TraceContextTextMapPropagator()
_PATHS = "/v1/traces"
_END_S = 2.0
"""For the last spans: a process that is told to stop has other things to do in its time."""


class TracingUnavailable(ValueError):
    """Spans were asked for and cannot be sent; the message says what is missing."""


def start(endpoint: str | None, role: str) -> Callable[[], None]:
    """Send spans of this process to an OTLP collector at `endpoint` (HTTP, without `/v1/traces`); None sends none.

    Gives what to call at the end, so that the last spans are sent; it waits for a collector that is slow or away no longer
    than `_END_S`. Raises `TracingUnavailable` without the extra `otel`.
    """
    if endpoint is None:
        return lambda: None
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter") is None:
        raise TracingUnavailable("SLUICEGATE_OTLP_URL needs the extra: pip install 'sluicegate[otel]'")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.name": "sluicegate", "service.version": __version__, "sluicegate.role": role}
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + _PATHS, timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    trace.set_tracer_provider(provider)

    def end() -> None:
        sending = threading.Thread(target=provider.shutdown, name="last-spans", daemon=True)
        sending.start()
        sending.join(_END_S)

    return end


@contextmanager
def span(name: str, **attributes: str | int | float | bool) -> Iterator[trace.Span]:
    """A span around a block; one that raises is marked as failed by the error's name alone, its words stay here."""
    shown = {f"sluicegate.{key}": value for key, value in attributes.items()}
    tracer = trace.get_tracer("sluicegate", __version__)
    with tracer.start_as_current_span(
        name, attributes=shown, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except Exception as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


class Traced:
    """An ASGI application with a span around each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tracer = trace.get_tracer("sluicegate", __version__)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parent = _PARENTS.extract({"traceparent": Headers(scope=scope).get("traceparent", "")})
        method: str = scope["method"]
        token = context.attach(parent)
        try:
            with self._tracer.start_as_current_span(method, kind=SpanKind.SERVER) as current:
                await self._app(scope, receive, _watched(send, current))
                route = getattr(scope.get("route"), "path", None)  # known once the router has looked
                if route is not None:
                    current.update_name(f"{method} {route}")
                    current.set_attribute("http.route", route)
                current.set_attribute("http.request.method", method)
                current.set_attribute("sluicegate.request_id", scope.get("state", {}).get("request_id", ""))
        finally:
            context.detach(token)


def _watched(send: Send, current: trace.Span) -> Send:
    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            status: int = message["status"]
            current.set_attribute("http.response.status_code", status)
            if status >= 500:
                current.set_status(Status(StatusCode.ERROR))
        await send(message)

    return watched
