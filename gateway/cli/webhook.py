"""`sluicegate webhook`: endpoints and deliveries on the service's own machine, and a receiver for development."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.cli.keys import check_tenant
from gateway.cli.startup import fail, settings, startup_errors
from gateway.webhooks import signing
from gateway.webhooks.catalogue import is_filter
from gateway.webhooks.model import BodyStyle, DeliveryStatus
from gateway.webhooks.targets import ANY_TARGET, UrlRefused, parse_origin

app = typer.Typer(
    no_args_is_help=True, help="Webhooks: add, list, allow, deliveries, redeliver, replay, listen, verify."
)

_SECRET_VARIABLE = "SLUICEGATE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
_MOST_BODY_BYTES = 1024 * 1024
_out = Console(highlight=False, width=None if sys.stdout.isatty() else 200)

_Secret = Annotated[str, typer.Option(envvar=_SECRET_VARIABLE, help="whsec_…; better in the variable than here.")]
_Tenant = Annotated[str, typer.Option(help="Whose endpoints these are.")]


@app.command("add")
def add(
    url: Annotated[str, typer.Argument(help="Where events are posted.")],
    event: Annotated[list[str] | None, typer.Option(help="A name, family.* or *; may be given more than once.")] = None,
    body: Annotated[BodyStyle, typer.Option(help="How much an event says.")] = BodyStyle.THIN,
    description: Annotated[str | None, typer.Option(help="For people.")] = None,
    allow_insecure: Annotated[bool, typer.Option(help="Take http towards opened private networks.")] = False,
    tenant: _Tenant = "default",
) -> None:
    """Tell an address of events. The secret is shown this once."""
    from gateway.store import items, webhooks
    from gateway.webhooks.parts import open_vault, target_policy
    from gateway.webhooks.resolving import SystemResolver, check_url
    from gateway.wiring import open_database

    check_tenant(tenant)
    unknown = [name for name in event or () if not is_filter(name)]
    if unknown:
        fail(f"there is no event {unknown[0]!r}")
    chosen = settings()
    try:
        asyncio.run(check_url(url, target_policy(chosen), SystemResolver(), allow_insecure=allow_insecure))
    except UrlRefused as error:
        fail(error.public)
    secret = signing.new_secret()
    filters = tuple(event or ("*",))
    sealed = open_vault(chosen).seal(secret)
    new = webhooks.NewEndpoint(tenant, url, description, filters, body, allow_insecure, sealed)
    with startup_errors():
        endpoint = open_database(chosen).transact(
            lambda connection: webhooks.create(connection, new, at_ms=items.now_ms(connection))
        )
    print(secret)
    print(f"endpoint {endpoint.id} for tenant {tenant}; the secret is not shown again", file=sys.stderr)


@app.command("list")
def list_endpoints() -> None:
    """All endpoints, without their secrets."""
    from gateway.api.render import timestamp
    from gateway.store import webhooks
    from gateway.wiring import open_database

    with startup_errors(), open_database(settings()).read() as connection:
        found = webhooks.all_of(connection)
        health = webhooks.health_of(connection, [endpoint.id for endpoint in found])
    table = Table()
    table.add_column("id", no_wrap=True, min_width=30)
    for title in ("tenant", "url", "events", "state", "failing since"):
        table.add_column(title, overflow="fold")
    for endpoint in found:
        since = timestamp(health[endpoint.id].failing_since_ms) if endpoint.id in health else None
        state = (
            endpoint.status.value if endpoint.disabled_reason is None else f"disabled: {endpoint.disabled_reason.value}"
        )
        table.add_row(
            endpoint.id, endpoint.tenant, escape(endpoint.url), escape(" ".join(endpoint.events)), state, since or "—"
        )
    _out.print(table)


@app.command("allow")
def allow(
    origin: Annotated[str, typer.Argument(help="Such as https://hooks.example.com")], tenant: _Tenant = "default"
) -> None:
    """Let items of a tenant name addresses of this origin as `callback_url`."""
    from gateway.store import items, webhooks
    from gateway.wiring import open_database

    check_tenant(tenant)
    try:
        plain = parse_origin(origin, ANY_TARGET)
    except UrlRefused as error:
        fail(error.public)
    with startup_errors():
        open_database(settings()).transact(
            lambda connection: webhooks.allow_origin(
                connection, tenant=tenant, origin=plain, actor="operator", at_ms=items.now_ms(connection)
            )
        )
    _out.print(f"Items of {tenant} may call back {plain}.")


@app.command("deliveries")
def list_deliveries(
    endpoint: Annotated[str | None, typer.Option(help="Only those of this endpoint, whe_…")] = None,
    status: Annotated[DeliveryStatus | None, typer.Option(help="Only those that stand here.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    tenant: _Tenant = "default",
) -> None:
    """The delivery log, newest first."""
    from gateway.api.webhook_json import delivery_json
    from gateway.store import webhook_deliveries
    from gateway.wiring import open_database

    where = webhook_deliveries.DeliveryFilter(endpoint_id=endpoint, status=None if status is None else (status.value,))
    with startup_errors(), open_database(settings()).read() as connection:
        found = webhook_deliveries.page(connection, tenant=tenant, where=where, after=None, limit=limit)
    shown = [delivery_json(delivery) for delivery in found]
    if as_json:
        for each in shown:
            print(json.dumps(each, ensure_ascii=False))
        return
    table = Table()
    table.add_column("id", no_wrap=True, min_width=30)
    for title in ("event", "seq", "resource", "status", "attempts", "last", "next attempt"):
        table.add_column(title, overflow="fold")
    for each in shown:
        last = " ".join(str(each[name]) for name in ("last_status", "last_error") if each[name] is not None)
        table.add_row(
            each["id"], each["event_type"], str(each["seq"]), each["resource"], each["status"], str(each["attempts"]),
            last or "—", each["next_attempt_at"] or "—",
        )  # fmt: skip
    _out.print(table)


@app.command("redeliver")
def redeliver(
    delivery_id: Annotated[str, typer.Argument(help="The delivery's id, whd_…")], tenant: _Tenant = "default"
) -> None:
    """Send a delivery again, now, under the same ids."""
    from gateway.store import items, webhook_deliveries, webhooks
    from gateway.webhooks.model import EndpointStatus
    from gateway.wiring import open_database

    with startup_errors():
        database = open_database(settings())
        with database.read() as connection:
            delivery = webhook_deliveries.get(connection, delivery_id, tenant=tenant)
            endpoint = None if delivery is None else webhooks.get(connection, delivery.endpoint_id)
        if delivery is None or endpoint is None:
            fail(f"there is no delivery {delivery_id} of tenant {tenant}", status=1)
        if endpoint.status is EndpointStatus.DISABLED and delivery.url is None:
            fail("the endpoint is disabled; enable it first", status=1)
        database.transact(
            lambda connection: webhook_deliveries.redeliver(
                connection, delivery_id, tenant=tenant, at_ms=items.now_ms(connection)
            )
        )
    _out.print(f"{delivery_id} will be sent again.")


@app.command("replay")
def replay(
    endpoint_id: Annotated[str, typer.Argument(help="The endpoint's id, whe_…")],
    from_seq: Annotated[int, typer.Argument(min=0)],
    to_seq: Annotated[int, typer.Argument(min=0)],
) -> None:
    """Send the events of a range of the log again, those that the endpoint's filter lets through."""
    from gateway.store import items, webhook_deliveries, webhooks
    from gateway.webhooks.model import EndpointStatus
    from gateway.wiring import open_database

    with startup_errors():
        database = open_database(settings())
        with database.read() as connection:
            endpoint = webhooks.get(connection, endpoint_id)
        if endpoint is None:
            fail(f"there is no webhook endpoint {endpoint_id}", status=1)
        if endpoint.status is EndpointStatus.DISABLED:
            fail("the endpoint is disabled; enable it first", status=1)
        queued = database.transact(
            lambda connection: webhook_deliveries.replay(
                connection, endpoint, from_seq=from_seq, to_seq=to_seq, at_ms=items.now_ms(connection)
            )
        )
    if queued is None:
        fail(f"the range holds more than {webhook_deliveries.MOST_REPLAYED:,} events; replay it in parts")
    _out.print(f"{queued} events will be sent.")


