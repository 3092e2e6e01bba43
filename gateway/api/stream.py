"""Server-sent events: one reader of the log for all streams of this process, and the streams themselves.

A stream first reads by itself what happened up to now, then is handed what the one reader finds. Whoever is too slow to take
it is let go, and goes on later from the last number that came through.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import metrics
from gateway.api.auth import Authenticator
from gateway.api.changes import Changes
from gateway.api.problems import ApiProblem
from gateway.api.render import event_json
from gateway.item import TERMINAL, Status
from gateway.store import events
from gateway.store.engine import Database

log = structlog.get_logger()

MEDIA_TYPE = "text/event-stream"
RETRY_MS = 3000
_RECHECK_S = 0.25
"""How often the log is looked at while a stream is open, in case a signal was lost or came from another machine."""
_COALESCE_S = 0.02
_RIGHTS_S = 4.0
"""How often it is asked whether the callers' keys and sessions still hold."""
_PAGE = 500
_BUFFER = 1000
"""Events that wait for one stream; past that it is let go."""
_STALL_S = 20.0
"""How long a client may take nothing."""
_LEAVE_S = 3.0
"""How long it may take what was still to be said once its stream is over."""
_MOST_STREAMS = 2000
_STATUS_OF_KIND = {f"item.{status.value}": status for status in Status}


@dataclass(frozen=True, slots=True)
class StreamPace:
    """When a stream gets a sign of life, and when it ends so that its client comes again."""

    ping_s: float
    cap_s: float


class Subscriber:
    """One stream's place in the hub."""

    def __init__(
        self, tenant: str, resource: str | None, credential: str | None, *, families: frozenset[str] | None = None
    ) -> None:
        self.tenant = tenant
        self.resource = resource
        self.families = families
        """Of which families it may tell events; None for all."""
        self.credential = credential
        self.waiting: deque[sa.Row[Any]] = deque()
        self.wake = asyncio.Event()
        self.is_live = False
        """It has read what was before, and takes what comes."""
        self.is_over = False
        """It gets nothing more: too slow, its rights ended, or the process is about to end."""
        self.on_end: Callable[[], None] | None = None

    def offer(self, row: sa.Row[Any]) -> None:
        """Take an event if it is one of this stream's."""
        is_wanted = row.tenant == self.tenant and self.resource in {None, row.resource}
        is_wanted = is_wanted and (self.families is None or row.type.partition(".")[0] in self.families)
        if not is_wanted or not self.is_live or self.is_over:
            return
        if len(self.waiting) >= _BUFFER:
            self.end()
            return
        self.waiting.append(row)
        self.wake.set()

    def end(self) -> None:
        """Let the client go."""
        if not self.is_over and self.on_end is not None:
            self.on_end()
        self.is_over = True
        self.wake.set()


class EventHub:
    """Reads each new event once and hands it to every stream that wants it."""

    def __init__(self, database: Database, changes: Changes, authenticator: Authenticator, pace: StreamPace) -> None:
        self.database = database
        self.pace = pace
        self._changes = changes
        self._authenticator = authenticator
        self._subscribers: set[Subscriber] = set()
        self._joining = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    def check_room(self) -> None:
        """Raise a 503 where this process has as many streams as it can take."""
        if len(self._subscribers) >= _MOST_STREAMS or self._changes.is_closing:
            raise ApiProblem(
                "dependency_unavailable",
                "There is no room for another event stream. Come again shortly.",
                retry_after_s=5,
            )

    async def join(self, subscriber: Subscriber) -> None:
        """Look after it. Once it is live it gets every new event; what is in the log by then it has to read afterwards."""
        async with self._joining:
            if self._reader is None or self._reader.done():
                last = await run_in_threadpool(self._last)
                self._reader = asyncio.create_task(self._read_on(last), name="event-hub")
            self._subscribers.add(subscriber)
            metrics.event_streams.set(len(self._subscribers))
        if self._changes.is_closing:
            subscriber.end()

    def leave(self, subscriber: Subscriber) -> None:
        """It gets nothing more."""
        self._subscribers.discard(subscriber)
        metrics.event_streams.set(len(self._subscribers))

    async def _read_on(self, last: int) -> None:
        loop = asyncio.get_running_loop()
        rights_at = loop.time() + _RIGHTS_S
        try:
            with self._changes.watch() as changed:
                while self._subscribers or self._joining.locked():
                    changed.clear()
                    if self._changes.is_closing:
                        return
                    rows = await run_in_threadpool(self._page, last)
                    for row in rows:
                        last = row.seq
                        for subscriber in self._subscribers:
                            subscriber.offer(row)
                    if loop.time() >= rights_at:
                        await self._end_those_without_rights()
                        rights_at = loop.time() + _RIGHTS_S
                    if len(rows) < _PAGE:
                        await _wait(changed, _RECHECK_S)
                        await asyncio.sleep(_COALESCE_S)
        except Exception:
            log.exception("stream.reader_failed")  # its streams end; their clients come again and start another reader
        finally:
            for subscriber in self._subscribers:
                subscriber.end()

    async def _end_those_without_rights(self) -> None:
        asked = frozenset(one.credential for one in self._subscribers if one.credential is not None)
        if not asked:
            return
        valid = await run_in_threadpool(self._authenticator.still_valid, asked)
        for subscriber in self._subscribers:
            if subscriber.credential in asked - valid:
                subscriber.end()

    def _page(self, last: int) -> list[sa.Row[Any]]:
        with self.database.read() as connection:
            return events.since(connection, after=last, limit=_PAGE)

    def _last(self) -> int:
        with self.database.read() as connection:
            return events.extent(connection).last


