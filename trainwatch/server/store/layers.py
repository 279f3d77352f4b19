"""Measurements of layers: packed from the first one on, and packed again, tighter, as they gather.

Each shipment's measurements become a chunk. When a rank has gathered many small ones they are joined, within the
transaction that brought the last one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, insert, select

from trainwatch.server.models import layer_chunks, layer_sets
from trainwatch.server.store.layer_codec import (
    LAYER_CODEC,
    Grid,
    grid,
    pack_grid,
    pack_places,
    unpack_grid,
    unpack_places,
)

Quantity = Literal["norms", "zeros", "updates"]
QUANTITIES: Final[tuple[Quantity, ...]] = ("norms", "zeros", "updates")

CHUNK: Final = 128
"""Measurements a chunk holds at most."""
JOIN_AT: Final = 32
"""So many chunks that are not full are joined."""


class Measurement(NamedTuple):
    """One :class:`~trainwatch.events.LayersMeasured` of a rank; a quantity that was not measured is empty."""

    rank: int
    step: int
    time: float
    layers: list[str]
    norms: list[float | None]
    zeros: list[float | None]
    updates: list[float | None]


class Stretch(NamedTuple):
    """Measurements of one rank and one list of layers, in the order of their times.

    Attributes:
        value: Measurements × layers; NaN where there was none.
        known: Whether there was one: a layer without a gradient has none.
    """

    rank: int
    layers: list[str]
    step: NDArray[np.int64]
    time: NDArray[np.float64]
    value: NDArray[np.float64]
    known: NDArray[np.bool_]


class _Table(NamedTuple):
    step: NDArray[np.int64]
    time: NDArray[np.float64]
    grids: dict[Quantity, Grid]


def append(connection: Connection, run: str, arrived: Sequence[Measurement]) -> None:
    """Stores measurements. The caller holds the run's row lock."""
    if not arrived:
        return
    known = {tuple(names): number for number, names in _sets(connection, run).items()}
    grouped: defaultdict[tuple[int, tuple[str, ...]], list[Measurement]] = defaultdict(list)
    for one in arrived:
        grouped[one.rank, tuple(one.layers)].append(one)
    for (rank, names), same in grouped.items():
        number = known.get(names)
        if number is None:
            made = insert(layer_sets).values(run=run, names={"names": list(names)}).returning(layer_sets.c.id)
            number = known[names] = int(connection.execute(made).scalar_one())
        _insert(connection, run, rank, number, _table(same, len(names)))
        _join(connection, run, rank, number)


def measured(connection: Connection, run: str) -> list[Quantity]:
    """Returns the quantities that the run has anything of."""
    found: list[Quantity] = []
    for name in QUANTITIES:
        query = select(layer_chunks.c.id).where(layer_chunks.c.run == run, layer_chunks.c[name].is_not(None)).limit(1)
        if connection.scalar(query) is not None:
            found.append(name)
    return found


def read(
    connection: Connection,
    run: str,
    quantity: Quantity,
    *,
    rank: int | None = None,
    axis: Literal["step", "time"] = "step",
    low: float | None = None,
    high: float | None = None,
) -> list[Stretch]:
    """Reads a quantity. Whole chunks are read, so that more may come than was asked for.

    Args:
        connection: A read transaction.
        run: The run's id.
        quantity: Which.
        rank: Only this rank's; None for all.
        axis: What `low` and `high` mean.
        low: The least wanted; None: from the begin.
        high: The greatest wanted; None: to the end.

    Returns:
        One stretch for each rank and list of layers, those of the newest list last.
    """
    names = _sets(connection, run)
    columns = layer_chunks.c
    least, greatest = (columns.step_low, columns.step_high) if axis == "step" else (columns.time_low, columns.time_high)
    query = select(
        columns.rank, columns.layers, columns.measurements, columns.codec, columns.places, columns[quantity]
    ).where(columns.run == run, columns[quantity].is_not(None))
    if rank is not None:
        query = query.where(columns.rank == rank)
    if low is not None:
        query = query.where(greatest >= math.floor(low))
    if high is not None:
        query = query.where(least <= math.ceil(high))
    parts: defaultdict[tuple[int, int], list[_Table]] = defaultdict(list)
    for row in connection.execute(query.order_by(columns.id)):
        step, time = unpack_places(row.codec, row.places)
        cells = unpack_grid(row.codec, row._mapping[quantity], row.measurements)
        parts[row.layers, row.rank].append(_Table(step, time, {quantity: cells}))
    found = []
    for (number, of_rank), tables in sorted(parts.items()):
        whole = _joined(tables)
        cells = whole.grids[quantity]
        taken = cells.known.any(axis=1)  # a quantity is not measured in every step
        order = np.flatnonzero(taken)[np.argsort(whole.time[taken], kind="stable")]
        found.append(
            Stretch(
                of_rank, names[number], whole.step[order], whole.time[order], cells.value[order], cells.known[order]
            )
        )
    return found


