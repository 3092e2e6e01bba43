"""Live events: what a stream sends and when it ends, behind a proxy too (SVC-06)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.api.auth import Authenticator
from gateway.api.changes import Changes
from gateway.api.stream import EventHub, StreamPace, Subscriber
from gateway.store import events, stream_tokens
from gateway.store.engine import Database
from gateway.store.people import SessionLimits
from gateway.store.stream_tokens import StreamTicket
from tests.gateway.conftest import store_key
from tests.gateway.running import Service, bearer, running, until
from tests.gateway.sse import Sent, Stream, stream

AT_ONCE_S = 3.0
"""Half a second on a machine of its own; other tests may keep this one busy."""

Submit = Callable[..., dict[str, Any]]


@pytest.fixture
def submit(api_client: httpx.Client, name: str) -> Submit:
    """Submits an item that nobody works on."""

    def made(title: str = "", **headers: str) -> dict[str, Any]:
        answer = api_client.post("/v1/items", json={"title": f"{name} {title}"}, headers=headers)
        assert answer.status_code == 202, answer.text
        item: dict[str, Any] = answer.json()
        return item

    return made


def cancel(client: httpx.Client, item: dict[str, Any], **headers: str) -> None:
    assert client.post(f"/v1/items/{item['id']}/cancel", json={}, headers=headers).status_code == 200


def of(item: dict[str, Any]) -> str:
    return f"/v1/items/{item['id']}/events"


def metric(client: httpx.Client) -> float:
    line = next(line for line in client.get("/metrics").text.splitlines() if line.startswith("sluicegate_sse_clients "))
    return float(line.split()[1])


def test_stream_of_an_item_tells_its_whole_story_and_ends_with_it(
    api: Service, api_client: httpx.Client, submit: Submit
) -> None:
    item = submit()
    with stream(api.port, of(item), "Accept-Encoding: gzip, br") as opened:
        assert opened.status == 200
        assert opened.headers["content-type"].startswith("text/event-stream")
        assert opened.headers["cache-control"] == "no-cache"
        assert opened.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in opened.headers
        first = opened.next()
        assert first is not None
        assert first.data == "3000"
        queued = opened.event()
        cancel(api_client, item)
        cancelled = opened.event()
        end = opened.event()
        assert opened.event() is None
    assert [one.event for one in (queued, cancelled, end) if one] == ["item.queued", "item.cancelled", "stream.end"]
    page = api_client.get(of(item)).json()["events"]
    assert [(one.id, one.data) for one in (queued, cancelled) if one] == [(event["seq"], event) for event in page]
    assert end is not None
    assert end.id is None


def test_reconnect_to_a_finished_stream_is_told_to_stop(api: Service, api_client: httpx.Client, submit: Submit) -> None:
    item = submit()
    cancel(api_client, item)
    last = api_client.get(of(item)).json()["after"]
    headers = {"Accept": "text/event-stream"}
    assert api_client.get(of(item), headers={**headers, "Last-Event-ID": str(last)}).status_code == 204
    assert api_client.get(of(item), params={"after": last}, headers=headers).status_code == 204
    with stream(api.port, f"{of(item)}?after={last - 1}") as opened:
        assert [one.event for one in opened.until("stream.end")] == ["item.cancelled", "stream.end"]
    with stream(api.port, of(item)) as opened:
        assert [one.event for one in opened.until("stream.end")] == ["item.queued", "item.cancelled", "stream.end"]


def test_tenant_sees_its_own_events_alone_and_from_now_on(
    api: Service, api_client: httpx.Client, alpha: str, beta: str, submit: Submit
) -> None:
    before = submit("before", **bearer(alpha))
    with stream(api.port, "/v1/events", f"Authorization: Bearer {alpha}") as opened:
        opened.next()
        until(lambda: metric(api_client) >= 1)
        submit("of beta", **bearer(beta))
        after = submit("after", **bearer(alpha))
        first = opened.event()
    assert first is not None
    assert (first.event, first.data["resource"]) == ("item.queued", after["id"])
    own = api_client.get(f"/v1/items/{before['id']}/events", headers=bearer(alpha)).json()["events"]
    with stream(api.port, f"/v1/events?after={own[0]['seq'] - 1}", f"Authorization: Bearer {alpha}") as opened:
        again = opened.event()
    assert again is not None
    assert again.data["resource"] == before["id"]
    assert of_strangers(api, beta, before) == 404


def of_strangers(api: Service, key: str, item: dict[str, Any]) -> int:
    with stream(api.port, of(item), f"Authorization: Bearer {key}") as opened:
        return opened.status


def test_no_event_is_lost_between_what_was_and_what_comes(api: Service, api_client: httpx.Client, name: str) -> None:
    """Each stream opens at another moment of the same flood, and all see the same events once, in order."""
    key = store_key(api, f"flood-{name}")
    wanted = 40
    with api.client() as client:

        def flood() -> None:
            for number in range(wanted):
                client.post("/v1/items", json={"title": f"{name} {number}"}, headers=bearer(key))

        flooding = threading.Thread(target=flood)
        flooding.start()
        with contextlib.ExitStack() as stack:
            streams = []
            for _ in range(8):
                path = "/v1/events?after=0"
                streams.append(stack.enter_context(stream(api.port, path, f"Authorization: Bearer {key}")))
            seen = [[opened.event(40) for _ in range(wanted)] for opened in streams]
        flooding.join()
    numbers = [[one.id for one in found if one] for found in seen]
    assert all(found == numbers[0] for found in numbers)
    assert numbers[0] == sorted(set(numbers[0]), key=lambda number: number or 0)
    assert len(numbers[0]) == wanted


@pytest.mark.parametrize(
    ("query", "headers"),
    [("after=x", ()), ("after=-1", ()), ("limit=5", ()), ("afterr=5", ()), ("", ("Last-Event-ID: x",))],
)
def test_wrong_cursor_is_refused(api: Service, query: str, headers: tuple[str, ...]) -> None:
    with stream(api.port, f"/v1/events?{query}", *headers) as opened:
        assert opened.status == 400


def test_number_that_the_browser_sends_outweighs_the_one_of_its_page(
    api: Service, api_client: httpx.Client, submit: Submit
) -> None:
    item = submit()
    cancel(api_client, item)
    last = api_client.get(of(item)).json()["after"]
    with stream(api.port, f"{of(item)}?after=0", f"Last-Event-ID: {last - 1}") as opened:
        assert [one.event for one in opened.until("stream.end")] == ["item.cancelled", "stream.end"]


# --- tokens, and rights that end -----------------------------------------------------------------------------------------


def test_token_opens_one_stream_with_its_makers_rights(
    api: Service, api_client: httpx.Client, alpha: str, submit: Submit
) -> None:
    item = submit("of alpha", **bearer(alpha))
    made = api_client.post("/v1/stream-tokens", headers=bearer(alpha))
    assert made.status_code == 201
    token = made.json()["token"]
    assert api_client.get(f"/v1/items/{item['id']}", params={"token": token}).status_code != 200, "for streams alone"
    with stream(api.port, f"{of(item)}?token={token}") as opened:
        assert opened.status == 200
        first = opened.event()
        assert first is not None
        assert first.data["resource"] == item["id"]
    with stream(api.port, f"{of(item)}?token={token}") as opened:
        assert opened.status == 401, "the second time"
    stored = b"".join(path.read_bytes() for path in api.data_dir.glob("sluicegate.db*"))
    assert token.encode() not in stored
    assert token not in api.log.read_text("utf-8")


def test_token_is_good_for_a_minute_and_once(database: Database) -> None:
    ticket = StreamTicket("t", "key:k", frozenset({"items:read"}), "key:k")
    token, expires_ms = database.transact(lambda c: stream_tokens.make(c, ticket, at_ms=1000))
    assert expires_ms == 61_000
    assert database.transact(lambda c: stream_tokens.redeem(c, token, at_ms=61_000)) is None
    assert database.transact(lambda c: stream_tokens.redeem(c, "sgs_other", at_ms=2000)) is None
    assert database.transact(lambda c: stream_tokens.redeem(c, token, at_ms=60_999)) == ticket
    assert database.transact(lambda c: stream_tokens.redeem(c, token, at_ms=60_999)) is None


def test_stream_ends_when_its_key_is_revoked(api: Service, api_client: httpx.Client, name: str) -> None:
    secret = store_key(api, f"leaver-{name}")
    with stream(api.port, "/v1/events", f"Authorization: Bearer {secret}") as opened:
        opened.next()
        key = api_client.get("/v1/keys", headers=bearer(secret)).json()["keys"][0]
        assert api_client.delete(f"/v1/keys/{key['id']}", headers=bearer(secret)).status_code == 204
        while opened.next(15) is not None:
            continue
        assert opened.is_over


# --- times -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def brisk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An API whose streams get a comment each half second and end after two."""
    folder = tmp_path_factory.mktemp("brisk")
    with running("serve", folder, default_wait_s=0, stream_ping_s=0.5, stream_cap_s=2) as started:
        yield started


