"""endpoints, deliveries and their attempts"""

from __future__ import annotations

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make it."""


def downgrade() -> None:
    """Take it back."""
