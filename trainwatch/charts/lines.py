"""The lines of a chart: which are shown, in which colour, and how they are named.

With one rank every metric has a colour of its own. With several, every rank has one (the same in all charts) and the
metric is told by its dash. With many, only the chart's first metric is shown at first; the others wait in the legend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from trainwatch.charts.frame import Frame, Placed
from trainwatch.charts.registry import Chart
from trainwatch.charts.theme import Theme, fade
from trainwatch.charts.units import Scale, clock_text
from trainwatch.metrics import describe

Role = Literal["line", "area", "points", "limit"]

MANY: Final = 4
"""More lines than this, and only the first metric of each rank is shown at first."""

_WORTH: Final = 0.05  # of the highest line: so much of others' memory is shown unasked
_CROWD: Final = 8  # that many lines are drawn thinner
_DASHES: Final = ("solid", "dot", "dash", "dashdot")
_SHORT: Final = 80  # a line of fewer points shows each of them
_DENSE: Final = 400  # a line of more points is drawn thinner, so that it does not become an area
_HOST: Final = frozenset({"", "cpu", "host"})


@dataclass(frozen=True)
class Style:
    """How a metric is drawn.

    Attributes:
        slot: Its colour where there is one rank only.
        hidden: It waits in the legend until somebody wants it.
    """

    slot: int = 0
    dash: str = "solid"
    width: float = 1.6
    opacity: float = 1.0
    role: Role = "line"
    shape: str = "linear"
    symbol: str = "circle"
    hidden: bool = False


_STYLES: Final[dict[str, Style]] = {
    "train/loss": Style(0, width=1.5),
    "train/loss_logged": Style(4, "dot", 1.4, 0.75),
    "eval/loss": Style(1, width=2.0, role="points", symbol="diamond"),
    "eval/loss_reported": Style(5, "dash", 1.2, 0.9, "points", symbol="diamond-open"),
    "train/grad_norm": Style(0, width=1.5),
    "train/grad_norm_local": Style(1, width=1.2, opacity=0.8),
    "train/learning_rate": Style(6, width=2.0),
    "train/step_seconds": Style(2, width=1.4),
    "train/padding_share": Style(1, width=1.2, role="area"),
    "train/tokens_per_second": Style(0, width=1.3),
    "train/mfu": Style(6, width=1.4),
    "train/data_seconds": Style(1),
    "train/compute_seconds": Style(0),
    "train/optimizer_seconds": Style(2),
    "train/padded_tokens": Style(4, width=1.1, role="area"),
    "train/tokens": Style(0, width=1.3, role="area"),
    "train/supervised_tokens": Style(2, width=1.2),
    "memory/peak": Style(0, width=1.7, role="area"),
    "memory/allocated": Style(2, width=1.3),
    "memory/reserved": Style(6, "dash", 1.3, shape="hv"),
    "memory/peak_reserved": Style(6, "dot", 1.2, shape="hv", hidden=True),
    "memory/inactive_split": Style(5, "dot", 1.2),
    "memory/process_used": Style(3, "dot", 1.3),
    "memory/outside": Style(3, "dash", 1.2, hidden=True),
    "memory/others_used": Style(1, "dot", 1.3, hidden=True),
    "memory/mapped": Style(5, "dash", 1.1, 0.7, hidden=True),
    "memory/tree_resident": Style(4, "dash", 1.1, 0.8, hidden=True),
    "memory/shared": Style(7, "dot", 1.1, 0.8, hidden=True),
    "memory/resident": Style(4, width=1.1, opacity=0.7),
    "memory/device_used": Style(7, "dashdot", 1.2, 0.8),
    "memory/capacity": Style(role="limit"),
}

# The same on every rank: one line speaks for all.
_SHARED: Final = frozenset({"train/learning_rate", "train/loss_logged", "eval/loss_reported", "train/epoch"})


@dataclass(frozen=True)
class Line:
    """One line of the figure.

    Attributes:
        group: Lines that the legend shows and hides together.
        shown: Whether it is drawn before the user picks it in the legend.
        legend: Whether it has an entry of its own there; one of each group has.
        alone: Whether the area below it can be filled.
        hover: Name in the hover box, where it is not `name`.
    """

    placed: Placed
    style: Style
    name: str
    colour: str
    group: str
    shown: bool = True
    legend: bool = True
    alone: bool = False
    hover: str = ""

    @property
    def top(self) -> float:
        """The largest finite value; -Inf where there is none."""
        return _top(self.placed)


def plan(chart: Chart, placed: Sequence[Placed], theme: Theme) -> list[Line]:
    """Decides how each column is drawn. Limits (capacity) are left to :mod:`trainwatch.charts.limits`."""
    drawn = [p for p in placed if style_of(p).role != "limit"]
    ranks = {p.column.rank for p in drawn if p.column.rank is not None}
    lines = _one_rank(drawn, theme) if len(ranks) < 2 else _many_ranks(chart, drawn, theme)
    return _hide_details(chart, _hide_giants(lines))


def style_of(placed: Placed) -> Style:
    """The style of a column's metric."""
    return _STYLES.get(placed.column.metric, Style())


