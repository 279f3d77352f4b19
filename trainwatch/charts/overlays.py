"""Behind and beside the lines: bands of phases, checkpoints, the end of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from trainwatch.charts.frame import Frame
from trainwatch.charts.marks import CheckpointMark, EndMark, PhaseSpan
from trainwatch.charts.theme import FONT
from trainwatch.charts.units import clock_text

_PHASES: Final = {"eval": "evaluation", "save": "saving", "load": "loading"}
_GAP: Final = 1 / 400  # bands nearer than this share of the plot are drawn as one
_THINNEST: Final = 1 / 600  # a shorter phase is still drawn this wide: about two pixels
_MAX_CHECKPOINTS: Final = 400
_FEW: Final = 40
_REASONS: Final = {"halt": "saved by the halt", "command": "saved on command", "schedule": ""}
_ENDS: Final = {
    "halted": "halted",
    "died": "process died",
    "failed": "failed",
    "lost": "not heard since",
}


def bands(phases: Sequence[PhaseSpan], frame: Frame) -> list[dict[str, Any]]:
    """One filled trace for each kind of phase, however many there were; those of different ranks are united."""
    result: list[dict[str, Any]] = []
    for phase, title in _PHASES.items():
        spans, hidden = _merged([span for span in phases if span.phase == phase], frame)
        if not len(spans) and not hidden:
            continue
        begin, end = spans[:, 0], spans[:, 1]
        gap = np.full(len(spans), np.nan)
        result.append(
            {
                "type": "scatter",
                "x": np.column_stack((begin, begin, end, end, begin, gap)).ravel(),
                "y": np.tile([0.0, 1.0, 1.0, 0.0, 0.0, np.nan], len(spans)),
                "yaxis": "y2",
                "mode": "lines",
                "line": {"width": 0},
                "fill": "toself",
                "fillcolor": frame.theme.phases[phase],
                "name": f"{title} (zoom in)" if hidden else title,
                "hoverinfo": "skip",
                "legendgroup": f"phase {phase}",
                "legendrank": 2000,
                "meta": {"phase": phase, "bands": len(spans), "hidden": hidden},
            }
        )
    return result


def _merged(phases: Sequence[PhaseSpan], frame: Frame) -> tuple[Any, int]:
    """Bands in view as rows (begin, end), in order and without overlap.

    Bands that lie too close together for this width are drawn as one where they cover most of the stretch. Where they
    do not (an evaluation of seconds every few minutes, in a run of days), one band would tell a lie: they are hidden.

    Returns:
        The bands, at most one for every `_GAP` of the width, and how many are hidden.
    """
    rows = [ends for span in phases if (ends := _ends(span, frame)) is not None]
    if not rows:
        return np.zeros((0, 2)), 0
    single, _, _ = _joined(np.array(sorted(rows)), 0.0)
    merged, members, covered = _joined(single, _GAP * frame.span)
    honest = (members == 1) | (covered >= 0.5 * (merged[:, 1] - merged[:, 0]))
    hidden = int(members[~honest].sum())
    merged = merged[honest]
    thinnest = _THINNEST * frame.span
    short = merged[:, 1] - merged[:, 0] < thinnest
    merged[short, 1] = merged[short, 0] + thinnest
    over = merged[:, 1] > frame.high
    merged[over, 0] = np.minimum(merged[over, 0], frame.high - thinnest)
    merged[over, 1] = frame.high
    return merged, hidden


def _joined(spans: Any, gap: float) -> tuple[Any, Any, Any]:
    """Joins sorted spans that are not farther apart than `gap`: the spans, how many are in each, and their length."""
    reach = np.maximum.accumulate(spans[:, 1])
    starts = np.flatnonzero(np.concatenate(([True], spans[1:, 0] > reach[:-1] + gap)))
    joined = np.column_stack((spans[starts, 0], np.maximum.reduceat(spans[:, 1], starts)))
    members = np.diff(starts, append=len(spans))
    return joined, members, np.add.reduceat(spans[:, 1] - spans[:, 0], starts)


def _ends(span: PhaseSpan, frame: Frame) -> tuple[float, float] | None:
    if frame.axis == "time":
        if span.start is None:
            return None
        begin = span.start - frame.origin
        end = frame.high if span.end is None else span.end - frame.origin
    else:
        if span.start_step is None:
            return None
        # A phase after step 50 lies between the end of step 50 and the end of step 51.
        begin = float(max(span.start_step, 0))
        end = frame.high if span.end_step is None else max(float(span.end_step), begin + 1)
    if not (np.isfinite(begin) and np.isfinite(end)) or end <= frame.low or begin > frame.high:
        return None
    return max(begin, frame.low), max(min(end, frame.high), begin)


def checkpoints(saved: Sequence[CheckpointMark], frame: Frame) -> list[dict[str, Any]]:
    """Small ticks on the x axis."""
    unique: dict[tuple[int | None, str], tuple[float, CheckpointMark]] = {}
    for mark in saved:
        x = frame.at(mark.step, mark.time)
        if x is not None:  # every rank of a sharded run says that it saved: one mark
            unique.setdefault((mark.step, mark.reason), (x, mark))
    shown = sorted(unique.values(), key=lambda pair: pair[0])[-_MAX_CHECKPOINTS:]
    if not shown:
        return []
    few = len(shown) <= _FEW
    texts = []
    for x, mark in shown:
        where = f"step {mark.step:,}" if mark.step is not None else clock_text(x)
        reason = _REASONS.get(mark.reason, mark.reason)
        texts.append(f"checkpoint at {where}" + (f" · {reason}" if reason else ""))
    return [
        {
            "type": "scatter",
            "x": np.array([x for x, _ in shown], np.float64),
            "y": np.zeros(len(shown)),
            "yaxis": "y2",
            "mode": "markers",
            "name": "checkpoint",
            "marker": {
                "symbol": "triangle-up" if few else "line-ns-open",
                "size": 8 if few else 7,
                "color": frame.theme.colour(2),
                "line": {"width": 1, "color": frame.theme.surface if few else frame.theme.colour(2)},
            },
            "cliponaxis": False,
            "text": texts,
            "customdata": [[mark.step, mark.reason] for _, mark in shown],
            "hovertemplate": "%{text}<extra></extra>",
            "legendgroup": "checkpoint",
            "legendrank": 1900,
            "meta": {"checkpoints": len(unique)},
        }
    ]


def end_of_run(end: EndMark | None, frame: Frame) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line where the run was halted or died, and its label: shapes and annotations. A run that finished has none."""
    if end is None or end.state not in _ENDS:
        return [], []
    x = frame.at(end.step, end.time)
    if x is None:
        return [], []
    colour = frame.theme.warn if end.state in ("halted", "lost") else frame.theme.alarm
    text = _ENDS[end.state] + (f" at step {end.step:,}" if end.step is not None and end.state != "lost" else "")
    right = x > frame.low + 0.5 * frame.span
    line = {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "line": {"color": colour, "width": 1.5, "dash": "dot"},
        "layer": "above",
        "name": "end",
    }
    label = {
        "xref": "x",
        "yref": "paper",
        "x": x,
        # In the row of the axis title: within the plot it would hide what happened last.
        "y": 0,
        "yshift": -20,
        "xanchor": "right" if right else "left",
        "yanchor": "top",
        "showarrow": False,
        "text": text,
        "font": {"family": FONT, "size": 11, "color": colour},
        "borderpad": 0,
        "name": "end",
    }
    return [line], [label]
