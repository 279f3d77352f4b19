"""Small chunks put together into large ones: what a training that makes many steps a second ships becomes many."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, delete, select

from trainwatch.server.models import chunks, series
from trainwatch.server.store.codec import join, unpack
from trainwatch.server.store.points import CHUNK, chunk_row, insert_chunks

_SMALL: Final = CHUNK // 4


def compact(connection: Connection, series_id: int, begin: int, end: int) -> int:
    """Puts neighbouring small chunks together.

    Args:
        connection: A write transaction.
        series_id: The series.
        begin: Position from which on chunks begin.
        end: Position before which they begin; what is before it is packed, and nobody else changes it but whoever holds
            the series' row lock.

    Returns:
        How many chunks fewer there are.
    """
    locked = select(series.c.id, series.c.dropped).where(series.c.id == series_id).with_for_update()
    row = connection.execute(locked).one_or_none()
    if row is None:
        return 0
    columns = chunks.c
    found = connection.execute(
        select(columns.position, columns.points)
        .where(columns.series == series_id, columns.position >= max(begin, row.dropped or 0), columns.position < end)
        .order_by(columns.position)
    ).all()
    fewer = 0
    group: list[int] = []
    size = 0
    for position, count in found:
        if count >= _SMALL or size + count > CHUNK:
            fewer += _merge(connection, series_id, group)
            group, size = [], 0
        if count < _SMALL:
            group.append(position)
            size += count
    return fewer + _merge(connection, series_id, group)


def _merge(connection: Connection, series_id: int, positions: list[int]) -> int:
    if len(positions) < 2:
        return 0
    columns = chunks.c
    where = (columns.series == series_id, columns.position >= positions[0], columns.position <= positions[-1])
    rows = connection.execute(select(columns.codec, columns.data).where(*where).order_by(columns.position)).all()
    whole = join([unpack(codec, data) for codec, data in rows])
    connection.execute(delete(chunks).where(*where))
    insert_chunks(connection, [chunk_row(series_id, positions[0], whole)])
    return len(rows) - 1
