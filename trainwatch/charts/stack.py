"""Parts of a whole, stacked: where the time of a step goes, on average over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from trainwatch.charts import layout as layout_of
from trainwatch.charts import overlays
from trainwatch.charts.columns import Axis, Column, Floats
from trainwatch.charts.frame import Placed, frame_for
from trainwatch.charts.marks import Marks
from trainwatch.charts.registry import Chart
from trainwatch.charts.theme import THEMES, Theme, ThemeName, fade
from trainwatch.charts.units import clock_text, scale_for

CELLS: Final = 400
"""Stretches that a figure is cut into at most; each shows the mean over its steps."""

_DATA: Final = "train/data_seconds"
_STEP: Final = "train/step_seconds"
# Data first: nothing is below it, so that one sees how much of the time is spent waiting for it.
_PARTS: Final = (
    (_DATA, "Waiting for data", 1),
    ("train/compute_seconds", "Forward and backward", 0),
    ("train/optimizer_seconds", "Optimizer", 2),
)
_REST: Final = "Other"


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
    """Draws the split of the steps' time; arguments as for :func:`trainwatch.charts.figure`.

    The columns must not be thinned: a mean over points that were chosen for being extreme is none.
    """
    used = [column for column in columns if column.metric in chart.metrics and column.value.size]
    frame = frame_for(used, Marks(end=marks.end), axis=axis, theme=THEMES[theme], low=low, high=high, origin=origin)
    placed = [p for p in map(frame.place, used) if p.x.size]
    edges = _edges(placed, frame.low, frame.high)
    centre, means, steps = _means(placed, edges)
    parts = _parts(means, frame.theme)
    total = np.sum([y for _, y, _ in parts], axis=0) if parts else np.zeros(0)
    scale = scale_for(chart.unit, chart.metrics, float(total.max()) if total.size else 0.0)
    data: list[dict[str, Any]] = []
    for name, y, colour in parts if centre.size else []:
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(total > 0, y / total, 0.0)
        data.append(
            {
                "type": "scatter",
                "x": centre,
                "y": y / scale.divisor,
                "name": name,
                "mode": "lines",
                "stackgroup": "parts",
                "line": {"width": 0.8, "color": colour},
                "fillcolor": fade(colour, 0.55),
                "customdata": share,
                "hovertemplate": f"{scale.hover_text} · %{{customdata:.0%}}<extra>{name}</extra>",
                "meta": {"part": name},
            }
        )
    if data and axis == "time":
        data.insert(0, _header(centre, steps))
    shapes, labels = overlays.end_of_run(marks.end, frame) if data else ([], [])
    layout = layout_of.base(frame)
    layout["legend"]["traceorder"] = "normal"  # Plotly turns it around for stacks, also where it lies on its side
    layout["xaxis"] = frame.axis_settings()
    if any(frame.is_central(label["x"]) for label in labels):
        layout["xaxis"]["title"]["text"] = " "  # the label takes its place
    layout["yaxis"] = layout_of.y_axis(frame, scale, total, log=False, from_zero=True)
    layout["shapes"] = shapes
    layout["annotations"] = labels
    if not data:
        layout["xaxis"] |= {"showticklabels": False, "ticks": "", "title": {"text": ""}}
        layout["annotations"] = [layout_of.note("no data in this range" if frame.zoomed else "no data yet", frame)]
    layout["meta"] = {
        "axis": axis,
        "origin": frame.origin,
        "chart": chart.id,
        "unit": chart.unit,
        "divisor": scale.divisor,
        "nonfinite": 0,
        "points": int(centre.size),
    }
    return {"data": data, "layout": layout}


def _edges(placed: Sequence[Placed], low: float, high: float) -> Floats:
    x = np.unique(np.concatenate([p.x for p in placed if p.column.metric == _STEP] or [np.zeros(0)]))
    x = x[(x >= low) & (x <= high)]
    if x.size <= CELLS:
        return np.append(x, np.nextafter(x[-1], np.inf)) if x.size else np.zeros(0)
    return np.linspace(low, np.nextafter(high, np.inf), CELLS + 1)


def _means(placed: Sequence[Placed], edges: Floats) -> tuple[Floats, dict[str, Floats], Floats]:
    """Returns the middle, the mean of each metric and the last step of every stretch in which a step ended."""
    if edges.size < 2:
        return np.zeros(0), {}, np.zeros(0)
    cells = edges.size - 1
    counts: dict[str, Any] = {}
    sums: dict[str, Any] = {}
    middle, steps = np.zeros(cells), np.full(cells, -1.0)
    for p in placed:
        cell = np.searchsorted(edges, p.x, "right") - 1
        taken = (cell >= 0) & (cell < cells) & np.isfinite(p.column.value)
        cell = cell[taken]
        metric = p.column.metric
        counts[metric] = counts.get(metric, 0.0) + np.bincount(cell, minlength=cells)
        sums[metric] = sums.get(metric, 0.0) + np.bincount(cell, p.column.value[taken], minlength=cells)
        if metric == _STEP:
            middle += np.bincount(cell, p.x[taken], minlength=cells)
            np.maximum.at(steps, cell, p.column.step[taken].astype(np.float64))
    counted = counts.get(_STEP, np.zeros(cells))
    some = counted > 0
    means = {metric: sums[metric][some] / np.maximum(counts[metric][some], 1) for metric in sums}
    return middle[some] / counted[some], means, steps[some]


def _parts(means: dict[str, Floats], theme: Theme) -> list[tuple[str, Floats, str]]:
    found = [(name, means[metric], theme.colour(slot)) for metric, name, slot in _PARTS if metric in means]
    if _STEP in means:
        whole = means[_STEP] + means.get(_DATA, 0.0)
        rest = np.maximum(whole - sum(y for _, y, _ in found), 0.0)
        found.append((_REST, rest, theme.muted))
    return found


def _header(centre: Floats, steps: Floats) -> dict[str, Any]:
    """On the time axis, the first line of the hover box; see :func:`trainwatch.charts.lines.header`."""
    texts = [
        f"<b>{clock_text(x)}</b>" + (f" · step {step:,.0f}" if step >= 0 else "")
        for x, step in zip(centre.tolist(), steps.tolist(), strict=True)
    ]
    return {
        "type": "scatter",
        "x": centre,
        "y": np.full(centre.size, 0.5),
        "yaxis": "y2",
        "mode": "markers",
        "marker": {"size": 1, "opacity": 0, "color": "rgba(0,0,0,0)"},
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
        "meta": {"header": True},
    }
