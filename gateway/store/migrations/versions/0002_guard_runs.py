"""guard runs over HTTP, and cases that belong to a run"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "guard_runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("agent", sa.String(length=128), nullable=False),
        sa.Column("external_run_id", sa.String(length=255), nullable=False),
        sa.Column("item_id", sa.String(length=40), nullable=True),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("policy_id", sa.String(length=24), nullable=False),
        sa.Column("status", sa.String(length=24), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("records", sa.Integer(), server_default="0", nullable=False),
        sa.Column("decisions", sa.Integer(), server_default="0", nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("halt", sa.JSON(), nullable=True),
        sa.Column("escalation_id", sa.String(length=40), nullable=True),
        sa.Column("outcome", sa.JSON(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"], name=op.f("fk_guard_runs_item_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_guard_runs")),
        sa.UniqueConstraint(
            "tenant", "agent", "external_run_id", name=op.f("uq_guard_runs_tenant_agent_external_run_id")
        ),
    )
    op.create_index("ix_guard_runs_item", "guard_runs", ["item_id"])
    op.create_index("ix_guard_runs_tenant_ended", "guard_runs", ["tenant", "ended_ms", "id"])
    op.create_table(
        "guard_records",
        _run_id(),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        _of_run("guard_records"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_guard_records")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "guard_snapshots",
        _run_id(),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        _of_run("guard_snapshots"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_guard_snapshots")),
    )
    op.create_table(
        "guard_decisions",
        _run_id(),
        sa.Column("call_id", sa.String(length=200), nullable=False),
        sa.Column("phase", sa.String(length=8), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=128), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("executes", sa.Boolean(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        _of_run("guard_decisions"),
        sa.PrimaryKeyConstraint("run_id", "call_id", "phase", name=op.f("pk_guard_decisions")),
    )
    with op.batch_alter_table("escalations") as batch_op:
        batch_op.alter_column("item_id", existing_type=sa.String(length=40), nullable=True)
        batch_op.add_column(sa.Column("run_id", sa.String(length=40), nullable=True))
        batch_op.create_foreign_key(op.f("fk_escalations_run_id"), "guard_runs", ["run_id"], ["id"], ondelete="CASCADE")
        batch_op.create_index("ix_escalations_run", ["run_id", "created_ms"], unique=False)


def downgrade() -> None:
    op.execute("DELETE FROM escalations WHERE run_id IS NOT NULL")
    with op.batch_alter_table("escalations") as batch_op:
        batch_op.drop_index("ix_escalations_run")
        batch_op.drop_constraint(op.f("fk_escalations_run_id"), type_="foreignkey")
        batch_op.drop_column("run_id")
        batch_op.alter_column("item_id", existing_type=sa.String(length=40), nullable=False)
    for table in ("guard_decisions", "guard_snapshots", "guard_records", "guard_runs"):
        op.drop_table(table)


def _run_id() -> sa.Column[str]:
    return sa.Column("run_id", sa.String(length=40), nullable=False)


def _of_run(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_id"], ["guard_runs.id"], name=op.f(f"fk_{table}_run_id"), ondelete="CASCADE")
