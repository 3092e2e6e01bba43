"""All commands, thin: read settings, make one call, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway import __version__
from gateway.cli.keys import app as keys_app
from gateway.cli.operations import add_commands as add_operations
from gateway.cli.queue import app as queue_app
from gateway.cli.startup import fail, settings, startup_errors
from gateway.cli.trace import app as trace_app
from gateway.cli.users import app as users_app
from gateway.cli.webhook import app as webhook_app
from gateway.profiles import ProfileInvalid, load_profiles
from gateway.profiles.loader import load_profile
from gateway.settings import DispatchMode, Settings
from gateway.work.dispatch import Bulkhead
from prefilters.errors import RuleSetInvalid

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A gateway between uploads and the model.",
    pretty_exceptions_enable=False,
)
rules_app = typer.Typer(no_args_is_help=True, help="Edge rules.")
profiles_app = typer.Typer(no_args_is_help=True, help="Profiles.")
app.add_typer(keys_app, name="keys")
app.add_typer(rules_app, name="rules")
app.add_typer(profiles_app, name="profiles")
app.add_typer(queue_app, name="queue")
app.add_typer(trace_app, name="trace")
add_operations(app)
app.add_typer(users_app, name="users")
app.add_typer(webhook_app, name="webhook")

_out = Console(highlight=False)


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
        run_worker(chosen, queue)


@app.command()
def deliver() -> None:
    """Webhooks alone, without a broker; workers deliver too unless SLUICEGATE_WEBHOOK_DELIVERY=false."""
    from gateway.cli.processes import run_delivery

    chosen = settings()
    with startup_errors():
        run_delivery(chosen)


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
    """Anything but loopback needs a key or a person who can log in before it is opened to the network."""
    from gateway.store import items, keys, people
    from gateway.wiring import open_database

    if chosen.is_loopback:
        return
    database = open_database(chosen)
    with database.read() as connection:
        is_locked = keys.any_live(connection, at_ms=items.now_ms(connection)) or people.any_active(connection)
    database.close()
    if not is_locked:
        fail(
            f"{chosen.host} can be reached from other machines, and there is neither an API key nor a person who can log in. "
            "Make one with `sluicegate keys create` or `sluicegate users add`, or bind 127.0.0.1."
        )


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
