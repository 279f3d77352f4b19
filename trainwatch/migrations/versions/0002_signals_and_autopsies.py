"""Signals, layers, autopsies, out-of-memory, phase totals, every rank's setup, and where processes took up a run.

Of what is stored already nothing is known of these, except of the process that described its run and of each rank's
newest one.

Revision: 0002
Follows: 0001
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds columns and tables."""
    op.add_column("runs", sa.Column("dataset", sa.Text(), nullable=True))
    op.add_column(
        "runs",
        sa.Column("differences", sa.Text(), nullable=True, comment="Between the ranks; see diagnosis.differences."),
    )
    op.add_column(
        "ranks",
        sa.Column(
            "setup",
            sa.Text(),
            nullable=True,
            comment="Environment, model, arguments and dataset as the rank's RunStarted has them.",
        ),
    )
    op.add_column(
        "ranks",
        sa.Column("signals", sa.Text(), nullable=True, comment="Step, sources and missing of the newest SignalsFound."),
    )
    op.add_column(
        "sources",
        sa.Column(
            "started_at", sa.Double(), nullable=True, comment="When its process began to train; NULL for an agent."
        ),
    )
    op.add_column(
        "sources", sa.Column("first_step", sa.BigInteger(), nullable=True, comment="The first step that it finished.")
    )
    op.add_column(
        "sources",
        sa.Column("world_size", sa.Integer(), nullable=True, comment="Of the launch that it belongs to."),
    )
    op.create_table(
        "phase_totals",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("entered", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False, comment="Of the times that it was left again."),
        sa.Column("peak", sa.Text(), nullable=False, comment="Device to metric to the highest value."),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_phase_totals_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "rank", "phase", name="pk_phase_totals"),
    )
    op.create_table(
        "layer_sets",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("names", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_layer_sets_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_layer_sets"),
    )
    op.create_index("ix_layer_sets_run", "layer_sets", ["run"])
    op.create_table(
        "layer_chunks",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("layers", _ID, nullable=False),
        sa.Column("measurements", sa.Integer(), nullable=False),
        sa.Column("step_low", sa.BigInteger(), nullable=False),
        sa.Column("step_high", sa.BigInteger(), nullable=False),
        sa.Column("time_low", sa.Double(), nullable=False),
        sa.Column("time_high", sa.Double(), nullable=False),
        sa.Column("codec", sa.SmallInteger(), nullable=False),
        sa.Column("places", sa.LargeBinary(), nullable=False, comment="Step and time of each measurement."),
        sa.Column("norms", sa.LargeBinary(), nullable=False),
        sa.Column(
            "zeros", sa.LargeBinary(), nullable=True, comment="NULL: not measured in any of them; likewise updates."
        ),
        sa.Column("updates", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_layer_chunks_run_runs", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["layers"], ["layer_sets.id"], name="fk_layer_chunks_layers_layer_sets", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_layer_chunks"),
    )
    op.create_index("ix_layer_chunks_run_rank", "layer_chunks", ["run", "rank"])
    op.create_table(
        "autopsies",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False, comment="The event's other fields."),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_autopsies_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_autopsies"),
    )
    op.create_index("ix_autopsies_run_time", "autopsies", ["run", "time"])
    op.create_table(
        "out_of_memory",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("requested", sa.BigInteger(), nullable=False),
        sa.Column("allocated", sa.BigInteger(), nullable=False),
        sa.Column("free", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_out_of_memory_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_out_of_memory"),
    )
    op.create_index("ix_out_of_memory_run_time", "out_of_memory", ["run", "time"])
    _fill()


def _fill() -> None:
    """Takes over what is known: the setup of the rank that described its run, and when newest processes began."""
    connection = op.get_bind()
    connection.execute(
        sa.text(
            "UPDATE sources SET started_at = (SELECT ranks.started_at FROM ranks"
            " WHERE ranks.run = sources.run AND ranks.source = sources.source)"
            " WHERE rank IS NOT NULL"
        )
    )
    described = sa.text(
        "SELECT id, described_by, arguments, environment, model FROM runs WHERE described_by IS NOT NULL"
    )
    rows = [
        {
            "run": row.id,
            "rank": row.described_by,
            "setup": json.dumps(
                {name: json.loads(getattr(row, name) or "{}") for name in ("arguments", "environment", "model")}
            ),
        }
        for row in connection.execute(described)
    ]
    if rows:
        connection.execute(sa.text("UPDATE ranks SET setup = :setup WHERE run = :run AND rank = :rank"), rows)


def downgrade() -> None:
    """Drops them, with what is in them."""
    op.drop_index("ix_out_of_memory_run_time", table_name="out_of_memory")
    op.drop_table("out_of_memory")
    op.drop_index("ix_autopsies_run_time", table_name="autopsies")
    op.drop_table("autopsies")
    op.drop_index("ix_layer_chunks_run_rank", table_name="layer_chunks")
    op.drop_table("layer_chunks")
    op.drop_index("ix_layer_sets_run", table_name="layer_sets")
    op.drop_table("layer_sets")
    op.drop_table("phase_totals")
    for table, columns in (
        ("sources", ("world_size", "first_step", "started_at")),
        ("ranks", ("signals", "setup")),
        ("runs", ("differences", "dataset")),
    ):
        for column in columns:
            op.drop_column(table, column)
