"""Many rows changed at once, by the driver itself: what every shipment does is not to cost what building SQL costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Double, Integer, LargeBinary, SmallInteger, Table, Text, TypeDecorator

from trainwatch.server.db import driver

_NUMBERS: Final = ("int8", "int4", "int2", "float8")


def _kind(table: Table, column: str) -> str:
    """Returns what Postgres calls a column's type."""
    found = table.c[column].type
    plain = found.impl_instance if isinstance(found, TypeDecorator) else found
    kinds: dict[type, str] = {BigInteger: "int8", SmallInteger: "int2", Integer: "int4"}
    kinds |= {Double: "float8", LargeBinary: "bytea", Text: "text"}
    return next(name for kind, name in kinds.items() if isinstance(plain, kind))


def _numbers(column: Sequence[float | None]) -> str:
    """Spells numbers as an array of Postgres; the driver looks for what must be quoted and takes ten times as long."""
    return f"{{{','.join(['NULL' if value is None else repr(value) for value in column])}}}"


class Update:
    """Writes some columns of rows that are named by their keys. Values go to the driver as they are.

    Args:
        table: The table.
        columns: What is written.
        key: What names a row.
    """

    def __init__(self, table: Table, columns: Sequence[str], key: Sequence[str]) -> None:
        names = [*columns, *key]
        types = [_kind(table, name) for name in names]
        self._plain = [kind in _NUMBERS for kind in types]
        self._sqlite = (
            f"UPDATE {table.name} SET {', '.join(f'{name} = ?' for name in columns)}"
            f" WHERE {' AND '.join(f'{name} = ?' for name in key)}"
        )
        self._postgres = (
            f"UPDATE {table.name} SET {', '.join(f'{name} = new.{name}' for name in columns)}"
            f" FROM unnest({', '.join(f'%s::{kind}[]' for kind in types)}) AS new({', '.join(names)})"
            f" WHERE {' AND '.join(f'{table.name}.{name} = new.{name}' for name in key)}"
        )

    def __call__(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Writes rows: of each the columns' values, then the key's."""
        if not rows:
            return
        if connection.dialect.name == "postgresql":
            columns = zip(self._plain, zip(*rows, strict=True), strict=True)
            connection.exec_driver_sql(
                self._postgres, tuple(_numbers(column) if plain else list(column) for plain, column in columns)
            )
        else:
            connection.exec_driver_sql(self._sqlite, list(rows))


class Insert:
    """Inserts rows; on Postgres by binary COPY. Values go to the driver as they are.

    Args:
        table: The table.
        columns: What the rows have.
    """

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._types = [_kind(table, name) for name in columns]
        self._columns = columns
        self._sqlite = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        self._postgres = f"COPY {table.name} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"

    def __call__(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Inserts rows that have all of the columns."""
        if not rows:
            return
        values = [tuple([row[name] for name in self._columns]) for row in rows]
        if connection.dialect.name == "postgresql":
            with driver(connection) as cursor, cursor.copy(self._postgres) as copy:
                copy.set_types(self._types)
                for one in values:
                    copy.write_row(one)
        else:
            connection.exec_driver_sql(self._sqlite, values)
