"""A series' points as they were stored: every one of them, page by page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, func, select

from trainwatch.server.models import chunks, points
from trainwatch.server.store.codec import Columns, join, unpack


class Page(NamedTuple):
    """Points in the order of their arrival.

    Attributes:
        first: Position of the first one; greater than asked for where older ones are not kept any more.
        columns: The points.
    """

    first: int
    columns: Columns


def read_page(connection: Connection, series_id: int, *, first: int, limit: int) -> Page:
    """Reads points by their position. Points keep it when they are packed, so pages fit together at any time.

    Args:
        connection: A read transaction.
        series_id: The series.
        first: Position of the first one wanted.
        limit: How many at most.
    """
    first = max(first, _oldest(connection, series_id, first))
    end = first + limit
    packed = connection.execute(
        select(chunks.c.position, chunks.c.codec, chunks.c.data)
        .where(chunks.c.series == series_id, chunks.c.position < end, chunks.c.position + chunks.c.points > first)
        .order_by(chunks.c.position)
    )
    begin: int | None = None
    parts: list[Columns] = []
    for position, codec, data in packed:
        whole = unpack(codec, data)
        part = slice(max(0, first - position), end - position)
        begin = max(first, position) if begin is None else begin
        parts.append(Columns(whole.step[part], whole.time[part], whole.value[part]))
    rows = connection.execute(
        select(points.c.position, points.c.step, points.c.time, points.c.value)
        .where(points.c.series == series_id, points.c.position >= first, points.c.position < end)
        .order_by(points.c.position)
    ).all()
    if rows:
        begin = rows[0].position if begin is None else begin
        parts.append(
            Columns(
                np.array([-1 if row.step is None else row.step for row in rows], dtype=np.int64),
                np.array([row.time for row in rows], dtype=np.float64),
                np.array([row.value for row in rows], dtype=np.float64),
            )
        )
    return Page(first if begin is None else begin, join(parts))


def _oldest(connection: Connection, series_id: int, first: int) -> int:
    """Returns the least position from `first` on, or in the chunk that holds it, that is still kept; 0 for none."""
    of_chunks = select(func.min(chunks.c.position)).where(
        chunks.c.series == series_id, chunks.c.position + chunks.c.points > first
    )
    of_rows = select(func.min(points.c.position)).where(points.c.series == series_id, points.c.position >= first)
    found = [one for one in (connection.scalar(of_chunks), connection.scalar(of_rows)) if one is not None]
    return min(found, default=0)
