"""Looks for what does not fit together in a database."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sqlalchemy import Connection, func, select

from trainwatch.server.db import metadata
from trainwatch.server.models import chunks, points, rollups, series
from trainwatch.server.store.codec import unpack, unpack_chosen

_SHOWN = 20


def problems(connection: Connection, *, deep: bool = False) -> Iterator[str]:
    """Yields what is wrong, a sentence for each.

    Args:
        connection: A read transaction.
        deep: Whether every packed point is unpacked and counted, too.
    """
    if connection.dialect.name == "sqlite":
        for (answer,) in connection.exec_driver_sql("PRAGMA integrity_check"):
            if answer != "ok":
                yield f"SQLite says: {answer}"
        for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            yield f"row {row} of {table} belongs to a row of {parent} that is not there"
    else:
        yield from _numbering(connection)
    yield from _counters(connection)
    yield from _gaps(connection)
    yield from _orphans(connection)
    if deep:
        yield from _contents(connection)


def _counters(connection: Connection) -> Iterator[str]:
    rows = (
        select(points.c.series, func.count().label("rows"), func.min(points.c.position).label("first"))
        .group_by(points.c.series)
        .subquery()
    )
    packed = (
        select(
            chunks.c.series,
            func.sum(chunks.c.points).label("points"),
            func.sum(chunks.c.nonfinite).label("nonfinite"),
        )
        .group_by(chunks.c.series)
        .subquery()
    )
    rolled = (
        select(rollups.c.series, func.sum(rollups.c.points).label("points"))
        .where(rollups.c.level == 1)
        .group_by(rollups.c.series)
        .subquery()
    )
    query = (
        select(
            series.c.id,
            series.c.run,
            series.c.metric,
            series.c.rank,
            series.c.points,
            series.c.fresh,
            series.c.nonfinite,
            func.coalesce(series.c.dropped, 0).label("dropped"),
            func.coalesce(series.c.rolled, 0).label("rolled"),
            func.coalesce(rows.c.rows, 0).label("rows"),
            func.coalesce(packed.c.points, 0).label("packed"),
            func.coalesce(packed.c.nonfinite, 0).label("packed_nonfinite"),
            func.coalesce(rolled.c.points, 0).label("in_rollups"),
            rows.c.first,
        )
        .outerjoin(rows, rows.c.series == series.c.id)
        .outerjoin(packed, packed.c.series == series.c.id)
        .outerjoin(rolled, rolled.c.series == series.c.id)
    )
    for row in connection.execute(query.order_by(series.c.id)):
        name = f"series {row.id} ({row.metric} of rank {row.rank}, run {row.run})"
        if row.rows != row.fresh:
            yield f"{name}: {row.fresh} of its points should be rows, {row.rows} are"
        if row.packed + row.dropped + row.fresh != row.points:
            found = row.packed + row.dropped + row.rows
            yield f"{name}: counts {row.points} points, and {found} are there or were dropped"
        if row.first is not None and row.first != row.points - row.fresh:
            yield f"{name}: its rows begin at {row.first}, not at {row.points - row.fresh}"
        if not row.dropped and row.packed_nonfinite > row.nonfinite:
            yield f"{name}: counts {row.nonfinite} non-finite points, its chunks {row.packed_nonfinite}"
        if not row.dropped <= row.rolled <= row.points - row.fresh:
            packed = row.points - row.fresh
            yield f"{name}: of {packed} packed points {row.rolled} are rolled up and {row.dropped} dropped"
        if row.in_rollups not in (row.rolled, 0):
            yield f"{name}: its rollups stand for {row.in_rollups} points, not for {row.rolled}"


def _gaps(connection: Connection) -> Iterator[str]:
    ends = func.lag(chunks.c.position + chunks.c.points).over(partition_by=chunks.c.series, order_by=chunks.c.position)
    placed = select(chunks.c.series, chunks.c.position, ends.label("before")).subquery()
    query = (
        select(placed)
        .join(series, series.c.id == placed.c.series)
        .where(placed.c.position != func.coalesce(placed.c.before, func.coalesce(series.c.dropped, 0)))
    )
    for row in connection.execute(query.limit(_SHOWN)):
        yield f"series {row.series}: a chunk begins at {row.position}, where {row.before or 0} was expected"


def _orphans(connection: Connection) -> Iterator[str]:
    for table in (points, chunks, rollups):
        query = select(func.count()).select_from(table).where(table.c.series.not_in(select(series.c.id)))
        count = connection.scalar(query)
        if count:
            yield f"{count:,} rows of {table.name} belong to no series"


def _numbering(connection: Connection) -> Iterator[str]:
    """Postgres numbers rows from a sequence of its own, which a copy may have left behind the rows."""
    for table in metadata.sorted_tables:
        column = table.autoincrement_column
        if column is None:
            continue
        newest = connection.scalar(select(func.max(column)))
        sequence = connection.exec_driver_sql(
            "SELECT pg_get_serial_sequence(%s, %s)", (table.name, column.name)
        ).scalar()
        if newest is None or sequence is None:
            continue
        last = connection.exec_driver_sql(f"SELECT last_value FROM {sequence}").scalar_one()
        if last < newest:
            yield f"the numbers of {table.name} go on at {last}, although there is a row {newest}"


def _contents(connection: Connection) -> Iterator[str]:
    query = select(chunks).order_by(chunks.c.series, chunks.c.position).execution_options(yield_per=200)
    for row in connection.execute(query):
        name = f"chunk {row.position} of series {row.series}"
        try:
            found = unpack(row.codec, row.data)
        except Exception as error:  # whatever damaged bytes make of a decompressor
            yield f"{name} cannot be unpacked: {error}"
            continue
        nonfinite = int(np.count_nonzero(~np.isfinite(found.value)))
        if (len(found.step), nonfinite) != (row.points, row.nonfinite):
            wanted = f"{row.points} and {row.nonfinite} wanted"
            yield f"{name} holds {len(found.step)} points, {nonfinite} not finite; {wanted}"
    held = select(rollups).order_by(rollups.c.series, rollups.c.level, rollups.c.position)
    for row in connection.execute(held.execution_options(yield_per=200)):
        try:
            position, _ = unpack_chosen(row.codec, row.data)
        except Exception as error:
            yield f"rollup {row.position} of series {row.series} cannot be unpacked: {error}"
            continue
        if len(position) != row.kept:
            yield f"rollup {row.position} of series {row.series} holds {len(position)} points, {row.kept} wanted"


def counted(connection: Connection) -> dict[str, int]:
    """Returns how many rows each table has, and how many points are stored in all."""
    found = {
        table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in metadata.sorted_tables
    }
    stored = select(func.coalesce(func.sum(series.c.points - func.coalesce(series.c.dropped, 0)), 0))
    return found | {"points in all": int(connection.scalar(stored) or 0)}