def test_stream_ends_at_its_cap_without_an_end_so_that_the_client_comes_again(brisk: Service) -> None:
    with stream(brisk.port, "/v1/events") as opened:
        while opened.next(15) is not None:
            continue
        comments = [one for one in opened.came if one.comment]
    assert len(comments) >= 2
    assert not [one for one in opened.came if one.event]


def test_cursor_older_than_what_is_kept_gets_a_reset_and_then_live_events(brisk: Service, name: str) -> None:
    with brisk.client() as client:
        items = [client.post("/v1/items", json={"title": f"{name} {n}"}).json() for n in range(3)]
        last = client.get("/v1/events").json()["after"]
        database = Database(f"sqlite:///{brisk.data_dir / 'sluicegate.db'}")
        assert database.transact(lambda c: events.forget_before(c, at_ms=2**52)) == last
        database.close()
        with stream(brisk.port, "/v1/events", f"Last-Event-ID: {last - 2}") as opened:
            reset = opened.event()
            assert reset is not None
            assert (reset.event, reset.id) == ("stream.reset", last)
            snapshot = reset.data["links"]["snapshot"]
            assert {item["id"] for item in client.get(snapshot).json()["items"]} >= {item["id"] for item in items}
            cancel(client, items[0])
            live = opened.event()
            assert live is not None
            assert (live.event, live.id) == ("item.cancelled", last + 1)
        with stream(brisk.port, of(items[0]), f"Last-Event-ID: {last - 2}") as opened:
            assert [one.event for one in opened.until("stream.end")] == ["stream.reset", "stream.end"]
        with stream(brisk.port, "/v1/events", f"Last-Event-ID: {last}") as opened:
            kept = opened.event()
            assert kept is not None
            assert kept.event == "item.cancelled", "nothing that it does not know is missing"


