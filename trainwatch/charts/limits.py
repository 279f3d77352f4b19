"""Capacity: the line that memory may not cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from trainwatch.charts.frame import Frame, Placed
from trainwatch.charts.theme import FONT
from trainwatch.charts.units import Scale, bytes_text

NEAR: Final = 0.5
"""The capacity is drawn as a line when the use reaches this share of it; else the axis is left to the use."""

_HOST: Final = frozenset({"", "cpu", "host"})


def capacity(
    limits: Sequence[Placed], top: float, scale: Scale, frame: Frame
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Draws the capacity of the devices.

    Args:
        limits: The columns of ``memory/capacity``.
        top: Highest use among the lines shown, in bytes.
        scale: The y axis's unit.
        frame: The x axis.

    Returns:
        Traces, and annotations for those too far above the use to be drawn.
    """
    near: list[dict[str, Any]] = []
    far: list[str] = []
    for value, devices, placed in _distinct(limits):
        label = f"capacity {bytes_text(value)}"
        if top < NEAR * value:
            far.append(label if len(far) == 0 and len(_distinct(limits)) == 1 else f"{label} ({devices})")
        else:
            name = f"Capacity {bytes_text(value)}"
            near.append(_line(placed, name, scale, frame))
    if not far:
        return near, []
    note = {
        "xref": "paper",
        "yref": "paper",
        "x": 1,
        "y": 1,
        "xanchor": "right",
        "yanchor": "top",
        "xshift": -6,
        "showarrow": False,
        "text": "↑ " + " · ".join(far),
        "font": {"family": FONT, "size": 11, "color": frame.theme.muted},
        "name": "capacity",
    }
    return near, [note]


def _distinct(limits: Sequence[Placed]) -> list[tuple[float, str, Placed]]:
    """The different capacities there are, of accelerators only where there are any: eight equal GPUs have one."""
    accelerators = [p for p in limits if p.column.device not in _HOST]
    found: dict[str, tuple[float, list[str], Placed]] = {}
    for p in accelerators or limits:
        finite = p.column.value[np.isfinite(p.column.value)]
        if finite.size:
            entry = found.setdefault(bytes_text(float(finite[-1])), (float(finite[-1]), [], p))
            entry[1].append(p.column.device)
    return [(value, ", ".join(dict.fromkeys(devices)), p) for value, devices, p in found.values()]


def _line(placed: Placed, name: str, scale: Scale, frame: Frame) -> dict[str, Any]:
    value = placed.column.value[np.isfinite(placed.column.value)]
    constant = bool(np.ptp(value) <= 1e-3 * value.max())
    x = np.array([frame.low, frame.high]) if constant else placed.x[np.isfinite(placed.column.value)]
    y = np.full(2, value[-1]) if constant else value
    return {
        "type": "scatter",
        "x": x,
        "y": y / scale.divisor,
        "mode": "lines",
        "name": name,
        "line": {"color": frame.theme.text, "width": 1.2, "dash": "8px,5px", "shape": "hv"},
        "hoverinfo": "skip",
        "legendgroup": "capacity",
        "meta": {"metric": placed.column.metric, "device": placed.column.device},
    }
