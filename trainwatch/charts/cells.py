"""From measurements of layers to the cells of a heat map: no more than can be seen, and nothing hidden in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwatch.charts.columns import Floats

Part = tuple[int, NDArray[np.int64], Floats, NDArray[np.int64], Floats, NDArray[np.bool_]]
"""Rank, place of each of its layers, x and step of each measurement, values and whether there is one."""


class Cells(NamedTuple):
    """Layers × columns.

    Attributes:
        edges: Where the columns begin and end on the x axis; one more than there are columns, or none.
        value: Largest finite value; -Inf where there is none.
        rank: Whose it is.
        known: Whether any value was measured there.
        bad: 0, or the most alarming of what is not finite: 1 NaN, 2 +Inf, 3 -Inf.
        bad_rank: Whose that is.
        step_low: First step of each column.
        step_high: Last step of each column.
    """

    edges: Floats
    value: Floats
    rank: NDArray[np.int64]
    known: NDArray[np.bool_]
    bad: NDArray[np.int8]
    bad_rank: NDArray[np.int64]
    step_low: NDArray[np.int64]
    step_high: NDArray[np.int64]


def cells_of(parts: Sequence[Part], *, layers: int, most: int, low: float | None, high: float | None) -> Cells:
    """Gathers measurements into at most about `most` columns.

    Neighbours are joined until each column is as wide as it has to be, so that measurements that lie farther apart, as
    they do later in a long run, leave no empty columns.

    Args:
        parts: The measurements.
        layers: How many layers there are in all.
        most: How many columns.
        low: Left end of what is shown, as x; None for all.
        high: Right end.
    """
    x = np.unique(np.concatenate([part[2] for part in parts] or [np.zeros(0)]))
    x = _window(x[np.isfinite(x)], low, high)
    firsts = _groups(x, most)
    edges = _edges(x, firsts)
    columns = max(edges.size - 1, 0)
    shape = (columns, layers)
    value = np.full(shape, -np.inf)
    rank, bad_rank = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    known, bad = np.zeros(shape, np.bool_), np.zeros(shape, np.int8)
    step_low, step_high = np.full(columns, np.iinfo(np.int64).max), np.full(columns, -1, np.int64)
    for of_rank, places, at, step, values, has in parts if columns else []:
        inside = (at >= x[0]) & (at <= x[-1])
        order = np.flatnonzero(inside)[np.argsort(at[inside], kind="stable")]
        if not order.size:
            continue
        column = np.searchsorted(x[firsts], at[order], "right") - 1
        starts = np.flatnonzero(np.concatenate(([True], column[1:] != column[:-1])))
        hit = column[starts]
        rows, there = values[order], has[order]
        where = np.ix_(hit, places)
        best = np.maximum.reduceat(np.where(there & np.isfinite(rows), rows, -np.inf), starts, axis=0)
        worst = _worst(rows, there, starts)
        rank[where] = np.where(best > value[where], of_rank, rank[where])
        value[where] = np.maximum(best, value[where])
        more = (worst > 0) & ((bad[where] == 0) | (worst < bad[where]))
        bad_rank[where] = np.where(more, of_rank, bad_rank[where])
        bad[where] = np.where(more, worst, bad[where])
        known[where] |= np.logical_or.reduceat(there, starts, axis=0)
        step_low[hit] = np.minimum(step_low[hit], np.minimum.reduceat(step[order], starts))
        step_high[hit] = np.maximum(step_high[hit], np.maximum.reduceat(step[order], starts))
    return Cells(edges, value.T, rank.T, known.T, bad.T, bad_rank.T, step_low, step_high)


def _worst(rows: Floats, there: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int8]:
    """The most alarming of each stretch: NaN before +Inf before -Inf."""
    none = np.int8(127)
    kind = np.full(rows.shape, none)
    kind[there & (rows == -np.inf)] = 3
    kind[there & (rows == np.inf)] = 2
    kind[there & np.isnan(rows)] = 1
    found = np.minimum.reduceat(kind, starts, axis=0)
    return np.where(found == none, np.int8(0), found).astype(np.int8)


def _window(x: Floats, low: float | None, high: float | None) -> Floats:
    """The places in view, and the next neighbour on each side, whose cell may reach into it."""
    if not x.size:
        return x
    start = 0 if low is None else max(int(np.searchsorted(x, low, "left")) - 1, 0)
    stop = x.size if high is None else int(np.searchsorted(x, high, "right")) + 1
    return x[start:stop]


def _groups(x: Floats, most: int) -> NDArray[np.int64]:
    """Where each group of neighbours begins."""
    if x.size <= most:
        return np.arange(x.size)
    least = (x[-1] - x[0]) / most
    firsts = [0]
    while True:
        following = int(np.searchsorted(x, x[firsts[-1]] + least, "left"))
        if following >= x.size:
            return np.array(firsts, np.int64)
        firsts.append(max(following, firsts[-1] + 1))


def _edges(x: Floats, firsts: NDArray[np.int64]) -> Floats:
    if not x.size:
        return np.zeros(0)
    if firsts.size == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5]) if x.size == 1 else np.array([x[0], x[-1]])
    lasts = np.append(firsts[1:] - 1, x.size - 1)
    between = (x[lasts[:-1]] + x[firsts[1:]]) / 2
    # The cells at the ends are as wide on their outer side as on their inner one.
    first, last = 2 * x[0] - between[0], 2 * x[-1] - between[-1]
    return np.concatenate(([first], between, [last]))