def _one_rank(drawn: Sequence[Placed], theme: Theme) -> list[Line]:
    lines = []
    used: set[tuple[str, str]] = set()
    devices = sorted({p.column.device for p in drawn if p.column.device})
    accelerators = [d for d in devices if d not in _HOST]
    for p in drawn:
        style, metric, device = style_of(p), p.column.metric, p.column.device
        title = describe(metric).title
        several = len({q.column.device for q in drawn if q.column.metric == metric}) > 1
        elsewhere = device in _HOST and bool(accelerators)
        name = f"{title} ({device})" if device and (several or elsewhere or device == "host") else title
        # A second device of the same metric takes a colour that no other has.
        slot = style.slot + (devices.index(device) if (metric, "") in used and device in devices else 0)
        used |= {(metric, device), (metric, "")}
        lines.append(Line(p, style, name, theme.colour(slot), f"{metric} {device}", alone=len(accelerators) < 2))
    return lines


def _many_ranks(chart: Chart, drawn: Sequence[Placed], theme: Theme) -> list[Line]:
    metrics = list(dict.fromkeys(p.column.metric for p in drawn))
    shared = set(_SHARED)
    if "train/grad_norm_local" in metrics:
        shared.add("train/grad_norm")
    own = [
        m for m in metrics if m not in shared and any(p.column.metric == m and p.column.rank is not None for p in drawn)
    ]
    own = [m for m in own if _STYLES.get(m, Style()).role != "points"]
    first = own[0] if own else None
    only_one = len(own) == 1
    compact = sum(p.column.metric in own for p in drawn) > MANY
    seen: set[str] = set()
    said = False
    lines = []
    for p in drawn:
        metric, rank, device = p.column.metric, p.column.rank, p.column.device
        style, title, again = style_of(p), describe(metric).title, metric in seen
        seen.add(metric)
        if style.role == "points" and metric not in shared:
            lone = sum(q.column.metric == metric for q in drawn) == 1
            colour = theme.strong if lone or rank is None else theme.colour(rank)
            line = Line(p, style, title, colour, metric, legend=not again)
            lines.append(line if rank is None or lone else replace(line, hover=f"{title} · rank {rank}"))
        elif metric in shared:
            name = title if metric.endswith(("_logged", "_reported")) else f"{title} (all ranks)"
            lines.append(Line(p, style, name, theme.strong, metric, shown=not again, legend=not again))
        elif rank is None:
            lines.append(Line(p, style, f"{title} ({device})" if device else title, theme.muted, f"{metric} {device}"))
        elif metric == first or not compact:
            devices = {q.column.device for q in drawn if (q.column.metric, q.column.rank) == (metric, rank)}
            where = f"rank {rank} · {device}" if len(devices) > 1 else f"rank {rank}"
            style = _thinner(style, len(drawn))
            if not compact and style.dash == "solid":
                style = replace(style, dash=_DASHES[own.index(metric) % len(_DASHES)])
            name = where if only_one or compact else f"{title} · {where}"
            if name == where and not said and title != chart.title:
                name = f"{title}: {where}"  # the names of the other ranks do not say what they show
            said = True
            lines.append(Line(p, style, name, theme.colour(rank), f"rank {rank}", hover=where if compact else name))
        else:
            style = _thinner(style, len(drawn))
            line = Line(p, style, title, theme.colour(rank), metric, shown=False, legend=not again)
            lines.append(replace(line, hover=f"{title} · rank {rank}"))
    return lines


def _thinner(style: Style, count: int) -> Style:
    return replace(style, width=1.0, opacity=min(style.opacity, 0.85)) if count >= _CROWD else style


def _hide_giants(lines: list[Line]) -> list[Line]:
    """Leaves to the legend what would squash the lines that matter: the host's memory beside a process's or a GPU's."""
    accelerated = any(line.placed.column.device not in _HOST for line in lines)
    if accelerated:
        return [replace(line, shown=line.shown and line.placed.column.device not in ("cpu", "host")) for line in lines]
    own = max((line.top for line in lines if line.placed.column.metric != "memory/device_used"), default=-np.inf)
    if not np.isfinite(own):
        return lines
    return [
        replace(line, shown=False)
        if line.placed.column.metric == "memory/device_used" and line.top > 1.5 * own
        else line
        for line in lines
    ]


def _hide_details(chart: Chart, lines: list[Line]) -> list[Line]:
    """Leaves to the legend what few ask for; others' use of the device is shown where it is worth a word."""
    most = max((line.top for line in lines if line.shown and not line.style.hidden), default=-np.inf)

    def waits(line: Line) -> bool:
        metric = line.placed.column.metric
        if metric == "memory/inactive_split":
            return chart.metrics[0] != metric
        if metric == "memory/others_used":
            return not line.top > _WORTH * most
        return line.style.hidden

    return [replace(line, shown=line.shown and not waits(line)) for line in lines]


