"""what a reviewer may decide, and what became of it"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("items", sa.Column("supersedes", sa.String(length=40), nullable=True))
    op.add_column("items", sa.Column("superseded_by", sa.String(length=40), nullable=True))
    op.add_column("files", sa.Column("overridden", sa.JSON(), nullable=True))
    op.create_table(
        "attempts",
        sa.Column("item_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("action", sa.String(length=24), nullable=False),
        sa.Column("actor", sa.String(length=120), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("route", sa.String(length=24), nullable=True),
        sa.Column("budget", sa.JSON(), nullable=True),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"], name=op.f("fk_attempts_item_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("item_id", "number", name=op.f("pk_attempts")),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("escalation_id", sa.String(length=40), nullable=True),
        sa.Column("item_id", sa.String(length=40), nullable=True),
        sa.Column("run_id", sa.String(length=40), nullable=True),
        sa.Column("action", sa.String(length=24), nullable=False),
        sa.Column("actor", sa.String(length=120), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("item_version", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("detector", sa.String(length=24), nullable=True),
        sa.Column("rule", sa.String(length=128), nullable=True),
        sa.Column("tool", sa.String(length=128), nullable=True),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["escalation_id"], ["escalations.id"], name=op.f("fk_decisions_escalation_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"], name=op.f("fk_decisions_item_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["guard_runs.id"], name=op.f("fk_decisions_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
    )
    op.create_index("ix_decisions_tenant_at", "decisions", ["tenant", "at_ms", "id"])
    op.create_index("ix_decisions_escalation", "decisions", ["escalation_id"])
    op.create_index("ix_decisions_item", "decisions", ["item_id"])
    op.create_index("ix_decisions_run", "decisions", ["run_id"])
    op.create_table(
        "inquiries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("escalation_id", sa.String(length=40), nullable=False),
        sa.Column("item_id", sa.String(length=40), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.String(length=120), nullable=False),
        sa.Column("asked_ms", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.String(length=16), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("answer", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["escalation_id"], ["escalations.id"], name=op.f("fk_inquiries_escalation_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"], name=op.f("fk_inquiries_item_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inquiries")),
    )
    op.create_index("ix_inquiries_escalation", "inquiries", ["escalation_id", "asked_ms"])
    op.create_index("ix_inquiries_item", "inquiries", ["item_id", "asked_ms"])
    op.create_index(
        "ix_inquiries_open",
        "inquiries",
        ["until_ms"],
        sqlite_where=sa.text("ended IS NULL"),
        postgresql_where=sa.text("ended IS NULL"),
    )
    op.create_table(
        "effects",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("item_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=128), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"], name=op.f("fk_effects_item_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_effects")),
    )
    op.create_index("ix_effects_item", "effects", ["item_id", "seq"])


def downgrade() -> None:
    for name in ("effects", "inquiries", "decisions", "attempts"):
        op.drop_table(name)
    op.drop_column("files", "overridden")
    op.drop_column("items", "superseded_by")
    op.drop_column("items", "supersedes")
