"""Small makers of columns and readers of figures."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import plotly.graph_objects as go

from trainwatch.charts import Column, Marks, chart_for, figure, to_json

BEGAN = 1_790_000_000.0
GIB = 2.0**30


def column(
    metric: str,
    value: Any,
    *,
    step: Any = None,
    time: Any = None,
    rank: int | None = 0,
    device: str = "",
) -> Column:
    """A column with steps from 1 and a second a step, unless told otherwise."""
    value = np.asarray(value, np.float64)
    step = np.arange(1, value.size + 1, dtype=np.int64) if step is None else np.asarray(step, np.int64)
    time = BEGAN + np.arange(value.size, dtype=np.float64) if time is None else np.asarray(time, np.float64)
    return Column(metric, rank, device, step, time, value)


def draw(chart_id: str, *columns: Column, marks: Marks | None = None, **options: Any) -> dict[str, Any]:
    """Draws a figure, and has Plotly check every name and value in it."""
    options = {"axis": "step", "theme": "light", **options}
    drawn = figure(chart_for(chart_id), columns, marks or Marks(), **options)
    go.Figure(json.loads(to_json(drawn)))  # raises ValueError for what Plotly does not know
    return drawn


def traces(drawn: dict[str, Any], **meta: Any) -> list[dict[str, Any]]:
    """The traces whose meta has these values."""
    return [t for t in drawn["data"] if all(t.get("meta", {}).get(key) == value for key, value in meta.items())]


def trace(drawn: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """The only trace whose meta has these values."""
    (found,) = traces(drawn, **meta)
    return found


def decoded(array: Any) -> np.ndarray[Any, Any]:
    """An array as it travels in JSON."""
    if isinstance(array, list):
        return np.array(array)
    return np.frombuffer(base64.b64decode(array["bdata"]), dtype=np.dtype(array["dtype"]))
