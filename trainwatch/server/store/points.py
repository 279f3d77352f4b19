"""Points: written as rows while they are fresh, packed a thousand at a time into chunks, read back as columns.

Fresh points are rows so that an agent's few points a second cost a few small inserts. When a series has gathered
enough of them they are packed, within the transaction that brought the last one: a point is at every moment either a
row or in a chunk, never both and never neither.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from trainwatch.server.models import chunks, points, series
from trainwatch.server.store.codec import CODEC, Columns, join, pack, unpack

PACK_AT: Final = 1024
CHUNK: Final = 4096
"""Points a chunk holds at most."""


_EVERYTHING: Final = 2**62


class Key(NamedTuple):
    """Names a series of a run; rank -1 and device ``""`` where there is none."""

    metric: str
    rank: int
    device: str


class Fresh:
    """New points of one series, in the order of their arrival."""

    __slots__ = ("step", "time", "value")

    def __init__(self) -> None:
        self.step: list[int] = []
        self.time: list[float] = []
        self.value: list[float] = []


class Last(NamedTuple):
    """A series' newest point."""

    time: float
    value: float


def append(connection: Connection, run: str, arrived: Mapping[Key, Fresh]) -> dict[Key, Last]:
    """Stores new points behind those that the series have; makes the series that are missing.

    The caller holds the run's row lock, or another server could give the same positions away.

    Args:
        connection: A write transaction.
        run: The run's id.
        arrived: The points by series.

    Returns:
        The newest point of every series of the ranks concerned.
    """
    known = _series_of(connection, run, {key.rank for key in arrived})
    missing = [key for key in arrived if key not in known]
    if missing:
        known |= _make_series(connection, run, missing)
    rows: list[tuple[int, int, int | None, float, float | None]] = []
    changes: list[dict[str, Any]] = []
    for key, new in arrived.items():
        row = known[key]
        count = len(new.value)
        fresh = row.fresh + count
        if fresh >= PACK_AT + row.id % PACK_AT:  # not all series at once: the ranks march in step
            _pack(connection, row.id, row.points - row.fresh, row.fresh, new)
            fresh = 0
        else:
            rows.extend(
                (row.id, position, step if step >= 0 else None, time, None if math.isnan(value) else value)
                for position, (step, time, value) in enumerate(
                    zip(new.step, new.time, new.value, strict=True), start=row.points
                )
            )
        if new.time[-1] >= row.last_time:
            newest = (new.step[-1] if new.step[-1] >= 0 else None, new.time[-1], new.value[-1])
        else:
            newest = (row.last_step, row.last_time, row.last_value)
        changes.append(
            {
                "key": row.id,
                "points": row.points + count,
                "fresh": fresh,
                "nonfinite": row.nonfinite + sum(not math.isfinite(value) for value in new.value),
                "last_step": newest[0],
                "last_time": newest[1],
                "last_value": newest[2],
            }
        )
        known[key] = row._replace(last_time=newest[1], last_value=newest[2])
    _insert_rows(connection, rows)
    connection.execute(
        update(series)
        .where(series.c.id == bindparam("key"))
        .values({name: bindparam(name) for name in changes[0] if name != "key"}),
        changes,
    )
    return {key: Last(row.last_time, row.last_value) for key, row in known.items()}


def read(
    connection: Connection,
    series_id: int,
    *,
    axis: Literal["step", "time"] = "step",
    low: float | None = None,
    high: float | None = None,
) -> Columns:
    """Reads a series' points of a range, in the order of their arrival.

    Whole chunks are read, and one more on either side, so that more comes than was asked for: lines are drawn to the
    neighbours outside. A series that knows no steps is read whole when asked for by step.

    Args:
        connection: A read transaction.
        series_id: The series.
        axis: What `low` and `high` mean.
        low: The least wanted; None: from the begin.
        high: The greatest wanted; None: to the end.
    """
    query = select(chunks.c.codec, chunks.c.data).where(chunks.c.series == series_id).order_by(chunks.c.position)
    if low is not None or high is not None:
        wanted = _places(connection, series_id, axis, low, high)
        query = query.where(chunks.c.position.between(*wanted))
    parts = [unpack(codec, data) for codec, data in connection.execute(query)]
    parts.append(_fresh(connection, series_id))
    return join(parts)


def _places(
    connection: Connection, series_id: int, axis: Literal["step", "time"], low: float | None, high: float | None
) -> tuple[int, int]:
    """Returns the positions of the first and the last chunk to read."""
    least, greatest = (
        (chunks.c.step_low, chunks.c.step_high) if axis == "step" else (chunks.c.time_low, chunks.c.time_high)
    )
    query = select(chunks.c.position, least, greatest).where(chunks.c.series == series_id).order_by(chunks.c.position)
    rows = connection.execute(query).all()
    if not rows or (axis == "step" and max(row[2] for row in rows) < 0):
        return 0, _EVERYTHING
    left = -math.inf if low is None else low
    right = math.inf if high is None else high
    hits = [index for index, row in enumerate(rows) if row[2] >= left and row[1] <= right]
    if hits:
        first, last = hits[0], hits[-1]
    else:  # in a gap between two chunks, or outside of them all
        first = last = min(sum(row[2] < left for row in rows), len(rows) - 1)
    return rows[max(first - 1, 0)][0], rows[min(last + 1, len(rows) - 1)][0]


