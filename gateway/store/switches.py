"""Two switches for the whole deployment, kept in the database so that every process sees them and a restart keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.store import events
from gateway.store.items import now_ms
from gateway.store.tables import switches

DEPLOYMENT = "default"
"""The tenant in whose log events of the whole deployment stand."""


class Switch(StrEnum):
    """What can be paused."""

    NEW_WORK = "new_work"
    """Uploads get 503, and workers claim nothing; what is in hand is finished."""
    MODEL_CALLS = "model_calls"
    """Items wait before their next request to the model; files are judged as ever."""


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """Where one switch stands, and who put it there."""

    switch: Switch
    is_paused: bool = False
    reason: str | None = None
    version: int = 0
    changed_by: str | None = None
    changed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Switches:
    """Both."""

    new_work: SwitchRow = SwitchRow(Switch.NEW_WORK)
    model_calls: SwitchRow = SwitchRow(Switch.MODEL_CALLS)

    @property
    def both(self) -> tuple[SwitchRow, SwitchRow]:
        """In the order in which they are shown."""
        return self.new_work, self.model_calls


_ALL = sa.select(switches)
_NAMES = frozenset(Switch)


def read(connection: Connection) -> Switches:
    """Where both stand; one that was never used is not paused."""
    rows = {
        Switch(row.name): SwitchRow(
            Switch(row.name), row.is_paused, row.reason, row.version, row.changed_by, row.changed_ms
        )
        for row in connection.execute(_ALL)
        if row.name in _NAMES
    }
    return Switches(
        rows.get(Switch.NEW_WORK, SwitchRow(Switch.NEW_WORK)),
        rows.get(Switch.MODEL_CALLS, SwitchRow(Switch.MODEL_CALLS)),
    )


def turn(connection: Connection, switch: Switch, *, is_paused: bool, reason: str | None, by: str) -> bool:
    """Set one switch and write down who did it and why; False where nothing changed."""
    before = {row.switch: row for row in read(connection).both}[switch]
    if (before.is_paused, before.reason) == (is_paused, reason) or not (before.is_paused or is_paused):
        return False
    at_ms = now_ms(connection)
    values = {
        "is_paused": is_paused,
        "reason": reason,
        "version": before.version + 1,
        "changed_by": by,
        "changed_ms": at_ms,
    }
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(switches).values(name=switch.value, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))
    events.append(
        connection,
        tenant=DEPLOYMENT,
        kind="switch.paused" if is_paused else "switch.resumed",
        resource=switch.value,
        version=before.version + 1,
        at_ms=at_ms,
        body={"switch": switch.value, "by": by, "reason": reason},
    )
    return True
