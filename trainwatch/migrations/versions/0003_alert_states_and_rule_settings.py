"""What alerts are told apart by, when they were over and until when they are silenced; a project's settings of rules.

Revision: 0003
Follows: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds columns and a table. Alerts of before have no key, and were never over."""
    with op.batch_alter_table("alerts") as alerts:
        alerts.add_column(sa.Column("key", sa.Text(), nullable=False, server_default=""))
        alerts.add_column(sa.Column("action", sa.Text(), nullable=False, server_default="notify"))
        alerts.add_column(sa.Column("resolved_at", sa.Double(), nullable=True))
        alerts.add_column(
            sa.Column(
                "silenced_until",
                sa.Double(),
                nullable=True,
                comment="By the server's clock; NULL: not silenced, Infinity: for ever.",
            )
        )
        alerts.drop_constraint("uq_alerts_run_rule_rank", type_="unique")
        alerts.create_unique_constraint("uq_alerts_run_rule_rank_key", ["run", "rule", "rank", "key"])
    with op.batch_alter_table("alerts") as alerts:
        alerts.alter_column("key", server_default=None)
        alerts.alter_column("action", server_default=None)
    op.create_table(
        "rule_settings",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False, comment="By the server's clock."),
        sa.PrimaryKeyConstraint("project", name="pk_rule_settings"),
    )


def downgrade() -> None:
    """Drops them. Of alerts that only their keys tell apart the newest stays."""
    op.drop_table("rule_settings")
    op.execute(
        "DELETE FROM alerts WHERE EXISTS (SELECT 1 FROM alerts AS other WHERE other.run = alerts.run"
        " AND other.rule = alerts.rule AND other.rank = alerts.rank"
        " AND (other.last_at > alerts.last_at OR (other.last_at = alerts.last_at AND other.id > alerts.id)))"
    )
    with op.batch_alter_table("alerts") as alerts:
        alerts.drop_constraint("uq_alerts_run_rule_rank_key", type_="unique")
        alerts.create_unique_constraint("uq_alerts_run_rule_rank", ["run", "rule", "rank"])
        for column in ("silenced_until", "resolved_at", "action", "key"):
            alerts.drop_column(column)
