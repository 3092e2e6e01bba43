"""Statements of the hottest paths: on SQLite they go to the driver as they were compiled once.

SQLAlchemy's way from a compiled statement to SQLite and back takes about 70 µs of Python, the statement itself a few; and
SQLite's writers stand in line meanwhile. A server's round trip makes that difference small, so there nothing changes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.sql.compiler import SQLCompiler

_Convert = Callable[[Any], Any] | None


class Prepared:
    """One Core statement with bound parameters, run many times. Values and rows are those that SQLAlchemy takes and gives."""

    def __init__(
        self, statement: sa.Select[Any] | sa.sql.dml.UpdateBase, *, names: Collection[str] | None = None
    ) -> None:
        """`names` are the columns that an insert sets; without it an insert sets all of them."""
        self._statement = statement
        self._names = None if names is None else list(names)
        self._text: str | None = None
        self._binds: tuple[tuple[str, _Convert], ...] = ()
        self._columns: tuple[_Convert, ...] = ()

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """All rows of a query."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, values).all()
        found = self._run(connection, values).fetchall()
        if not any(self._columns):
            return cast(list[tuple[Any, ...]], found)
        return [
            tuple(
                [
                    value if convert is None else convert(value)
                    for convert, value in zip(self._columns, row, strict=True)
                ]
            )
            for row in found
        ]

    def run(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Change rows; gives their number."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, values).rowcount
        return self._run(connection, values).rowcount

    def run_each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Once for each of `rows`, in order."""
        if connection.dialect.name == "sqlite":
            for values in rows:
                self._run(connection, values)
        elif rows:
            connection.execute(self._statement, rows)

    def _run(self, connection: Connection, values: Mapping[str, Any]) -> sqlite3.Cursor:
        text = self._text if self._text is not None else self._compile(connection.dialect)
        bound = [values[name] if convert is None else convert(values[name]) for name, convert in self._binds]
        raw = cast(sqlite3.Connection, connection.connection.dbapi_connection)
        try:
            return raw.execute(text, bound)
        except sqlite3.Error as error:
            raise sa.exc.DBAPIError.instance(text, bound, error, sqlite3.Error, dialect=connection.dialect) from error

    def _compile(self, dialect: Dialect) -> str:
        compiled = self._statement.compile(dialect=dialect, column_keys=self._names)
        assert isinstance(compiled, SQLCompiler)
        self._binds = tuple(
            (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in compiled.positiontup or ()
        )
        if isinstance(self._statement, sa.Select):
            self._columns = tuple(
                column.type.dialect_impl(dialect).result_processor(dialect, None)
                for column in self._statement.selected_columns
            )
        self._text = str(compiled)
        return self._text
