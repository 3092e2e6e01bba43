"""What an operator sets from the command line, straight in the database: pauses, budgets; and how things stand."""

from __future__ import annotations

import contextlib
import getpass
import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.startup import fail, settings, startup_errors
from gateway.settings import Settings
from gateway.store.budgets import ALL, Limits, is_tenant_name, micros_of
from gateway.store.engine import Database
from gateway.store.switches import Switch

budgets_app = typer.Typer(no_args_is_help=True, help="What tenants may spend on a UTC day: list, show, set.")
_out = Console(highlight=False, soft_wrap=True)

_NewWork = Annotated[bool, typer.Option("--new-work", help="Uploads get 503, and workers claim nothing.")]
_ModelCalls = Annotated[bool, typer.Option("--model-calls", help="Items wait before their next request to the model.")]
_Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
_Tenant = Annotated[str | None, typer.Argument(help="A tenant; without one: all tenants together.")]


def add_commands(app: typer.Typer) -> None:
    """Give the command line its `pause`, `resume`, `status` and `budgets`."""
    app.command()(pause)
    app.command()(resume)
    app.command()(status)
    app.add_typer(budgets_app, name="budgets")


def pause(
    new_work: _NewWork = False,
    model_calls: _ModelCalls = False,
    reason: Annotated[str | None, typer.Option(help="Shown to callers and kept in the event log.")] = None,
) -> None:
    """Pause new work (the default), all requests to the model, or both; in force on every process within two seconds."""
    if reason is not None and len(reason) > 500:
        fail("the reason has 500 characters at most")
    _turn(_chosen(new_work, model_calls) or [Switch.NEW_WORK], is_paused=True, reason=reason)


def resume(new_work: _NewWork = False, model_calls: _ModelCalls = False) -> None:
    """Go on with whatever is paused, or with one of both."""
    _turn(_chosen(new_work, model_calls) or list(Switch), is_paused=False, reason=None)


def status(as_json: _Json = False) -> None:
    """What is paused, what waits, and what today's budgets have left."""
    from gateway.api.budgets import budget_json
    from gateway.api.switches import switches_json
    from gateway.budgets import defaults_of, list_views
    from gateway.store import backlog, switches

    with _opened() as (chosen, database), database.read() as connection:
        found: dict[str, Any] = {
            "paused": switches_json(switches.read(connection)),
            "items": _by_status(backlog.items_by_status(connection)),
            "budgets": [budget_json(view) for view in list_views(connection, defaults_of(chosen))],
        }
    if as_json:
        print(json.dumps(found))
        return
    for name, row in found["paused"].items():
        told = f"paused by {row['changed_by']} at {row['changed_at']}: {row['reason'] or 'no reason given'}"
        _out.print(f"{name}: {told if row['is_paused'] else 'running'}")
    _out.print("items: " + (", ".join(f"{count} {name}" for name, count in found["items"].items()) or "none"))
    _out.print(_budget_table(found["budgets"]))


@budgets_app.command("list")
def list_budgets(as_json: _Json = False) -> None:
    """All budgets that are set or were used today."""
    from gateway.api.budgets import budget_json
    from gateway.budgets import defaults_of, list_views

    with _opened() as (chosen, database), database.read() as connection:
        found = [budget_json(view) for view in list_views(connection, defaults_of(chosen))]
    if as_json:
        print(json.dumps({"budgets": found}))
    else:
        _out.print(_budget_table(found))


@budgets_app.command("show")
def show_budget(tenant: _Tenant = None) -> None:
    """One budget as JSON: limits, what is set, what today has taken."""
    from gateway.api.budgets import budget_json
    from gateway.budgets import defaults_of, view

    with _opened() as (chosen, database), database.read() as connection:
        print(json.dumps(budget_json(view(connection, _name(tenant), defaults_of(chosen)))))


