"""The data sets: their sizes, and how long the training set's samples are, read without disturbing anything.

What is stored as Arrow tells lengths by its offsets, without its tokens being touched. Lists are read as they are. A
data set of the user's own making is never asked for a sample: it may draw random numbers, open a file that its workers
then share, or wait for a network, and a training must not depend on being watched. Of such a one the lengths are told
where its samples lie in sight in an attribute, as long as they are there; otherwise they are left out.
"""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Callable, Sequence, Sized
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import torch

from trainwatch.training.describe import arrow
from trainwatch.training.describe.probing import positions
from trainwatch.training.safety import Safety

BUDGET: Final = 0.05
"""Seconds that reading lengths may take."""
COLUMNS: Final = (
    "length",
    "lengths",
    "input_ids",
    "prompt_input_ids",
    "prompt_ids",
    "chosen_input_ids",
    "input_values",
)
"""Where a sample's length is found, the first that is there; a number, or something that has a length."""
_HOLDERS: Final = ("encodings", "examples", "samples", "features", "data", "items")
"""Attributes under which classes for tokenized data commonly keep their samples."""
_PLAIN: Final = (list, tuple)
Schedule = Callable[[Any, Callable[[], bool]], "dict[str, Any] | None"]
"""Lengths by place in the data set, and what tells that the time is up; when these samples come, as plain values."""

_MOST_BINS: Final = 32
_MOST_SETS: Final = 16
_MOST_READ: Final = 1_000_000


class _Found(NamedTuple):
    """Lengths of samples.

    Attributes:
        column: Where they were found.
        lengths: As they were read.
        places: Returns the places in the data set that they belong to, where all of them were read.
    """

    column: str
    lengths: list[int]
    places: Callable[[], Any]


class _Seen(NamedTuple):
    """Samples that lie in sight.

    Attributes:
        column: Where their lengths are found.
        values: What they are found in, one for each sample.
        pick: Returns the length of such a one, None for one without.
    """

    column: str
    values: Sequence[Any]
    pick: Callable[[Any], int | None]


def describe_datasets(
    train: Any, evaluation: Any = None, safety: Safety | None = None, schedule: Schedule | None = None
) -> dict[str, Any]:
    """Describes the data sets of a training.

    Args:
        train: The training set, or None.
        evaluation: The evaluation set, a dictionary of several, or None.
        safety: Where failures are counted.
        schedule: Tells when the samples come, see :mod:`trainwatch.training.describe.order`.

    Returns:
        ``{"train": …, "eval": …}``, each with ``kind`` (its class), ``samples`` (None when it does not know), the
        training set also with ``read``, ``complete``, ``column``, ``lengths`` (min, p50, p90, p99, max, mean) and
        ``histogram`` (``edges``, ``counts``) where lengths could be read, and ``order`` where all of them could and
        it is known in which order they come. Several evaluation sets stand under ``sets``, ``samples`` being their sum.
    """
    safety = safety or Safety()
    found: dict[str, Any] = {}
    with safety.guard("description of the training set"):
        if train is not None:
            found["train"] = describe_dataset(train, schedule=schedule)
    with safety.guard("description of the evaluation set"):
        if type(evaluation) is dict:
            sets = {str(name): _sizes(each) for name, each in list(evaluation.items())[:_MOST_SETS]}
            known = [each["samples"] for each in sets.values()]
            found["eval"] = {"sets": sets, "samples": None if None in known else sum(known)}
        elif evaluation is not None:
            found["eval"] = _sizes(evaluation)
    return found


def describe_dataset(
    dataset: Any,
    *,
    budget: float = BUDGET,
    clock: Callable[[], float] = time.perf_counter,
    schedule: Schedule | None = None,
) -> dict[str, Any]:
    """Describes one data set, with the lengths of its samples.

    Args:
        dataset: Any data set; it is never asked for a sample, and one that is only iterable not even for its size.
        budget: Seconds to spend.
        clock: Tells the time in seconds.
        schedule: Tells when the samples come.
    """
    description = _sizes(dataset)
    if not description["samples"]:
        return description
    deadline = clock() + budget

    def over() -> bool:
        return clock() > deadline

    found = _lengths(dataset, over)
    if found is not None and found.lengths:
        description.update(_statistics(found, description["samples"]))
        if schedule is not None and description["complete"] and not over():
            order = schedule(_in_order(found), over)
            if order is not None:
                description["order"] = order
    return description


def _in_order(found: _Found) -> Any:
    """Returns the lengths of all samples, by their places in the data set."""
    import numpy as np

    lengths = np.empty(len(found.lengths), dtype=np.int64)
    lengths[found.places()] = found.lengths
    return lengths