@dataclass(frozen=True, slots=True)
class Backlog:
    """What happened before a stream was opened, a page of it."""

    rows: list[sa.Row[Any]]
    is_whole: bool
    """Nothing more is there by now."""
    item_is_over: bool
    """The stream is of one item, and nothing more will happen to it by itself."""


ReadBacklog = Callable[[int], Backlog]
"""A page of what happened after a number. Blocks."""


class EventStream(Response):
    """The answer to a request for a stream."""

    media_type = MEDIA_TYPE
    charset = "utf-8"

    def __init__(
        self, hub: EventHub, subscriber: Subscriber, read: ReadBacklog, *, after: int, first: bytes = b""
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Vary": "Accept"})
        del self.headers["content-length"]
        self._hub = hub
        self._subscriber = subscriber
        self._read = read
        self._last = after
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends with the client, the item, the cap, or the process."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        watcher = asyncio.create_task(self._end_with_client(receive))
        try:
            async with asyncio.timeout(self._hub.pace.cap_s + _STALL_S) as limit:
                self._subscriber.on_end = lambda: _shorten(limit)
                await self._hub.join(self._subscriber)
                await self._run(lambda piece: _write(send, piece))
                await _write(send, b"", more=False)
        except TimeoutError:
            return  # it takes nothing: the server closes what was not completed
        finally:
            self._subscriber.on_end = None
            watcher.cancel()
            self._hub.leave(self._subscriber)

    async def _run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._hub.pace.cap_s
        ping_at = loop.time() + self._hub.pace.ping_s
        await write(b"retry: %d\n\n" % RETRY_MS + self._first)
        await self._catch_up(write)
        self._subscriber.is_live = True
        is_over = await self._catch_up(write)
        while True:
            taken = self._take()
            if taken:
                is_over = self._subscriber.resource is not None and ends_with(taken, otherwise=is_over)
                await write(b"".join(map(frame, taken)))
            if is_over and not self._subscriber.waiting:
                await write(_end_frame(self._subscriber.resource))
                return
            if self._subscriber.is_over or loop.time() >= ends_at:
                return
            if loop.time() >= ping_at:
                await write(b": still here\n\n")
                ping_at += self._hub.pace.ping_s
            await _wait(self._subscriber.wake, min(ping_at, ends_at) - loop.time())
            self._subscriber.wake.clear()

    async def _catch_up(self, write: Callable[[bytes], Awaitable[None]]) -> bool:
        """Send what is in the log; whether the item is over."""
        while True:
            page = await run_in_threadpool(self._read, self._last)
            if page.rows:
                self._last = page.rows[-1].seq
                await write(b"".join(map(frame, page.rows)))
            if page.is_whole or self._subscriber.is_over:
                return page.is_whole and page.item_is_over

    def _take(self) -> list[sa.Row[Any]]:
        """What was handed over and not sent yet."""
        taken = []
        while self._subscriber.waiting:
            row = self._subscriber.waiting.popleft()
            if row.seq > self._last:
                self._last = row.seq
                taken.append(row)
        return taken

    async def _end_with_client(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                continue
        except ApiProblem:  # a body that nobody asked for, and that comes too slowly or is too large
            log.info("stream.unwanted_body")
        self._subscriber.end()


def ends_with(rows: Sequence[sa.Row[Any]], *, otherwise: bool) -> bool:
    """Whether an item is over after these of its events; `otherwise` where none of them tells its status."""
    for row in reversed(rows):
        status = _STATUS_OF_KIND.get(row.type)
        if status is not None:
            return status in TERMINAL
    return otherwise


async def _write(send: Send, piece: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(_STALL_S):
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _shorten(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time() + _LEAVE_S)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), max(timeout_s, 0))
    except TimeoutError:
        return


def frame(row: sa.Row[Any]) -> bytes:
    """One event of the log as it is sent."""
    return named(row.type, event_json(row), number=row.seq)


def named(kind: str, body: dict[str, Any], *, number: int | None = None) -> bytes:
    """One event; without a number it moves no cursor."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _end_frame(resource: str | None) -> bytes:
    return named("stream.end", {"resource": resource, "links": {"self": f"/v1/items/{resource}"}})