def test_oldest_events_are_forgotten_and_the_log_stays_in_one_piece(database: Database) -> None:
    def write(at_ms: int) -> None:
        database.transact(
            lambda c: events.append(c, tenant="t", kind="k", resource="r", version=1, at_ms=at_ms, body={})
        )

    for at_ms in (10, 30, 20, 40):
        write(at_ms)
    assert database.transact(lambda c: events.forget_before(c, at_ms=25)) == 1, "20 stays behind 30"
    with database.read() as connection:
        kept = events.since(connection, after=0, limit=10)
        extent = events.extent(connection)
    assert [row.at_ms for row in kept] == [30, 20, 40]
    assert (extent.forgotten, extent.last) == (kept[0].seq - 1, kept[-1].seq)
    assert database.transact(lambda c: events.forget_before(c, at_ms=1000)) == 3
    with database.read() as connection:
        assert events.extent(connection) == events.Extent(kept[-1].seq, kept[-1].seq)


def test_slow_reader_is_let_go_and_harms_nobody(api: Service, api_client: httpx.Client, name: str) -> None:
    key = store_key(api, f"slow-{name}")
    before = metric(api_client)
    with (
        stream(api.port, "/v1/events", f"Authorization: Bearer {key}", receive_bytes=2048),
        stream(api.port, "/v1/events", f"Authorization: Bearer {key}") as quick,
    ):
        quick.next()
        until(lambda: metric(api_client) == before + 2)
        sent = 3000
        memory = api.resident_bytes()
        for _ in range(0, sent, 200):
            write_many(api.data_dir, f"slow-{name}", 200)
            for _ in range(200):
                assert quick.event(30) is not None
        assert len([one for one in quick.came if one.event]) == sent
        assert api.resident_bytes() - memory < 60 * 1024 * 1024
        until(lambda: metric(api_client) == before + 1, within_s=45)
    until(lambda: metric(api_client) <= before)


def write_many(data_dir: Path, tenant: str, count: int) -> None:
    """So many events of 4 kB each."""
    body = {"filling": "x" * 4000}
    database = Database(f"sqlite:///{data_dir / 'sluicegate.db'}")

    def write(connection: Connection) -> None:
        for number in range(count):
            events.append(connection, tenant=tenant, kind="k", resource=f"r{number}", version=1, at_ms=1, body=body)

    database.transact(write)
    database.close()


