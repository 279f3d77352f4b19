"""Brings the database to the schema that this version of TrainWatch wants. The only way to a schema, in tests too."""

from __future__ import annotations

from functools import cache

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from trainwatch.server.db import Database
from trainwatch.server.settings import Refused

# Any fixed number does: it names the lock that two servers starting at once compete for on Postgres.
_ADVISORY_LOCK = 0x7472_6169_6E77


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrates up, in one transaction, one process at a time.

    Raises:
        Refused: The database was made by a newer TrainWatch.
    """
    with database.write() as connection:
        _lock(connection)
        try:
            command.upgrade(_config(connection), revision)
        except CommandError as error:
            if "Can't locate revision" in str(error):
                raise Refused(
                    "The database was made by a newer version of TrainWatch than this one: upgrade with"
                    " pip install --upgrade 'trainwatch[server]', or point TRAINWATCH_DATABASE at another database."
                ) from error
            raise


def downgrade(database: Database, revision: str = "base") -> None:
    """Migrates down to `revision`."""
    with database.write() as connection:
        _lock(connection)
        command.downgrade(_config(connection), revision)


def current(database: Database) -> str | None:
    """Returns the database's revision; None for an empty one."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def is_behind(database: Database) -> bool:
    """Tells whether a database needs to be migrated. One of a newer version does not: that runs too."""
    found = current(database)
    if found is None:
        return True
    known = _revisions()
    return found in known and found != known[0]


def newest() -> str | None:
    """Returns the newest revision that this version knows."""
    return ScriptDirectory.from_config(_config(None)).get_current_head()


@cache
def _revisions() -> list[str]:
    """Returns all revisions that this version knows, the newest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config(None)).walk_revisions()]


def _lock(connection: Connection) -> None:
    # On SQLite the write transaction is the lock already.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", "trainwatch:migrations")
    config.attributes["connection"] = connection
    return config
