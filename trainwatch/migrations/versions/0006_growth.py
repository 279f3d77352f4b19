"""Retention, coarser copies of long series, and views for people.

Revision: 0006
Follows: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from trainwatch.server.db import Packed, Words
from trainwatch.server.models.columns import Id

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables and views."""
    op.create_table(
        "rollups",
        sa.Column("series", Id, autoincrement=False, nullable=False),
        sa.Column("level", sa.SmallInteger, autoincrement=False, nullable=False, comment="From 1, the finest."),
        sa.Column(
            "position", sa.BigInteger, autoincrement=False, nullable=False, comment="Of the first point it stands for."
        ),
        sa.Column("points", sa.Integer, nullable=False, comment="How many points it stands for."),
        sa.Column("kept", sa.Integer, nullable=False, comment="How many of them it holds."),
        sa.Column(
            "nonfinite", sa.Integer, nullable=False, comment="Of all points that it stands for; likewise what follows."
        ),
        sa.Column("nan_omitted", sa.Integer, nullable=False, comment="NaNs that it does not hold."),
        sa.Column("positive_omitted", sa.Integer, nullable=False),
        sa.Column("negative_omitted", sa.Integer, nullable=False),
        sa.Column("step_low", sa.BigInteger, nullable=False, comment="-1: a step is not known."),
        sa.Column("step_high", sa.BigInteger, nullable=False),
        sa.Column("time_low", sa.Double, nullable=False),
        sa.Column("time_high", sa.Double, nullable=False),
        sa.Column("codec", sa.SmallInteger, nullable=False),
        sa.Column("data", Packed, nullable=False),
        sa.ForeignKeyConstraint(["series"], ["series.id"], name="fk_rollups_series_series", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("series", "level", "position", name="pk_rollups"),
    )
    op.create_table(
        "retention",
        sa.Column("project", Words, nullable=False),
        sa.Column(
            "raw", sa.Double, comment="Days that every single point is kept; NULL: for ever. Likewise the others."
        ),
        sa.Column("rollups", sa.Double, comment="Days that curves are kept at all."),
        sa.Column("runs", sa.Double, comment="Days that runs are kept at all."),
        sa.Column("changed_at", sa.Double, nullable=False, comment="By the server's clock."),
        sa.PrimaryKeyConstraint("project", name="pk_retention"),
    )
    op.create_table(
        "deleted_runs",
        sa.Column("run", Words, nullable=False),
        sa.Column("project", Words, nullable=False),
        sa.Column("deleted_at", sa.Double, nullable=False, comment="By the server's clock."),
        sa.Column("refused", sa.BigInteger, nullable=False, comment="Events that came since, and were not stored."),
        sa.PrimaryKeyConstraint("run", name="pk_deleted_runs"),
    )
    op.add_column(
        "series",
        sa.Column(
            "rolled", sa.BigInteger, comment="How many of the points, from the first, rollups stand for; NULL: none."
        ),
    )
    op.add_column(
        "series",
        sa.Column("dropped", sa.BigInteger, comment="How many, from the first, are kept as rollups only; NULL: none."),
    )
    if op.get_bind().dialect.name == "postgresql":
        # A series' row changes with every shipment: with room on its page it does so in place. Bytes that are
        # compressed already are not worth trying again.
        op.execute("ALTER TABLE series SET (fillfactor = 50)")
        op.execute("ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL")
        op.execute("ALTER TABLE rollups ALTER COLUMN data SET STORAGE EXTERNAL")
        # Fresh points come and go: what went is tidied away early, before the table grows.
        op.execute("ALTER TABLE points SET (autovacuum_vacuum_scale_factor = 0.05)")
    for name, body in _VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {body}")


def downgrade() -> None:
    """Drops them."""
    for name in _VIEWS:
        op.execute(f"DROP VIEW {name}")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE points RESET (autovacuum_vacuum_scale_factor)")
        op.execute("ALTER TABLE series RESET (fillfactor)")
        op.execute("ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTENDED")
    # Not in a batch: that copies the table on SQLite, and dropping the old one would take all chunks along.
    op.drop_column("series", "dropped")
    op.drop_column("series", "rolled")
    op.drop_table("deleted_runs")
    op.drop_table("retention")
    op.drop_table("rollups")


_VIEWS = {
    "run_overview": """
        SELECT r.id AS run, r.project, r.name, r.state, r.node, r.started_at, r.ended_at, r.last_event_at, r.step,
               r.max_steps, r.world_size, r.last_loss, r.last_eval_loss,
               (SELECT count(*) FROM series s WHERE s.run = r.id) AS series,
               (SELECT coalesce(sum(s.points), 0) FROM series s WHERE s.run = r.id) AS points,
               (SELECT coalesce(sum(s.nonfinite), 0) FROM series s WHERE s.run = r.id) AS nonfinite,
               (SELECT count(*) FROM alerts a WHERE a.run = r.id AND a.state = 'firing') AS alerts
          FROM runs r
    """,
    "last_values": """
        SELECT r.project, s.run, r.name AS run_name, r.state AS run_state, s.metric, s.rank, s.device, s.points,
               s.nonfinite, s.last_step AS step, s.last_time AS time, s.last_value AS value
          FROM series s JOIN runs r ON r.id = s.run
    """,
    "fresh_points": """
        SELECT s.run, s.metric, s.rank, s.device, p.step, p.time, p.value
          FROM points p JOIN series s ON s.id = p.series
    """,
    "chunk_summary": """
        SELECT s.run, s.metric, s.rank, s.device, c.position, c.points, c.nonfinite, c.step_low, c.step_high,
               c.time_low, c.time_high, c.value_low, c.value_high
          FROM chunks c JOIN series s ON s.id = c.series
    """,
}
