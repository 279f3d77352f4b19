"""Many rows changed at once, by the driver itself: what every shipment does is not to cost what building SQL costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql


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
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        types = [table.c[name].type.dialect_impl(dialect).compile(dialect) for name in names]
        self._plain = [kind in ("BIGINT", "INTEGER", "DOUBLE PRECISION") for kind in types]
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
