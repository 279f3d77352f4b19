"""All that is known of a run as plain rows, and a run made anew from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Table, insert, select

from trainwatch.server.models import (
    alerts,
    autopsies,
    checkpoints,
    devices,
    layer_chunks,
    layer_sets,
    nonfinite_steps,
    out_of_memory,
    phase_totals,
    phases,
    ranks,
    runs,
    series,
    sources,
)
from trainwatch.server.models import chunks as chunk_table
from trainwatch.server.store.codec import Columns
from trainwatch.server.store.points import CHUNK, chunk_row
from trainwatch.server.store.reading import read

# Not among them: commands and deliveries, which are over, and tokens.
_TABLES: Final[tuple[Table, ...]] = (
    ranks,
    sources,
    devices,
    phases,
    phase_totals,
    layer_sets,
    layer_chunks,
    autopsies,
    out_of_memory,
    checkpoints,
    nonfinite_steps,
    alerts,
)
Rows = list[dict[str, Any]]


class Curve(NamedTuple):
    """A series with its points."""

    metric: str
    rank: int
    device: str
    points: Columns


def rows_of(connection: Connection, run: str) -> dict[str, Rows]:
    """Returns the rows of a run by table, without those of its series; empty when there is no such run."""
    own = connection.execute(select(runs).where(runs.c.id == run)).one_or_none()
    if own is None:
        return {}
    found: dict[str, Rows] = {runs.name: [dict(own._mapping)]}
    for table in _TABLES:
        query = select(table).where(table.c.run == run).order_by(*table.primary_key)
        found[table.name] = [dict(row._mapping) for row in connection.execute(query)]
    return found


def curves_of(connection: Connection, run: str) -> Iterator[Curve]:
    """Yields the series of a run with all points that are kept, in order."""
    columns = (series.c.id, series.c.metric, series.c.rank, series.c.device)
    query = select(*columns).where(series.c.run == run).order_by(*columns[1:])
    for number, metric, rank, device in connection.execute(query).all():
        yield Curve(metric, rank, device, read(connection, number))


def exists(connection: Connection, run: str) -> bool:
    """Tells whether there is such a run."""
    return connection.scalar(select(runs.c.id).where(runs.c.id == run)) is not None


def put_rows(connection: Connection, found: dict[str, Rows]) -> None:
    """Makes a run from its rows, with new numbers where rows have numbers of their own.

    Args:
        connection: A write transaction on a database that does not have the run.
        found: As :func:`rows_of` gave them; of an older version columns may be missing that have a default.
    """
    # With another version than it had: a server may remember its series by the numbers that they had then.
    rows = [_known(runs, row) | {"version": row["version"] + 1} for row in found[runs.name]]
    connection.execute(insert(runs), rows)
    numbers: dict[int, int] = {}
    for table in _TABLES:
        rows = [_known(table, row) for row in found.get(table.name, ())]
        if not rows:
            continue
        if table is layer_sets:
            for row in rows:
                before = row.pop("id")
                made = insert(table).values(row).returning(table.c.id)
                numbers[before] = int(connection.execute(made).scalar_one())
            continue
        for row in rows:
            if "id" in table.c:
                row.pop("id", None)
            if table is layer_chunks:
                row["layers"] = numbers[row["layers"]]
        connection.execute(insert(table), rows)


def put_curve(connection: Connection, run: str, curve: Curve, counters: dict[str, Any]) -> None:
    """Makes a series with its points, all of them packed.

    Args:
        connection: A write transaction.
        run: The run's id.
        curve: The series.
        counters: The columns ``nonfinite``, ``last_step``, ``last_time`` and ``last_value`` of the series.
    """
    count = len(curve.points.step)
    values = {"run": run, "metric": curve.metric, "rank": curve.rank, "device": curve.device} | counters
    made = insert(series).values(points=count, fresh=0, **values).returning(series.c.id)
    number = int(connection.execute(made).scalar_one())
    rows = [chunk_row(number, at, curve.points.take(slice(at, at + CHUNK))) for at in range(0, count, CHUNK)]
    if rows:
        connection.execute(insert(chunk_table), rows)


def counters_of(connection: Connection, run: str) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Returns what :func:`put_curve` wants to know of each series."""
    columns = (series.c.nonfinite, series.c.last_step, series.c.last_time, series.c.last_value)
    query = select(series.c.metric, series.c.rank, series.c.device, *columns).where(series.c.run == run)
    return {
        (row.metric, row.rank, row.device): {column.name: row._mapping[column.name] for column in columns}
        for row in connection.execute(query)
    }


def _known(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in table.c}
