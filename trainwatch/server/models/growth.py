"""How long projects keep their data, coarser copies of long series, and runs that were deleted."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Integer, SmallInteger, Table

from trainwatch.server.db import Packed, Words, metadata
from trainwatch.server.models.columns import Id

rollups = Table(
    "rollups",
    metadata,
    Column("series", Id, ForeignKey("series.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("level", SmallInteger, primary_key=True, autoincrement=False, comment="From 1, the finest."),
    Column("position", BigInteger, primary_key=True, autoincrement=False, comment="Of the first point it stands for."),
    Column("points", Integer, nullable=False, comment="How many points it stands for."),
    Column("kept", Integer, nullable=False, comment="How many of them it holds."),
    Column("nonfinite", Integer, nullable=False, comment="Of all points that it stands for; likewise what follows."),
    Column("nan_omitted", Integer, nullable=False, comment="NaNs that it does not hold."),
    Column("positive_omitted", Integer, nullable=False),
    Column("negative_omitted", Integer, nullable=False),
    Column("step_low", BigInteger, nullable=False, comment="-1: a step is not known."),
    Column("step_high", BigInteger, nullable=False),
    Column("time_low", Double, nullable=False),
    Column("time_high", Double, nullable=False),
    Column("codec", SmallInteger, nullable=False),
    Column("data", Packed, nullable=False),
)

retention = Table(
    "retention",
    metadata,
    Column("project", Words, primary_key=True),
    Column("raw", Double, comment="Days that every single point is kept; NULL: for ever. Likewise the others."),
    Column("rollups", Double, comment="Days that curves are kept at all."),
    Column("runs", Double, comment="Days that runs are kept at all."),
    Column("changed_at", Double, nullable=False, comment="By the server's clock."),
)

# So that what its agents still ship does not bring a part of it back.
deleted_runs = Table(
    "deleted_runs",
    metadata,
    Column("run", Words, primary_key=True),
    Column("project", Words, nullable=False),
    Column("deleted_at", Double, nullable=False, comment="By the server's clock."),
    Column("refused", BigInteger, nullable=False, comment="Events that came since, and were not stored."),
)
