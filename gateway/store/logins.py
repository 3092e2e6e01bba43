"""How often somebody tried to log in, kept in the database so that a restart forgives nothing; and the service's own secrets."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.store.tables import login_attempts, service_secrets

WINDOW_MS = 15 * 60 * 1000
PER_ACCOUNT = 10
"""Failures within the window after which the account waits for its end, from wherever the next attempt comes."""
PER_ADDRESS = 30


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to log in, counted before the password is looked at: attempts at the same time cannot slip through."""

    account: str
    address: str

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        """What is counted, with its limit. Names are kept hashed: people type passwords into the wrong field."""
        account = hashlib.sha256(self.account.encode("utf-8", "replace")).hexdigest()
        return ((f"address:{self.address[:64]}", PER_ADDRESS), (f"account:{account}", PER_ACCOUNT))


def begin(connection: Connection, attempt: Attempt, *, at_ms: int) -> int | None:
    """Count the attempt; the milliseconds to wait where there were too many."""
    connection.execute(login_attempts.delete().where(login_attempts.c.since_ms <= at_ms - WINDOW_MS))
    for key, limit in attempt.keys:
        if not _count(connection, key, limit, at_ms):
            since = connection.execute(sa.select(login_attempts.c.since_ms).where(login_attempts.c.key == key))
            return int(since.scalar_one()) + WINDOW_MS - at_ms
    return None


def succeed(connection: Connection, attempt: Attempt) -> None:
    """It was the right password: the account starts afresh, and the address is not charged for this attempt."""
    (address, _), (account, _) = attempt.keys
    connection.execute(login_attempts.delete().where(login_attempts.c.key == account))
    connection.execute(
        login_attempts.update()
        .where(login_attempts.c.key == address, login_attempts.c.failures > 0)
        .values(failures=login_attempts.c.failures - 1)
    )


def _count(connection: Connection, key: str, limit: int, at_ms: int) -> bool:
    insert_if_absent(connection, login_attempts, {"key": key, "failures": 0, "since_ms": at_ms})
    counted = connection.execute(
        login_attempts.update()
        .where(login_attempts.c.key == key, login_attempts.c.failures < limit)
        .values(failures=login_attempts.c.failures + 1)
    )
    return counted.rowcount == 1


def service_secret(connection: Connection, name: str) -> str:
    """A secret of the service's own, the same for all its processes; made at the first call. Needs a writing transaction."""
    insert_if_absent(connection, service_secrets, {"name": name, "value": secrets.token_urlsafe(32)})
    kept = kept_secret(connection, name)
    assert kept is not None
    return kept


def kept_secret(connection: Connection, name: str) -> str | None:
    """A secret of the service's own, if it was made already."""
    return connection.execute(sa.select(service_secrets.c.value).where(service_secrets.c.name == name)).scalar()


def insert_if_absent(connection: Connection, table: sa.Table, values: dict[str, object]) -> None:
    """Write a row unless another process has just written one with this key."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as insert_on_postgresql  # only one of the two is needed

        connection.execute(insert_on_postgresql(table).values(values).on_conflict_do_nothing())
        return
    from sqlalchemy.dialects.sqlite import insert as insert_on_sqlite

    connection.execute(insert_on_sqlite(table).values(values).on_conflict_do_nothing())
