"""Columns, the input of every chart, and thinning: a million points to what a screen can show.

Thinning keeps of every pixel's points the first, the last, the lowest and the highest (the idea of M4: the drawn line
covers the same pixels as all points would), and every non-finite point: neither a spike of one step nor a lone NaN can
get lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Axis = Literal["step", "time"]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

NONFINITE_CAP: Final = 2_000
"""More non-finite points than this in one column are thinned too (one of each kind a bucket) and counted."""

_SAMPLED: Final = ("memory/", "device/", "host/")


@dataclass(frozen=True)
class Omitted:
    """How many non-finite points of a column thinning left out."""

    nan: int = 0
    positive: int = 0
    negative: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.nan + self.positive + self.negative


@dataclass(frozen=True)
class Column:
    """One series: metric × rank × device, as arrays of equal length.

    Attributes:
        rank: None for a value of a whole node.
        device: ``""`` for a value that belongs to no device.
        step: Optimizer step, -1 where it is not known.
        time: Unix seconds.
        value: In the metric's base unit; NaN and ±Inf are legal.
        omitted: What :func:`thin` left out of the non-finite points.
    """

    metric: str
    rank: int | None
    device: str
    step: NDArray[np.int64]
    time: Floats
    value: Floats
    omitted: Omitted = Omitted()

    def take(self, index: NDArray[Any] | slice) -> Column:
        """The column with some of its points only."""
        return replace(self, step=self.step[index], time=self.time[index], value=self.value[index])


def place(column: Column, axis: Axis) -> tuple[Column, Floats]:
    """Puts a column's points in the order in which they happened and says where on the axis each one lies.

    Points without a place (a step or time that is not known) are left out. A column that knows no step at all is
    placed by time whatever the axis.

    Several readings taken during one step (an agent samples four times a second, a step may last ten) would lie on top
    of each other; on the step axis they are spread over the stretch up to the next step.

    Returns:
        The column in order, and for each point its step or its Unix time. Steps go back where a run was resumed.
    """
    if axis == "step" and not knows_steps(column):
        axis = "time"
    known = np.isfinite(column.time) if axis == "time" else column.step >= 0
    if not known.all():
        column = column.take(known)
    if np.any(column.time[1:] < column.time[:-1]):
        column = column.take(np.argsort(column.time, kind="stable"))
    if axis == "time":
        return column, column.time
    if column.metric.startswith(_SAMPLED):
        return column, _spread(column.step, column.time)
    return column, column.step.astype(np.float64)


def knows_steps(column: Column) -> bool:
    """Whether the column can be placed on the step axis by itself."""
    return column.step.size == 0 or bool(column.step.max() >= 0)


def thin(column: Column, *, axis: Axis, low: float | None, high: float | None, width: int) -> Column:
    """Down-samples a column to about four points a pixel.

    Args:
        column: The points, in any order.
        axis: What the chart's x axis shows.
        low: Left end of what is shown (steps or Unix seconds); None for the first point.
        high: Right end; None for the last.
        width: Width of the plot in pixels.

    Returns:
        The points to draw, in the order in which they happened. Of the points outside ``[low, high]`` only the next
        neighbour on each side is there, so that lines reach the edges.

    Raises:
        ValueError: `width` is below 1, or `low` above `high`.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1 pixel, not {width}")
    if low is not None and high is not None and low > high:
        raise ValueError(f"low ({low}) is above high ({high})")
    ordered, x = place(column, axis)
    if axis == "step" and not knows_steps(column):
        low = high = None  # placed by time: the window, in steps, says nothing about it
    shown = _window(x, low, high)
    ordered, x = ordered.take(shown), x[shown]
    if x.size <= 4 * width:
        return ordered
    return _thin(ordered, x, low, high, width)


def _thin(column: Column, x: Floats, low: float | None, high: float | None, width: int) -> Column:
    starts, order = _buckets(x, low, high, width)
    value = column.value if order is None else column.value[order]

    finite = np.isfinite(value)
    omitted = column.omitted
    if finite.all():
        keep = _extremes(starts, value)
    else:
        at_finite = np.flatnonzero(finite)
        inner = np.unique(np.searchsorted(at_finite, starts))
        keep = at_finite[_extremes(inner[inner < at_finite.size], value[at_finite])]
        at_other = np.flatnonzero(~finite)
        if at_other.size > NONFINITE_CAP:
            at_other, omitted = _one_of_each(at_other, starts, value, omitted)
        keep = np.concatenate((keep, at_other))
    return replace(column.take(np.sort(keep if order is None else order[keep])), omitted=omitted)


