"""Coarser copies of long series, so that a chart of ten million points reads some ten thousand.

A rollup stands for a stretch of a series' points and holds some of them as they are: of each bucket of 64 (256, 1024,
4096) the first, the last, the lowest and the highest, and every non-finite one. A chart that is drawn from those has
every extreme and every NaN at its exact place. Where more than :data:`NONFINITE_MOST` points of a stretch are not
finite, the first of each kind in a bucket is held, and the others are counted.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select, update

from trainwatch.server.db import insert_for
from trainwatch.server.models import rollups, series
from trainwatch.server.store.codec import CHOSEN_CODEC, Columns, join, pack_chosen, unpack_chosen
from trainwatch.server.store.reading import FACTOR, LEVELS, bucket_of, read_packed

BUCKETS: Final = 256
"""Buckets of a whole rollup."""
STRETCH: Final = BUCKETS * bucket_of(1)
"""Points that a rollup of the first level stands for."""
NONFINITE_MOST: Final = 2048

Positions = NDArray[np.int64]


class Chosen(NamedTuple):
    """Some of a series' points.

    Attributes:
        position: Their places in the series.
        omitted: How many NaN, +Inf and -Inf of the stretch are not among them.
    """

    position: Positions
    columns: Columns
    omitted: tuple[int, int, int] = (0, 0, 0)


def choose(found: Chosen, bucket: int) -> Chosen:
    """Keeps of each bucket what is to be held.

    Args:
        found: All points of a stretch, or those that were chosen with smaller buckets.
        bucket: Positions of a bucket.
    """
    position, value = found.position, found.columns.value
    number = position // bucket
    finite = np.isfinite(value)
    keep = np.zeros(len(position), np.bool_)
    starts = _starts(number)
    keep[starts] = True
    keep[np.append(starts[1:], len(position)) - 1] = True
    at = np.flatnonzero(finite)
    if at.size:
        of, values = number[at], value[at]
        begin = _starts(of)
        counts = np.diff(begin, append=at.size)
        for extreme in (np.minimum.reduceat(values, begin), np.maximum.reduceat(values, begin)):
            hits = np.flatnonzero(values == np.repeat(extreme, counts))
            keep[at[hits[_starts(of[hits])]]] = True
    other = np.flatnonzero(~finite)
    omitted = np.array(found.omitted)
    if other.size > NONFINITE_MOST:
        keep[other] = False
        kinds = np.where(np.isnan(value[other]), 0, np.where(value[other] > 0, 1, 2))
        _, first = np.unique(number[other] * 3 + kinds, return_index=True)
        keep[other[first]] = True
        omitted = omitted + np.bincount(kinds, minlength=3) - np.bincount(kinds[first], minlength=3)
    else:
        keep[other] = True
    return Chosen(position[keep], found.columns.take(keep), (int(omitted[0]), int(omitted[1]), int(omitted[2])))


def lagging(connection: Connection, *, limit: int) -> list[tuple[str, int]]:
    """Returns series of which a whole stretch is packed that no rollup stands for yet, each with its run."""
    packed = series.c.points - series.c.fresh - func.coalesce(series.c.rolled, 0)
    found = connection.execute(select(series.c.run, series.c.id).where(packed >= STRETCH).limit(limit))
    return [(row.run, row.id) for row in found]


def prepare(
    connection: Connection, run: str, series_id: int, *, most: int, partly: bool = False
) -> list[dict[str, Any]]:
    """Makes the rollups that a series lacks.

    Args:
        connection: A read transaction.
        run: The run's id.
        series_id: The series; of one that is not the run's there are none to make.
        most: Stop after so many of the first level.
        partly: Whether also what is less than a whole stretch is rolled up; of a series that is over.

    Returns:
        Rows for :func:`save`.
    """
    row = connection.execute(
        select(series.c.points, series.c.fresh, series.c.rolled).where(series.c.id == series_id, series.c.run == run)
    ).one_or_none()
    if row is None:
        return []
    packed, at = row.points - row.fresh, row.rolled or 0
    made: list[dict[str, Any]] = []
    while at < packed and len(made) < most:
        end = (at // STRETCH + 1) * STRETCH
        if end > packed:
            if not partly:
                break
            end = packed
        columns = read_packed(connection, series_id, at, end)
        if len(columns.step) != end - at:
            break  # damaged; `trainwatch db check` says so
        whole = Chosen(np.arange(at, end, dtype=np.int64), columns)
        nonfinite = int(np.count_nonzero(~np.isfinite(columns.value)))
        made.append(_row(series_id, 1, at, end - at, nonfinite, choose(whole, bucket_of(1)), columns))
        at = end
    return made


def save(connection: Connection, run: str, series_id: int, made: list[dict[str, Any]]) -> bool:
    """Stores rollups of the first level, and those of the others that are complete with them.

    Args:
        connection: A write transaction.
        run: The run's id.
        series_id: The series.
        made: As :func:`prepare` made them.

    Returns:
        Whether they were stored: not when the series is gone, or somebody else was faster. SQLite may have given its
        number to a series of another run meanwhile.
    """
    end = made[-1]["position"] + made[-1]["points"]
    where = (
        series.c.id == series_id,
        series.c.run == run,
        func.coalesce(series.c.rolled, 0) == made[0]["position"],
        series.c.points - series.c.fresh >= end,
    )
    if connection.execute(select(series.c.id).where(*where).with_for_update()).one_or_none() is None:
        return False
    statement = insert_for(connection.dialect.name, rollups).on_conflict_do_nothing()
    connection.execute(statement, made)
    for level in range(2, LEVELS + 1):
        below = _join(connection, series_id, level)
        if below:
            connection.execute(statement, below)
    connection.execute(update(series).where(series.c.id == series_id).values(rolled=end))
    return True


def _join(connection: Connection, series_id: int, level: int) -> list[dict[str, Any]]:
    """Makes the rollups of a level whose parts, of the level below, are all there."""
    columns = rollups.c
    stretch = STRETCH * FACTOR ** (level - 1)
    done = connection.scalar(
        select(func.max(columns.position + columns.points)).where(columns.series == series_id, columns.level == level)
    )
    query = select(rollups).where(
        columns.series == series_id, columns.level == level - 1, columns.position >= (done or 0)
    )
    made = []
    parts: list[Any] = []
    for row in connection.execute(query.order_by(columns.position)):
        parts.append(row)
        end = row.position + row.points
        if end % stretch:
            continue
        if end - parts[0].position == stretch:
            made.append(_joined(series_id, level, parts))
        parts = []
    return made


def _joined(series_id: int, level: int, parts: list[Any]) -> dict[str, Any]:
    unpacked = [unpack_chosen(row.codec, row.data) for row in parts]
    found = Chosen(
        np.concatenate([position for position, _ in unpacked]),
        join([columns for _, columns in unpacked]),
        (
            sum(row.nan_omitted for row in parts),
            sum(row.positive_omitted for row in parts),
            sum(row.negative_omitted for row in parts),
        ),
    )
    made = _row(
        series_id,
        level,
        parts[0].position,
        sum(row.points for row in parts),
        sum(row.nonfinite for row in parts),
        choose(found, bucket_of(level)),
        found.columns,
    )
    # Not of the points held: those of the stretch that have the least and the greatest time or step may not be.
    made["step_low"], made["step_high"] = min(row.step_low for row in parts), max(row.step_high for row in parts)
    made["time_low"], made["time_high"] = min(row.time_low for row in parts), max(row.time_high for row in parts)
    return made


def _row(
    series_id: int, level: int, position: int, points: int, nonfinite: int, chosen: Chosen, whole: Columns
) -> dict[str, Any]:
    nan, positive, negative = chosen.omitted
    return {
        "series": series_id,
        "level": level,
        "position": position,
        "points": points,
        "kept": len(chosen.position),
        "nonfinite": nonfinite,
        "nan_omitted": nan,
        "positive_omitted": positive,
        "negative_omitted": negative,
        "step_low": int(whole.step.min()),
        "step_high": int(whole.step.max()),
        "time_low": float(whole.time.min()),
        "time_high": float(whole.time.max()),
        "codec": CHOSEN_CODEC,
        "data": pack_chosen(chosen.position, chosen.columns),
    }


def _starts(number: NDArray[Any]) -> Positions:
    """Returns where each stretch of equal numbers begins."""
    return np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1]))).astype(np.int64)
