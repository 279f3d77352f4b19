"""A stored run as events again, so that a rule can be tried on it.

Events are not kept; what they said is: points as series, the rest in tables of its own. Points of one rank with the
same time came in one event, and what is among them tells of which type. Not everything comes back: who else used a
device, and what a phase peaked at, is gone.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from sqlalchemy import Connection, Row, Table, select

from trainwatch import journal
from trainwatch.events import (
    AnyEvent,
    CheckpointSaved,
    DeviceValues,
    Evaluated,
    Event,
    Logged,
    NonFiniteSeen,
    OutOfMemorySeen,
    PhaseEntered,
    ProcessGone,
    RunEnded,
    RunStarted,
    Sampled,
    StepEnded,
    Values,
)
from trainwatch.server.models import NO_RANK, checkpoints, nonfinite_steps, out_of_memory, phases, ranks, runs
from trainwatch.server.store import points

_OF_A_STEP: Final = frozenset({"train/loss", "train/step_seconds"})
_OF_A_LOG: Final = frozenset({"train/loss_logged", "train/loss_average"})
_ENDS: Final = (RunEnded, ProcessGone)
_MOST: Final = 10_000
"""Rows of a table besides the points: of the ten thousandth checkpoint nothing new is learned."""

Placed = tuple[int, int | None, AnyEvent]
"""A point's index, the rank and the event, as a back-test takes them."""


class Rebuilt(NamedTuple):
    """A run's events.

    Attributes:
        events: In the order of their times.
        is_whole: False when there were more points than wanted; those of the begin are there.
    """

    events: list[Placed]
    is_whole: bool


def events_of(
    connection: Connection,
    run: str,
    kinds: Iterable[type[Event]],
    *,
    most: int,
    since: float = -math.inf,
    metrics: Collection[str] | None = None,
) -> Rebuilt:
    """Rebuilds a run's events.

    A point's index counts the first rank's steps, in an imported run what was logged.

    Args:
        connection: A read transaction.
        run: The run's id.
        kinds: The types that are wanted; others are left out where that saves reading.
        most: How many points of series to read at most, about.
        since: Points of series before this time are left out, and then `most` does not count.
        metrics: Only these; None for all.
    """
    row = connection.execute(select(runs).where(runs.c.id == run)).one()
    wanted = frozenset(kinds)
    series = points.listed(connection, run, metrics)
    if not wanted & {Sampled, StepEnded}:
        series = [one for one in series if not one.device]
    total = sum(one.points for one in series)
    until = math.inf
    if total > most and since == -math.inf:
        until = row.started_at + (row.last_event_at - row.started_at) * most / total
    imported = row.node == journal.IMPORTED_NODE
    told = sorted(_told(connection, row), key=lambda placed: placed[1].time)
    ends = [(rank, event) for rank, event in told if isinstance(event, _ENDS)]
    stream = heapq.merge(  # at the same time: what began before the points, what ended behind them
        ((rank, event) for rank, event in told if event.time <= until and not isinstance(event, _ENDS)),
        _from_points(connection, series, since, until, imported),
        ((rank, event) for rank, event in ends if event.time <= until),
        key=lambda placed: placed[1].time,
    )
    counted: tuple[type[Event], ...] = (Logged, Evaluated) if imported else (StepEnded,)
    index = -1
    placed: list[Placed] = []
    for rank, event in stream:
        index += rank == 0 and isinstance(event, counted)
        if type(event) in wanted or isinstance(event, RunStarted):
            placed.append((max(index, 0), rank, event))
    return Rebuilt(placed, until == math.inf)


# -- what is kept in tables of its own ---------------------------------------------------------------------------------


def _told(connection: Connection, run: Row[Any]) -> Iterator[tuple[int | None, AnyEvent]]:
    for rank in connection.execute(select(ranks).where(ranks.c.run == run.id)):
        yield from _life(run, rank)
    before: dict[int, Row[Any]] = {}
    for row in _rows(connection, phases, run.id):
        last = before.get(row.rank)
        before[row.rank] = row
        seconds = max(row.time - last.time, 0.0) if last is not None else 0.0
        left = last.phase if last is not None else None
        yield row.rank, PhaseEntered(time=row.time, phase=row.phase, step=row.step, left=left, seconds=seconds)
    for row in _rows(connection, checkpoints, run.id):
        yield row.rank, CheckpointSaved(time=row.time, step=row.step, path=row.path, reason=row.reason)
    for row in _rows(connection, nonfinite_steps, run.id):
        yield (
            row.rank,
            NonFiniteSeen(
                time=row.time,
                step=row.step,
                where=row.where,
                value=row.value,
                action=row.action,
                micro_batches=row.micro_batches,
                local=row.local,
                parameter_count=row.parameter_count,
                in_a_row=row.in_a_row,
                recent=row.recent,
            ),
        )
    for row in _rows(connection, out_of_memory, run.id):
        yield (
            row.rank,
            OutOfMemorySeen(
                time=row.time,
                device=row.device,
                requested=row.requested,
                allocated=row.allocated,
                free=row.free,
                step=row.step,
            ),
        )


