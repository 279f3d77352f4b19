"""A heat map of layers over steps: which layer learns, which is dead, which explodes, and where a NaN stood.

The model's order goes from top to bottom. A cell shows the largest value of its stretch of steps over all ranks, so
that nothing extreme can hide in it; one that holds anything non-finite shows that, in a colour that no value has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainwatch.charts import layout as layout_of
from trainwatch.charts import overlays
from trainwatch.charts.cells import Cells, cells_of
from trainwatch.charts.columns import Axis, Floats
from trainwatch.charts.frame import Frame
from trainwatch.charts.marks import Marks
from trainwatch.charts.nonfinite import KINDS
from trainwatch.charts.registry import Chart
from trainwatch.charts.theme import FONT, THEMES, ThemeName
from trainwatch.charts.units import log_ticks

_DECADES: Final = (
    8.0  # below the largest value; smaller ones have the last colour, and say what they are under the mouse
)
_ROW: Final = 16
_LEAST_HEIGHT: Final = 220
_MOST_HEIGHT: Final = 620
_AROUND: Final = 96  # pixels of a figure's height that are not the map
_LABEL: Final = 13  # pixels that a label takes
_MARKS: Final = 14  # pixels above the map for the marks of what is not finite
_NARROW: Final = 600
_SYMBOLS: Final = ("x", "triangle-up", "triangle-down")
# From little to much, on a light page towards dark and on a dark one towards light; none is the red of what is wrong.
_SCALES: Final[dict[ThemeName, tuple[str, ...]]] = {
    "light": ("#f1f6ea", "#cfe8d3", "#96d0c6", "#57b2c4", "#2f89bd", "#2a5ca8", "#243782", "#141a4a"),
    "dark": ("#1b2433", "#22385f", "#285a8c", "#2b80a4", "#38a8a8", "#6acba0", "#aee592", "#f2f7a1"),
}


@dataclass(frozen=True)
class LayerColumn:
    """Measurements of a quantity in the layers of one rank.

    Attributes:
        layers: Names, in the model's order.
        step: Optimizer step of each measurement.
        time: Unix seconds of each.
        value: Measurements × layers; NaN and ±Inf are legal.
        known: Whether there was a value: a layer without a gradient has none.
    """

    rank: int
    layers: Sequence[str]
    step: NDArray[np.int64]
    time: Floats
    value: Floats
    known: NDArray[np.bool_]

    def take(self, index: NDArray[Any]) -> LayerColumn:
        """The column with some of its measurements only."""
        return LayerColumn(
            self.rank, self.layers, self.step[index], self.time[index], self.value[index], self.known[index]
        )


def layers_figure(
    chart: Chart,
    columns: Sequence[LayerColumn],
    marks: Marks,
    *,
    axis: Axis,
    theme: ThemeName,
    width: int,
    low: float | None = None,
    high: float | None = None,
    origin: float = 0.0,
) -> dict[str, Any]:
    """Draws layers over steps.

    ``layout.meta`` is that of :func:`trainwatch.charts.figure`, and has the ``height`` in pixels that suits the number
    of layers.

    Args:
        chart: One of the charts of layers.
        columns: The measurements of one rank or of several; of layers that have changed the newest come last.
        marks: Only the end of the run is shown.
        axis: What the x axis shows.
        theme: For which page.
        width: Of the plot, in pixels: it is cut into no more cells than can be seen.
        low: Left end of the view in steps or Unix seconds; None for everything.
        high: Right end.
        origin: When the run began, in Unix seconds.
    """
    origin = 0.0 if axis == "step" else origin
    names = _names(columns)
    cells = cells_of(
        [(c.rank, _places(names, c.layers), _x(c, axis, origin), c.step, c.value, c.known) for c in columns],
        layers=len(names),
        most=max(40, min(width // 4, 320)),
        low=None if low is None else low - origin,
        high=None if high is None else high - origin,
    )
    frame = _frame(cells, axis, theme, origin, low, high)
    height = int(np.clip(_AROUND + _ROW * len(names), _LEAST_HEIGHT, _MOST_HEIGHT))
    layout = layout_of.base(frame)
    layout["xaxis"] = frame.axis_settings() | {"showspikes": False}
    layout["hovermode"] = "closest"
    layout["showlegend"] = width >= _NARROW  # there is the colour bar on a telephone; the marks say what they are
    data: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    if cells.edges.size:
        data = [_map(chart, cells, names, theme, frame, len({c.rank for c in columns}) > 1, width)]
        above = len(names) * _MARKS / (height - _AROUND) if cells.bad.any() else 0.0
        data += _bad(cells, names, frame, above)
        shapes, labels = overlays.end_of_run(marks.end, frame)
        if any(frame.is_central(label["x"]) for label in labels):
            layout["xaxis"]["title"]["text"] = " "
        layout["yaxis"] = _y_axis(names, frame, height, width, above)
    else:
        layout["xaxis"] |= {"showticklabels": False, "ticks": "", "title": {"text": ""}}
        layout["yaxis"] = {"visible": False}
        labels = [layout_of.note("no data in this range" if frame.zoomed else "no data yet", frame)]
    layout["shapes"] = shapes
    layout["annotations"] = labels
    layout["meta"] = {
        "axis": axis,
        "origin": origin,
        "chart": chart.id,
        "unit": chart.unit,
        "divisor": 1.0,
        "nonfinite": int(np.count_nonzero(cells.bad)),
        "points": int(np.count_nonzero(cells.known)),
        "height": height,
        "layers": len(names),
    }
    return {"data": data, "layout": layout}


def _x(column: LayerColumn, axis: Axis, origin: float) -> Floats:
    return column.step.astype(np.float64) if axis == "step" else column.time - origin


def _names(columns: Sequence[LayerColumn]) -> list[str]:
    """All layers in the model's order: that of the newest list, the others' own behind what comes before them there."""
    names: list[str] = []
    for column in reversed(columns):
        place = 0
        for layer in column.layers:
            if layer in names:
                place = names.index(layer) + 1
            else:
                names.insert(place, layer)
                place += 1
    return names


def _places(names: list[str], layers: Sequence[str]) -> NDArray[np.int64]:
    order = {name: place for place, name in enumerate(names)}
    return np.array([order[layer] for layer in layers], np.int64)


def _frame(cells: Cells, axis: Axis, theme: ThemeName, origin: float, low: float | None, high: float | None) -> Frame:
    begin, end = (float(cells.edges[0]), float(cells.edges[-1])) if cells.edges.size else (0.0, 1.0)
    begin = begin if low is None else low - origin
    end = end if high is None else high - origin
    nothing = np.zeros(0)
    zoomed = low is not None or high is not None
    return Frame(axis, THEMES[theme], origin, begin, max(end, begin + 1e-9), zoomed, (nothing, nothing))


def _map(
    chart: Chart, cells: Cells, names: list[str], theme: ThemeName, frame: Frame, several: bool, width: int
) -> dict[str, Any]:
    shown = cells.known & (cells.bad == 0)
    value = np.where(shown, cells.value, np.nan)
    positive = value[shown & (cells.value > 0)]
    logarithmic = chart.log and positive.size > 0
    top = float(positive.max()) if positive.size else 1.0
    if logarithmic:
        bottom = max(float(positive.min()), top / 10**_DECADES)
        if bottom > top / 10:  # all alike: no more contrast than there is
            bottom = top / 10
        z = np.log10(np.where(shown, np.maximum(value, bottom), 1.0))
        ends = (float(np.log10(bottom)), float(np.log10(top)))
    else:
        z = value.copy()
        ends = (0.0, max(top, 1e-3) if chart.unit == "ratio" else top)
    z[~shown] = np.nan
    stretches = bool(np.any(cells.step_high > cells.step_low))
    where = "step %{customdata[1]:,.0f}"
    if stretches:
        where = "largest of steps %{customdata[1]:,.0f}–%{customdata[2]:,.0f}"
    rank = " · rank %{customdata[3]:.0f}" if several else ""
    written = ".1%" if chart.unit == "ratio" else ".4~g"
    return {
        "type": "heatmap",
        "x": cells.edges,
        "y": np.arange(len(names)),
        "z": z.astype(np.float32),
        "zmin": ends[0],
        "zmax": ends[1],
        "colorscale": [[n / (len(_SCALES[theme]) - 1), colour] for n, colour in enumerate(_SCALES[theme])],
        "colorbar": _colour_bar(ends, frame, logarithmic=logarithmic, ratio=chart.unit == "ratio", width=width),
        "hoverongaps": False,
        "text": [[name] * (cells.edges.size - 1) for name in names],
        "customdata": _custom(cells),
        "hovertemplate": f"<b>%{{text}}</b><br>%{{customdata[0]:{written}}}<br>{where}{rank}<extra></extra>",
        "xgap": 0,
        "ygap": 1 if len(names) <= 30 else 0,
        "meta": {"map": True},
    }


def _custom(cells: Cells) -> NDArray[Any]:
    layers, columns = cells.value.shape
    exact = np.float32 if not cells.step_high.size or cells.step_high.max() < 2**24 else np.float64
    custom = np.empty((layers, columns, 4), exact)
    with np.errstate(over="ignore"):
        custom[:, :, 0] = cells.value
    custom[:, :, 1], custom[:, :, 2], custom[:, :, 3] = cells.step_low, cells.step_high, cells.rank
    return custom


def _colour_bar(
    ends: tuple[float, float], frame: Frame, *, logarithmic: bool, ratio: bool, width: int
) -> dict[str, Any]:
    font = {"family": FONT, "size": 10.5, "color": frame.theme.muted}
    bar: dict[str, Any] = {"outlinewidth": 0, "ticks": "", "tickfont": font, "thickness": 10, "xpad": 6, "ypad": 0}
    if width < _NARROW:  # a bar at the side would take a quarter of a telephone
        bar |= {"orientation": "h", "y": 1.0, "yanchor": "bottom", "len": 0.9, "thickness": 8, "ypad": 4}
    if logarithmic:
        ticks, texts = log_ticks(10 ** ends[0], 10 ** ends[1])
        pairs = [(np.log10(t), text) for t, text in zip(ticks, texts, strict=True) if ends[0] <= np.log10(t) <= ends[1]]
        bar |= {"tickmode": "array", "tickvals": [t for t, _ in pairs], "ticktext": [text for _, text in pairs]}
    elif ratio:
        bar["tickformat"] = ".0%" if ends[1] > 0.05 else ".1%"
    return bar


def _bad(cells: Cells, names: list[str], frame: Frame, above: float) -> list[dict[str, Any]]:
    """The cells that are not finite; above the map a mark for each column with one, since a cell may be two pixels."""
    if not cells.bad.any():
        return []
    alarm = frame.theme.alarm
    kinds = ("", *KINDS)
    text = [[""] * cells.bad.shape[1] for _ in names]
    for layer, column in zip(*np.nonzero(cells.bad), strict=True):
        bad = kinds[int(cells.bad[layer, column])]
        text[layer][column] = f"<b>{names[layer]}</b><br>{bad} at {_where(cells, int(column))}" + (
            f" · rank {int(cells.bad_rank[layer, column])}"
        )
    result: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": cells.edges,
            "y": np.arange(len(names)),
            "z": np.where(cells.bad > 0, 1.0, np.nan).astype(np.float32),
            "zmin": 0,
            "zmax": 1,
            "colorscale": [[0, alarm], [1, alarm]],
            "showscale": False,
            "hoverongaps": False,
            "text": text,
            "hovertemplate": "%{text}<extra></extra>",
            "meta": {"bad": True},
        }
    ]
    middle = (cells.edges[1:] + cells.edges[:-1]) / 2
    for kind, title in enumerate(KINDS):
        hit = cells.bad == kind + 1
        columns = np.flatnonzero(hit.any(axis=0) & (middle >= frame.low) & (middle <= frame.high))
        if not columns.size:
            continue
        counts = hit[:, columns].sum(axis=0)
        result.append(
            {
                "type": "scatter",
                "x": middle[columns],
                "y": np.full(columns.size, -0.5 - 0.5 * above),
                "mode": "markers",
                "name": f"{title} in {int(counts.sum()):,} {'cell' if counts.sum() == 1 else 'cells'}",
                "marker": {"symbol": _SYMBOLS[kind], "size": 8, "color": alarm},
                "cliponaxis": False,
                "text": [
                    f"{title} at {_where(cells, int(c))} in {n:,} of {len(names):,} layers"
                    for c, n in zip(columns, counts, strict=True)
                ],
                "hovertemplate": "%{text}<extra></extra>",
                "meta": {"kind": title, "count": int(counts.sum())},
            }
        )
    return result


def _where(cells: Cells, column: int) -> str:
    first, last = int(cells.step_low[column]), int(cells.step_high[column])
    return f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"


def _y_axis(names: list[str], frame: Frame, height: int, width: int, above: float) -> dict[str, Any]:
    every = max(1, -(-len(names) * _LABEL // (height - _AROUND)))
    at = list(range(0, len(names), every))
    short = short_names(names, 16 if width < _NARROW else 34)
    return {
        "type": "linear",
        "range": [len(names) - 0.5, -0.5 - above],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "tickmode": "array",
        "tickvals": at,
        "ticktext": [short[place] for place in at],
        "automargin": True,
        "tickfont": {"family": FONT, "size": 10.5, "color": frame.theme.muted},
    }


def short_names(names: Sequence[str], longest: int) -> list[str]:
    """Names without what they all begin with, and without their middle where they are still too long."""
    parts = [name.split(".") for name in names]
    common = 0
    while len(names) > 1 and all(len(p) > common + 1 and p[common] == parts[0][common] for p in parts):
        common += 1
    result = []
    for pieces in parts:
        name = ".".join(pieces[common:])
        if len(name) > longest:
            name = name[: longest // 3] + "…" + name[-(longest - longest // 3 - 1) :]
        result.append(name)
    return result
