"""endpoints, deliveries and their attempts"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("description", sa.String(length=255), nullable=True),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("body", sa.String(length=8), nullable=False),
        sa.Column("allow_insecure", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("disabled_reason", sa.String(length=24), nullable=True),
        sa.Column("secrets", sa.JSON(), nullable=False),
        sa.Column("cursor_seq", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index("ix_webhook_endpoints_tenant", "webhook_endpoints", ["tenant", "created_ms", "id"])
    op.create_table(
        "webhook_lanes",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("endpoint_id", sa.String(length=40), nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failing_since_ms", sa.BigInteger(), nullable=True),
        sa.Column("spread_ms", sa.BigInteger(), nullable=True),
        sa.Column("noticed_ms", sa.BigInteger(), nullable=True),
        sa.Column("paused_until_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_failure_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_success_ms", sa.BigInteger(), nullable=True),
        _of_endpoint("webhook_lanes"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_lanes")),
    )
    op.create_index("ix_webhook_lanes_endpoint_id", "webhook_lanes", ["endpoint_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("endpoint_id", sa.String(length=40), nullable=False),
        sa.Column("lane", sa.String(length=48), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=True),
        sa.Column("url_key", sa.String(length=32), nullable=False),
        sa.Column("event_id", sa.String(length=40), nullable=False),
        sa.Column("event_seq", sa.BigInteger(), nullable=False),
        sa.Column("event_type", sa.String(length=48), nullable=False),
        sa.Column("resource", sa.String(length=40), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("is_test", sa.Boolean(), nullable=False),
        sa.Column("next_attempt_ms", sa.BigInteger(), nullable=True),
        sa.Column("leased_until_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.String(length=24), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("finished_ms", sa.BigInteger(), nullable=True),
        _of_endpoint("webhook_deliveries"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint(
            "endpoint_id", "event_id", "url_key", name=op.f("uq_webhook_deliveries_endpoint_id_event_id_url_key")
        ),
    )
    op.create_index("ix_webhook_deliveries_tenant", "webhook_deliveries", ["tenant", "created_ms", "id"])
    for name, columns, condition in (
        ("due", ["lane", "next_attempt_ms"], "status = 'pending'"),
        ("leased", ["lane", "leased_until_ms"], "leased_until_ms IS NOT NULL"),
        ("finished", ["status", "finished_ms"], "finished_ms IS NOT NULL"),
    ):
        op.create_index(
            f"ix_webhook_deliveries_{name}",
            "webhook_deliveries",
            columns,
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("latency_ms", sa.Integer(), nullable=False),
        sa.Column("error", sa.String(length=24), nullable=True),
        sa.Column("next_attempt_ms", sa.BigInteger(), nullable=True),
        sa.Column("response", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["webhook_deliveries.id"],
            name=op.f("fk_webhook_attempts_delivery_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("delivery_id", "attempt", name=op.f("pk_webhook_attempts")),
    )
    op.create_table(
        "callback_origins",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("origin", sa.String(length=300), nullable=False),
        sa.Column("created_by", sa.String(length=120), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_callback_origins")),
        sa.UniqueConstraint("tenant", "origin", name=op.f("uq_callback_origins_tenant_origin")),
    )
    op.create_table(
        "item_callbacks",
        sa.Column("item_id", sa.String(length=40), nullable=False),
        sa.Column("url_key", sa.String(length=32), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("endpoint_id", sa.String(length=40), nullable=False),
        sa.Column("lane", sa.String(length=48), nullable=False),
        _of_endpoint("item_callbacks"),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"], name=op.f("fk_item_callbacks_item_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("item_id", "url_key", name=op.f("pk_item_callbacks")),
    )
    op.create_index("ix_item_callbacks_endpoint_id", "item_callbacks", ["endpoint_id"])


def _of_endpoint(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["endpoint_id"], ["webhook_endpoints.id"], name=op.f(f"fk_{table}_endpoint_id"), ondelete="CASCADE"
    )


def downgrade() -> None:
    for table in (
        *("item_callbacks", "callback_origins", "webhook_attempts", "webhook_deliveries"),
        *("webhook_lanes", "webhook_endpoints"),
    ):
        op.drop_table(table)
