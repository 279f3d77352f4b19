"""Puts a figure together."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from plotly.io.json import to_json_plotly

from trainwatch.charts import counters, limits, lines, nonfinite, overlays, stack
from trainwatch.charts import layout as layout_of
from trainwatch.charts.columns import Axis, Column
from trainwatch.charts.frame import Frame, Placed, frame_for
from trainwatch.charts.marks import Marks
from trainwatch.charts.registry import Chart
from trainwatch.charts.theme import THEMES, ThemeName
from trainwatch.charts.units import scale_for

_LOG_SPREAD: Final = 100.0  # largest over median value from which a linear axis shows nothing but the largest
_DTYPES: Final = {"float64": "f8", "float32": "f4", "int32": "i4", "int16": "i2", "int8": "i1", "uint8": "u1"}


def figure(
    chart: Chart,
    columns: Sequence[Column],
    marks: Marks,
    *,
    axis: Axis,
    theme: ThemeName,
    low: float | None = None,
    high: float | None = None,
    origin: float | None = None,
) -> dict[str, Any]:
    """Draws a chart. It draws every point that it gets: thin the columns first (:func:`trainwatch.charts.thin`).

    ``layout.meta`` says what the browser needs: ``axis``, ``origin`` (on the time axis x is seconds since it, on the
    step axis it is 0 and x is the step: either way ``from = origin + range[0]``), ``chart``, ``unit``, ``divisor`` (y
    is the value in the metric's base unit divided by it), ``nonfinite`` (how many non-finite values are in view) and
    ``points``.

    Args:
        chart: What to draw.
        columns: Its series, in any order; those of other metrics are ignored.
        marks: The run's marks; what lies outside of the view is left out.
        axis: What the x axis shows.
        theme: For which page.
        low: Left end of the view in steps or Unix seconds; None for everything.
        high: Right end.
        origin: When the run began, in Unix seconds; by default the earliest time found. Give it, so that the x axis of
            a zoomed figure starts to count at the same moment.

    Returns:
        ``{"data": …, "layout": …}`` with numpy arrays in the traces; :func:`to_json` makes it travel.
    """
    if chart.kind == "stack":
        return stack.figure(chart, columns, marks, axis=axis, theme=theme, low=low, high=high, origin=origin)
    order = {metric: number for number, metric in enumerate((*chart.metrics, *chart.counters))}
    columns = sorted(
        (c for c in columns if c.metric in order and c.value.size),
        key=lambda c: (order[c.metric], -1 if c.rank is None else c.rank, c.device),
    )
    relevant = Marks(
        phases=marks.phases,
        checkpoints=marks.checkpoints,
        nonfinite=[m for m in marks.nonfinite if nonfinite.concerns(chart, m)],
        end=marks.end,
    )
    frame = frame_for(columns, relevant, axis=axis, theme=THEMES[theme], low=low, high=high, origin=origin)
    everything = [p for p in map(frame.place, columns) if p.x.size]
    placed = [p for p in everything if p.column.metric in chart.metrics]
    counted = counters.traces([p for p in everything if p.column.metric in chart.counters], frame)
    planned = lines.plan(chart, placed, frame.theme)
    shown = [line for line in planned if line.shown] or planned
    values = _finite([line.placed for line in shown], frame)
    top = float(values.max()) if values.size else 0.0
    scale = scale_for(chart.unit, chart.metrics, top)
    found = nonfinite.markers(chart, placed, relevant.nonfinite, frame)
    omitted = (
        sum(c.omitted.nan for c in columns),
        sum(c.omitted.positive for c in columns),
        sum(c.omitted.negative for c in columns),
    )

    capacity = [p for p in placed if lines.style_of(p).role == "limit"]
    limit_traces, limit_notes = limits.capacity(capacity, top, scale, frame) if values.size else ([], [])
    bottom = min([float(values.min())] if values.size else [0.0])
    ceiling = max([top, *(float(np.max(t["y"])) * scale.divisor for t in limit_traces)])
    log = _is_log(chart, values)
    from_zero = _from_zero(chart, bottom, ceiling)
    base = None if log else 0.0 if from_zero else (bottom - 0.06 * (ceiling - bottom)) / scale.divisor

    data: list[dict[str, Any]] = []
    if placed or found:
        data += overlays.bands(relevant.phases, frame) if chart.bands else []
        data += lines.header(placed, frame)
        for line in planned:
            data += lines.traces(line, scale, frame, base=base)
        data += limit_traces
        data += overlays.checkpoints(relevant.checkpoints, frame) if chart.checkpoints else []
        data += nonfinite.traces(chart, found, omitted, frame)
    data += counted
    shapes, labels = overlays.end_of_run(relevant.end, frame) if placed or found else ([], [])
    notes = limit_notes + labels
    if not values.size:
        notes.append(layout_of.note(_why_empty(bool(placed), len(found) + sum(omitted), frame), frame))

    layout = layout_of.base(frame)
    layout["yaxis"] = layout_of.y_axis(frame, scale, values, log=log, from_zero=from_zero)
    if limit_notes:  # room for the note above the highest point
        layout["yaxis"]["autorangeoptions"] = {
            "include": (top + 0.12 * (top - (0 if from_zero else bottom))) / scale.divisor
        }
    layout["xaxis"] = frame.axis_settings()
    if any(frame.is_central(label["x"]) for label in labels):
        layout["xaxis"]["title"]["text"] = " "  # the label takes its place
    if not placed and not found and not counted:
        layout["xaxis"] |= {"showticklabels": False, "ticks": "", "title": {"text": ""}}
    layout["shapes"] = shapes
    layout["annotations"] = notes
    layout["meta"] = {
        "axis": axis,
        "origin": frame.origin,
        "chart": chart.id,
        "unit": chart.unit,
        "divisor": scale.divisor,
        "nonfinite": len(found) + sum(omitted),
        "points": int(sum(p.x.size for p in placed)),
    }
    return {"data": data, "layout": layout}


def to_json(figure: dict[str, Any]) -> str:
    """A figure as JSON. Arrays travel as base64 of their bytes, so that NaN arrives as NaN and a figure is small."""
    return str(to_json_plotly(_typed(figure), engine="json"))


def _typed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == np.int64 and (not value.size or np.abs(value).max() < 2**31):
            value = value.astype(np.int32)
        elif value.dtype.name not in _DTYPES:
            value = value.astype(np.float64)  # JavaScript has no 64-bit integers in plain arrays
        if not value.size:
            return []
        packed = {
            "dtype": _DTYPES[value.dtype.name],
            "bdata": base64.b64encode(value.tobytes()).decode("ascii"),
        }
        return packed if value.ndim == 1 else packed | {"shape": ", ".join(map(str, value.shape))}
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_typed(item) for item in value]
    return value


def _finite(placed: Sequence[Placed], frame: Frame) -> Any:
    """All finite values in view."""
    parts = []
    for p in placed:
        inside = (p.x >= frame.low) & (p.x <= frame.high) & np.isfinite(p.column.value)
        parts.append(p.column.value[inside])
    values = np.concatenate(parts) if parts else np.zeros(0)
    if values.size or not placed:
        return values
    # Nothing but the neighbours outside the view: the line through it is still there.
    return np.concatenate([p.column.value[np.isfinite(p.column.value)] for p in placed])


def _is_log(chart: Chart, values: Any) -> bool:
    if not chart.log or not values.size or values.min() <= 0:
        return False
    spread = 10.0 if chart.id == "gradients" else _LOG_SPREAD
    highest = values.max()
    # Divided, not multiplied: values may be as large as numbers get.
    return bool(highest / spread > np.median(values) or (chart.id == "gradients" and highest / 30 > values.min()))


def _from_zero(chart: Chart, bottom: float, ceiling: float) -> bool:
    if bottom < 0:
        return False
    if chart.id in ("batch", "speed", "padding"):
        return True
    return chart.unit == "bytes" and bottom < 0.5 * ceiling


def _why_empty(has_points: bool, nonfinite_count: int, frame: Frame) -> str:
    if nonfinite_count:
        return "no finite value to draw" + (" in this range" if frame.zoomed else "")
    if has_points or not frame.zoomed:
        return "no data yet"
    return "no data in this range"