def traces(line: Line, scale: Scale, frame: Frame, *, base: float | None) -> list[dict[str, Any]]:
    """The Plotly traces of one line.

    Args:
        line: What to draw.
        scale: The y axis's unit.
        frame: The x axis.
        base: Where the area below the line ends, in drawn units; None for no area.
    """
    style = line.style
    x, y, step = _broken(line.placed, scale)
    finite = np.isfinite(y)
    trace: dict[str, Any] = {
        "type": "scatter",
        "x": x,
        "y": y,
        "name": line.name,
        "mode": "lines",
        "line": {
            "color": line.colour,
            "width": style.width if y.size <= _DENSE else 0.75 * style.width,
            "dash": style.dash,
            "shape": style.shape,
        },
        "opacity": style.opacity,
        "connectgaps": False,
        "legendgroup": line.group,
        "showlegend": line.legend,
        "hovertemplate": scale.hover_text + f"<extra>{line.hover or line.name}</extra>",
        "visible": True if line.shown else "legendonly",
        "meta": {
            "metric": line.placed.column.metric,
            "rank": line.placed.column.rank,
            "device": line.placed.column.device,
        },
    }
    marker = {"color": line.colour, "symbol": style.symbol}
    if style.role == "points":
        trace |= {"mode": "lines+markers", "marker": {**marker, "size": 7}}
    elif 0 < np.count_nonzero(finite) <= _SHORT:
        trace |= {"mode": "lines+markers", "marker": {**marker, "size": 4 if np.count_nonzero(finite) > 1 else 7}}
    else:
        # A finite point between two gaps is part of no line: without a marker it would be invisible.
        lone = finite.copy()
        lone[1:] &= ~finite[:-1]
        lone[:-1] &= ~finite[1:]
        if lone.any():
            trace |= {"mode": "lines+markers", "marker": {**marker, "size": np.where(lone, 4, 0).astype(np.uint8)}}
    if frame.axis == "time" and step.size and style.role == "points":
        trace["customdata"] = step
        trace["hovertemplate"] = f"{scale.hover_text} (step %{{customdata}})<extra>{line.hover or line.name}</extra>"
    if base is None or style.role != "area" or not line.alone or not line.shown or not finite.any():
        return [trace]
    floor = {
        "type": "scatter",
        "x": np.array([x[finite][0], x[finite][-1]]),
        "y": np.array([base, base]),
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": line.group,
        "meta": {"floor": True},
    }
    trace |= {"fill": "tonexty", "fillcolor": fade(line.colour, 0.13)}
    return [floor, trace]


def header(placed: Sequence[Placed], frame: Frame) -> list[dict[str, Any]]:
    """On the time axis, the first line of the hover box: the time as people say it, and the step.

    Plotly can format a number and a date, no duration; so the texts come with the figure, for as many points as a
    mouse can tell apart.
    """
    if frame.axis != "time" or not placed:
        return []
    longest = max(placed, key=lambda p: p.x.size)
    inside = np.flatnonzero((longest.x >= frame.low) & (longest.x <= frame.high))
    if not inside.size:
        return []
    chosen = inside[np.unique(np.linspace(0, inside.size - 1, 800).astype(np.int64))]
    texts = [
        f"<b>{clock_text(x)}</b>" + (f" · step {step:,}" if step >= 0 else "")
        for x, step in zip(longest.x[chosen].tolist(), longest.column.step[chosen].tolist(), strict=True)
    ]
    return [
        {
            "type": "scatter",
            "x": longest.x[chosen],
            "y": np.full(chosen.size, 0.5),
            "yaxis": "y2",
            "mode": "markers",
            "marker": {"size": 1, "opacity": 0, "color": "rgba(0,0,0,0)"},
            "text": texts,
            "hovertemplate": "%{text}<extra></extra>",
            "showlegend": False,
            "meta": {"header": True},
        }
    ]


def _broken(placed: Placed, scale: Scale) -> tuple[Any, Any, Any]:
    """x, y and step of a line, with a gap wherever x goes back (a resumed run) and at every non-finite value."""
    x = placed.x
    y = np.where(np.isfinite(placed.column.value), placed.column.value / scale.divisor, np.nan)
    step = placed.column.step
    back = np.flatnonzero(x[1:] < x[:-1]) + 1
    if back.size:
        step = np.insert(step, back, step[back])
        y = np.insert(y, back, np.nan)
        x = np.insert(x, back, x[back])
    return x, y, step


def _top(placed: Placed) -> float:
    value = placed.column.value[np.isfinite(placed.column.value)]
    return float(value.max()) if value.size else float("-inf")
