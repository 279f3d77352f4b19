"""Leases.

Revision: 0007
Follows: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table of leases."""
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False, comment="Of the job."),
        sa.Column("owner", sa.Text(), nullable=False, comment="The server that does it; empty: none yet."),
        sa.Column(
            "fence", sa.BigInteger(), nullable=False, comment="Counts the owners: an older number may change nothing."
        ),
        sa.Column("expires_at", sa.Double(), nullable=False, comment="By the database's clock."),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )


def downgrade() -> None:
    """Drops it."""
    op.drop_table("leases")
