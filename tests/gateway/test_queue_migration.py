"""Cases of the release before the queue had groups with ids: the upgrade keeps them, grouped as they were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from gateway.store import escalation_groups as groups
from gateway.store import migrate
from gateway.store.engine import Database
from gateway.store.tables import escalations

_OLD = sa.text(
    "INSERT INTO escalations (id, tenant, attempt, profile, reason, tool, group_key, status, packet, created_ms, updated_ms, "
    "due_ms, expires_ms) VALUES (:id, :tenant, 1, 'product-copy', :reason, 'ocr_extract', :key, 'open', '{}', :at, :at, 9, 9)"
)


def upgrade_to(database: Database, revision: str) -> None:
    with database.engine.connect().execution_options(sluicegate_write=True) as connection, connection.begin():
        config = Config()
        config.set_main_option("script_location", str(migrate.__file__).replace("migrate.py", "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def test_cases_keep_their_groups_which_get_ids_and_new_ones_join_them(empty_url: str) -> None:
    database = Database(empty_url)
    upgrade_to(database, "0005")
    coarse = groups.group_key(profile="product-copy", tool="ocr_extract", reason="repeated_error")
    old = [
        {"id": f"esc_{number}", "tenant": tenant, "reason": "repeated_error", "key": key, "at": number}
        for number, (tenant, key) in enumerate((("a", coarse), ("a", coarse), ("a", "other"), ("b", coarse)))
    ]
    database.transact(lambda connection: connection.execute(_OLD, old))
    upgrade_to(database, "head")
    with database.read() as connection:
        rows = connection.execute(sa.select(escalations.c.group_id).order_by(escalations.c.id)).scalars().all()
    assert len(set(rows)) == 3
    assert rows[0] == rows[1]
    assert all(str(group).startswith("grp_") for group in rows)
    joined = database.transact(
        lambda connection: groups.place(
            connection,
            tenant="a",
            profile="product-copy",
            tool="ocr_extract",
            reason="repeated_tool_calls",
            coarse=coarse,
            fine="new",
        )
    )
    assert joined == rows[0]
    with database.read() as connection:
        found = groups.get(connection, joined, tenant="a")
    assert found is not None
    assert (found.kind, found.tool) == ("no_progress", "ocr_extract")
    database.close()
