"""Copies a whole database into another one, of either kind, and makes sure that nothing is lost on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Table, func, insert, select

from trainwatch.server.db import metadata
from trainwatch.server.models import leases

_LEFT_OUT: Final = frozenset({leases.name})  # whoever does what says so anew every few seconds
_ROWS: Final = 1000
_MASK: Final = (1 << 64) - 1


class NotEmpty(Exception):
    """The database that was to be filled has something in it. The message names a table."""


class Differs(Exception):
    """What was read back from a copy is not what was copied. The message names a table."""


def tables() -> list[Table]:
    """Returns what is copied, in an order in which nothing comes before what it hangs on."""
    return [table for table in metadata.sorted_tables if table.name not in _LEFT_OUT]


def copy(source: Connection, target: Connection, tell: Callable[[str, int], None]) -> int:
    """Copies all rows of all tables, and reads them back.

    Args:
        source: A read transaction: what is written meanwhile is not copied.
        target: A write transaction on a database of the same schema; to be rolled back when this raises.
        tell: Told each table's name and number of rows once it is there and was read back.

    Returns:
        How many rows in all.

    Raises:
        NotEmpty: The target has rows.
        Differs: A table has not the same rows in both.
    """
    for table in tables():
        if target.execute(select(*table.primary_key).limit(1)).first() is not None:
            raise NotEmpty(table.name)
    total = 0
    for table in tables():
        sent = _Sum()
        for rows in _batches(source, table):
            sent.add(rows)
            target.execute(insert(table), [dict(row._mapping) for row in rows])
        came = _Sum()
        for rows in _batches(target, table):
            came.add(rows)
        if (came.count, came.total) != (sent.count, sent.total):
            raise Differs(f"{table.name}: {sent.count:,} rows were copied, {came.count:,} came, or not the same ones")
        _go_on_numbering(target, table)
        total += sent.count
        tell(table.name, sent.count)
    return total


class _Sum:
    """A checksum of rows in any order."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0

    def add(self, rows: Sequence[Row[Any]]) -> None:
        self.count += len(rows)
        for row in rows:
            digest = hashlib.blake2b(repr(tuple(row)).encode(), digest_size=8).digest()
            self.total = (self.total + int.from_bytes(digest, "big")) & _MASK


def _batches(connection: Connection, table: Table) -> Iterator[Sequence[Row[Any]]]:
    query = select(table).execution_options(yield_per=_ROWS)
    yield from connection.execute(query).partitions()


def _go_on_numbering(connection: Connection, table: Table) -> None:
    """Lets Postgres number the next row after those that came with a number. SQLite does so by itself."""
    column = table.autoincrement_column
    if column is None or connection.dialect.name != "postgresql":
        return
    newest = connection.scalar(select(func.max(column)))
    if newest is not None:
        connection.exec_driver_sql(
            "SELECT setval(pg_get_serial_sequence(%s, %s), %s)", (table.name, column.name, newest)
        )
