"""what a reviewer may decide, and what became of it"""

from __future__ import annotations

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make it."""


def downgrade() -> None:
    """Take it back."""
