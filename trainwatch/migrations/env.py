"""Runs the revisions on the connection that :mod:`trainwatch.server.migrate` opened and locked."""

from __future__ import annotations

from alembic import context

from trainwatch.server import models  # noqa: F401  (fills the metadata)
from trainwatch.server.db import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite changes a table only by copying it
    transactional_ddl=True,
)
context.run_migrations()