def _sizes(dataset: Any) -> dict[str, Any]:
    samples = None if _only_iterable(dataset) or not isinstance(dataset, Sized) else len(dataset)
    return {"kind": type(dataset).__name__, "samples": samples}


def _only_iterable(dataset: Any) -> bool:
    names = {kind.__name__ for kind in type(dataset).__mro__}
    return bool(names & {"IterableDataset", "IterDataPipe"}) or not hasattr(type(dataset), "__getitem__")


def _lengths(dataset: Any, over: Callable[[], bool]) -> _Found | None:
    if arrow.is_arrow(dataset):
        column = next((name for name in COLUMNS if name in dataset.column_names), None)
        read = arrow.lengths(dataset, column, over, _MOST_READ) if column else None
        return None if column is None or read is None else _Found(column, read[0], partial(_joined, read[1]))
    seen = _samples(dataset) if type(dataset) in _PLAIN else _stored(dataset)
    if seen is None:
        return None
    places = partial(_places, len(seen.values))
    return _Found(seen.column, _read_all(seen.values, over, seen.pick), places)


def _joined(arrays: list[Any]) -> Any:
    import numpy as np

    return np.concatenate(arrays)


def _places(count: int) -> Any:
    import numpy as np

    return np.fromiter(positions(count), dtype=np.int64, count=count)


def _stored(dataset: Any) -> _Seen | None:
    """Returns the samples that an object of somebody's own class keeps in an attribute, if they can be seen there."""
    attributes: dict[str, Any] = getattr(dataset, "__dict__", {})
    holder: Any
    for holder in (attributes, *(attributes.get(name) for name in _HOLDERS)):
        seen = _samples(holder) if type(holder) in _PLAIN else _columns(holder, own=holder is attributes)
        if seen is not None and len(seen.values) == len(dataset):
            return seen
    return None


def _samples(samples: Sequence[Any]) -> _Seen | None:
    """Finds the lengths of samples that are kept one by one."""
    for column in COLUMNS if len(samples) else ():
        pick = partial(_length_in, column=column)
        if pick(samples[0]) is not None:
            return _Seen(column, samples, pick)
    return None


def _columns(holder: Any, own: bool) -> _Seen | None:
    """Finds the lengths of samples that are kept as columns.

    Args:
        holder: Whatever may hold them.
        own: It is an object's attributes, of which nobody knows what one that is called ``length`` is the length of.
    """
    for column in COLUMNS:
        values: Any = None if own and "length" in column else _value_in(holder, column)
        pick = partial(_length_of, column=column)
        if _is_stored(values) and len(values) and pick(values[0]) is not None:
            return _Seen(column, values, pick)
    return None


def _read_all(values: Sequence[Any], over: Callable[[], bool], pick: Callable[[Any], int | None]) -> list[int]:
    lengths = []
    for count, position in enumerate(islice(positions(len(values)), _MOST_READ)):
        if count % 64 == 0 and over():
            break
        length = pick(values[position])
        if length is not None:
            lengths.append(length)
    return lengths


def _length_in(sample: Any, column: str) -> int | None:
    return _length_of(_value_in(sample, column), column)


def _length_of(value: Any, column: str) -> int | None:
    if "length" in column:
        return value if type(value) is int else None
    if not _is_stored(value):
        return None
    shape = getattr(value, "shape", None)
    return len(value) if shape is None else int(shape[-1])


def _value_in(holder: Any, column: str) -> Any:
    """Looks into a dictionary, or into what a tokenizer has given, without calling code of somebody's own."""
    if isinstance(holder, UserDict):
        holder = holder.__dict__.get("data")
    return dict.get(holder, column) if isinstance(holder, dict) else None


def _is_stored(value: Any) -> bool:
    """Tells whether a value lies in memory (or is mapped there) as it is, with nobody's code between."""
    import numpy as np

    return type(value) in (*_PLAIN, np.ndarray, np.memmap, torch.Tensor) and getattr(value, "ndim", 1) > 0


def _statistics(found: _Found, total: int) -> dict[str, Any]:
    lengths = sorted(found.lengths)
    count = len(lengths)

    def share(part: float) -> int:
        return lengths[min(count - 1, int(part * count))]

    low, high = lengths[0], lengths[-1]
    width = -(-(high - low + 1) // _MOST_BINS)
    bins = (high - low) // width + 1
    counts = [0] * bins
    for length in lengths:
        counts[(length - low) // width] += 1
    return {
        "read": count,
        "complete": count == total,
        "column": found.column,
        "lengths": {
            "min": low,
            "p50": share(0.5),
            "p90": share(0.9),
            "p99": share(0.99),
            "max": high,
            "mean": sum(lengths) / count,
        },
        "histogram": {"edges": [low + width * number for number in range(bins + 1)], "counts": counts},
    }
