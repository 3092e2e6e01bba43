"""All commands, thin: read settings, make one call, print."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from gateway import __version__
from gateway.cli.trace import app as trace_app
from gateway.profiles import ProfileInvalid, load_profiles
from gateway.profiles.loader import load_profile
from gateway.settings import DispatchMode, Settings
from gateway.work.dispatch import Bulkhead
from prefilters.errors import RuleSetInvalid

USAGE_ERROR = 2
"""Exit status for a configuration that cannot be used; a supervisor does not try again."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A gateway between uploads and the model.",
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(no_args_is_help=True, help="API keys: create, list, revoke.")
rules_app = typer.Typer(no_args_is_help=True, help="Edge rules.")
profiles_app = typer.Typer(no_args_is_help=True, help="Profiles.")
app.add_typer(keys_app, name="keys")
app.add_typer(rules_app, name="rules")
app.add_typer(profiles_app, name="profiles")
app.add_typer(trace_app, name="trace")

_out = Console(highlight=False)


def fail(message: str, status: int = USAGE_ERROR) -> NoReturn:
    """End with one clear line."""
    print(f"sluicegate: {message}", file=sys.stderr)
    raise typer.Exit(status)


def settings(**chosen: Any) -> Settings:
    """The settings, with what was chosen on the command line; or one line that says which variable is wrong."""
    try:
        return Settings(**chosen)
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(map(str, first["loc"])).upper()
        fail(f"SLUICEGATE_{name}: {first['msg']}")


@contextlib.contextmanager
def startup_errors() -> Iterator[None]:
    """Turn what an operator can mend into one line."""
    from sqlalchemy.exc import ArgumentError, DBAPIError

    from gateway.store.migrate import SchemaMismatch

    try:
        yield
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()
        fail(f"the database cannot be used: {reason[0] if reason else type(error.orig).__name__}", status=1)
    except ArgumentError as error:
        fail(f"SLUICEGATE_DATABASE_URL: {error}")
    except ProfileInvalid as error:
        fail("a profile cannot be used: " + "; ".join(error.problems))
    except RuleSetInvalid as error:
        fail("the edge rules cannot be used: " + "; ".join(error.problems))
    except SchemaMismatch as error:
        fail(error.public)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """A gateway between what people upload and the language model that would otherwise burn money on it."""
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def up() -> None:
    """API and worker on this machine, one process group; prints one line with the address when ready."""
    from gateway.cli.supervisor import Supervisor

    chosen = settings()
    with startup_errors():
        _refuse_open_door(chosen)
        status = Supervisor(chosen).run()
    raise typer.Exit(status)


@app.command()
def serve() -> None:
    """The API alone."""
    from gateway.cli.processes import run_api

    chosen = settings()
    with startup_errors():
        _refuse_open_door(chosen)
        run_api(chosen)


@app.command()
def worker(
    dispatch: Annotated[DispatchMode | None, typer.Option(help="Instead of SLUICEGATE_DISPATCH.")] = None,
    queue: Annotated[
        list[Bulkhead] | None,
        typer.Option(help="With celery: take only this kind of work; may be given more than once."),
    ] = None,
) -> None:
    """A worker alone."""
    from gateway.cli.processes import run_worker

    chosen = settings() if dispatch is None else settings(dispatch=dispatch)
    if queue and chosen.dispatch is not DispatchMode.CELERY:
        fail("--queue needs --dispatch celery: an embedded worker takes whatever waits longest")
    with startup_errors():
        run_worker(chosen, queue or list(Bulkhead))


@app.command()
def migrate() -> None:
    """Bring the database to this release's schema."""
    from gateway.store import migrate as migrations
    from gateway.store.engine import Database

    chosen = settings()
    with startup_errors():
        chosen.data_dir.mkdir(parents=True, exist_ok=True)
        database = Database(chosen.sqlalchemy_url)
        migrations.upgrade(database)
        migrations.check(database)
    _out.print("The database has this release's schema.")


