"""Which server does the work that only one may do."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Table

from trainwatch.server.db import Words, metadata

leases = Table(
    "leases",
    metadata,
    Column("name", Words, primary_key=True, comment="Of the job."),
    Column("owner", Words, nullable=False, comment="The server that does it; empty: none yet."),
    Column("fence", BigInteger, nullable=False, comment="Counts the owners: an older number may change nothing."),
    Column("expires_at", Double, nullable=False, comment="By the database's clock."),
)
