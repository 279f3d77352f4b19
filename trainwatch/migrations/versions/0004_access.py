"""Tokens and sessions.

Revision: 0004
Follows: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False, comment="Public; the middle of tw_<id>_<secret>."),
        sa.Column("digest", sa.Text(), nullable=False, comment="SHA-256 of the whole token, hexadecimal."),
        sa.Column("name", sa.Text(), nullable=False, comment="For people."),
        sa.Column("project", sa.Text(), nullable=False, comment="Empty: all projects."),
        sa.Column("scopes", sa.Text(), nullable=False, comment="Of ingest, read, write, admin; separated by spaces."),
        sa.Column("created_at", sa.Double(), nullable=False, comment="By the server's clock, as all times here."),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True, comment="NULL: never."),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True, comment="Not newer than a minute; NULL: never used."),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_index("ix_tokens_project", "tokens", ["project"])
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False, comment="Public; for lists."),
        sa.Column("digest", sa.Text(), nullable=False, comment="SHA-256 of what the cookie holds, hexadecimal."),
        sa.Column("token", sa.Text(), nullable=True, comment="The token it was exchanged for."),
        sa.Column("origin", sa.Text(), nullable=False, comment="token; installation:HASH of its token; oidc:ISSUER."),
        sa.Column(
            "name", sa.Text(), nullable=False, comment="Of the person; these three are the token's where there is one."
        ),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["token"], ["tokens.id"], name="fk_sessions_token_tokens", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("digest", name="uq_sessions_digest"),
    )
    op.create_index("ix_sessions_token", "sessions", ["token"])


def downgrade() -> None:
    """Drops them: whoever has a token of the database has to be given another one."""
    op.drop_table("sessions")
    op.drop_table("tokens")
