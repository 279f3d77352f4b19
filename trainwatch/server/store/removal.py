"""Takes things away: runs that were deleted, and of old runs what their project does not keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, select, update

from trainwatch.server.db import insert_for
from trainwatch.server.models import chunks, deleted_runs, points, retention, rollups, runs, series

BUSY: Final = ("running", "late")
"""States of a run that somebody may still be shipping for."""


class Kept(NamedTuple):
    """How long a project keeps its data, in days after a run was heard last; None for ever.

    Attributes:
        raw: Every single point; after that only the rollups.
        rollups: Curves at all.
        runs: Runs at all.
    """

    raw: float | None = None
    rollups: float | None = None
    runs: float | None = None


def kept_of(connection: Connection, project: str) -> tuple[Kept, float | None]:
    """Returns how long a project keeps its data, and when that was set; None when it never was."""
    columns = (retention.c.raw, retention.c.rollups, retention.c.runs, retention.c.changed_at)
    row = connection.execute(select(*columns).where(retention.c.project == project)).one_or_none()
    return (Kept(), None) if row is None else (Kept(*row[:3]), row[3])


def keep(connection: Connection, project: str, wanted: Kept, now: float) -> None:
    """Sets how long a project keeps its data."""
    values = {**wanted._asdict(), "changed_at": now}
    statement = insert_for(connection.dialect.name, retention).values(project=project, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["project"], set_=values))


def all_kept(connection: Connection) -> dict[str, Kept]:
    """Returns how long projects keep their data, of those that ever said so."""
    columns = (retention.c.project, retention.c.raw, retention.c.rollups, retention.c.runs)
    return {row[0]: Kept(*row[1:]) for row in connection.execute(select(*columns))}


def delete_run(connection: Connection, run: str, now: float) -> bool:
    """Deletes a run with all that hangs on it, and notes that it was.

    Args:
        connection: Of a write transaction.
        run: The run's id.
        now: The server's clock.

    Returns:
        Whether there was such a run.
    """
    project = connection.scalar(select(runs.c.project).where(runs.c.id == run).with_for_update())
    if project is None:
        return False
    connection.execute(delete(points).where(points.c.series.in_(select(series.c.id).where(series.c.run == run))))
    connection.execute(delete(runs).where(runs.c.id == run))
    values = {"project": project, "deleted_at": now, "refused": 0}
    statement = insert_for(connection.dialect.name, deleted_runs).values(run=run, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["run"], set_=values))
    return True


def state_of(connection: Connection, run: str) -> str | None:
    """Returns a run's state; None when there is no such run."""
    found: str | None = connection.scalar(select(runs.c.state).where(runs.c.id == run))
    return found


def deleted_among(connection: Connection, names: Collection[str]) -> set[str]:
    """Returns those of `names` that are runs that were deleted."""
    if not names:
        return set()
    return set(connection.scalars(select(deleted_runs.c.run).where(deleted_runs.c.run.in_(sorted(names)))))


def count_refused(connection: Connection, counts: Mapping[str, int]) -> None:
    """Counts events of deleted runs that came and were not stored."""
    if counts:
        connection.execute(
            update(deleted_runs)
            .where(deleted_runs.c.run == bindparam("key"))
            .values(refused=deleted_runs.c.refused + bindparam("more")),
            [{"key": run, "more": more} for run, more in sorted(counts.items())],
        )


def undelete(connection: Connection, run: str) -> None:
    """Forgets that a run was deleted: it may come again."""
    connection.execute(delete(deleted_runs).where(deleted_runs.c.run == run))


def silent_since(connection: Connection, project: str | None, moment: float, *, limit: int | None) -> list[str]:
    """Returns runs of a project (None: of any) that are over and were not heard since `moment`, the oldest first."""
    query = select(runs.c.id).where(runs.c.state.not_in(BUSY), runs.c.heard_at < moment)
    if project is not None:
        query = query.where(runs.c.project == project)
    return list(connection.scalars(query.order_by(runs.c.heard_at, runs.c.id).limit(limit)))


def with_raw(connection: Connection, project: str, moment: float, *, limit: int) -> list[tuple[str, int]]:
    """Returns runs and series that still have single points although their run was not heard since `moment`."""
    query = (
        select(series.c.run, series.c.id)
        .join(runs, runs.c.id == series.c.run)
        .where(
            runs.c.project == project,
            runs.c.state.not_in(BUSY),
            runs.c.heard_at < moment,
            func.coalesce(series.c.dropped, 0) < series.c.points,
        )
    )
    return [(row[0], row[1]) for row in connection.execute(query.order_by(series.c.id).limit(limit))]


def unsealed(connection: Connection, moment: float, *, limit: int) -> list[str]:
    """Returns runs that are over, were not heard since `moment`, and have points that are rows."""
    query = select(runs.c.id).where(
        runs.c.state.not_in(BUSY),
        runs.c.heard_at < moment,
        select(series.c.id).where(series.c.run == runs.c.id, series.c.fresh > 0).exists(),
    )
    return list(connection.scalars(query.order_by(runs.c.id).limit(limit)))


def drop_raw(connection: Connection, series_id: int) -> int:
    """Drops the single points of a series that rollups stand for; returns how many."""
    row = connection.execute(
        select(series.c.rolled, series.c.dropped).where(series.c.id == series_id).with_for_update()
    ).one_or_none()
    if row is None or not row.rolled or row.rolled <= (row.dropped or 0):
        return 0
    columns = chunks.c
    connection.execute(
        delete(chunks).where(columns.series == series_id, columns.position + columns.points <= row.rolled)
    )
    connection.execute(update(series).where(series.c.id == series_id).values(dropped=row.rolled))
    return int(row.rolled - (row.dropped or 0))


def drop_curves(connection: Connection, project: str, moment: float) -> int:
    """Drops the rollups of series that have nothing else, of runs that were not heard since `moment`."""
    mine: Any = (
        select(series.c.id)
        .join(runs, runs.c.id == series.c.run)
        .where(
            runs.c.project == project,
            runs.c.state.not_in(BUSY),
            runs.c.heard_at < moment,
            series.c.dropped >= series.c.points,
        )
    )
    return connection.execute(delete(rollups).where(rollups.c.series.in_(mine))).rowcount
