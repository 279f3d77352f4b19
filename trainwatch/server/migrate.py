"""Brings the database to the schema that this version of TrainWatch wants. The only way to a schema, in tests too.

Alembic is only loaded where there is something to migrate: that takes half a second, and mostly there is nothing.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect

from trainwatch.server.db import Database
from trainwatch.server.settings import Refused

if TYPE_CHECKING:
    from alembic.config import Config

# Any fixed number does: it names the lock that two servers starting at once compete for on Postgres.
_ADVISORY_LOCK = 0x7472_6169_6E77


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrates up, in one transaction, one process at a time.

    Raises:
        Refused: The database was made by a newer TrainWatch.
    """
    if revision == "head" and current(database) == newest():
        return
    from alembic import command
    from alembic.util import CommandError

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
    from alembic import command

    with database.write() as connection:
        _lock(connection)
        command.downgrade(_config(connection), revision)


def current(database: Database) -> str | None:
    """Returns the database's revision; None for an empty one."""
    with database.read() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        return found


def is_behind(database: Database) -> bool:
    """Tells whether a database needs to be migrated. One of a newer version does not: that runs too."""
    found = current(database)
    if found is None:
        return True
    known = _revisions()
    return found in known and found != known[0]


def newest() -> str:
    """Returns the newest revision that this version knows."""
    return _revisions()[0]


@cache
def _revisions() -> list[str]:
    """Returns all revisions that this version knows, the newest first; their files begin with them."""
    files = resources.files("trainwatch.migrations").joinpath("versions").iterdir()
    names = [file.name for file in files if file.name[0].isdigit() and file.name.endswith(".py")]
    return sorted((name.partition("_")[0] for name in names), reverse=True)


def _lock(connection: Connection) -> None:
    # On SQLite the write transaction is the lock already.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "trainwatch:migrations")
    config.attributes["connection"] = connection
    return config
