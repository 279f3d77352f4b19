"""The first schema.

Revision: 0001
Follows: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "points",
        sa.Column("series", _ID, autoincrement=False, nullable=False),
        sa.Column(
            "position", sa.BigInteger(), autoincrement=False, nullable=False, comment="Place in the series, from 0."
        ),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("series", "position", name="pk_points"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column(
            "node", sa.Text(), nullable=False, comment="The node that reported first; its readings keep plain names."
        ),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("last_event_at", sa.Double(), nullable=False),
        sa.Column("heard_at", sa.Double(), nullable=False, comment="By the server's clock."),
        sa.Column(
            "superseded_until",
            sa.Double(),
            nullable=False,
            comment="Last sign of processes since replaced by newer ones; or 0.",
        ),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("max_steps", sa.BigInteger(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column(
            "described_by",
            sa.Integer(),
            nullable=True,
            comment="The rank whose RunStarted fills the columns below; the lowest seen.",
        ),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("loss_source", sa.Text(), nullable=False),
        sa.Column("output_dir", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column(
            "loss_rank",
            sa.Integer(),
            nullable=True,
            comment="The rank whose train/loss is shown for the run; NULL: none yet.",
        ),
        sa.Column("last_loss", sa.Double(), nullable=True),
        sa.Column("eval_rank", sa.Integer(), nullable=True),
        sa.Column("last_eval_loss", sa.Double(), nullable=True),
        sa.Column("sparkline", sa.LargeBinary(), nullable=True),
        sa.Column(
            "ending", sa.Text(), nullable=False, comment="Outcome, rule, parameters … when over; see liveness.Ending."
        ),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_project_started_at", "runs", ["project", "started_at"])
    op.create_index("ix_runs_started_at", "runs", ["started_at"])
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_table(
        "alerts",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_alerts_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
        sa.UniqueConstraint("run", "rule", "rank", name="uq_alerts_run_rule_rank"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_checkpoints_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
    )
    op.create_index("ix_checkpoints_run_step", "checkpoints", ["run", "step"])
    op.create_table(
        "commands",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False, comment="By the server's clock."),
        sa.Column("open", sa.Boolean(), nullable=False, comment="Still to be obeyed; no more when the run has ended."),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_commands_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
    )
    op.create_index("ix_commands_run", "commands", ["run"])
    op.create_table(
        "devices",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("capacity", sa.Double(), nullable=True),
        sa.Column("used", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_devices_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "rank", "device", name="pk_devices"),
    )
    op.create_table(
        "nonfinite_steps",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("where", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("micro_batches", sa.Integer(), nullable=False),
        sa.Column("local", sa.Boolean(), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("parameter_count", sa.Integer(), nullable=False),
        sa.Column("in_a_row", sa.Integer(), nullable=False),
        sa.Column("recent", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_nonfinite_steps_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_nonfinite_steps"),
    )
    op.create_index("ix_nonfinite_steps_run_step", "nonfinite_steps", ["run", "step"])
    op.create_table(
        "phases",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_phases_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_phases"),
    )
    op.create_index("ix_phases_run_rank_time", "phases", ["run", "rank", "time"])
    op.create_table(
        "ranks",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column(
            "source", sa.Text(), nullable=False, comment="Of the newest process that said it began; empty: none did."
        ),
        sa.Column("started_at", sa.Double(), nullable=True, comment="When that process began."),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("last_event_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("oom_kills", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_ranks_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "rank", name="pk_ranks"),
    )
    op.create_table(
        "series",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("points", sa.BigInteger(), nullable=False),
        sa.Column("fresh", sa.Integer(), nullable=False, comment="How many of the points are rows, not yet packed."),
        sa.Column("nonfinite", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("last_time", sa.Double(), nullable=False),
        sa.Column("last_value", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_series_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
        sa.UniqueConstraint("run", "rank", "metric", "device", name="uq_series_run_rank_metric_device"),
    )
    op.create_table(
        "sources",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column(
            "next", sa.BigInteger(), nullable=False, comment="The sequence wanted next; all before it are stored."
        ),
        sa.Column("lost", sa.Text(), nullable=False, comment="Counted by the server: reason to events."),
        sa.Column("reported_errors", sa.Text(), nullable=False, comment="The source's own totals, newest report."),
        sa.Column("reported_lost", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_sources_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "source", name="pk_sources"),
    )
    op.create_table(
        "chunks",
        sa.Column("series", _ID, autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False, comment="Of the first point."),
        sa.Column("points", sa.Integer(), nullable=False),
        sa.Column("nonfinite", sa.Integer(), nullable=False),
        sa.Column("step_low", sa.BigInteger(), nullable=False, comment="-1: a step is not known."),
        sa.Column("step_high", sa.BigInteger(), nullable=False),
        sa.Column("time_low", sa.Double(), nullable=False),
        sa.Column("time_high", sa.Double(), nullable=False),
        sa.Column("value_low", sa.Double(), nullable=True, comment="Of the finite values; NULL: there are none."),
        sa.Column("value_high", sa.Double(), nullable=True),
        sa.Column("codec", sa.SmallInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["series"], ["series.id"], name="fk_chunks_series_series", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("series", "position", name="pk_chunks"),
    )


def downgrade() -> None:
    """Drops them all, with what is in them."""
    op.drop_table("chunks")
    op.drop_table("sources")
    op.drop_table("series")
    op.drop_table("ranks")
    op.drop_index("ix_phases_run_rank_time", table_name="phases")
    op.drop_table("phases")
    op.drop_index("ix_nonfinite_steps_run_step", table_name="nonfinite_steps")
    op.drop_table("nonfinite_steps")
    op.drop_table("devices")
    op.drop_index("ix_commands_run", table_name="commands")
    op.drop_table("commands")
    op.drop_index("ix_checkpoints_run_step", table_name="checkpoints")
    op.drop_table("checkpoints")
    op.drop_table("alerts")
    op.drop_index("ix_runs_state", table_name="runs")
    op.drop_index("ix_runs_started_at", table_name="runs")
    op.drop_index("ix_runs_project_started_at", table_name="runs")
    op.drop_table("runs")
    op.drop_table("points")
