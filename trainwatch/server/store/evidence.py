"""What happened in a run besides its curves: phases, checkpoints, non-finite steps, commands."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Table, bindparam, func, insert, select, update

from trainwatch.events import DeviceValues
from trainwatch.server.models import (
    autopsies,
    checkpoints,
    commands,
    nonfinite_steps,
    out_of_memory,
    phase_totals,
    phases,
)
from trainwatch.shipment import Command


def add_phases(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Stores entered phases."""
    _add(connection, phases, rows)


def add_checkpoints(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Stores saved checkpoints."""
    _add(connection, checkpoints, rows)


def add_nonfinite(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Stores non-finite steps."""
    _add(connection, nonfinite_steps, rows)


def add_autopsies(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Stores autopsies."""
    _add(connection, autopsies, rows)


def add_out_of_memory(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Stores requests that an allocator could not serve."""
    _add(connection, out_of_memory, rows)


@dataclass(slots=True)
class PhaseTotal:
    """How often a rank was in a phase, for how long, and the most memory that it took there.

    Attributes:
        seconds: Of the times that it was left again.
        peak: Device to metric to the highest value; NaN only where there never was another.
    """

    entered: int = 0
    seconds: float = 0.0
    peak: DeviceValues = field(default_factory=dict)

    def leave(self, seconds: float, peak: DeviceValues) -> None:
        """Adds a time that the phase was left."""
        if math.isfinite(seconds):
            self.seconds += seconds
        for device, values in peak.items():
            highest = self.peak.setdefault(device, {})
            for metric, value in values.items():
                before = highest.get(metric, math.nan)
                highest[metric] = value if math.isnan(before) or value > before else before


def add_phase_totals(connection: Connection, run: str, added: Mapping[tuple[int, str], PhaseTotal]) -> None:
    """Adds to what is known of the ranks' phases. The caller holds the run's row lock."""
    if not added:
        return
    known = phase_totals_of(connection, run)
    for (rank, phase), new in added.items():
        before = known.get((rank, phase))
        where = (phase_totals.c.run == run, phase_totals.c.rank == rank, phase_totals.c.phase == phase)
        total = before or PhaseTotal()
        total.entered += new.entered
        total.leave(new.seconds, new.peak)
        values = {"entered": total.entered, "seconds": total.seconds, "peak": total.peak}
        if before is None:
            connection.execute(insert(phase_totals).values(run=run, rank=rank, phase=phase, **values))
        else:
            connection.execute(update(phase_totals).where(*where).values(**values))


def phase_totals_of(connection: Connection, run: str) -> dict[tuple[int, str], PhaseTotal]:
    """Returns the totals by rank and phase."""
    query = select(phase_totals).where(phase_totals.c.run == run).order_by(phase_totals.c.rank, phase_totals.c.phase)
    return {(row.rank, row.phase): PhaseTotal(row.entered, row.seconds, row.peak) for row in connection.execute(query)}


def add_command(connection: Connection, run: str, action: str, reason: str, created_at: float) -> int:
    """Stores a command.

    Returns:
        Its id, greater than that of every command before.
    """
    made = connection.execute(
        insert(commands)
        .values(run=run, action=action, reason=reason, created_at=created_at, open=True)
        .returning(commands.c.id)
    )
    return int(made.scalar_one())


_OPEN: Final = (
    select(commands.c.id, commands.c.run, commands.c.action, commands.c.reason)
    .where(commands.c.run.in_(bindparam("ids", expanding=True)), commands.c.open)
    .order_by(commands.c.id)
)


def open_commands(connection: Connection, ids: Collection[str]) -> list[Command]:
    """Returns the commands that the runs still have to obey, oldest first."""
    rows = connection.execute(_OPEN, {"ids": list(ids)})
    return [Command(id=row.id, run=row.run, action=row.action, reason=row.reason) for row in rows]


def phases_of(connection: Connection, run: str) -> list[Any]:
    """Returns (rank, phase, step, time) of every phase entered, by rank and time."""
    columns = (phases.c.rank, phases.c.phase, phases.c.step, phases.c.time)
    query = select(*columns).where(phases.c.run == run).order_by(phases.c.rank, phases.c.time, phases.c.id)
    return list(connection.execute(query))


def checkpoints_of(connection: Connection, run: str) -> list[Any]:
    """Returns the checkpoints, in order; a path saved anew counts once, with its newest save."""
    query = select(checkpoints).where(checkpoints.c.run == run).order_by(checkpoints.c.step, checkpoints.c.id)
    return list({(row.step, row.path): row for row in connection.execute(query)}.values())


def nonfinite_of(connection: Connection, run: str, limit: int) -> tuple[list[Any], int]:
    """Returns the first and the last `limit` non-finite steps in order, and how many there are in all."""
    where = nonfinite_steps.c.run == run
    total = connection.scalar(select(func.count()).select_from(nonfinite_steps).where(where)) or 0
    query = select(nonfinite_steps).where(where)
    order = (nonfinite_steps.c.step, nonfinite_steps.c.rank, nonfinite_steps.c.id)
    first = list(connection.execute(query.order_by(*order).limit(limit)))
    last = list(connection.execute(query.order_by(*(column.desc() for column in order)).limit(limit)))
    return list({row.id: row for row in [*first, *reversed(last)]}.values()), total


def autopsies_of(connection: Connection, run: str, limit: int) -> tuple[list[Any], int]:
    """Returns the newest autopsies, newest first, and how many there are in all."""
    return _newest(connection, autopsies, run, limit)


def out_of_memory_of(connection: Connection, run: str, limit: int) -> tuple[list[Any], int]:
    """Returns the newest requests that an allocator could not serve, newest first, and how many there were in all."""
    return _newest(connection, out_of_memory, run, limit)


def _newest(connection: Connection, table: Table, run: str, limit: int) -> tuple[list[Any], int]:
    where = table.c.run == run
    total = connection.scalar(select(func.count()).select_from(table).where(where)) or 0
    query = select(table).where(where).order_by(table.c.time.desc(), table.c.id.desc()).limit(limit)
    return list(connection.execute(query)) if total else [], total


def _add(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)
