"""What an administrator does with a database besides running it: check, tidy up, back up, copy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy.engine import make_url

from trainwatch.server import migrate
from trainwatch.server.db import Database
from trainwatch.server.settings import Refused
from trainwatch.server.store import checking, copying


def check(database: Database, *, deep: bool = False) -> tuple[list[str], dict[str, int]]:
    """Looks for what does not fit together; a server may run meanwhile.

    Args:
        database: The database.
        deep: Whether every packed point is unpacked, too.

    Returns:
        What is wrong, and how many rows each table has.
    """
    with database.read() as connection:
        return list(checking.problems(connection, deep=deep)), checking.counted(connection)


def vacuum(database: Database) -> tuple[int, int]:
    """Gives the disk back what is not needed any more; returns the bytes before and after."""
    before = size(database)
    with database.engine.connect() as connection:
        if database.kind == "sqlite":
            raw = connection.connection.driver_connection
            assert isinstance(raw, sqlite3.Connection)
            raw.execute("VACUUM")
            raw.execute("PRAGMA optimize")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        else:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM (ANALYZE)")
    return before, size(database)


def size(database: Database) -> int:
    """Returns how many bytes a database takes on the disk."""
    if database.kind == "sqlite":
        file = _file(database)
        return sum(one.stat().st_size for one in (file, file.with_name(f"{file.name}-wal")) if one.exists())
    with database.read() as connection:
        return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())


def backup(database: Database, target: Path) -> int:
    """Copies an SQLite database as it is at one moment to a file; a server may write meanwhile.

    Args:
        database: The database.
        target: The file to make.

    Returns:
        Its size in bytes.

    Raises:
        Refused: The database is no SQLite, the file is there already, or the copy is damaged.
    """
    if database.kind != "sqlite":
        raise Refused("A Postgres database is backed up with pg_dump or pg_basebackup; see docs/storage.md.")
    if target.exists():
        raise Refused(f"{target} is there already: name another file.")
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(_file(database))) as source, closing(sqlite3.connect(part)) as copy:
            # In one go: of a database that is written to, a copy in pieces begins anew with each change. Readers do
            # not keep the writer waiting.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            found = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise Refused(f"The backup is damaged, and maybe the database, too: {found}")
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def copy(source: Database, target: Database, tell: Callable[[str, int], None]) -> int:
    """Copies everything into an empty database; all or nothing.

    Args:
        source: What to copy, as it is at one moment.
        target: Made or migrated first.
        tell: Told each table and its number of rows.

    Returns:
        How many rows in all.

    Raises:
        Refused: The source has another schema than this version's, or the target is not empty.
    """
    if migrate.current(source) != migrate.newest():
        raise Refused("The database to copy is of another version of TrainWatch: run `trainwatch db upgrade` first.")
    migrate.upgrade(target)
    with source.read() as reading, target.write() as writing:
        try:
            return copying.copy(reading, writing, tell)
        except copying.NotEmpty as error:
            raise Refused(f"The target has rows already (in {error}): name an empty database.") from None
        except copying.Differs as error:
            raise Refused(f"Nothing was copied, because reading back showed a difference: {error}.") from None


def _file(database: Database) -> Path:
    return Path(make_url(database.url).database or "")
