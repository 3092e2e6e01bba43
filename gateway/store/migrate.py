"""Bring a database to the schema of this release, or say that it cannot be used as it is."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from gateway.store.engine import Database

_SCRIPTS = Path(__file__).with_name("migrations")
_LOCK = 0x51_0C_E6_A7_E5
"""The number by which processes that migrate the same PostgreSQL wait for each other."""


class SchemaMismatch(Exception):
    """The database was made by another release."""

    code = "schema_mismatch"
    retryable = False

    def __init__(self, found: str | None, wanted: str) -> None:
        self.public = (
            f"The database has schema {found or 'none'}, this release needs {wanted}. "
            "Run `sluicegate migrate` with this release, or start the release that made it."
        )
        super().__init__(self.public)


def upgrade(database: Database) -> None:
    """Apply all migrations that are missing, in one transaction; a second process that tries waits and finds it done.

    Raises `SchemaMismatch` where the database was made by a newer release.
    """
    with (
        database.engine.connect().execution_options(sluicegate_write=True) as connection,
        connection.begin(),
    ):
        if not database.is_sqlite:  # whose writing transactions wait for each other from their start
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        config = _config()
        scripts = ScriptDirectory.from_config(config)
        found = MigrationContext.configure(connection).get_current_revision()
        if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
            raise SchemaMismatch(found, scripts.get_current_head() or "")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def check(database: Database) -> None:
    """Raise `SchemaMismatch` unless the database has exactly the schema of this release."""
    wanted = ScriptDirectory.from_config(_config()).get_current_head() or ""
    with database.read() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    if found != wanted:
        raise SchemaMismatch(found, wanted)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    return config
