"""the human queue in full: groups with ids of their own, an audit of each case, undo, priorities, expiry"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from gateway.ids import new_id

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NUMBERS = (("profile_priority", "1"), ("burnt_percent", "0"), ("warned_percent", "0"), ("reopen_count", "0"))
_INDEXES = (
    ("ix_escalations_group", ["group_id", "status"]),
    ("ix_escalations_decided", ["tenant", "decided_ms", "id"]),
    ("ix_escalations_status_expires", ["status", "expires_ms"]),
)


def _columns() -> list[sa.Column[Any]]:
    numbers = [sa.Column(name, sa.Integer(), server_default=default, nullable=False) for name, default in _NUMBERS]
    return [
        *numbers,
        sa.Column("group_id", sa.String(length=40), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("on_expire", sa.String(length=24), nullable=True),
        sa.Column("claimed_ms", sa.BigInteger(), nullable=True),
        sa.Column("decided_by", sa.String(length=120), nullable=True),
        sa.Column("decided_action", sa.String(length=24), nullable=True),
        sa.Column("decided_ms", sa.BigInteger(), nullable=True),
        sa.Column("apply_ms", sa.BigInteger(), nullable=True),
        sa.Column("apply_problem", sa.JSON(), nullable=True),
        sa.Column("reopens", sa.String(length=40), nullable=True),
    ]


def upgrade() -> None:
    for column in _columns():
        op.add_column("escalations", column)
    for name, columns in _INDEXES:
        op.create_index(name, "escalations", columns)
    op.create_table(
        "escalation_log",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("escalation_id", sa.String(length=40), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("what", sa.String(length=32), nullable=False),
        sa.Column("actor", sa.String(length=120), nullable=False),
        sa.Column("from_status", sa.String(length=24), nullable=True),
        sa.Column("to_status", sa.String(length=24), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["escalation_id"], ["escalations.id"], name=op.f("fk_escalation_log_escalation_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_escalation_log")),
    )
    op.create_index("ix_escalation_log_escalation", "escalation_log", ["escalation_id", "id"])
    op.create_table(
        "escalation_groups",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("profile", sa.String(length=64), nullable=False),
        sa.Column("tool", sa.String(length=128), nullable=True),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("split_from", sa.String(length=40), nullable=True),
        sa.Column("merged_into", sa.String(length=40), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_escalation_groups")),
    )
    op.create_index("ix_escalation_groups_tenant", "escalation_groups", ["tenant", "id"])
    op.create_table(
        "escalation_group_keys",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("group_id", sa.String(length=40), nullable=False),
        sa.Column("split_from", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(
            ["group_id"], ["escalation_groups.id"], name=op.f("fk_escalation_group_keys_group_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant", "key", name=op.f("pk_escalation_group_keys")),
    )
    op.create_index("ix_escalation_group_keys_group", "escalation_group_keys", ["group_id"])
    op.create_table(
        "review_requests",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name=op.f("pk_review_requests")),
    )
    op.create_index("ix_review_requests_created", "review_requests", ["created_ms"])
    _give_groups_ids()


_NO_PROGRESS = ("repeated_tool_calls", "repeated_error")


def _give_groups_ids() -> None:
    """Cases of earlier releases keep their groups, which get ids now."""
    connection = op.get_bind()
    cases = sa.table(
        "escalations",
        *map(sa.column, ("tenant", "group_key", "group_id", "fingerprint", "profile", "tool", "reason", "created_ms")),
    )
    names = ("id", "tenant", "profile", "tool", "kind", "created_ms", "updated_ms")
    groups = sa.table("escalation_groups", *map(sa.column, names))
    keys = sa.table("escalation_group_keys", *map(sa.column, ("tenant", "key", "group_id")))
    connection.execute(cases.update().values(fingerprint=cases.c.group_key))
    rows = connection.execute(
        sa.select(
            cases.c.tenant,
            cases.c.group_key,
            sa.func.min(cases.c.profile).label("profile"),
            sa.func.min(cases.c.tool).label("tool"),
            sa.func.min(cases.c.reason).label("reason"),
            sa.func.min(cases.c.created_ms).label("created_ms"),
        ).group_by(cases.c.tenant, cases.c.group_key)
    ).all()
    for row in rows:
        group = new_id("grp", now_ms=row.created_ms)
        connection.execute(
            groups.insert().values(
                id=group,
                tenant=row.tenant,
                profile=row.profile,
                tool=row.tool,
                kind="no_progress" if row.reason in _NO_PROGRESS else row.reason,
                created_ms=row.created_ms,
                updated_ms=row.created_ms,
            )
        )
        connection.execute(keys.insert().values(tenant=row.tenant, key=row.group_key, group_id=group))
        connection.execute(
            cases.update()
            .where(cases.c.tenant == row.tenant, cases.c.group_key == row.group_key)
            .values(group_id=group)
        )


def downgrade() -> None:
    for table in ("review_requests", "escalation_group_keys", "escalation_groups", "escalation_log"):
        op.drop_table(table)
    for name, _ in _INDEXES:
        op.drop_index(name, "escalations")
    for column in _columns():
        op.drop_column("escalations", column.name)
