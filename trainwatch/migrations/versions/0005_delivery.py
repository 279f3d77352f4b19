"""Channels, silences, and deliveries still to be made.

Revision: 0005
Follows: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the tables. Nothing of what fired before is delivered: there was no channel to deliver it to."""
    op.create_table(
        "channels",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("project", sa.Text(), nullable=False, comment="Whose alerts; empty: of all projects."),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="slack, webhook, apprise."),
        sa.Column("secret", sa.Text(), nullable=False, comment="Address and key; no answer of the API holds them."),
        sa.Column("least", sa.Text(), nullable=False, comment="The lowest severity that it is told of."),
        sa.Column(
            "rules",
            sa.Text(),
            nullable=False,
            comment="Patterns of rule ids, with spaces between; empty: all rules.",
        ),
        sa.Column("send_resolved", sa.Boolean(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("quiet", sa.Text(), nullable=False, comment="Time zone, start, end; nothing: never quiet."),
        sa.Column(
            "digest_most",
            sa.Integer(),
            nullable=False,
            comment="Messages in a window, before the rest is gathered.",
        ),
        sa.Column("digest_seconds", sa.Double(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column(
            "disabled_reason", sa.Text(), nullable=False, comment="Why the server disabled it; empty: it did not."
        ),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_channels"),
    )
    op.create_index("ix_channels_project", "channels", ["project"])
    op.create_table(
        "silences",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False, comment="Pattern of rule ids; empty: all rules."),
        sa.Column("run", sa.Text(), nullable=False, comment="Pattern of run ids or names; empty: all runs."),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False, comment="Infinity: for ever."),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_silences"),
    )
    op.create_index("ix_silences_project", "silences", ["project"])
    op.create_table(
        "deliveries",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False, comment="The delivery id that the receiver sees."),
        sa.Column("channel", _ID, nullable=False),
        sa.Column("alert", _ID, nullable=True, comment="NULL: of a digest, or a test."),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("change", sa.Text(), nullable=False, comment="fired, raised, resolved; digest, test."),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False, comment="The alert as it was at the change."),
        sa.Column("state", sa.Text(), nullable=False, comment="waiting, sent, failed, suppressed, gathered."),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why it waits, failed or was suppressed."),
        sa.Column("digest", _ID, nullable=True, comment="What it was gathered into."),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease", sa.Text(), nullable=False, comment="Who sends it just now; empty: nobody."),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["channel"], ["channels.id"], ondelete="CASCADE", name="fk_deliveries_channel_channels"
        ),
        sa.ForeignKeyConstraint(["alert"], ["alerts.id"], ondelete="CASCADE", name="fk_deliveries_alert_alerts"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE", name="fk_deliveries_run_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
        sa.UniqueConstraint("uuid", name="uq_deliveries_uuid"),
    )
    op.create_index("ix_deliveries_state_due_at", "deliveries", ["state", "due_at"])
    op.create_index("ix_deliveries_channel_done_at", "deliveries", ["channel", "done_at"])
    for column in ("alert", "run", "digest"):
        op.create_index(f"ix_deliveries_{column}", "deliveries", [column])
    op.create_table(
        "delivery_attempts",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("delivery", _ID, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column(
            "status",
            sa.Integer(),
            nullable=True,
            comment="HTTP's; NULL where no answer came or the channel has none.",
        ),
        sa.Column("error", sa.Text(), nullable=False, comment="Empty: it was taken."),
        sa.ForeignKeyConstraint(
            ["delivery"], ["deliveries.id"], ondelete="CASCADE", name="fk_delivery_attempts_delivery_deliveries"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_delivery_attempts"),
    )
    op.create_index("ix_delivery_attempts_delivery", "delivery_attempts", ["delivery"])


def downgrade() -> None:
    """Drops them, and with them what was still to be delivered."""
    for table in ("delivery_attempts", "deliveries", "silences", "channels"):
        op.drop_table(table)
