"""The frame of a figure: from steps and Unix times to positions on its x axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwatch.charts.columns import Axis, Column, Floats, knows_steps, place
from trainwatch.charts.marks import Marks
from trainwatch.charts.theme import FONT, Theme
from trainwatch.charts.units import duration_ticks


@dataclass(frozen=True)
class Placed:
    """A column in the order in which it happened, and where on the x axis its points lie."""

    column: Column
    x: Floats


@dataclass(frozen=True)
class Frame:
    """The x axis of one figure.

    Attributes:
        origin: The Unix time drawn at 0, for the time axis; 0 for the step axis.
        low: Left end of what is drawn, in x positions.
        high: Right end.
        zoomed: Whether the caller set one of them.
        clock: Unix times and the step reached at each, to place on the step axis what knows no step.
    """

    axis: Axis
    theme: Theme
    origin: float
    low: float
    high: float
    zoomed: bool
    clock: tuple[Floats, Floats]

    @property
    def span(self) -> float:
        """Width of what is drawn, above 0."""
        return max(self.high - self.low, 1e-9)

    def is_central(self, x: float) -> bool:
        """Whether a label at x would touch the title of the axis."""
        return 0.3 < (x - self.low) / self.span < 0.72

    def place(self, column: Column) -> Placed:
        """Places a column's points; those that have no place are left out."""
        return _placed(column, self.axis, self.origin, self.clock)

    def at(self, step: float | None, time: float | None) -> float | None:
        """Position of one moment, None when it is not known or outside of what is drawn."""
        if self.axis == "time":
            x = None if time is None else time - self.origin
        else:
            x = None if step is None or step < 0 else float(step)
        if x is None or not np.isfinite(x):
            return None
        slack = 1e-6 * self.span
        return x if self.low - slack <= x <= self.high + slack else None

    def axis_settings(self) -> dict[str, Any]:
        """The layout's ``xaxis``."""
        settings: dict[str, Any] = {
            "type": "linear",
            "title": {"text": "step" if self.axis == "step" else "time since the run began", "standoff": 6},
            "showgrid": False,
            "zeroline": False,
            "showline": True,
            "linecolor": self.theme.edge,
            "ticks": "outside",
            "ticklen": 4,
            "tickcolor": self.theme.edge,
            "automargin": True,
            "showspikes": True,
            # Plotly outlines the line in white when the background is transparent: on a dark page, a dot on the axis.
            "spikemode": "across" if self.theme.spike_line else "marker",
            "spikesnap": "cursor",
            "spikethickness": 1 if self.theme.spike_line else 3,
            "spikedash": "solid",
            "spikecolor": self.theme.muted,
            "tickfont": {"family": FONT, "size": 11, "color": self.theme.muted},
        }
        settings["title"]["font"] = {"family": FONT, "size": 11, "color": self.theme.muted}
        if self.axis == "time":
            values, labels = duration_ticks(self.low, self.high)
            settings |= {"tickmode": "array", "tickvals": values, "ticktext": labels}
            # The header of the hover box is a trace of its own (see lines.header): a duration has no d3 format.
            settings["unifiedhovertitle"] = {"text": "since the run began"}
        else:
            settings |= {"tickformat": ",~r", "nticks": 9}
            settings["unifiedhovertitle"] = {"text": "<b>step %{x:,.2~f}</b>"}
            if self.span < 5:
                settings["dtick"] = 1
        ends = [self.low - 0.006 * self.span, self.high + 0.006 * self.span]
        if self.zoomed:
            settings["range"] = [self.low, self.high]
        else:
            # Not `range`: autorange is what tells the browser that nobody has zoomed.
            settings["autorange"] = True
            settings["autorangeoptions"] = {"minallowed": ends[0], "maxallowed": ends[1]}
        return settings


def frame_for(
    columns: Sequence[Column],
    marks: Marks,
    *,
    axis: Axis,
    theme: Theme,
    low: float | None,
    high: float | None,
    origin: float | None,
) -> Frame:
    """Finds the frame that shows all columns, or the stretch that the caller wants to see."""
    if axis == "step":
        origin = 0.0
    elif origin is None:
        origin = _first_time(columns, marks)
    clock = _clock(columns)
    ends = [
        (float(x.min()), float(x.max()))
        for x in (_placed(column, axis, origin, clock).x for column in columns)
        if x.size
    ]
    for mark in marks.nonfinite:
        moment = mark.step if axis == "step" else None if mark.time is None else mark.time - origin
        if moment is not None:
            ends.append((float(moment), float(moment)))
    begin = min((e[0] for e in ends), default=0.0)
    end = max((e[1] for e in ends), default=begin + 1.0)
    if axis == "time" and 0 < begin < 0.2 * end:
        begin = 0.0  # the time before the first point (loading, compiling) is part of the run
    if low is not None:
        begin = low - origin
    if high is not None:
        end = high - origin
    if end <= begin:  # a single point: give it room
        if low is None and high is None:
            begin, end = begin - 0.5, begin + 0.5
        elif low is None:
            begin = end - 1.0
        else:
            end = begin + 1.0
    return Frame(axis, theme, origin, begin, end, low is not None or high is not None, clock)


def _placed(column: Column, axis: Axis, origin: float, clock: tuple[Floats, Floats]) -> Placed:
    ordered, x = place(column, axis)
    if axis == "time":
        return Placed(ordered, x - origin)
    if knows_steps(column):
        return Placed(ordered, x)
    times, steps = clock
    if not times.size:
        return Placed(ordered.take(slice(0, 0)), x[:0])
    known = (x >= times[0]) & (x <= times[-1])
    return Placed(ordered.take(known), np.interp(x[known], times, steps))


def _clock(columns: Sequence[Column]) -> tuple[Floats, Floats]:
    """Which step was reached when, by the column that knows most about it."""
    best: tuple[Floats, Floats] = (np.zeros(0), np.zeros(0))
    for column in columns:
        known = (column.step >= 0) & np.isfinite(column.time)
        if np.count_nonzero(known) > best[0].size:
            best = (column.time[known], column.step[known].astype(np.float64))
    order = np.argsort(best[0], kind="stable")
    return best[0][order], best[1][order]


def _first_time(columns: Sequence[Column], marks: Marks) -> float:
    times = [float(np.nanmin(c.time)) for c in columns if np.isfinite(c.time).any()]
    times += [p.start for p in marks.phases if p.start is not None]
    times += [m.time for m in marks.nonfinite if m.time is not None]
    return min(times, default=0.0)
