"""The two processes of the service: API and worker."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Protocol, assert_never

import structlog
import uvicorn
from prometheus_client import start_http_server

from gateway import metrics, tracing
from gateway.api.connection import bounded_connection
from gateway.api.gate import Gate
from gateway.app import create_app
from gateway.cli.supervisor import SUPERVISOR_VARIABLE, ready_line
from gateway.retention import CopiesThread
from gateway.settings import DispatchMode, Settings
from gateway.telemetry import configure_logging
from gateway.webhooks.parts import open_delivery, open_relay
from gateway.wiring import Services, open_services
from gateway.work.dispatch import Bulkhead

if TYPE_CHECKING:
    from gateway.webhooks.runner import DeliveryThread

log = structlog.get_logger()

_PR_SET_PDEATHSIG = 1
_SWITCH_S = 0.001
"""How long one thread of the API may keep the interpreter while others ask for it: by default 5 ms, several times what an
answer takes, and an answer goes through several threads."""

_BEHIND_THE_API = 10
"""Niceness of the decoders of a worker beside the API of the same supervisor: requests are answered first, work takes what
is left. Not of the worker itself: whoever waits for the processor while it holds the database's lock keeps all others waiting."""


def end_with_supervisor() -> bool:
    """End this process when its supervisor dies in whatever way; False where there is none."""
    pid = os.environ.get(SUPERVISOR_VARIABLE)
    if pid is None:
        return False
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(pid):
        sys.exit("sluicegate: the supervisor is gone")
    return True


class _Server(uvicorn.Server):
    """Ends without keeping those who wait for an item until their time is up."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT."""
        self._gate.begin_shutdown()
        super().handle_exit(sig, frame)


class _AnnouncingServer(_Server):
    """Prints where it can be reached, once it can be."""

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        for server in self.servers:
            for bound in server.sockets:
                host, port = bound.getsockname()[:2]
                print(ready_line(host, port), flush=True)
                return


def run_api(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    configure_logging(settings.log_level)
    sys.setswitchinterval(_SWITCH_S)
    is_supervised = end_with_supervisor()
    end_tracing = tracing.start(settings.otlp_url, "api")
    services = open_services(settings)
    services.blobs.remove_leftovers()
    copies = CopiesThread(services)
    gate = create_app(services)
    config = uvicorn.Config(
        gate if settings.otlp_url is None else tracing.Traced(gate),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        http=bounded_connection(settings.body_idle_s),
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,
        server_header=False,
    )
    server = _Server(config, gate) if is_supervised else _AnnouncingServer(config, gate)
    for number in (signal.SIGTERM, signal.SIGINT):  # the server raises them again once it has ended in good order
        signal.signal(number, lambda *_: None)
    try:
        server.run()
    finally:
        copies.end()
        services.close()
        end_tracing()


class _Worker(Protocol):
    def run(self) -> None: ...

    def stop(self) -> None: ...


def _worker(services: Services, bulkheads: Sequence[Bulkhead]) -> _Worker:
    match services.settings.dispatch:
        case DispatchMode.EMBEDDED:
            from gateway.work.worker import Worker

            return Worker(services)
        case DispatchMode.CELERY:
            from gateway.work.celery_worker import CeleryWorker

            return CeleryWorker(services, bulkheads)
        case _:
            assert_never(services.settings.dispatch)


def _delivery(services: Services, bulkheads: Sequence[Bulkhead]) -> DeliveryThread | None:
    """What a worker does for webhooks beside its work: deliver them, or with a broker tell those who do."""
    is_wanted = services.settings.webhook_delivery
    if services.settings.dispatch is DispatchMode.CELERY:
        return open_relay(services) if is_wanted or Bulkhead.DELIVER in bulkheads else None
    return open_delivery(services) if is_wanted else None


def run_worker(settings: Settings, chosen: Sequence[Bulkhead] | None) -> None:
    """Work until SIGTERM or SIGINT; a worker that ended without being told to leaves the exit status 1.

    With `chosen` queues it takes work of these kinds only, else of all; webhooks are left out where `webhook_delivery` is off.
    """
    bulkheads = chosen or [each for each in Bulkhead if each is not Bulkhead.DELIVER or settings.webhook_delivery]
    configure_logging(settings.log_level)
    niceness = _BEHIND_THE_API if end_with_supervisor() else 0
    end_tracing = tracing.start(settings.otlp_url, "worker")
    services = open_services(settings, decoder_niceness=niceness)
    worker = _worker(services, bulkheads)
    delivery = _delivery(services, bulkheads)
    is_told = threading.Event()
    _on_stop(is_told.set, worker.stop, *([] if delivery is None else [delivery.stop]))
    if settings.metrics_port:
        start_http_server(settings.metrics_port, addr=settings.metrics_host, registry=metrics.registry)
    if delivery is not None:
        delivery.start()
    thread = threading.Thread(target=worker.run, name="worker")
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if delivery is not None:
        delivery.stop()
        delivery.join()
    services.close()
    end_tracing()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by returning: an item that did not end in time must not hold the process back; its lease was handed back.
    os._exit(0 if is_told.is_set() else 1)


def run_delivery(settings: Settings) -> None:
    """Deliver webhooks, and nothing else, until SIGTERM or SIGINT."""
    configure_logging(settings.log_level)
    end_with_supervisor()
    services = open_services(settings)
    delivery = open_delivery(services)
    _on_stop(delivery.stop)
    if settings.metrics_port:
        start_http_server(settings.metrics_port, addr=settings.metrics_host, registry=metrics.registry)
    delivery.start()
    while delivery.is_alive:
        time.sleep(0.2)
    services.close()


def _on_stop(*stops: Callable[[], None]) -> None:
    """Call all of these at SIGTERM or SIGINT."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in stops:
            each()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
