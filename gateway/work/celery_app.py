"""Celery as the carrier of ids: its settings, and the sending side.

Celery's own promises are not relied on (it loses a killed worker's message, or gives a healthy worker's to a second one,
each under some broker and timing): it shortens the wait, and the item's row decides what is done.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time

import structlog
from celery import Celery
from kombu import Queue

from gateway.settings import Settings
from gateway.work.dispatch import Bulkhead

log = structlog.get_logger()

VISIBILITY_S = 2 * 3600
"""After this Redis gives a message to another worker even if the first one still works on it, so it is longer than any item
may take. It need not be short for recovery: hints for lapsed leases are sent anew."""
_RESTORE_S = 2
_SOCKET_S = 5.0
_MOST_UNSENT = 10_000
MOST_QUEUED = 50_000
"""Messages in one queue past which no more are sent: where nobody takes them, telling again would fill the broker's memory."""
_LOOK_S = 5.0
"""Between two looks at how long a queue is."""
_CLOSE_S = 2.0


def celery_app(settings: Settings) -> Celery:
    """An application with our settings and no tasks yet; connects when it is used."""
    assert settings.broker_url is not None
    app = Celery("sluicegate", broker=settings.broker_url.get_secret_value(), set_as_current=False)
    redis_only = {
        "visibility_timeout": VISIBILITY_S,
        "unacked_restore_interval": _RESTORE_S,
        "unacked_restore_throttle": 1,
        "socket_timeout": _SOCKET_S,
        "socket_connect_timeout": _SOCKET_S,
        "socket_keepalive": True,
    }
    app.conf.update(
        task_queues=[Queue(bulkhead.value, durable=True) for bulkhead in Bulkhead],
        task_default_queue=Bulkhead.EDGE.value,
        task_create_missing_queues=False,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_timeout=_SOCKET_S,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=redis_only if settings.is_redis_broker else {},
        enable_utc=True,
    )
    return app


def task_name(bulkhead: Bulkhead) -> str:
    """What messages of a queue ask for."""
    return f"sluicegate.{bulkhead.value}"


class CeleryDispatch:
    """Hints by a broker, sent by a thread of their own: a broker that is slow or gone delays no request."""

    must_repeat = True

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._unsent: queue.Queue[tuple[str, Bulkhead] | None] = queue.Queue(_MOST_UNSENT)
        self._is_closed = threading.Event()
        self._is_long: dict[Bulkhead, bool] = {}
        self._looked_at: dict[Bulkhead, float] = {}
        self._sender = threading.Thread(target=self._send_all, name="hints", daemon=True)
        self._sender.start()

    def wake(self, item_id: str, bulkhead: Bulkhead = Bulkhead.EDGE) -> None:
        """Send an id to the queue; with too many unsent it is dropped, and a sweeper will send another."""
        with contextlib.suppress(queue.Full):
            self._unsent.put_nowait((item_id, bulkhead))

    def close(self) -> None:
        """Send what is left, for two seconds at most."""
        with contextlib.suppress(queue.Full):
            self._unsent.put_nowait(None)
        self._sender.join(_CLOSE_S)
        self._is_closed.set()
        self._app.close()

    def _send_all(self) -> None:
        while (hint := self._unsent.get()) is not None and not self._is_closed.is_set():
            item_id, bulkhead = hint
            try:
                if self._is_too_long(bulkhead):
                    continue
                self._app.send_task(task_name(bulkhead), args=[item_id], queue=bulkhead.value)
            except Exception as error:  # noqa: BLE001 - each broker library raises its own, and a lost hint is no harm
                if not self._is_closed.is_set():
                    log.warning("dispatch.hint_lost", hint=item_id, queue=bulkhead.value, error=type(error).__name__)

    def _is_too_long(self, bulkhead: Bulkhead) -> bool:
        now = time.monotonic()
        if now - self._looked_at.get(bulkhead, float("-inf")) >= _LOOK_S:
            self._looked_at[bulkhead] = now
            was_long = self._is_long.get(bulkhead, False)
            self._is_long[bulkhead] = is_long = self._length(bulkhead) >= MOST_QUEUED
            if is_long and not was_long:
                log.warning("dispatch.queue_too_long", queue=bulkhead.value, most=MOST_QUEUED)
        return self._is_long.get(bulkhead, False)

    def _length(self, bulkhead: Bulkhead) -> int:
        """How many messages are in a queue; 0 where it is not there yet."""
        with self._app.connection_for_write() as connection:
            connection.connect()
            try:
                return int(connection.channel().queue_declare(bulkhead.value, passive=True).message_count)
            except connection.channel_errors:
                return 0
