"""budgets, switches, retention: what an operator sets"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_INDEXES = (
    ("ix_items_expiring", "items", ["expires_ms"], "purged_ms IS NULL"),
    ("ix_items_purging", "items", ["purge_asked_ms"], "purge_asked_ms IS NOT NULL AND purged_ms IS NULL"),
    ("ix_items_halted", "items", ["updated_ms"], "status = 'halted'"),
    ("ix_files_content", "files", ["tenant", "sha256"], None),
    ("ix_guard_runs_ended", "guard_runs", ["ended_ms"], "ended_ms IS NOT NULL"),
)


def upgrade() -> None:
    op.create_table(
        "budget_limits",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("max_cost_micros", sa.BigInteger(), nullable=True),
        sa.Column("max_items", sa.Integer(), nullable=True),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("changed_by", sa.String(length=120), nullable=False),
        sa.Column("changed_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_budget_limits")),
    )
    op.create_table(
        "budget_days",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reserved_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("spent_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("refused_micros", sa.BigInteger(), nullable=True),
        sa.Column("model_calls", sa.Integer(), server_default="0", nullable=False),
        sa.Column("item_count", sa.Integer(), nullable=True),
        sa.Column("told_percent", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("tenant", "day", name=op.f("pk_budget_days")),
    )
    op.create_table(
        "switches",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("changed_by", sa.String(length=120), nullable=False),
        sa.Column("changed_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_switches")),
    )
    op.create_table(
        "removed_blobs",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("is_gone", sa.Boolean(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "sha256", name=op.f("pk_removed_blobs")),
    )
    op.add_column("items", sa.Column("purge_asked_ms", sa.BigInteger(), nullable=True))
    op.add_column("items", sa.Column("purged_ms", sa.BigInteger(), nullable=True))
    for name, table, columns, condition in _INDEXES:
        where = None if condition is None else sa.text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    for name, table, _, _ in _INDEXES:
        op.drop_index(name, table)
    op.drop_column("items", "purged_ms")
    op.drop_column("items", "purge_asked_ms")
    for table in ("removed_blobs", "switches", "budget_days", "budget_limits"):
        op.drop_table(table)