def _refuse_open_door(chosen: Settings) -> None:
    """Anything but loopback needs a key before it is opened to the network."""
    from gateway.store import items, keys
    from gateway.wiring import open_database

    if chosen.is_loopback:
        return
    database = open_database(chosen)
    with database.read() as connection:
        has_key = keys.any_live(connection, at_ms=items.now_ms(connection))
    database.close()
    if not has_key:
        fail(
            f"{chosen.host} can be reached from other machines, and there is no API key yet. "
            "Make one with `sluicegate keys create`, or bind 127.0.0.1."
        )


@keys_app.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="The tenant whose items the key sees.")] = "default",
    name: Annotated[str | None, typer.Option(help="What the key is for.")] = None,
    scope: Annotated[list[str] | None, typer.Option(help="May be given more than once; without it: all.")] = None,
) -> None:
    """Make a key. It is shown this once and stored as a hash."""
    from gateway.store import items, keys
    from gateway.wiring import open_database

    scopes = tuple(scope or keys.SCOPES)
    unknown = sorted(set(scopes) - set(keys.SCOPES))
    if unknown:
        fail(f"there is no scope {unknown[0]!r}; there are {', '.join(keys.SCOPES)}")
    if not tenant or len(tenant) > 64 or not tenant.replace("-", "").replace("_", "").isalnum():
        fail("a tenant's name has 1 to 64 letters, digits, '-' or '_'")
    with startup_errors():
        database = open_database(settings())
        record, secret = database.transact(
            lambda connection: keys.create(
                connection, tenant=tenant, name=name, scopes=scopes, at_ms=items.now_ms(connection)
            )
        )
    print(secret)
    print(f"key {record.id} for tenant {tenant}; it is not shown again", file=sys.stderr)


@keys_app.command("list")
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
    for title in ("tenant", "name", "ends with", "created", "state"):
        table.add_column(title, overflow="fold")
    for record in records:
        state = "live" if record.revoked_ms is None else f"revoked {timestamp(record.revoked_ms)}"
        table.add_row(record.id, record.tenant, record.name or "—", record.hint, timestamp(record.created_ms), state)
    _out.print(table)


@keys_app.command("revoke")
def revoke_key(key_id: Annotated[str, typer.Argument(help="The key's id, key_…")]) -> None:
    """End a key; running services notice within 5 seconds."""
    from gateway.store import items, keys
    from gateway.wiring import open_database

    with startup_errors():
        database = open_database(settings())
        ended = database.transact(lambda connection: keys.revoke(connection, key_id, at_ms=items.now_ms(connection)))
    if not ended:
        fail(f"there is no live key {key_id}", status=1)
    _out.print(f"Revoked {key_id}.")


@rules_app.command("check")
def check_rules(file: Annotated[Path, typer.Argument(help="A rule file.")]) -> None:
    """Compile a rule file and say what is wrong with it, line by line."""
    from prefilters.rules import load_rules

    with startup_errors():
        try:
            rules = load_rules(file)
        except RuleSetInvalid as error:
            for problem in error.problems:
                print(problem, file=sys.stderr)
            raise typer.Exit(1) from None
    _out.print(f"{file.name}: {len(rules.rules)} rules, version {rules.version}")


@profiles_app.command("check")
def check_profile(file: Annotated[Path, typer.Argument(help="A profile.")]) -> None:
    """Read a profile and hold its parameters against the edge rules."""
    from prefilters.rules import load_rules

    chosen = settings()
    with startup_errors():
        try:
            profile = load_profile(file)
            load_rules(chosen.rules_file).with_limits(profile.decode_limits).with_parameters(profile.edge)
        except (ProfileInvalid, RuleSetInvalid) as error:
            for problem in error.problems:
                print(problem, file=sys.stderr)
            raise typer.Exit(1) from None
    _out.print(f"{file.name}: profile {profile.name}, version {profile.version}")


@profiles_app.command("list")
def list_profiles() -> None:
    """The profiles that a service with these settings would offer."""
    with startup_errors():
        profiles = load_profiles(settings().profiles_dir)
    for name, profile in sorted(profiles.items()):
        _out.print(f"{name}  {profile.version}  {profile.description}")
