"""Counters that only grow: a mark where one did, instead of a line that says nothing in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from trainwatch.charts.frame import Frame, Placed
from trainwatch.charts.units import clock_text
from trainwatch.metrics import describe

TOP: Final = 0.96
_GRAVE: Final = frozenset({"memory/ooms"})


def traces(placed: Sequence[Placed], frame: Frame) -> list[dict[str, Any]]:
    """The Plotly traces: one for each counter that grew in view, over all ranks and devices."""
    result = []
    for metric in dict.fromkeys(p.column.metric for p in placed):
        x: list[float] = []
        texts: list[str] = []
        total = 0
        title = describe(metric).title
        for p in placed:
            if p.column.metric != metric:
                continue
            grown = growth(p.column.value)
            at = np.flatnonzero((grown > 0) & (p.x >= frame.low) & (p.x <= frame.high))
            total += int(grown[at].sum())
            for place, more, step in zip(p.x[at], grown[at], p.column.step[at], strict=True):
                where = f"step {step:,}" if step >= 0 else clock_text(float(place))
                rank = "" if p.column.rank is None else f" · rank {p.column.rank}"
                x.append(float(place))
                texts.append(f"{title} +{more:,.0f} at {where}{rank} · {p.column.device}")
        if not x:
            continue
        grave = metric in _GRAVE
        colour = frame.theme.alarm if grave else frame.theme.warn
        result.append(
            {
                "type": "scatter",
                "x": np.array(x),
                "y": np.full(len(x), TOP),
                "yaxis": "y2",
                "mode": "markers",
                "name": f"{title} ×{total:,}",
                "marker": {"symbol": "x" if grave else "triangle-down", "size": 9, "color": colour},
                "cliponaxis": False,
                "text": texts,
                "hovertemplate": "%{text}<extra></extra>",
                "legendrank": 1,
                "meta": {"counter": metric, "count": total},
            }
        )
    return result


def growth(value: Any) -> Any:
    """By how much a counter grew up to each reading. One that fell began anew, in a new process: all of it is new."""
    last = np.maximum.accumulate(np.where(np.isfinite(value), np.arange(value.size), -1))
    value = np.where(last >= 0, value[last], 0.0)  # a reading that is none says nothing new
    grown = np.diff(value, prepend=0.0)
    return np.where(grown < 0, value, grown)
