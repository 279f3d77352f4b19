"""From a run's stored series to a chart's figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from sqlalchemy import Connection

from trainwatch.charts import (
    CHARTS,
    LAYER_CHARTS,
    Chart,
    CheckpointMark,
    Column,
    Cuts,
    EndMark,
    LayerColumn,
    Marks,
    NonFiniteMark,
    Omitted,
    PhaseSpan,
    figure,
    layers_figure,
    newest,
    newest_marks,
    thin,
    to_json,
)
from trainwatch.metrics import describe
from trainwatch.server.models import NO_RANK
from trainwatch.server.schemas import Axis, ChartInfo, Theme
from trainwatch.server.store import evidence, layers, points, records, runs
from trainwatch.server.store.codec import Columns
from trainwatch.server.store.points import Listed

_NONFINITE_MARKS: Final = 1000


def available(series: list[Listed], measured: Collection[str] = ()) -> list[ChartInfo]:
    """Returns the charts that have something to show: the composed ones first, then one for each further metric.

    Args:
        series: The run's series.
        measured: The quantities that are known of its layers.
    """
    names = {one.metric for one in series if one.points}
    charts = [chart for chart in CHARTS if chart.shows(names)]
    charts += [chart for chart in LAYER_CHARTS if chart.quantity in measured]
    found = [ChartInfo(id=c.id, title=c.title, unit=c.unit) for c in charts]
    rest = sorted(names.difference(*((*chart.metrics, *chart.counters) for chart in CHARTS)))
    return found + [
        ChartInfo(id=f"metric:{name}", title=describe(name).title, unit=describe(name).unit) for name in rest
    ]


def draw(
    connection: Connection,
    run: str,
    chart: Chart,
    *,
    axis: Axis,
    low: float | None,
    high: float | None,
    width: int,
    theme: Theme,
    rank: int | None = None,
) -> str:
    """Draws a chart of a run.

    Args:
        connection: A read transaction.
        run: The run's id.
        chart: Which chart.
        axis: What x shows.
        low: Left end, in steps or Unix seconds; None for all.
        high: Right end.
        width: Width of the plot in pixels.
        theme: Colours.
        rank: Only what this rank says; None for all.

    Returns:
        The Plotly figure as JSON.
    """
    cuts = cuts_of(connection, run)
    shown = marks(connection, run)
    if axis == "step":
        shown = newest_marks(shown, cuts)
    origin = runs.started_at(connection, run)
    if chart.kind == "layers":
        found = _layers(connection, run, chart, cuts, axis=axis, low=low, high=high, rank=rank)
        return to_json(
            layers_figure(
                chart, found, shown, axis=axis, theme=theme, width=width, low=low, high=high, origin=origin or 0.0
            )
        )
    listed = points.listed(connection, run, (*chart.metrics, *chart.counters))
    if rank is not None:
        listed = [one for one in listed if one.rank in (rank, NO_RANK)]
    if chart.kind == "lines":
        columns = [thinned(connection, one, cuts, axis=axis, low=low, high=high) for one in listed]
    else:
        columns = [whole(connection, one, axis=axis, low=low, high=high) for one in listed]
    if axis == "step":
        columns = newest(columns, cuts)
    if chart.kind == "lines":
        columns = [thin(one, axis=axis, low=low, high=high, width=width) for one in columns]
    return to_json(figure(chart, columns, shown, axis=axis, theme=theme, low=low, high=high, origin=origin))


def column(
    connection: Connection, run: str, one: Listed, *, axis: Axis, low: float | None, high: float | None, width: int
) -> Column:
    """Reads a series, thinned to about four points a pixel; by steps, the newest attempt at each."""
    cuts = cuts_of(connection, run)
    found = thinned(connection, one, cuts, axis=axis, low=low, high=high, wanted=4 * width)
    if axis == "step":
        [found] = newest([found], cuts)
    return thin(found, axis=axis, low=low, high=high, width=width)


def cuts_of(connection: Connection, run: str) -> Cuts:
    """Returns what of a run was done again since."""
    return Cuts(tuple(records.attempts_of(connection, run)))


def whole(
    connection: Connection, one: Listed, *, axis: Axis = "step", low: float | None = None, high: float | None = None
) -> Column:
    """Reads all points of a series, every attempt at a step among them."""
    return _column(one, points.read(connection, one.id, axis=axis, low=low, high=high))


def thinned(
    connection: Connection,
    one: Listed,
    cuts: Cuts,
    *,
    axis: Axis,
    low: float | None,
    high: float | None,
    wanted: int = 0,
) -> Column:
    """Reads a series for drawing: of a long one what rollups hold of it, with every extreme and every NaN.

    Args:
        connection: A read transaction.
        one: The series.
        cuts: What was done again since, and by steps will be left out.
        axis: What `low` and `high` mean.
        low: Left end; None for all.
        high: Right end.
        wanted: How many points will be shown, if more than a screen can.
    """
    rank = None if one.rank == NO_RANK else one.rank
    found = points.read_thinned(
        connection,
        one.id,
        axis=axis,
        low=low,
        high=high,
        cuts=cuts.of(rank) if axis == "step" else (),
        wanted=wanted,
    )
    return replace(_column(one, found.columns), omitted=Omitted(found.nan, found.positive, found.negative))


def _column(one: Listed, stored: Columns) -> Column:
    return Column(
        metric=one.metric,
        rank=None if one.rank == NO_RANK else one.rank,
        device=one.device,
        step=stored.step,
        time=stored.time,
        value=stored.value,
    )


def _layers(
    connection: Connection,
    run: str,
    chart: Chart,
    cuts: Cuts,
    *,
    axis: Axis,
    low: float | None,
    high: float | None,
    rank: int | None,
) -> list[LayerColumn]:
    if not chart.quantity:
        return []
    found = layers.read(connection, run, chart.quantity, rank=rank, axis=axis, low=low, high=high)
    columns = [LayerColumn(one.rank, one.layers, one.step, one.time, one.value, one.known) for one in found]
    if axis == "time":
        return columns
    return [one.take(cuts.mask(one.rank, one.step, one.time)) for one in columns]


def marks(connection: Connection, run: str) -> Marks:
    """Returns what is marked on a run's charts."""
    nonfinite, _ = evidence.nonfinite_of(connection, run, _NONFINITE_MARKS)
    end = runs.end_of(connection, run)
    return Marks(
        phases=_phases(connection, run),
        checkpoints=[
            CheckpointMark(step=row.step, time=row.time, reason=row.reason)
            for row in evidence.checkpoints_of(connection, run)
        ],
        nonfinite=[
            NonFiniteMark(
                step=row.step, time=row.time, rank=row.rank, where=row.where, value=row.value, action=row.action
            )
            for row in nonfinite
        ],
        end=None if end is None else EndMark(step=end[0], time=end[1], state=end[2]),
    )


def _phases(connection: Connection, run: str) -> list[PhaseSpan]:
    by_rank = defaultdict(list)
    for row in evidence.phases_of(connection, run):
        by_rank[row.rank].append(row)
    spans = []
    for rank, entered in by_rank.items():
        for row, after in zip(entered, [*entered[1:], None], strict=True):
            spans.append(
                PhaseSpan(
                    phase=row.phase,
                    start=row.time,
                    end=None if after is None else after.time,
                    start_step=row.step,
                    end_step=None if after is None else after.step,
                    rank=rank,
                )
            )
    return spans
