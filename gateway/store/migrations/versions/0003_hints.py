"""when workers were last told of an item, and an index for cancellations that nobody acknowledges"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_PARTIAL = (("ix_items_hinted", "hinted_ms", "queued"), ("ix_items_cancelling", "cancel_requested_ms", "cancelling"))


def upgrade() -> None:
    op.add_column("items", sa.Column("hinted_ms", sa.BigInteger(), nullable=True))
    if op.get_context().dialect.name == "postgresql":  # SQLite enforces no length
        op.alter_column("items", "reason", existing_type=sa.String(length=64), type_=sa.String(length=255))
    op.execute("UPDATE items SET hinted_ms = available_ms WHERE status = 'queued'")
    for name, column, status in _PARTIAL:
        where = sa.text(f"status = '{status}'")
        op.create_index(name, "items", [column], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    for name, _, _ in _PARTIAL:
        op.drop_index(name, "items")
    op.drop_column("items", "hinted_ms")
