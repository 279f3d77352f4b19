"""Reads the points of a series: all of a range, or of long ranges what rollups hold of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, func, select

from trainwatch.charts.attempts import Cut
from trainwatch.server.models import chunks, rollups, series
from trainwatch.server.store import fresh
from trainwatch.server.store.codec import Columns, join, unpack, unpack_chosen

RAW_MOST: Final = 50_000
"""A range of more points is read from rollups where there are any."""
KEPT_MOST: Final = 60_000
"""The finest rollups are read of which a range has about so many points at most."""
BUCKET: Final = 64
"""Points of a bucket of the finest rollups."""
FACTOR: Final = 4
"""How many buckets make one of the next level."""
LEVELS: Final = 4
PER_BUCKET: Final = 4
_LARGEST: Final = float(2**62)

Axis = Literal["step", "time"]


class Thinned(NamedTuple):
    """Points of a range, or what rollups hold of them.

    Attributes:
        columns: In the order of their arrival. Of each bucket there are the first and last point, those with the
            lowest and highest finite value, and the non-finite ones.
        nan: How many NaNs are left out, because there are too many; likewise the others.
    """

    columns: Columns
    nan: int = 0
    positive: int = 0
    negative: int = 0


def read(
    connection: Connection,
    series_id: int,
    *,
    axis: Axis = "step",
    low: float | None = None,
    high: float | None = None,
) -> Columns:
    """Reads a series' points of a range, in the order of their arrival.

    Whole chunks are read, and one more on either side, so that more comes than was asked for: lines are drawn to the
    neighbours outside. A series that knows no steps is read whole when asked for by step. Of points that are kept as
    rollups only, what those hold is read.

    Args:
        connection: A read transaction.
        series_id: The series.
        axis: What `low` and `high` mean.
        low: The least wanted; None: from the begin.
        high: The greatest wanted; None: to the end.
    """
    reader = _Reader(connection, series_id)
    reader.cover(0, *reader.places(axis, low, high))
    return reader.result().columns


def read_thinned(
    connection: Connection,
    series_id: int,
    *,
    axis: Axis = "step",
    low: float | None = None,
    high: float | None = None,
    cuts: Sequence[Cut] = (),
    wanted: int = 0,
) -> Thinned:
    """Reads a series' points of a range; of a long one what rollups hold of them.

    Args:
        connection: A read transaction.
        series_id: The series.
        axis: What `low` and `high` mean.
        low: The least wanted; None: from the begin.
        high: The greatest wanted; None: to the end.
        cuts: What the caller will leave out. Where one goes through a bucket, all its points are read, because the
            lowest of all may be among those that are left out.
        wanted: How many points the caller has use for, if it is for more than a screen can show.

    Returns:
        At least the points that :func:`read` would bring, thinned where there are many.
    """
    reader = _Reader(connection, series_id, cuts)
    begin, end = reader.places(axis, low, high)
    level = 0
    if end - begin > max(RAW_MOST, wanted):
        level = 1
        while level < LEVELS and (end - begin) / bucket_of(level) * PER_BUCKET > max(KEPT_MOST, wanted):
            level += 1
    reader.cover(level, begin, end)
    return reader.result()


def bucket_of(level: int) -> int:
    """Returns how many points a bucket of a level has."""
    return int(BUCKET * FACTOR ** (level - 1))


def read_packed(connection: Connection, series_id: int, begin: int, end: int) -> Columns:
    """Reads the packed points from position `begin` to before `end`; exactly those, as far as they are there."""
    columns = chunks.c
    first = select(func.max(columns.position)).where(columns.series == series_id, columns.position <= begin)
    query = select(columns.position, columns.codec, columns.data).where(
        columns.series == series_id,
        columns.position >= func.coalesce(first.scalar_subquery(), begin),
        columns.position < end,
    )
    parts = []
    for position, codec, data in connection.execute(query.order_by(columns.position)):
        part = unpack(codec, data)
        inside = slice(max(begin - position, 0), max(end - position, 0))
        parts.append(part if position >= begin and position + len(part.step) <= end else part.take(inside))
    return join(parts)


class _Reader:
    """Collects the parts of one series, in order.

    Args:
        connection: A read transaction.
        series_id: The series.
        cuts: Where rollups do not do.
    """

    def __init__(self, connection: Connection, series_id: int, cuts: Sequence[Cut] = ()) -> None:
        self._connection = connection
        self._series = series_id
        self._cuts = cuts
        self._parts: list[Columns] = []
        self._omitted = [0, 0, 0]
        row = connection.execute(
            select(series.c.points, series.c.fresh, series.c.dropped).where(series.c.id == series_id)
        ).one_or_none()
        total, fresh, dropped = (0, 0, 0) if row is None else row
        self._packed = total - fresh
        self._dropped = dropped or 0

    def places(self, axis: Axis, low: float | None, high: float | None) -> tuple[int, int]:
        """Returns the positions of the first packed point to read and behind the last."""
        if low is None and high is None:
            return 0, self._packed
        kinds = (chunks, rollups) if self._dropped else (chunks,)
        found = [self._hits(kind, axis, low, high) for kind in kinds]
        if any(one is None for one in found):
            return 0, self._packed
        hits = [one for one in found if one is not None]
        begin = min(one[0] for one in hits)
        return begin, self._packed if high is None else max(one[1] for one in hits)

    def _hits(self, table: Any, axis: Axis, low: float | None, high: float | None) -> tuple[int, int] | None:
        """Finds the chunks or rollups in a range and one more on either side; None: read everything."""
        columns = table.c
        least, greatest = (
            (columns.step_low, columns.step_high) if axis == "step" else (columns.time_low, columns.time_high)
        )
        mine = [columns.series == self._series]
        if table is rollups:
            mine += [columns.level == 1, columns.position < self._dropped]
        known = self._connection.execute(select(func.max(greatest), func.count()).where(*mine)).one()
        if not known[1]:
            return (self._packed, 0) if self._dropped else (0, self._packed)
        if axis == "step" and known[0] < 0:
            return None
        if axis == "step":  # a bound that is no step lies between two
            low = None if low is None else math.ceil(max(-_LARGEST, min(low, _LARGEST)))
            high = None if high is None else math.floor(max(-_LARGEST, min(high, _LARGEST)))
        wanted = [*mine]
        if low is not None:
            wanted.append(greatest >= low)
        if high is not None:
            wanted.append(least <= high)
        first, last = self._connection.execute(
            select(func.min(columns.position), func.max(columns.position)).where(*wanted)
        ).one()
        if first is None:  # in a gap between two, or outside of them all
            before = None
            if low is not None:
                before = self._connection.scalar(select(func.max(columns.position)).where(*mine, greatest < low))
            first = last = (
                self._connection.scalar(select(func.min(columns.position)).where(*mine)) if before is None else before
            )
        one_more = select(func.max(columns.position)).where(*mine, columns.position < first)
        begin = self._connection.scalar(one_more)
        behind = (
            select(columns.position).where(*mine, columns.position > last).order_by(columns.position).offset(1).limit(1)
        )
        end = self._connection.scalar(behind)
        return (first if begin is None else begin), (self._packed if end is None else end)

    def cover(self, level: int, begin: int, end: int) -> None:
        """Reads the positions from `begin` to before `end`, by rollups of a level at most."""
        if begin >= end:
            return
        if level == 0:
            self._raw(begin, end)
            return
        at = begin
        columns = rollups.c
        query = select(rollups).where(
            columns.series == self._series,
            columns.level == level,
            columns.position >= begin,
            columns.position < end,
        )
        for row in self._connection.execute(query.order_by(columns.position)).all():
            behind = row.position + row.points
            if behind > end or row.position < at:
                continue
            self.cover(level - 1, at, row.position)
            if self._is_cut(row):
                self.cover(level - 1, row.position, behind)
            else:
                self._take(row, row.position, behind)
            at = behind
        self.cover(level - 1, at, end)

    def result(self) -> Thinned:
        """Returns what was read, and behind it the points that are rows: there are few, and of any time."""
        self._parts += fresh.read(self._connection, [self._series]).values()
        return Thinned(join(self._parts), *self._omitted)

    def _raw(self, begin: int, end: int) -> None:
        if begin < self._dropped:
            columns = rollups.c
            query = select(rollups).where(
                columns.series == self._series,
                columns.level == 1,
                columns.position < min(end, self._dropped),
                columns.position + columns.points > begin,
            )
            for row in self._connection.execute(query.order_by(columns.position)):
                self._take(row, begin, end)
            begin = min(self._dropped, end)
        if begin < min(end, self._packed):
            self._parts.append(read_packed(self._connection, self._series, begin, min(end, self._packed)))

    def _take(self, row: Any, begin: int, end: int) -> None:
        """Takes what a rollup holds of the positions from `begin` to before `end`."""
        position, columns = unpack_chosen(row.codec, row.data)
        if begin > row.position or end < row.position + row.points:
            columns = columns.take((position >= begin) & (position < end))
        self._parts.append(columns)
        if any(row.time_high < cut.time and row.step_low >= cut.step for cut in self._cuts):
            return  # all of it was done again, and will be left out
        self._omitted[0] += row.nan_omitted
        self._omitted[1] += row.positive_omitted
        self._omitted[2] += row.negative_omitted

    def _is_cut(self, row: Any) -> bool:
        """Tells whether only a part of what a rollup stands for was done again."""
        return any(
            row.time_low < cut.time
            and row.step_high >= cut.step
            and not (row.time_high < cut.time and row.step_low >= cut.step)
            for cut in self._cuts
        )
