"""Connections and transactions, the same calls on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

T = TypeVar("T")

BUSY_TIMEOUT_MS = 30_000
"""How long SQLite waits for another process's write lock. Every writing transaction takes it at its start (`BEGIN
IMMEDIATE`), since a transaction that reads first and writes later fails at once, whatever the timeout."""

_ASK_AGAIN_S, _SELDOM_S, _PATIENCE_S = 0.0005, 0.003, 0.02
"""How long we sleep before we ask for the lock again: less than most transactions take, and longer where one takes long."""

_CHECKPOINT_PAGES = 4_000
"""The log is written back when it has 16 MB. Whoever commits then waits for it, and pages that change often, as most of ours
do, are written back less often that way."""

CONNECTIONS = 16
"""Most connections of one process to a database server; threads beyond that wait for one."""
_CONNECT_S = 10
_FROZEN_S = 30
"""A server ends transactions that stand still for this long. Ours do no network and no decoding, so whoever holds one so
long is frozen, and rows that it has locked must not stay locked."""
_ATTEMPTS = 4
_REPEATABLE = frozenset({"40001", "40P01"})
"""SQLSTATE of a transaction that was ended because of another one, and would go through if it were run again."""
_HIDES_CONTENTS = True
"""An error names its statement and not what was to be written: errors are logged, and titles and texts are not."""
_NO_ROOM = frozenset({"53100", "25006"})
"""SQLSTATE of a full disk, and of a server that takes no changes."""


class database_now_ms(FunctionElement[int]):  # noqa: N801 - reads as a SQL function
    """The database's own clock in Unix milliseconds: leases of several machines are judged by one clock."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(database_now_ms, "sqlite")
def _sqlite_now(element: database_now_ms, compiler: SQLCompiler, **kwargs: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(database_now_ms, "postgresql")
def _postgresql_now(element: database_now_ms, compiler: SQLCompiler, **kwargs: Any) -> str:
    # Of the statement, not of the moment: only a value that stays the same within a statement can be looked up in an index.
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)"


class _Job(Generic[T]):
    """One transaction that waits for its turn in a group."""

    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self.work = work
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None


class Database:
    """Reads and transactions over one engine; safe to use from many threads.

    Transactions that wait for each other anyway share one commit (group commit): each runs in a savepoint of its own, so
    that one that fails takes no other with it, and none is reported done before the shared commit is on the disk.
    """

    MAX_GROUP = 64

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._waiting: deque[_Job[Any]] = deque()
        self._leader = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading only."""
        with self.engine.connect() as connection:
            yield connection

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one writing transaction and give back its result once it is on the disk.

        Whatever `work` raises rolls back its own changes and is raised here. Where a server ends the transaction because
        of another one (a deadlock), `work` is run again.
        """
        if not self.is_sqlite:
            return self._transact_alone(work)
        job = _Job(work)
        self._waiting.append(job)
        with self._leader:
            while not job.done:
                self._run_group()
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    def _transact_alone(self, work: Callable[[Connection], T]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except sa.exc.OperationalError as error:
                if attempt == _ATTEMPTS or getattr(error.orig, "sqlstate", None) not in _REPEATABLE:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _run_group(self) -> None:
        group = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.MAX_GROUP))]
        try:
            with self.engine.connect().execution_options(sluicegate_write=True) as connection, connection.begin():
                if len(group) == 1:
                    group[0].result = group[0].work(connection)
                    _check_open(connection)
                else:
                    for job in group:
                        _run_in_savepoint(job, connection)
        except BaseException as error:
            for job in group:
                job.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            for job in group:
                job.done = True

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


def _run_in_savepoint(job: _Job[Any], connection: Connection) -> None:
    """Run one job of a group. Raises its error where it ended the whole transaction, and so the work of those before it."""
    savepoint = connection.begin_nested()
    try:
        job.result = job.work(connection)
        _check_open(connection)
        savepoint.commit()
    except Exception as error:
        if not _is_open(connection):
            raise
        savepoint.rollback()
        job.error = error


class TransactionLost(Exception):
    """SQLite has rolled back the whole transaction and whoever saw its error went on regardless."""


def _check_open(connection: Connection) -> None:
    if not _is_open(connection):
        raise TransactionLost


def _is_open(connection: Connection) -> bool:
    """Whether the transaction is still there: on a full or failing disk SQLite may give up all of it, not the statement alone.

    A savepoint that is set after that would begin a transaction of its own, and a commit without one says nothing.
    """
    return cast(sqlite3.Connection, connection.connection.dbapi_connection).in_transaction


def is_out_of_room(error: sa.exc.DBAPIError) -> bool:
    """Whether a change could not be stored because the database's disk is full or read-only, or fails."""
    if getattr(error.orig, "sqlstate", None) in _NO_ROOM:
        return True
    name = getattr(error.orig, "sqlite_errorname", "")
    return name.startswith(("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR"))


def _engine(url: str) -> Engine:
    address = sa.make_url(url)
    if address.get_backend_name() == "sqlite":
        engine = sa.create_engine(
            address, json_serializer=_json, pool_size=16, max_overflow=48, hide_parameters=_HIDES_CONTENTS
        )
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    return sa.create_engine(
        address,
        json_serializer=_json,
        hide_parameters=_HIDES_CONTENTS,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_pre_ping=True,  # a server that was restarted is noticed before the first statement, not by a caller
        connect_args={
            "connect_timeout": _CONNECT_S,
            "application_name": "sluicegate",
            "options": f"-c idle_in_transaction_session_timeout={_FROZEN_S}s",
        },
    )


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _prepare_sqlite(raw: Any, record: Any) -> None:
    raw.isolation_level = None
    cursor = raw.cursor()
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"wal_autocheckpoint={_CHECKPOINT_PAGES}",
        "cache_size=-16000",
        "temp_store=MEMORY",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # To the driver as they are: on the way through SQLAlchemy each would cost 30 µs, and every transaction needs them.
    raw = cast(sqlite3.Connection, connection.connection.dbapi_connection)
    is_write = connection.get_execution_options().get("sluicegate_write", False)
    statement = "BEGIN IMMEDIATE" if is_write else "BEGIN"
    try:
        if is_write:
            _take_write_lock(raw)
        else:
            raw.execute(statement)
    except sqlite3.Error as error:
        raise sa.exc.DBAPIError.instance(statement, None, error, sqlite3.Error, dialect=connection.dialect) from error


def _take_write_lock(raw: sqlite3.Connection) -> None:
    """`BEGIN IMMEDIATE`, asking often: SQLite's own waiting sleeps longer each time, up to 100 ms, so that a process that
    writes all the time would keep the lock from one that has waited for long."""
    started = time.monotonic()
    raw.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                raw.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                waited_s = time.monotonic() - started
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or waited_s > BUSY_TIMEOUT_MS / 1000:
                    raise
            time.sleep(_ASK_AGAIN_S if waited_s < _PATIENCE_S else _SELDOM_S)
    finally:
        raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