@app.command("verify")
def verify(
    body: Annotated[Path, typer.Argument(help="The request's body, byte by byte.", exists=True, dir_okay=False)],
    webhook_id: Annotated[str, typer.Option("--id", help="Its header webhook-id.")],
    webhook_timestamp: Annotated[str, typer.Option("--timestamp", help="Its header webhook-timestamp.")],
    webhook_signature: Annotated[str, typer.Option("--signature", help="Its header webhook-signature.")],
    secret: _Secret = "",
    any_time: Annotated[bool, typer.Option(help="Take a request that is older than five minutes too.")] = False,
) -> None:
    """Check a request that was saved, with the secret that signed it. Exit status 1: not verified."""
    headers = {
        "webhook-id": webhook_id,
        "webhook-timestamp": webhook_timestamp,
        "webhook-signature": webhook_signature,
    }
    now = float(webhook_timestamp) if any_time and webhook_timestamp.isdigit() else time.time()
    try:
        signing.verify(_checked(secret), headers, body.read_bytes(), now=now)
    except signing.NotVerified as error:
        fail(error.public, status=1)
    _out.print("Verified.")


@app.command("listen")
def listen(
    secret: _Secret = "",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 9000,
    status: Annotated[int, typer.Option(min=200, max=599, help="What is answered to verified events.")] = 204,
) -> None:
    """Receive on 127.0.0.1 and print verified events, one JSON object a line.

    The service has to be started with SLUICEGATE_WEBHOOK_PRIVATE_NETWORKS=127.0.0.0/8 and SLUICEGATE_WEBHOOK_PORTS=any,
    and the endpoint made with `allow_insecure`.
    """
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(_checked(secret), status))
    print(f"listening at http://127.0.0.1:{server.server_address[1]}/", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


def _handler(secret: str, status: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(min(int(self.headers.get("content-length") or 0), _MOST_BODY_BYTES))
            try:
                signing.verify(secret, dict(self.headers.items()), body, now=time.time())
            except signing.NotVerified as error:
                print(f"refused: {error.public}", file=sys.stderr, flush=True)
                self.send_error(400, "not verified")
                return
            print(body.decode(), flush=True)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Events are printed, requests are not."""

    return Handler


def _checked(secret: str) -> str:
    try:
        signing.key_of(secret)
    except ValueError as error:
        fail(f"{_SECRET_VARIABLE}: {error}")
    return secret