def _sets(connection: Connection, run: str) -> dict[int, list[str]]:
    rows = connection.execute(select(layer_sets.c.id, layer_sets.c.names).where(layer_sets.c.run == run))
    return {row.id: row.names["names"] for row in rows}


def _table(measurements: Sequence[Measurement], layers: int) -> _Table:
    return _Table(
        np.array([one.step for one in measurements], np.int64),
        np.array([one.time for one in measurements], np.float64),
        {name: grid([getattr(one, name) for one in measurements], layers) for name in QUANTITIES},
    )


def _insert(connection: Connection, run: str, rank: int, layers: int, table: _Table) -> None:
    rows: list[dict[str, Any]] = []
    for at in range(0, len(table.step), CHUNK):
        part = slice(at, at + CHUNK)
        step, time = table.step[part], table.time[part]
        row = {
            "run": run,
            "rank": rank,
            "layers": layers,
            "measurements": len(step),
            "step_low": int(step.min()),
            "step_high": int(step.max()),
            "time_low": float(time.min()),
            "time_high": float(time.max()),
            "codec": LAYER_CODEC,
            "places": pack_places(step, time),
        }
        for name, whole in table.grids.items():
            cells = Grid(whole.value[part], whole.known[part])
            row[name] = pack_grid(cells) if name == "norms" or cells.known.any() else None
        rows.append(row)
    connection.execute(insert(layer_chunks), rows)


def _join(connection: Connection, run: str, rank: int, layers: int) -> None:
    columns = layer_chunks.c
    small = (
        columns.run == run,
        columns.rank == rank,
        columns.layers == layers,
        columns.measurements < CHUNK,
    )
    ids = list(connection.scalars(select(columns.id).where(*small)))
    if len(ids) < JOIN_AT:
        return
    rows = connection.execute(select(layer_chunks).where(columns.id.in_(ids)).order_by(columns.time_low, columns.id))
    whole = _joined([_unpacked(row) for row in rows])
    connection.execute(delete(layer_chunks).where(columns.id.in_(ids)))
    _insert(connection, run, rank, layers, whole)


def _unpacked(row: Any) -> _Table:
    step, time = unpack_places(row.codec, row.places)
    norms = unpack_grid(row.codec, row.norms, row.measurements)
    nothing = Grid(np.full_like(norms.value, np.nan), np.zeros_like(norms.known))
    grids: dict[Quantity, Grid] = {"norms": norms}
    for name in QUANTITIES[1:]:
        data = row._mapping[name]
        grids[name] = nothing if data is None else unpack_grid(row.codec, data, row.measurements)
    return _Table(step, time, grids)


def _joined(tables: Iterable[_Table]) -> _Table:
    parts = list(tables)
    return _Table(
        np.concatenate([part.step for part in parts]),
        np.concatenate([part.time for part in parts]),
        {
            name: Grid(
                np.concatenate([part.grids[name].value for part in parts]),
                np.concatenate([part.grids[name].known for part in parts]),
            )
            for name in parts[0].grids
        },
    )
