"""The databases that a benchmark's server stores into, each with a plain table beside it to compare with."""

from __future__ import annotations

import math
import random
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

from benchmarks.support.shipments import step
from tests.postgres import Postgres, running_postgres
from trainwatch.events import StepEnded

Row = tuple[int, int, int, float, float | None]

POSTGRES_SETTINGS: Final = ("fsync=on", "max_connections=100", "shared_buffers=512MB", "max_wal_size=4GB")
"""As ``docker-compose.yml`` has them: what was acknowledged survives a power cut."""


def rows_of(numbers: range, chance: random.Random) -> list[Row]:
    """Makes the rows of steps, as the server's ``points`` has them, in the order in which they come."""
    found: list[Row] = []
    series: dict[tuple[str, str], int] = {}

    def row(one: StepEnded, device: str, name: str, value: float) -> Row:
        number = series.setdefault((name, device), len(series) + 1)
        return (number, one.step - 1, one.step, one.time, None if math.isnan(value) else value)

    for one in (step(number, chance) for number in numbers):
        found += [row(one, "", name, value) for name, value in one.values.items()]
        for device, values in one.devices.items():
            found += [row(one, device, name, value) for name, value in values.items()]
    return found


class Store(ABC):
    """A database for a server, and a plain table in one of the same kind.

    Attributes:
        name: For people.
        url: For ``TRAINWATCH_DATABASE``.
        means: How the plain table is filled.
    """

    name: str
    url: str
    means: str

    @abstractmethod
    def fill(self, rows: list[Row]) -> float:
        """Puts rows into the plain table in one transaction, and returns the seconds that it took."""

    @abstractmethod
    def size(self) -> int:
        """Returns the bytes that the server's database takes on the disk."""

    @abstractmethod
    def plain_size(self) -> int:
        """Returns the bytes that the plain table takes on the disk."""

    @abstractmethod
    def cpu(self) -> float:
        """Returns the processor seconds of the database's own processes so far."""


class SqliteStore(Store):
    """SQLite in a folder."""

    name = "SQLite"
    means = "executemany"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "server.db"
        self._plain = folder / "plain.db"
        self.url = f"sqlite:///{self._path}"
        self._connection = sqlite3.connect(self._plain, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA cache_size = -32768")
        self._connection.execute(
            "CREATE TABLE points (series INTEGER, position INTEGER, step INTEGER, time DOUBLE NOT NULL, value DOUBLE,"
            " PRIMARY KEY (series, position)) WITHOUT ROWID"
        )

    def fill(self, rows: list[Row]) -> float:
        began = time.perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")
        return time.perf_counter() - began

    def size(self) -> int:
        return _files(self._path)

    def plain_size(self) -> int:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return _files(self._plain)

    def cpu(self) -> float:
        return 0.0  # it works in the server's process


class PostgresStore(Store):
    """A Postgres server of its own."""

    name = "Postgres"
    means = "COPY"

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.url = server.url
        plain = server.url.replace("+psycopg", "")
        with psycopg.connect(plain, autocommit=True) as first:
            first.execute("CREATE DATABASE plain")
        self._connection = psycopg.connect(plain.removesuffix("postgres") + "plain", autocommit=True)
        self._admin = psycopg.connect(plain, autocommit=True)
        self._connection.execute(
            "CREATE TABLE points (series bigint, position bigint, step bigint, time double precision NOT NULL,"
            " value double precision, PRIMARY KEY (series, position))"
        )

    def fill(self, rows: list[Row]) -> float:
        began = time.perf_counter()
        with (
            self._connection.transaction(),
            self._connection.cursor() as cursor,
            cursor.copy("COPY points FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)
        return time.perf_counter() - began

    def size(self) -> int:
        return self._one("SELECT pg_database_size('postgres')")

    def plain_size(self) -> int:
        return self._one("SELECT pg_database_size('plain')")

    def cpu(self) -> float:
        main = psutil.Process(self._server.pid)
        total = 0.0
        with suppress(psutil.NoSuchProcess):
            times = main.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        for child in main.children():
            with suppress(psutil.NoSuchProcess):
                times = child.cpu_times()
                total += times.user + times.system
        return total

    def close(self) -> None:
        """Closes the connections."""
        self._connection.close()
        self._admin.close()

    def _one(self, query: str) -> int:
        row: Any = self._admin.execute(query.encode()).fetchone()
        return int(row[0])


@contextmanager
def store(kind: str, folder: Path) -> Iterator[Store]:
    """Makes a database that is gone when the block ends.

    Args:
        kind: ``sqlite`` or ``postgres``.
        folder: Where SQLite's files are to lie.
    """
    if kind == "sqlite":
        yield SqliteStore(folder)
        return
    with running_postgres(*POSTGRES_SETTINGS) as server:
        found = PostgresStore(server)
        try:
            yield found
        finally:
            found.close()


def _files(database: Path) -> int:
    return sum(file.stat().st_size for file in database.parent.glob(f"{database.name}*"))
