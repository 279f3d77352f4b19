"""News of changed runs from one server to the others, by the database that they share.

Postgres delivers a notification when, and only if, the transaction that gave it commits; what one transaction says
twice, once. On SQLite there is nobody else to tell.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Final

import psycopg
from sqlalchemy import Connection, select
from sqlalchemy.engine import make_url

from trainwatch.server.db import POSTGRES_CONNECTION, Database
from trainwatch.server.models import runs

CHANNEL: Final = "trainwatch_runs"
_PROBE_SECONDS: Final = 5.0


def tell(connection: Connection, changed: Collection[tuple[str, int]]) -> None:
    """Tells the other servers of runs and their new versions, once the transaction commits.

    Args:
        connection: Of a write transaction.
        changed: Ids and versions.
    """
    if connection.dialect.name == "postgresql":
        said = [f"{run}:{version}" for run, version in changed]
        connection.exec_driver_sql("SELECT pg_notify(%s, said) FROM unnest(%s::text[]) AS said", (CHANNEL, said))


async def heard(url: str) -> AsyncGenerator[tuple[str, int] | None, None]:
    """Yields the id and version of each run that any server changed, until the connection breaks.

    Args:
        url: The database's SQLAlchemy address.

    Yields:
        None once it listens, and when nothing came for some seconds; then news.

    Raises:
        psycopg.Error: The database cannot be reached, or not any more.
    """
    async with await psycopg.AsyncConnection.connect(_address(url), autocommit=True, **POSTGRES_CONNECTION) as line:
        await line.execute(f"LISTEN {CHANNEL}")
        while True:
            yield None
            async for notice in line.notifies(timeout=_PROBE_SECONDS):
                run, _, version = notice.payload.rpartition(":")
                if version.isdecimal():
                    yield run, int(version)
            await line.execute("SELECT 1")  # a cut line is only noticed by somebody who says something


def versions_of(database: Database, followed: Collection[str]) -> list[tuple[str, int]]:
    """Returns the ids and versions of runs that somebody follows, as far as they are still there."""
    if not followed:
        return []
    with database.read() as connection:
        query = select(runs.c.id, runs.c.version).where(runs.c.id.in_(list(followed)))
        return [(row.id, row.version) for row in connection.execute(query)]


def _address(url: str) -> str:
    """Spells a SQLAlchemy address as libpq wants it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
