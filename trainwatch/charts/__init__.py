"""Charts: columns in, Plotly figure out.

Pure functions. The server, notebooks and reports draw with the same ones; the browser only shows the figure it is given
and asks again when the user zooms.
"""

from __future__ import annotations

from trainwatch.charts.attempts import Attempt, Cuts, newest, newest_marks
from trainwatch.charts.columns import Axis, Column, Omitted, thin
from trainwatch.charts.figures import figure, to_json
from trainwatch.charts.heatmap import LayerColumn, layers_figure
from trainwatch.charts.marks import CheckpointMark, EndMark, Marks, NonFiniteMark, PhaseSpan
from trainwatch.charts.registry import CHARTS, LAYER_CHARTS, Chart, chart_for
from trainwatch.charts.theme import ThemeName

__all__ = [
    "CHARTS",
    "LAYER_CHARTS",
    "Attempt",
    "Axis",
    "Chart",
    "CheckpointMark",
    "Column",
    "Cuts",
    "EndMark",
    "LayerColumn",
    "Marks",
    "NonFiniteMark",
    "Omitted",
    "PhaseSpan",
    "ThemeName",
    "chart_for",
    "figure",
    "layers_figure",
    "newest",
    "newest_marks",
    "thin",
    "to_json",
]
