"""The parts of a layout that figures share."""

from __future__ import annotations

from typing import Any

from trainwatch.charts.frame import Frame
from trainwatch.charts.theme import FONT
from trainwatch.charts.units import Scale, log_ticks


def note(text: str, frame: Frame) -> dict[str, Any]:
    """An annotation in the middle of a figure that has nothing to show."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "showarrow": False,
        "text": text,
        "font": {"family": FONT, "size": 13, "color": frame.theme.muted},
        "bgcolor": frame.theme.surface,
        "borderpad": 6,
        "name": "empty",
    }


def y_axis(frame: Frame, scale: Scale, values: Any, *, log: bool, from_zero: bool) -> dict[str, Any]:
    """The layout\'s ``yaxis`` for values that are drawn as lines."""
    theme = frame.theme
    settings: dict[str, Any] = {
        "type": "log" if log else "linear",
        "showgrid": True,
        "gridcolor": theme.grid,
        "zeroline": False,
        "showline": False,
        "ticks": "",
        "nticks": 6,
        "automargin": True,
        "tickfont": {"family": FONT, "size": 11, "color": theme.muted},
        **scale.axis(),
    }
    if not values.size:
        return settings | {"range": [0, 1], "showticklabels": False, "fixedrange": True}
    if log:
        ticks, texts = log_ticks(float(values.min()) / scale.divisor, float(values.max()) / scale.divisor)
        settings |= {"tickmode": "array", "tickvals": ticks, "ticktext": [text + scale.suffix for text in texts]}
        settings["ticksuffix"] = ""
    elif from_zero:
        settings["rangemode"] = "tozero"
    return settings


def base(frame: Frame) -> dict[str, Any]:
    """What all figures have in common."""
    theme = frame.theme
    font = {"family": FONT, "size": 12, "color": theme.text}
    return {
        "template": {},
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": font,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8, "pad": 0},
        "hovermode": "x unified",
        "hoverdistance": 12,
        "dragmode": "zoom",
        "uirevision": "trainwatch",
        "showlegend": True,
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"family": FONT, "size": 11, "color": theme.text},
            "bgcolor": "rgba(0,0,0,0)",
            "itemsizing": "trace",
            "tracegroupgap": 0,
            "maxheight": 0.3,
        },
        "hoverlabel": {
            "bgcolor": theme.surface,
            "bordercolor": theme.border,
            "font": {"family": FONT, "size": 12, "color": theme.text},
            "namelength": -1,
        },
        "yaxis2": {
            "overlaying": "y",
            "range": [0, 1],
            "fixedrange": True,
            "visible": False,
            "showgrid": False,
            "zeroline": False,
        },
    }
