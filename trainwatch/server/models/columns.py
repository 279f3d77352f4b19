"""What the tables share."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, ForeignKey, Integer

from trainwatch.server.db import Words

NO_RANK: Final = -1
"""Stored for readings and alerts that belong to no rank: NULLs would defeat the unique keys."""

Id: Final = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER numbers itself on SQLite


def run_column(*, primary_key: bool = False) -> Column[str]:
    """Returns the column that names the run a row belongs to and goes with."""
    return Column("run", Words, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, primary_key=primary_key)
