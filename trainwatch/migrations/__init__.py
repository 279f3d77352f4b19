"""The schema's history, as Alembic revisions. Run by :mod:`trainwatch.server.migrate`."""