class _Row(NamedTuple):
    id: int
    points: int
    fresh: int
    nonfinite: int
    last_step: int | None
    last_time: float
    last_value: float


_COLUMNS: Final = (
    series.c.id,
    series.c.points,
    series.c.fresh,
    series.c.nonfinite,
    series.c.last_step,
    series.c.last_time,
    series.c.last_value,
)


def _series_of(connection: Connection, run: str, ranks: Collection[int]) -> dict[Key, _Row]:
    found = connection.execute(
        select(series.c.metric, series.c.rank, series.c.device, *_COLUMNS).where(
            series.c.run == run, series.c.rank.in_(sorted(ranks))
        )
    )
    return {Key(*row[:3]): _Row._make(row[3:]) for row in found}


def _make_series(connection: Connection, run: str, keys: list[Key]) -> dict[Key, _Row]:
    empty = {"run": run, "points": 0, "fresh": 0, "nonfinite": 0, "last_time": -math.inf, "last_value": math.nan}
    made = connection.execute(
        insert(series).returning(series.c.metric, series.c.rank, series.c.device, series.c.id),
        [empty | key._asdict() for key in keys],
    )
    return {Key(*row[:3]): _Row(row[3], 0, 0, 0, None, -math.inf, math.nan) for row in made}


def _insert_rows(connection: Connection, rows: list[tuple[int, int, int | None, float, float | None]]) -> None:
    """Inserts by the driver's fastest means; NaN is NULL already, as :class:`~trainwatch.server.db.Reading` has it."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        cursor = connection.connection.cursor()
        with cursor.copy("COPY points (series, position, step, time, value) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        cursor.close()
    else:
        connection.exec_driver_sql(
            "INSERT INTO points (series, position, step, time, value) VALUES (?, ?, ?, ?, ?)", rows
        )


def _fresh(connection: Connection, series_id: int) -> Columns:
    rows = connection.execute(
        select(points.c.step, points.c.time, points.c.value)
        .where(points.c.series == series_id)
        .order_by(points.c.position)
    ).all()
    return Columns(
        np.array([-1 if row[0] is None else row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.float64),
        np.array([row[2] for row in rows], dtype=np.float64),
    )


def _pack(connection: Connection, series_id: int, start: int, fresh: int, new: Fresh) -> None:
    """Packs a series' fresh rows and new points, and deletes the rows."""
    arrived = Columns(
        np.array(new.step, dtype=np.int64), np.array(new.time, dtype=np.float64), np.array(new.value, dtype=np.float64)
    )
    columns = join([_fresh(connection, series_id), arrived]) if fresh else arrived
    if fresh:
        connection.execute(delete(points).where(points.c.series == series_id))
    rows = []
    for at in range(0, len(columns.step), CHUNK):
        part = slice(at, at + CHUNK)
        piece = Columns(columns.step[part], columns.time[part], columns.value[part])
        finite = piece.value[np.isfinite(piece.value)]
        rows.append(
            {
                "series": series_id,
                "position": start + at,
                "points": len(piece.step),
                "nonfinite": len(piece.step) - len(finite),
                "step_low": int(piece.step.min()),
                "step_high": int(piece.step.max()),
                "time_low": float(piece.time.min()),
                "time_high": float(piece.time.max()),
                "value_low": float(finite.min()) if len(finite) else None,
                "value_high": float(finite.max()) if len(finite) else None,
                "codec": CODEC,
                "data": pack(piece),
            }
        )
    connection.execute(insert(chunks), rows)


class Listed(NamedTuple):
    """A series and its counters."""

    id: int
    metric: str
    rank: int
    device: str
    points: int
    nonfinite: int
    last_step: int | None
    last_time: float
    last_value: float


def listed(connection: Connection, run: str, metrics: Collection[str] | None = None) -> list[Listed]:
    """Returns a run's series in the order of metric, rank and device; only those of `metrics` when given."""
    query = select(
        series.c.id,
        series.c.metric,
        series.c.rank,
        series.c.device,
        series.c.points,
        series.c.nonfinite,
        series.c.last_step,
        series.c.last_time,
        series.c.last_value,
    ).where(series.c.run == run)
    if metrics is not None:
        query = query.where(series.c.metric.in_(list(metrics)))
    rows = connection.execute(query.order_by(series.c.metric, series.c.rank, series.c.device))
    return [Listed._make(row) for row in rows]
