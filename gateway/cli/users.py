"""`sluicegate users`: who may log in to the console. Passwords are asked for, or read from standard input, never arguments."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.keys import check_tenant
from gateway.cli.startup import fail, settings, startup_errors
from gateway.person import Role

if TYPE_CHECKING:
    from gateway.store.engine import Database
    from gateway.store.people import PersonRecord

app = typer.Typer(no_args_is_help=True, help="People of the console: add, list, set-role, set-password, disable.")

_WIDE = 200
"""Columns where no terminal is there that would be narrower: each row stays in one line, to be searched by programs."""
_out = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)

Name = Annotated[str, typer.Argument(help="The name under which the person logs in.")]
FromStdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input.")]


@app.command("add")
def add(
    name: Name,
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.REVIEWER,
    tenant: Annotated[str, typer.Option(help="The tenant whose items they see.")] = "default",
    password_stdin: FromStdin = False,
) -> None:
    """Add a person."""
    from gateway import credentials
    from gateway.wiring import open_database

    check_tenant(tenant)
    with startup_errors():
        database = open_database(settings())
        password = _password(password_stdin)
        try:
            made = credentials.add_person(
                database, tenant=tenant, name=name, role=role, password=password, by=credentials.OPERATOR
            )
        except credentials.CredentialRefused as error:
            fail(error.public)
    _out.print(f"Added {made.name}, {made.role.value} of {made.tenant}. They log in at /console/login.")


@app.command("list")
def list_users() -> None:
    """All people."""
    from gateway.api.render import timestamp
    from gateway.store import people
    from gateway.wiring import open_database

    with startup_errors():
        database = open_database(settings())
        with database.read() as connection:
            found = people.page(connection, tenant=None)
    table = Table()
    for title in ("name", "role", "tenant", "added", "last login", "state"):
        table.add_column(title, overflow="fold")
    for person in found:
        state = "active" if person.disabled_ms is None else f"disabled {timestamp(person.disabled_ms)}"
        last_login = timestamp(person.last_login_ms) or "never"
        table.add_row(person.name, person.role.value, person.tenant, timestamp(person.created_ms), last_login, state)
    _out.print(table)


@app.command("set-role")
def set_role(name: Name, role: Annotated[Role, typer.Argument(help="What they may do from now on.")]) -> None:
    """Give a person another role; they are logged out, and cases that they may decide no longer go back to the queue."""
    _change(name, role=role)
    _out.print(f"{name} is now {role.value}.")


@app.command("set-password")
def set_password(name: Name, password_stdin: FromStdin = False) -> None:
    """Give a person another password; they are logged out everywhere."""
    with startup_errors():
        _person(name)
    _change(name, password=_password(password_stdin))
    _out.print(f"{name} has a new password.")


@app.command("disable")
def disable(name: Name) -> None:
    """Let a person log in no more; they are logged out, and their cases go back to the queue."""
    _change(name, is_disabled=True)
    _out.print(f"{name} cannot log in any more.")


@app.command("enable")
def enable(name: Name) -> None:
    """Let a disabled person log in again."""
    _change(name, is_disabled=False)
    _out.print(f"{name} can log in again.")


def _change(
    name: str, *, role: Role | None = None, password: str | None = None, is_disabled: bool | None = None
) -> None:
    from gateway import credentials

    with startup_errors():
        database, person = _person(name)
        try:
            credentials.change_person(
                database,
                person,
                by=credentials.OPERATOR,
                role=role,
                password=password,
                is_disabled=is_disabled,
            )
        except (credentials.CredentialRefused, credentials.Changed) as error:
            fail(error.public)


def _person(name: str) -> tuple[Database, PersonRecord]:
    from gateway.store import people
    from gateway.wiring import open_database

    database = open_database(settings())
    with database.read() as connection:
        found = people.find(connection, name)
    if found is None:
        fail(f"there is nobody of the name {name!r}", status=1)
    return database, found[0]


def _password(from_stdin: bool) -> str:
    """The password: the first line of standard input, or typed twice without being shown."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        fail("there is no terminal to ask for the password on; give it on standard input with --password-stdin")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
