"""Lengths out of a ``datasets.Dataset``: from the offsets of its Arrow lists, without reading what is in them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from trainwatch.training.describe.probing import positions


def is_arrow(dataset: Any) -> bool:
    """Tells whether a data set is a ``datasets.Dataset`` that hands out what it stores.

    Args:
        dataset: Anything.
    """
    if type(dataset).__module__.partition(".")[0] != "datasets" or not hasattr(dataset, "_indices"):
        return False
    return bool(dataset.format.get("type") != "custom")  # a transform makes samples when they are asked for


def lengths(dataset: Any, column: str, over: Callable[[], bool], most: int) -> tuple[list[int], list[Any]] | None:
    """Reads the lengths of samples.

    Args:
        dataset: A ``datasets.Dataset``, with or without a selection of its rows.
        column: A column of lists, or of numbers that are lengths.
        over: Tells that the time is up; what was read until then lies all over the data set.
        most: How many to read at most.

    Returns:
        The lengths of the rows read, in no order, and arrays of the places in the data set that they belong to (of no
        meaning unless all rows were read); None when the column holds no lengths.
    """
    import numpy as np

    chunks = dataset.data.column(column).chunks
    begins = [0, *accumulate(len(chunk) for chunk in chunks)]
    rows = _selection(dataset._indices, most)
    if rows is not None:
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        cuts = np.searchsorted(rows, begins)
    found: list[int] = []
    places: list[Any] = []
    for number in positions(len(chunks)) if chunks else ():
        if over() or len(found) >= most:
            break
        if rows is not None and cuts[number] == cuts[number + 1]:
            continue
        values = _chunk(chunks[number])
        if values is None:
            return None
        if rows is None:
            place = np.arange(begins[number], begins[number + 1])
        else:
            values = values[rows[cuts[number] : cuts[number + 1]] - begins[number]]
            place = order[cuts[number] : cuts[number + 1]]
        there = values >= 0
        found += values[there].tolist()
        places.append(place[there])
    return found, places


def _selection(indices: Any, most: int) -> Any:
    """The rows that a shuffled, filtered or split data set consists of; every n-th when there are very many."""
    if indices is None:
        return None
    import numpy as np

    column = indices.column(0)
    stride = -(-len(column) // most)
    if stride == 1:
        return column.to_numpy().astype(np.int64)
    return np.concatenate([chunk.to_numpy()[::stride] for chunk in column.chunks]).astype(np.int64)


def _chunk(chunk: Any) -> Any:
    """The lengths of one piece of a column, -1 where there is no value; None when it holds no lengths."""
    import numpy as np

    kind = str(chunk.type)
    if kind.startswith("fixed_size_list"):
        values = np.full(len(chunk), chunk.type.list_size)
    elif kind.startswith(("list", "large_list")):
        values = np.diff(chunk.offsets.to_numpy())
    elif kind.startswith(("int", "uint")):
        values = chunk.fill_null(-1).to_numpy() if chunk.null_count else chunk.to_numpy()
    else:
        return None
    return np.where(chunk.is_valid().to_numpy(zero_copy_only=False), values, -1) if chunk.null_count else values
