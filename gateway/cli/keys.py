"""`sluicegate keys`: API keys, made and ended on the service's own machine."""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.cli.startup import fail, settings, startup_errors

app = typer.Typer(no_args_is_help=True, help="API keys: create, list, rotate, revoke.")

_WIDE = 200
"""Columns where no terminal is there that would be narrower: each row stays in one line, to be searched by programs."""
_out = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")


@app.command("create")
def create(
    tenant: Annotated[str, typer.Option(help="The tenant whose items the key sees.")] = "default",
    name: Annotated[str | None, typer.Option(help="What the key is for.")] = None,
    scope: Annotated[list[str] | None, typer.Option(help="May be given more than once; without it: all.")] = None,
    expires: Annotated[str | None, typer.Option(help="After how long it ends: 90d, 12h; or a time, RFC 3339.")] = None,
) -> None:
    """Make a key. It is shown this once and stored as a hash."""
    from gateway import credentials
    from gateway.store import keys
    from gateway.wiring import open_database

    scopes = tuple(scope or keys.SCOPES)
    unknown = sorted(set(scopes) - set(keys.SCOPES))
    if unknown:
        fail(f"there is no scope {unknown[0]!r}; there are {', '.join(keys.SCOPES)}")
    check_tenant(tenant)
    new = credentials.NewKey(tenant, name, scopes, None if expires is None else _moment(expires))
    with startup_errors():
        record, secret = credentials.make_key(open_database(settings()), new, by=credentials.OPERATOR)
    print(secret)
    print(f"key {record.id} for tenant {tenant}; it is not shown again", file=sys.stderr)


@app.command("list")
def list_keys() -> None:
    """All keys, without their secrets."""
    from gateway.api.render import timestamp
    from gateway.store import keys
    from gateway.wiring import open_database

    with startup_errors():
        database = open_database(settings())
        with database.read() as connection:
            records = keys.page(connection)
    table = Table()
    table.add_column("id", no_wrap=True, min_width=30)  # whole even where the terminal is narrow: it is typed again
    for title in ("tenant", "name", "ends with", "created", "last used", "state"):
        table.add_column(title, overflow="fold")
    for record in records:
        table.add_row(
            record.id,
            record.tenant,
            escape(record.name or "—"),
            record.hint,
            timestamp(record.created_ms),
            timestamp(record.last_used_ms) or "never",
            _state(record.revoked_ms, record.expires_ms),
        )
    _out.print(table)


@app.command("rotate")
def rotate(
    key_id: Annotated[str, typer.Argument(help="The key's id, key_…")],
    overlap: Annotated[str, typer.Option(help="How long the secret before works too: 24h, 0s.")] = "24h",
) -> None:
    """Give a key a new secret, shown this once."""
    from gateway import credentials
    from gateway.wiring import open_database

    overlap_s = _seconds(overlap)
    if overlap_s > credentials.MOST_OVERLAP_S:
        fail("an overlap has 30 days at most")
    with startup_errors():
        rotated = credentials.rotate_key(
            open_database(settings()), key_id, overlap_s=overlap_s, by=credentials.OPERATOR
        )
    if rotated is None:
        fail(f"there is no live key {key_id}", status=1)
    print(rotated[1])
    print(f"key {key_id}; the secret before works for {overlap} more", file=sys.stderr)


@app.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(help="The key's id, key_…")]) -> None:
    """End a key; running services notice within 5 seconds."""
    from gateway import credentials
    from gateway.wiring import open_database

    with startup_errors():
        before = credentials.revoke_key(open_database(settings()), key_id, by=credentials.OPERATOR)
    if before is None or before.revoked_ms is not None:
        fail(f"there is no live key {key_id}", status=1)
    _out.print(f"Revoked {key_id}.")


def check_tenant(tenant: str) -> None:
    """End with one line unless this can name a tenant."""
    if not tenant or len(tenant) > 64 or not tenant.replace("-", "").replace("_", "").isalnum():
        fail("a tenant's name has 1 to 64 letters, digits, '-' or '_'")


def _state(revoked_ms: int | None, expires_ms: int | None) -> str:
    from gateway.api.render import timestamp

    if revoked_ms is not None:
        return f"revoked {timestamp(revoked_ms)}"
    if expires_ms is None:
        return "live"
    return f"{'live until' if expires_ms > _now_ms() else 'expired'} {timestamp(expires_ms)}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _seconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _UNITS_S[match[2]] if match is not None else _not_a_duration(text)


def _moment(text: str) -> int:
    """Unix milliseconds of a time, or of so long from now."""
    if _DURATION.fullmatch(text):
        return _now_ms() + _seconds(text) * 1000
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        _not_a_duration(text)
    at_ms = int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
    if at_ms <= _now_ms():
        fail(f"{text} has passed")
    return at_ms


def _not_a_duration(text: str) -> NoReturn:
    fail(f"{text!r} is no time: write 90d, 12h, 30m or 45s, or a time such as 2027-01-31T00:00:00Z")
