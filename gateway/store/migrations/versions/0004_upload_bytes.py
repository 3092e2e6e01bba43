"""how many bytes an item brought, so that what waits can be bounded by size"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("items", sa.Column("upload_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE items SET upload_bytes = "
        "COALESCE((SELECT SUM(files.bytes) FROM files WHERE files.item_id = items.id), 0)"
    )


def downgrade() -> None:
    op.drop_column("items", "upload_bytes")
