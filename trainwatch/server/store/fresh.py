"""Points that are rows: written and read by the driver's fastest means, as most of what the server does is this.

On Postgres by binary COPY, made and read by numpy: a row through the driver costs several times what the database
takes for it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Sequence
from itertools import count, pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
from sqlalchemy import Connection

from trainwatch.server.db import driver
from trainwatch.server.store.codec import Columns

SERIES_AT_ONCE: Final = 500
"""Series whose rows one statement reads or deletes. SQLite takes 32,766 parameters and Postgres 65,535; and 500 series
have up to a million rows, which take some 200 MB on the way."""

_INSERT: Final = "INSERT INTO points (series, position, step, time, value) VALUES (?, ?, ?, ?, ?)"
_COPY_IN: Final = "COPY points (series, position, step, time, value) FROM STDIN (FORMAT BINARY)"
# Without NULL all rows are of the same length.
_COPY_OUT: Final = (
    "COPY (SELECT series, coalesce(step, -1), time, coalesce(value, 'NaN') FROM points WHERE series = ANY(%s)"
    " ORDER BY series, position) TO STDOUT (FORMAT BINARY)"
)

# https://www.postgresql.org/docs/current/sql-copy.html: signature, flags, no extension; each row begins with the number
# of its fields, each field with its length, -1 for NULL; the end is a row of -1 fields.
_BEGIN: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = b"\xff\xff"
_NULL: Final = struct.pack(">i", -1)
_EIGHT_BYTES: Final = struct.pack(">i", 8)


def _row_type(*kinds: str) -> np.dtype[Any]:
    fields = [("fields", ">i2")]
    for number, kind in enumerate(kinds):
        fields += [(f"length{number}", ">i4"), (f"field{number}", kind)]
    return np.dtype(fields)


_WRITTEN: Final = _row_type(">i8", ">i8", ">i8", ">f8", ">f8")
_READ: Final = _row_type(">i8", ">i8", ">f8", ">f8")


class Stretch(NamedTuple):
    """New points of one series, in order.

    Attributes:
        series: The series' number.
        position: Of the first point.
        step: Steps; -1 where there is none.
        time: Unix seconds.
        value: Values.
    """

    series: int
    position: int
    step: list[int]
    time: list[float]
    value: list[float]


def insert(connection: Connection, stretches: Sequence[Stretch]) -> None:
    """Inserts points as rows.

    Args:
        connection: A write transaction.
        stretches: The points; NaN and steps that there are not are stored as NULL, as
            :class:`~trainwatch.server.db.Reading` has it.
    """
    if not stretches:
        return
    if connection.dialect.name == "postgresql":
        with driver(connection) as cursor, cursor.copy(_COPY_IN) as copy:
            copy.write(_encoded(stretches))
    else:
        connection.exec_driver_sql(_INSERT, [row for one in stretches for row in _rows(one)])


def read(connection: Connection, ids: Collection[int]) -> dict[int, Columns]:
    """Returns the points of series that are rows; of those series that have any."""
    if not ids:
        return {}
    kinds = ("i8", "i8", "f8", "f8")
    with driver(connection) as cursor:
        if connection.dialect.name == "postgresql":
            with cursor.copy(_COPY_OUT, (list(ids),)) as copy:
                data = b"".join(bytes(block) for block in copy)
            found = np.frombuffer(data, _READ, offset=len(_BEGIN), count=(len(data) - len(_BEGIN)) // _READ.itemsize)
            columns = [found[f"field{number}"].astype(kind) for number, kind in enumerate(kinds)]
        else:
            numbers = list(ids)
            found_rows: list[tuple[Any, ...]] = []
            for at in range(0, len(numbers), SERIES_AT_ONCE):
                some = numbers[at : at + SERIES_AT_ONCE]
                marks = ", ".join("?" * len(some))
                cursor.execute(
                    f"SELECT series, coalesce(step, -1), time, value FROM points WHERE series IN ({marks})"
                    " ORDER BY series, position",
                    some,
                )
                found_rows += cursor.fetchall()
            rows = zip(*found_rows, strict=True)
            columns = [np.array(column, kind) for column, kind in zip(rows, kinds, strict=False)]  # no rows: none
    if not columns or not len(columns[0]):
        return {}
    number, whole = columns[0], Columns(*columns[1:])
    starts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(number)]
    return {int(number[begin]): whole.take(slice(begin, end)) for begin, end in pairwise(starts)}


def _rows(one: Stretch) -> Iterable[tuple[int, int, int | None, float, float | None]]:
    steps: Sequence[int | None] = one.step
    values: Sequence[float | None] = one.value
    if min(one.step) < 0:
        steps = [None if step < 0 else step for step in one.step]
    if any(map(math.isnan, one.value)):
        values = [None if math.isnan(value) else value for value in one.value]
    return zip(repeat(one.series), count(one.position), steps, one.time, values)


def _encoded(stretches: Sequence[Stretch]) -> bytes:
    """Returns points as a binary COPY has them."""
    counts = np.array([len(one.value) for one in stretches])
    series = np.repeat(np.array([one.series for one in stretches], np.int64), counts)
    # Each stretch counts on from its own first position.
    offsets = np.array([one.position for one in stretches], np.int64) - (np.cumsum(counts) - counts)
    position = np.arange(len(series)) + np.repeat(offsets, counts)
    step = np.array([step for one in stretches for step in one.step], np.int64)
    time = np.array([time for one in stretches for time in one.time], np.float64)
    value = np.array([value for one in stretches for value in one.value], np.float64)
    whole = (step >= 0) & ~np.isnan(value)
    rows = np.empty(int(np.count_nonzero(whole)), _WRITTEN)
    rows["fields"] = 5
    for number, column in enumerate((series, position, step, time, value)):
        rows[f"length{number}"] = 8
        rows[f"field{number}"] = column[whole]
    others = [
        _with_null(*row)
        for row in zip(*(column[~whole].tolist() for column in (series, position, step, time, value)), strict=True)
    ]
    return b"".join([_BEGIN, rows.tobytes(), *others, _END])


def _with_null(series: int, position: int, step: int, time: float, value: float) -> bytes:
    return b"".join(
        [
            struct.pack(">hiqiq", 5, 8, series, 8, position),
            _NULL if step < 0 else _EIGHT_BYTES + struct.pack(">q", step),
            _EIGHT_BYTES + struct.pack(">d", time),
            _NULL if math.isnan(value) else _EIGHT_BYTES + struct.pack(">d", value),
        ]
    )
