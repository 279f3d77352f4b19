"""Points: written as rows while they are fresh, packed a thousand at a time into chunks, read back as columns.

Fresh points are rows so that an agent's few points a second cost a few small inserts. When a series has gathered
enough of them they are packed, within the transaction that brought the last one: a point is at every moment either a
row or in a chunk, never both and never neither. Where many come at once they are packed at once, into small chunks that
:mod:`~trainwatch.server.store.compacting` puts together later.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from sqlalchemy import Connection, bindparam, delete, insert, select, tuple_, update

from trainwatch.server.models import chunks, points, runs, series
from trainwatch.server.store import fresh as fresh_points
from trainwatch.server.store.bulk import Insert, Update
from trainwatch.server.store.codec import CODEC, Columns, join, pack
from trainwatch.server.store.fresh import SERIES_AT_ONCE, Stretch
from trainwatch.server.store.reading import read, read_thinned

__all__ = [
    "CHUNK",
    "PACK_AT",
    "PACK_NOW",
    "Fresh",
    "Key",
    "Listed",
    "Series",
    "SeriesOfRun",
    "append",
    "append_all",
    "listed",
    "read",
    "read_thinned",
    "seal",
]

PACK_AT: Final = 1024
PACK_NOW: Final = 32
"""Points that come at once and are never rows: a small chunk costs less than so many rows that are packed later."""
CHUNK: Final = 4096
"""Points a chunk holds at most."""


_STAGGER: Final = 389  # a prime: neighbouring ranks pack at different times
insert_chunks: Final = Insert(chunks, [column.name for column in chunks.c])
_save: Final = Update(series, ("points", "fresh", "nonfinite", "last_step", "last_time", "last_value"), ("id",))


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


class Series(NamedTuple):
    """A series' row: its number, its counters and its newest point."""

    id: int
    points: int
    fresh: int
    nonfinite: int
    last_step: int | None
    last_time: float
    last_value: float


SeriesOfRun = dict[int, dict[Key, Series]]
"""By rank, all series of some ranks of a run."""


def append(connection: Connection, run: str, arrived: Mapping[Key, Fresh]) -> None:
    """Stores new points of one run; see :func:`append_all`."""
    append_all(connection, {run: arrived}, {run: {}})


def append_all(
    connection: Connection, arrived: Mapping[str, Mapping[Key, Fresh]], known: Mapping[str, SeriesOfRun]
) -> None:
    """Stores new points behind those that the series have; makes the series that are missing.

    The caller holds the runs' row locks, or another server could give the same positions away.

    Args:
        connection: A write transaction.
        arrived: The points by run and series.
        known: What is known of the runs' series; what is missing is read and added, and what changes is changed.
    """
    wanted = {(run, key.rank) for run, content in arrived.items() for key in content if key.rank not in known[run]}
    if wanted:
        for run, rank in wanted:
            known[run][rank] = {}
        for run, key, row in _series_of(connection, wanted):
            known[run][key.rank][key] = row
    missing = [(run, key) for run, content in arrived.items() for key in content if key not in known[run][key.rank]]
    if missing:
        for run, key, row in _make_series(connection, missing):
            known[run][key.rank][key] = row
    rows: list[Stretch] = []
    full: list[tuple[Series, Fresh]] = []
    changed: list[Series] = []
    for run, content in arrived.items():
        # Not all ranks at once, because they march in step; but all of a rank's series, which costs no more than one.
        pack_at = PACK_AT + zlib.crc32(run.encode()) % PACK_AT
        of_run = known[run]
        for key, new in content.items():
            row = of_run[key.rank][key]
            count = len(new.value)
            finite = sum(map(math.isfinite, new.value))
            fresh = row.fresh + count
            if count >= PACK_NOW or fresh >= PACK_AT + (pack_at + key.rank * _STAGGER) % PACK_AT:
                full.append((row, new))
                fresh = 0
            else:
                rows.append(Stretch(row.id, row.points, new.step, new.time, new.value))
            if new.time[-1] >= row.last_time:
                newest = (new.step[-1] if new.step[-1] >= 0 else None, new.time[-1], new.value[-1])
            else:
                newest = row[4:]
            row = Series(row.id, row.points + count, fresh, row.nonfinite + count - finite, *newest)
            of_run[key.rank][key] = row
            changed.append(row)
    if full:
        _pack(connection, full)
    fresh_points.insert(connection, rows)
    _save_series(connection, changed)