def _buckets(x: Floats, low: float | None, high: float | None, width: int) -> tuple[Indices, Indices | None]:
    """Cuts the points into stretches of one pixel each.

    Returns:
        Where each stretch starts, and in which order the points are to be taken for that (None: as they are).
    """
    left = float(x.min()) if low is None else low
    right = float(x.max()) if high is None else high
    if not right > left:
        return np.zeros(1, np.int64), None
    if np.all(x[1:] >= x[:-1]):
        edges = np.linspace(left, right, width + 1)  # the neighbours outside get stretches of their own
        edges[-1] = np.nextafter(right, np.inf)
        starts = np.unique(np.searchsorted(x, edges, "left"))
        starts = starts[starts < x.size]
        return (starts if starts[0] == 0 else np.concatenate((np.zeros(1, np.int64), starts))), None
    # The steps go back somewhere: a stretch ends wherever the pixel changes.
    pixel = np.clip((x - left) * (width / (right - left)) + 1, 0, width + 1).astype(np.int32)
    starts = _starts(pixel)
    if starts.size <= 2 * width + 2:
        return starts, None
    order = np.argsort(pixel, kind="stable")  # wildly out of order: go by pixel rather than by stretch
    return _starts(pixel[order]), order


def _one_of_each(at: Indices, starts: Indices, value: Floats, omitted: Omitted) -> tuple[Indices, Omitted]:
    """Of the non-finite points `at`, the first of each kind in every stretch; the others are counted."""
    kinds = kind_of(value[at])
    _, first = np.unique(np.searchsorted(starts, at, "right") * 3 + kinds, return_index=True)
    lost = np.bincount(kinds, minlength=3) - np.bincount(kinds[first], minlength=3)
    counted = Omitted(omitted.nan + int(lost[0]), omitted.positive + int(lost[1]), omitted.negative + int(lost[2]))
    return at[first], counted


def kind_of(value: Floats) -> Indices:
    """0 for NaN, 1 for +Inf, 2 for -Inf; the values must not be finite."""
    kinds = np.zeros(value.size, np.int64)
    kinds[value == np.inf] = 1
    kinds[value == -np.inf] = 2
    return kinds


def _window(x: Floats, low: float | None, high: float | None) -> slice | NDArray[np.bool_]:
    """Which points lie in the window, and the next neighbour on each side."""
    if (low is None and high is None) or not x.size:
        return slice(None)
    low = -np.inf if low is None else low
    high = np.inf if high is None else high
    rising = x[1:] >= x[:-1]
    if rising.all():
        start = int(np.searchsorted(x, low, "left"))
        stop = int(np.searchsorted(x, high, "right"))
        return slice(max(start - 1, 0), stop + 1)
    inside = (x >= low) & (x <= high)
    keep = inside.copy()
    # Where the steps go back (a resumed run) the line is broken, and there is no neighbour.
    across = rising & (x[:-1] < low) & (x[1:] > high)
    keep[:-1] |= (inside[1:] & rising) | across
    keep[1:] |= (inside[:-1] & rising) | across
    return np.asarray(keep, np.bool_)


def _starts(bucket: NDArray[Any]) -> Indices:
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(bucket[1:] != bucket[:-1]) + 1))


def _extremes(starts: Indices, value: Floats) -> Indices:
    """Indices of the first, last, lowest and highest value of every stretch."""
    if not value.size:
        return np.zeros(0, np.int64)
    counts = np.diff(starts, append=value.size)
    chosen = [starts, starts + counts - 1]
    for extreme in (np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)):
        hits = np.flatnonzero(value == np.repeat(extreme, counts))
        stretch = np.searchsorted(starts, hits, "right")
        chosen.append(hits[np.concatenate(([True], stretch[1:] != stretch[:-1]))])
    return np.unique(np.concatenate(chosen))


def _spread(step: NDArray[np.int64], time: Floats) -> Floats:
    """Places readings of one step between it and the next, by their time."""
    x = step.astype(np.float64)
    if step.size < 2:
        return x
    starts = _starts(step)
    if starts.size == step.size:
        return x
    counts = np.diff(starts, append=step.size)
    begin = time[starts]
    length = np.diff(begin, append=np.nan)
    # How long the last step will be is not known yet: as long as the one before, or as what there is of it.
    so_far = (time[-1] - begin[-1]) * 1.02
    length[-1] = max(so_far, length[-2]) if length.size > 1 else so_far
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (time - np.repeat(begin, counts)) / np.repeat(length, counts)
    return x + np.clip(np.nan_to_num(share, nan=0.0, posinf=0.0, neginf=0.0), 0.0, 0.98)
