"""What agents sent: runs, ranks, series and their points, phases, autopsies, alerts; and commands for the runs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, SmallInteger, Table
from sqlalchemy import UniqueConstraint as Unique

from trainwatch.server.db import Document, Packed, Reading, Words, metadata
from trainwatch.server.models.columns import Id, run_column

runs = Table(
    "runs",
    metadata,
    Column("id", Words, primary_key=True),
    Column("project", Words, nullable=False),
    Column("name", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("node", Words, nullable=False, comment="The node that reported first; its readings keep plain names."),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("last_event_at", Double, nullable=False),
    Column("heard_at", Double, nullable=False, comment="By the server's clock."),
    Column(
        "superseded_until", Double, nullable=False, comment="Last sign of processes since replaced by newer ones; or 0."
    ),
    Column("step", BigInteger, nullable=False),
    Column("max_steps", BigInteger, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("described_by", Integer, comment="The rank whose RunStarted fills the columns below; the lowest seen."),
    Column("policy", Words, nullable=False),
    Column("loss_source", Words, nullable=False),
    Column("output_dir", Words, nullable=False),
    Column("arguments", Document, nullable=False),
    Column("environment", Document, nullable=False),
    Column("model", Document, nullable=False),
    Column("dataset", Document),
    Column("differences", Document, comment="Between the ranks; see diagnosis.differences."),
    Column("loss_rank", Integer, comment="The rank whose train/loss is shown for the run; NULL: none yet."),
    Column("last_loss", Reading),
    Column("eval_rank", Integer),
    Column("last_eval_loss", Reading),
    Column("sparkline", Packed),
    Column("ending", Document, nullable=False, comment="Outcome, rule, parameters … when over; see liveness.Ending."),
    Column("version", BigInteger, nullable=False),
    Index(None, "started_at"),
    Index(None, "project", "started_at"),
    Index(None, "state"),
)

ranks = Table(
    "ranks",
    metadata,
    run_column(primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("node", Words, nullable=False),
    Column("source", Words, nullable=False, comment="Of the newest process that said it began; empty: none did."),
    Column("started_at", Double, comment="When that process began."),
    Column("pid", BigInteger, nullable=False),
    Column("state", Words, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("phase", Words, nullable=False),
    Column("last_event_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("reason", Words, nullable=False),
    Column("parameters", Document, nullable=False),
    Column("error", Words, nullable=False),
    Column("traceback", Words, nullable=False),
    Column("oom_kills", Integer, nullable=False),
    Column("setup", Document, comment="Environment, model, arguments and dataset as the rank's RunStarted has them."),
    Column("signals", Document, comment="Step, sources and missing of the newest SignalsFound."),
)

sources = Table(
    "sources",
    metadata,
    run_column(primary_key=True),
    Column("source", Words, primary_key=True),
    Column("node", Words, nullable=False),
    Column("rank", Integer),
    Column("next", BigInteger, nullable=False, comment="The sequence wanted next; all before it are stored."),
    Column("lost", Document, nullable=False, comment="Counted by the server: reason to events."),
    Column("reported_errors", Document, nullable=False, comment="The source's own totals, newest report."),
    Column("reported_lost", Document, nullable=False),
    Column("message", Words, nullable=False),
    Column("started_at", Double, comment="When its process began to train; NULL for an agent."),
    Column("first_step", BigInteger, comment="The first step that it finished."),
    Column("world_size", Integer, comment="Of the launch that it belongs to."),
)

devices = Table(
    "devices",
    metadata,
    run_column(primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("device", Words, primary_key=True),
    Column("capacity", Double),
    Column("used", Double),
)

series = Table(
    "series",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("rank", Integer, nullable=False),
    Column("metric", Words, nullable=False),
    Column("device", Words, nullable=False),
    Column("points", BigInteger, nullable=False),
    Column("fresh", Integer, nullable=False, comment="How many of the points are rows, not yet packed."),
    Column("nonfinite", BigInteger, nullable=False),
    Column("last_step", BigInteger),
    Column("last_time", Double, nullable=False),
    Column("last_value", Reading),
    Column("rolled", BigInteger, comment="How many of the points, from the first, rollups stand for; NULL: none."),
    Column("dropped", BigInteger, comment="How many, from the first, are kept as rollups only; NULL: none."),
    Unique("run", "rank", "metric", "device"),
)

# No foreign key: its check would cost as much as the insert. Whoever deletes series deletes their points.
points = Table(
    "points",
    metadata,
    Column("series", Id, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False, comment="Place in the series, from 0."),
    Column("step", BigInteger),
    Column("time", Double, nullable=False),
    Column("value", Reading),
    sqlite_with_rowid=False,
)

chunks = Table(
    "chunks",
    metadata,
    Column("series", Id, ForeignKey("series.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False, comment="Of the first point."),
    Column("points", Integer, nullable=False),
    Column("nonfinite", Integer, nullable=False),
    Column("step_low", BigInteger, nullable=False, comment="-1: a step is not known."),
    Column("step_high", BigInteger, nullable=False),
    Column("time_low", Double, nullable=False),
    Column("time_high", Double, nullable=False),
    Column("value_low", Double, comment="Of the finite values; NULL: there are none."),
    Column("value_high", Double),
    Column("codec", SmallInteger, nullable=False),
    Column("data", Packed, nullable=False),
)

phases = Table(
    "phases",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("rank", Integer, nullable=False),
    Column("phase", Words, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("time", Double, nullable=False),
    Index(None, "run", "rank", "time"),
)

phase_totals = Table(
    "phase_totals",
    metadata,
    run_column(primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("phase", Words, primary_key=True),
    Column("entered", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False, comment="Of the times that it was left again."),
    Column("peak", Document, nullable=False, comment="Device to metric to the highest value."),
)

# Names once for all measurements: a run of eight ranks repeats a hundred of them ten thousand times.
layer_sets = Table(
    "layer_sets",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("names", Document, nullable=False),
    Index(None, "run"),
)

layer_chunks = Table(
    "layer_chunks",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("rank", Integer, nullable=False),
    Column("layers", Id, ForeignKey("layer_sets.id", ondelete="CASCADE"), nullable=False),
    Column("measurements", Integer, nullable=False),
    Column("step_low", BigInteger, nullable=False),
    Column("step_high", BigInteger, nullable=False),
    Column("time_low", Double, nullable=False),
    Column("time_high", Double, nullable=False),
    Column("codec", SmallInteger, nullable=False),
    Column("places", Packed, nullable=False, comment="Step and time of each measurement."),
    Column("norms", Packed, nullable=False),
    Column("zeros", Packed, comment="NULL: not measured in any of them; likewise updates."),
    Column("updates", Packed),
    Index(None, "run", "rank"),
)

autopsies = Table(
    "autopsies",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("time", Double, nullable=False),
    Column("content", Document, nullable=False, comment="The event's other fields."),
    Index(None, "run", "time"),
)

out_of_memory = Table(
    "out_of_memory",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("time", Double, nullable=False),
    Column("device", Words, nullable=False),
    Column("requested", BigInteger, nullable=False),
    Column("allocated", BigInteger, nullable=False),
    Column("free", BigInteger, nullable=False),
    Column("phase", Words, nullable=False),
    Column("summary", Words, nullable=False),
    Index(None, "run", "time"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("path", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("time", Double, nullable=False),
    Index(None, "run", "step"),
)

nonfinite_steps = Table(
    "nonfinite_steps",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("rank", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("time", Double, nullable=False),
    Column("where", Words, nullable=False),
    Column("value", Reading),
    Column("action", Words, nullable=False),
    Column("micro_batches", Integer, nullable=False),
    Column("local", Boolean, nullable=False),
    Column("parameters", Document, nullable=False),
    Column("parameter_count", Integer, nullable=False),
    Column("in_a_row", Integer, nullable=False),
    Column("recent", Integer, nullable=False),
    Index(None, "run", "step"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("rule", Words, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("severity", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("count", BigInteger, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("parameters", Document, nullable=False),
    Column("key", Words, nullable=False),
    Column("action", Words, nullable=False),
    Column("resolved_at", Double),
    Column("silenced_until", Double, comment="By the server's clock; NULL: not silenced, Infinity: for ever."),
    Unique("run", "rule", "rank", "key"),
)

rule_settings = Table(
    "rule_settings",
    metadata,
    Column("project", Words, primary_key=True),
    Column("rules", Document, nullable=False),
    Column("changed_at", Double, nullable=False, comment="By the server's clock."),
)

commands = Table(
    "commands",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    run_column(),
    Column("action", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("created_at", Double, nullable=False, comment="By the server's clock."),
    Column("open", Boolean, nullable=False, comment="Still to be obeyed; no more when the run has ended."),
    Index(None, "run"),
)