def seal(connection: Connection, run: str) -> bool:
    """Packs points of a run that are rows, because no more are to be expected; those of some hundred series.

    Args:
        connection: A write transaction.
        run: The run's id.

    Returns:
        Whether there may be more of them.
    """
    connection.execute(select(runs.c.id).where(runs.c.id == run).with_for_update())  # as whoever appends does
    query = select(*_COLUMNS).where(series.c.run == run, series.c.fresh > 0)
    rows = connection.execute(query.order_by(series.c.id).limit(SERIES_AT_ONCE)).all()
    found = [Series._make(row) for row in rows]
    if found:
        # A server may remember the series as they were.
        connection.execute(update(runs).where(runs.c.id == run).values(version=runs.c.version + 1))
        _pack(connection, [(row, Fresh()) for row in found])
        connection.execute(update(series).where(series.c.id.in_([row.id for row in found])).values(fresh=0))
    return len(found) == SERIES_AT_ONCE


_COLUMNS: Final = (
    series.c.id,
    series.c.points,
    series.c.fresh,
    series.c.nonfinite,
    series.c.last_step,
    series.c.last_time,
    series.c.last_value,
)


_OF_RANKS: Final = select(series.c.run, series.c.metric, series.c.rank, series.c.device, *_COLUMNS).where(
    tuple_(series.c.run, series.c.rank).in_(bindparam("ranks", expanding=True))
)


def _series_of(connection: Connection, ranks: Collection[tuple[str, int]]) -> list[tuple[str, Key, Series]]:
    found = connection.execute(_OF_RANKS, {"ranks": sorted(ranks)}).all()
    return [(row[0], Key(*row[1:4]), Series._make(row[4:])) for row in found]


# As arrays: when many runs begin at once, a statement with a place for each value takes longer to read than to execute.
_MAKE_ON_POSTGRES: Final = """
    INSERT INTO series (run, metric, rank, device, points, fresh, nonfinite, last_time, last_value)
    SELECT run, metric, rank, device, 0, 0, 0, '-Infinity', NULL
      FROM unnest(%s::text[], %s::text[], %s::int4[], %s::text[]) AS new (run, metric, rank, device)
    RETURNING run, metric, rank, device, id"""


def _make_series(connection: Connection, names: list[tuple[str, Key]]) -> list[tuple[str, Key, Series]]:
    if connection.dialect.name == "postgresql":
        columns = zip(*[(run, key.metric, key.rank, key.device) for run, key in names], strict=True)
        made = connection.exec_driver_sql(_MAKE_ON_POSTGRES, tuple(list(column) for column in columns))
    else:
        empty = {"points": 0, "fresh": 0, "nonfinite": 0, "last_time": -math.inf, "last_value": math.nan}
        made = connection.execute(
            insert(series).returning(series.c.run, series.c.metric, series.c.rank, series.c.device, series.c.id),
            [{"run": run} | empty | key._asdict() for run, key in names],
        )
    return [(row[0], Key(*row[1:4]), Series(row[4], 0, 0, 0, None, -math.inf, math.nan)) for row in made]


def _save_series(connection: Connection, changed: list[Series]) -> None:
    _save(connection, [(*row[1:6], None if math.isnan(row.last_value) else row.last_value, row.id) for row in changed])


def _pack(connection: Connection, full: list[tuple[Series, Fresh]]) -> None:
    """Packs the fresh rows and the new points of series, and deletes the rows."""
    for at in range(0, len(full), SERIES_AT_ONCE):
        _pack_some(connection, full[at : at + SERIES_AT_ONCE])


def _pack_some(connection: Connection, full: list[tuple[Series, Fresh]]) -> None:
    before = fresh_points.read(connection, [row.id for row, _ in full if row.fresh])
    rows = []
    for row, new in full:
        arrived = Columns(
            np.array(new.step, dtype=np.int64),
            np.array(new.time, dtype=np.float64),
            np.array(new.value, dtype=np.float64),
        )
        columns = join([before[row.id], arrived]) if row.id in before else arrived
        for at in range(0, len(columns.step), CHUNK):
            piece = columns.take(slice(at, at + CHUNK))
            rows.append(chunk_row(row.id, row.points - row.fresh + at, piece))
    if before:
        connection.execute(delete(points).where(points.c.series.in_(sorted(before))))
    insert_chunks(connection, rows)


def chunk_row(series_id: int, position: int, piece: Columns) -> dict[str, Any]:
    """Returns the row of a chunk.

    Args:
        series_id: The series.
        position: Of the first point.
        piece: The points; at least one, at most :data:`CHUNK`.
    """
    finite = piece.value[np.isfinite(piece.value)]
    return {
        "series": series_id,
        "position": position,
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
