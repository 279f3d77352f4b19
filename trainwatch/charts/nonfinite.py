"""Markers for NaN, +Inf and -Inf: values that have no place on the y axis, and are the most important ones.

They sit at the upper edge (NaN, +Inf) and at the lower edge (-Inf) of the plot, on a hidden axis from 0 to 1, so that
they are seen whatever the y axis shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trainwatch.charts.columns import kind_of
from trainwatch.charts.frame import Frame, Placed
from trainwatch.charts.marks import NonFiniteMark
from trainwatch.charts.registry import Chart
from trainwatch.charts.units import clock_text
from trainwatch.metrics import describe

KINDS: Final = ("NaN", "+Inf", "-Inf")
TOP: Final = 0.96
BOTTOM: Final = 0.04
_SYMBOLS: Final = ("x", "triangle-up", "triangle-down")
_ACTIONS: Final = {
    "skipped": "step skipped",
    "scaler": "step skipped by the loss scaler",
    "halt": "run halted",
    "recorded": "",
}
_MAX_DROPS: Final = 300  # more thin lines than this are a red wall that hides the chart
_WHERE: Final = {"loss": ("train/loss",), "gradient": ("train/grad_norm", "train/grad_norm_local")}
_SHARED_GRADIENT, _OWN_GRADIENT = _WHERE["gradient"]
_ALL: Final = frozenset(metric for metrics in _WHERE.values() for metric in metrics)


@dataclass(frozen=True)
class Marker:
    """One non-finite value. `kind` is an index into :data:`KINDS`."""

    x: float
    kind: int
    step: int | None
    rank: int | None
    metric: str
    action: str


def concerns(chart: Chart, mark: NonFiniteMark) -> bool:
    """Whether a chart draws the values in which the mark's NaN or Inf was seen, or others of the same step."""
    return any(metric in _ALL for metric in chart.metrics)


def markers(chart: Chart, placed: Sequence[Placed], marks: Sequence[NonFiniteMark], frame: Frame) -> list[Marker]:
    """Collects the non-finite values in view: those of the columns, and events of which no column has the point."""
    actions = {(mark.step, mark.rank): mark.action for mark in marks if mark.step is not None}
    found: list[Marker] = []
    have: set[tuple[int, int | None, str]] = set()
    full: set[tuple[int | None, str]] = set()
    for p in placed:
        column = p.column
        if column.omitted.total:
            full.add((column.rank, column.metric))
        at = np.flatnonzero(~np.isfinite(column.value) & (p.x >= frame.low) & (p.x <= frame.high))
        kinds = kind_of(column.value[at])
        for x, kind, step in zip(p.x[at].tolist(), kinds.tolist(), column.step[at].tolist(), strict=True):
            action = actions.get((step, column.rank), "")
            found.append(Marker(x, kind, step if step >= 0 else None, column.rank, column.metric, action))
            have.add((step, column.rank, column.metric))
    for mark in marks:
        metrics = [m for m in chart.metrics if m in _WHERE.get(mark.where, ())]
        at_x = frame.at(mark.step, mark.time)
        if not metrics or at_x is None or np.isfinite(mark.value):
            continue
        if any((mark.step, mark.rank, m) in have or (mark.rank, m) in full for m in metrics):
            continue
        kind = int(kind_of(np.array([mark.value]))[0])
        found.append(Marker(at_x, kind, mark.step, mark.rank, metrics[0], mark.action))
        have.update((mark.step, mark.rank, m) for m in metrics if mark.step is not None)
    return _merged(found)


def _merged(found: Sequence[Marker]) -> list[Marker]:
    """One marker for what is one event: the gradient norm after the all-reduce is NaN everywhere."""
    culprits = {(m.step, m.kind) for m in found if m.metric == _OWN_GRADIENT}
    result: dict[tuple[Any, ...], Marker] = {}
    for m in found:
        if m.metric == _SHARED_GRADIENT and m.step is not None:
            if (m.step, m.kind) in culprits:
                continue  # shown where it comes from
            key: tuple[Any, ...] = (m.step, m.kind, m.metric)
            if key in result and result[key].rank != m.rank:
                m = replace(result[key], rank=None, action=result[key].action or m.action)
        else:
            key = (m.x, m.step, m.kind, m.metric, m.rank)
        result[key] = m
    return list(result.values())


def traces(chart: Chart, found: Sequence[Marker], omitted: Sequence[int], frame: Frame) -> list[dict[str, Any]]:
    """The Plotly traces: one for each kind, and apart from them those that were a loss scaler's normal work.

    Args:
        chart: The chart.
        found: The markers.
        omitted: How many of each kind thinning left out.
        frame: The x axis.
    """
    theme = frame.theme
    result: list[dict[str, Any]] = []
    alarming = sorted({m.x for m in found if m.action != "scaler"})
    if alarming and len(alarming) <= _MAX_DROPS:
        drops = np.repeat(np.array(alarming), 3)
        result.append(
            {
                "type": "scatter",
                "x": drops,
                "y": np.tile([0.0, 1.0, np.nan], len(alarming)),
                "yaxis": "y2",
                "mode": "lines",
                "line": {"color": theme.alarm, "width": 1},
                "opacity": 0.28 if len(alarming) < 60 else 0.14,
                "hoverinfo": "skip",
                "showlegend": False,
                "meta": {"drops": True},
            }
        )
    for kind, title in enumerate(KINDS):
        for scaler in (False, True):
            here = [m for m in found if m.kind == kind and (m.action == "scaler") == scaler]
            extra = 0 if scaler else omitted[kind]
            if not here and not extra:
                continue
            colour = theme.muted if scaler else theme.alarm
            name = f"{title} ×{len(here) + extra:,}" + (" (loss scaler)" if scaler else "")
            result.append(
                {
                    "type": "scatter",
                    "x": np.array([m.x for m in here], np.float64),
                    "y": np.full(len(here), BOTTOM if kind == 2 else TOP),
                    "yaxis": "y2",
                    "mode": "markers",
                    "name": name,
                    "marker": {
                        "symbol": _SYMBOLS[kind],
                        "size": 10 if not scaler else 8,
                        "color": colour,
                        "line": {"width": 1, "color": "rgba(255,255,255,0.85)" if not scaler else colour},
                    },
                    "cliponaxis": False,
                    "text": [sentence(chart, m, frame) for m in here],
                    "customdata": [[m.step, m.rank, m.metric, m.action] for m in here],
                    "hovertemplate": "%{text}<extra></extra>",
                    "legendrank": 1,
                    "meta": {"kind": title, "count": len(here) + extra},
                }
            )
    return result


def sentence(chart: Chart, marker: Marker, frame: Frame) -> str:
    """``"NaN at step 40 · rank 1 · step skipped"``."""
    where = f"step {marker.step:,}" if marker.step is not None else ""
    if not where:
        where = clock_text(marker.x) if frame.axis == "time" else f"step {marker.x:,.0f}"
    parts = [f"{KINDS[marker.kind]} at {where}"]
    if marker.rank is not None:
        parts.append(f"rank {marker.rank}")
    if marker.metric != chart.metrics[0]:
        parts.append(describe(marker.metric).title)
    parts.append(_ACTIONS.get(marker.action, marker.action))
    return " · ".join(part for part in parts if part)