@budgets_app.command("set")
def set_budget(
    tenant: _Tenant = None,
    max_cost: Annotated[
        str | None, typer.Option(help="US dollars a UTC day; `none` leaves it to the settings.")
    ] = None,
    max_items: Annotated[str | None, typer.Option(help="Items a UTC day; `none` leaves it to the settings.")] = None,
) -> None:
    """Set a daily budget; what is not named stays. In force within a second."""
    from gateway.api.budgets import budget_json
    from gateway.budgets import defaults_of, view
    from gateway.store import budgets

    name = _name(tenant)
    if max_cost is None and max_items is None:
        fail("say --max-cost or --max-items")
    if max_items is not None and name == ALL:
        fail("items are limited per tenant: name one")
    with _opened() as (chosen, database):

        def change(connection: Any) -> dict[str, Any]:
            row = budgets.limits_row(connection, name)
            before = Limits() if row is None else row.limits
            limits = Limits(
                before.max_cost_micros if max_cost is None else _micros(max_cost),
                before.max_items if max_items is None else _count(max_items),
            )
            budgets.set_limits(connection, name, limits, by=_actor())
            return budget_json(view(connection, name, defaults_of(chosen)))

        print(json.dumps(database.transact(change)))


def _turn(wanted: list[Switch], *, is_paused: bool, reason: str | None) -> None:
    from gateway.store import switches
    from gateway.work.signals import Signals, signal_folder

    with _opened() as (chosen, database):

        def change(connection: Any) -> list[Switch]:
            return [
                switch
                for switch in wanted
                if switches.turn(connection, switch, is_paused=is_paused, reason=reason, by=_actor())
            ]

        changed = database.transact(change)
        signals = Signals(signal_folder(chosen.sqlalchemy_url))
        signals.send("worker", "switches")
        signals.close()
    for switch in wanted:
        told = "" if switch in changed else " already"
        _out.print(f"{switch.value} {'is' if told else 'is now'}{told} {'paused' if is_paused else 'running'}.")


def _chosen(new_work: bool, model_calls: bool) -> list[Switch]:
    flags = ((Switch.NEW_WORK, new_work), (Switch.MODEL_CALLS, model_calls))
    return [switch for switch, is_chosen in flags if is_chosen]


@contextlib.contextmanager
def _opened() -> Iterator[tuple[Settings, Database]]:
    """The settings and the database that they name; one line for what an operator can mend."""
    from gateway.wiring import open_database

    with startup_errors():
        chosen = settings()
        database = open_database(chosen)
        try:
            yield chosen, database
        finally:
            database.close()


def _actor() -> str:
    return f"cli:{getpass.getuser()}"[:120]


def _name(tenant: str | None) -> str:
    if tenant is None or tenant == ALL:
        return ALL
    if not is_tenant_name(tenant):
        fail("a tenant's name has 1 to 64 letters, digits, '-' or '_'")
    return tenant


def _micros(text: str) -> int | None:
    if text == "none":
        return None
    try:
        cost = Decimal(text)
    except InvalidOperation:
        fail(f"{text!r} is no amount of US dollars")
    if not cost.is_finite() or not 0 <= cost <= 1_000_000_000:
        fail(f"{text!r} is no amount of US dollars")
    return micros_of(cost)


def _count(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isascii() or not text.isdigit() or int(text) >= 2**31:
        fail(f"{text!r} is no number of items")
    return int(text)


def _by_status(counts: dict[tuple[str, str | None], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (name, _), count in sorted(counts.items(), key=lambda entry: entry[0][0]):
        found[name] = found.get(name, 0) + count
    return found


def _budget_table(budgets: list[dict[str, Any]]) -> Table:
    table = Table()
    for title in ("tenant", "cost today", "of", "items today", "of", "state"):
        table.add_column(title, overflow="fold")
    for one in budgets:
        limits, used = one["limits"], one["used"]
        table.add_row(
            "all together" if one["tenant"] == ALL else one["tenant"],
            f"{used['cost']} {one['currency']}",
            limits["max_cost"] or "no limit",
            "—" if used["items"] is None else str(used["items"]),
            "no limit" if limits["max_items"] is None else str(limits["max_items"]),
            "exhausted" if one["is_exhausted"] else "open",
        )
    return table
