"""people, sessions, and the life of API keys"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("expires_ms", sa.BigInteger(), nullable=True))
    op.add_column("api_keys", sa.Column("previous_hash", sa.String(length=64), nullable=True))
    op.add_column("api_keys", sa.Column("previous_until_ms", sa.BigInteger(), nullable=True))
    op.create_index("ix_api_keys_previous_hash", "api_keys", ["previous_hash"])
    op.create_table(
        "people",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("login", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("password_hash", sa.String(length=255), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_login_ms", sa.BigInteger(), nullable=True),
        sa.Column("disabled_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_people")),
        sa.UniqueConstraint("login", name=op.f("uq_people_login")),
    )
    op.create_index("ix_people_tenant", "people", ["tenant", "created_ms", "id"])
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("person_id", sa.String(length=40), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_reason", sa.String(length=24), nullable=True),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name=op.f("fk_sessions_person_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_person", "sessions", ["person_id"])
    op.create_index("ix_sessions_expires", "sessions", ["expires_ms"])
    op.create_table(
        "login_attempts",
        sa.Column("key", sa.String(length=80), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_login_attempts")),
    )
    op.create_table(
        "stream_tokens",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=80), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("credential", sa.String(length=80), nullable=True),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_stream_tokens")),
    )
    op.create_index("ix_stream_tokens_expires", "stream_tokens", ["expires_ms"])
    op.create_table(
        "service_secrets",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_service_secrets")),
    )


def downgrade() -> None:
    op.drop_table("service_secrets")
    op.drop_table("stream_tokens")
    op.drop_table("login_attempts")
    op.drop_table("sessions")
    op.drop_table("people")
    op.drop_index("ix_api_keys_previous_hash", "api_keys")
    op.drop_column("api_keys", "previous_until_ms")
    op.drop_column("api_keys", "previous_hash")
    op.drop_column("api_keys", "expires_ms")