def _rows(connection: Connection, table: Table, run: str) -> Iterable[Row[Any]]:
    order = (table.c.time, table.c.id)
    return connection.execute(select(table).where(table.c.run == run).order_by(*order).limit(_MOST)).all()


def _life(run: Row[Any], rank: Row[Any]) -> Iterator[tuple[int | None, AnyEvent]]:
    """Yields how a rank's newest process began and ended."""
    setup = rank.setup or {}
    if rank.started_at is not None:
        yield (
            rank.rank,
            RunStarted(
                time=rank.started_at,
                name=run.name,
                world_size=run.world_size,
                pid=rank.pid,
                max_steps=run.max_steps,
                loss_source=run.loss_source,
                output_dir=run.output_dir,
                arguments=setup.get("arguments", {}),
                environment=setup.get("environment", {}),
                model=setup.get("model", {}),
                dataset=setup.get("dataset", {}),
            ),
        )
    if rank.ended_at is None:
        return
    if rank.state == "died":
        gone = ProcessGone(time=rank.ended_at, rank=rank.rank, pid=rank.pid, step=rank.step, oom_kills=rank.oom_kills)
        yield rank.rank, gone
    elif rank.state in ("finished", "halted", "failed"):
        ended = RunEnded(time=rank.ended_at, step=rank.step, outcome=rank.state, reason=rank.reason, error=rank.error)
        yield rank.rank, ended


# -- points ------------------------------------------------------------------------------------------------------------


def _from_points(
    connection: Connection, series: list[points.Listed], since: float, until: float, imported: bool
) -> Iterator[tuple[int | None, AnyEvent]]:
    columns = []
    for number, one in enumerate(series):
        low, high = (None if math.isinf(end) else end for end in (since, until))
        found = points.read(connection, one.id, axis="time", low=low, high=high)
        columns.append((np.full(len(found.step), number), found.step, found.time, found.value))
    if not columns:
        return
    which, step, time, value = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    rank = np.array([one.rank for one in series])[which]
    # Stable, so that what came twice at one time keeps its order.
    order = np.lexsort((rank, time))
    order = order[(time[order] >= since) & (time[order] <= until)]
    group: list[tuple[points.Listed, float]] = []
    last, last_step = (math.nan, NO_RANK), -1
    rows = zip(which[order].tolist(), step[order].tolist(), time[order].tolist(), value[order].tolist(), strict=True)
    for number, at_step, at, reading in rows:
        one = series[number]
        if (at, one.rank) != last:
            if group:
                yield from _grouped(group, last[0], last[1], last_step, imported)
            group, last, last_step = [], (at, one.rank), -1
        group.append((one, reading))
        last_step = max(last_step, at_step)
    if group:
        yield from _grouped(group, last[0], last[1], last_step, imported)


def _grouped(
    group: list[tuple[points.Listed, float]], time: float, number: int, step: int, imported: bool
) -> Iterator[tuple[int | None, AnyEvent]]:
    """Yields the events that a rank's points of one time came from."""
    values: Values = {}
    evaluated: Values = {}
    devices: defaultdict[str, Values] = defaultdict(dict)
    for one, reading in group:
        if one.device:
            # Readings of the run's other nodes carry their names.
            devices[one.device.partition("@")[0]][one.metric] = reading
        elif one.metric.startswith("eval/"):
            evaluated[one.metric] = reading
        else:
            values[one.metric] = reading
    rank = None if number == NO_RANK else number
    known = max(step, 0)
    found: DeviceValues = dict(devices)
    is_step = not imported and bool(_OF_A_STEP & values.keys() or (values and found and not _OF_A_LOG & values.keys()))
    if is_step:
        yield rank, StepEnded(time=time, step=known, values=values, devices=found)
    elif values:
        yield rank, Logged(time=time, step=known, values=values)
    if evaluated:
        yield rank, Evaluated(time=time, step=known, values=evaluated)
    if found and not is_step:
        yield rank, Sampled(time=time, rank=rank, step=step if step >= 0 else None, devices=found)