def test_log_is_read_once_however_many_streams_are_open(database: Database) -> None:
    asked: list[str] = []

    def count(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if "FROM events" in statement and "events_seq" not in statement:
            asked.append(statement)

    sa.event.listen(database.engine, "before_cursor_execute", count)
    limits = SessionLimits(idle_ms=1000, total_ms=1000)

    async def fan_out() -> list[Subscriber]:
        changes = Changes()
        authenticator = Authenticator(database, keyless=True, limits=limits)
        hub = EventHub(database, changes, authenticator, StreamPace(ping_s=15, cap_s=900))
        subscribers = [Subscriber(tenant, None, None) for tenant in ("a", "b") for _ in range(100)]
        for subscriber in subscribers:
            await hub.join(subscriber)
            subscriber.is_live = True
        database.transact(lambda c: events.append(c, tenant="a", kind="k", resource="r", version=1, at_ms=1, body={}))
        changes.notify("r")
        async with asyncio.timeout(20):
            while not all(subscriber.waiting for subscriber in subscribers[:100]):
                await asyncio.sleep(0.01)
        changes.close()
        async with asyncio.timeout(20):
            while not all(subscriber.is_over for subscriber in subscribers):
                await asyncio.sleep(0.01)
        return subscribers

    subscribers = asyncio.run(fan_out())
    assert [len(subscriber.waiting) for subscriber in subscribers] == [1] * 100 + [0] * 100
    assert 0 < len(asked) < 100, "two hundred streams, one reader"


def test_process_that_is_told_to_end_lets_streams_go_at_once(tmp_path: Path) -> None:
    with running("serve", tmp_path, default_wait_s=0) as service:
        with service.client() as client:
            item = client.post("/v1/items", json={"title": "t"}).json()
        write_many(tmp_path, "default", 2000)
        with (
            stream(service.port, "/v1/events?after=0", receive_bytes=2048),  # takes nothing of it
            stream(service.port, of(item)) as opened,
            stream(service.port, "/v1/events") as of_all,
        ):
            opened.until("item.queued")
            of_all.next()
            service.process.send_signal(signal.SIGTERM)
            for one in (opened, of_all):
                while one.next(5) is not None:
                    continue
                assert not [sent for sent in one.came if sent.event == "stream.end"]
            assert service.process.wait(20) == 0
        assert "Traceback" not in service.complaints()


# --- SVC-06: compression, idle proxies ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nginx(api: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Debian's nginx before the API: buffering and compression on, connections without a byte for 20 s are cut."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program, "nginx is missing: ./dev setup installs Debian's nginx-light"
    folder = tmp_path_factory.mktemp("nginx")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(
        f"""
        daemon off;
        worker_processes 1;
        pid {folder}/pid;
        error_log stderr warn;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path {folder}/body;
            proxy_temp_path {folder}/proxy;
            fastcgi_temp_path {folder}/fastcgi;
            uwsgi_temp_path {folder}/uwsgi;
            scgi_temp_path {folder}/scgi;
            gzip on;
            gzip_proxied any;
            server {{
                listen 127.0.0.1:{port};
                location / {{
                    proxy_pass http://127.0.0.1:{api.port};
                    proxy_read_timeout 20s;
                }}
            }}
        }}
        """,
        "utf-8",
    )
    log = (folder / "log").open("wb")
    process = subprocess.Popen([program, "-c", str(config), "-p", str(folder)], stderr=log, start_new_session=True)
    try:
        until(lambda: is_listening(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text("utf-8", "replace")
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        log.close()


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_quiet_stream_lives_on_uncompressed_directly_and_behind_a_proxy(
    api: Service, api_client: httpx.Client, nginx: int, submit: Submit
) -> None:
    """Both at the same time, at the default pace: 35 s without an event are at least two comments."""
    items = [submit("direct"), submit("proxied")]
    gzip = "Accept-Encoding: gzip"
    with (
        stream(api.port, of(items[0]), gzip) as direct,
        stream(nginx, of(items[1]), gzip) as proxied,
    ):
        streams = [direct, proxied]
        started = time.monotonic()
        for opened in streams:
            assert opened.status == 200
            assert opened.headers_after_s < AT_ONCE_S
            assert "content-encoding" not in opened.headers
            first = opened.until("item.queued")
            assert first[0].came - started < AT_ONCE_S
        comments = [reading(opened, within_s=35) for opened in streams]
        for thread, found in comments:
            thread.join()
            assert len(found) >= 2
        for opened, item in zip(streams, items, strict=True):
            published = time.monotonic()
            cancel(api_client, item)
            event = opened.until("item.cancelled")[-1]
            assert event.came - published < AT_ONCE_S
            assert opened.until("stream.end")


def reading(opened: Stream, *, within_s: float) -> tuple[threading.Thread, list[Sent]]:
    """Collects two comments in a thread of its own, so that two streams are read at the same time."""
    found: list[Sent] = []

    def read() -> None:
        deadline = time.monotonic() + within_s
        while len(found) < 2:
            sent = opened.next(max(deadline - time.monotonic(), 0.01))
            if sent is None:
                return
            if sent.comment is not None:
                found.append(sent)

    thread = threading.Thread(target=read)
    thread.start()
    return thread, found
