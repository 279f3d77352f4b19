"""Takes things away: runs that were deleted, and of old runs what their project does not keep.

A run that was over when it was listed may be heard again a moment later. So whatever takes something of it away looks
once more when it holds the lock on the run's row, as every shipment does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, select, update

from trainwatch.server.db import insert_for
from trainwatch.server.models import chunks, deleted_runs, points, retention, rollups, runs, series

BUSY: Final = ("running", "late")
"""States of a run that somebody may still be shipping for."""
_HAS_RAW: Final = func.coalesce(series.c.dropped, 0) < series.c.points


class InUse(Exception):
    """The run is not over, or something of it changed since the caller looked: nothing was taken away."""


class Standing(NamedTuple):
    """Where a run stands. Whatever is stored with it leaves it with another time or version.

    Attributes:
        state: Its state.
        heard_at: When it was heard last, by the server's clock.
        version: How often it changed.
    """

    state: str
    heard_at: float
    version: int

    def is_over(self, moment: float = math.inf) -> bool:
        """Tells whether the run is over and was not heard since `moment`."""
        return self.state not in BUSY and self.heard_at < moment


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


def delete_run(
    connection: Connection, run: str, now: float, *, moment: float = math.inf, unchanged: Standing | None = None
) -> bool:
    """Deletes a run that is over with all that hangs on it, and notes that it was.

    Args:
        connection: Of a write transaction.
        run: The run's id.
        now: The server's clock.
        moment: Only if the run was not heard since.
        unchanged: Only if the run still stands there.

    Returns:
        Whether there was such a run.

    Raises:
        InUse: It may not be deleted.
    """
    standing = standing_of(connection, run, lock=True)
    if standing is None:
        return False
    if not standing.is_over(moment) or unchanged not in (None, standing):
        raise InUse(run)
    project = connection.execute(select(runs.c.project).where(runs.c.id == run)).scalar_one()
    connection.execute(delete(points).where(points.c.series.in_(select(series.c.id).where(series.c.run == run))))
    connection.execute(delete(runs).where(runs.c.id == run))
    values = {"project": project, "deleted_at": now, "refused": 0}
    statement = insert_for(connection.dialect.name, deleted_runs).values(run=run, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["run"], set_=values))
    return True


def standing_of(connection: Connection, run: str, *, lock: bool = False) -> Standing | None:
    """Returns where a run stands; None when there is no such run.

    Args:
        connection: Of a write transaction, if the run is to be locked.
        run: The run's id.
        lock: Whether it is to stay so until the transaction ends.
    """
    query = select(runs.c.state, runs.c.heard_at, runs.c.version).where(runs.c.id == run)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else Standing._make(row)


def lock_if_over(connection: Connection, run: str, moment: float) -> bool:
    """Locks a run's row, and tells whether the run is over and was not heard since `moment`.

    If so, it stays so until the transaction ends.
    """
    standing = standing_of(connection, run, lock=True)
    return standing is not None and standing.is_over(moment)


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


def silent_since(connection: Connection, project: str | None, moment: float) -> list[str]:
    """Returns runs of a project (None: of any) that are over and were not heard since `moment`, the oldest first."""
    query = select(runs.c.id).where(*_over(project, moment))
    return list(connection.scalars(query.order_by(runs.c.heard_at, runs.c.id)))


def unsealed(connection: Connection, moment: float) -> list[str]:
    """Returns runs that are over, were not heard since `moment`, and have points that are rows."""
    return _with_series(connection, None, moment, series.c.fresh > 0)


def with_raw(connection: Connection, project: str, moment: float) -> list[str]:
    """Returns runs of a project that still have single points although they were not heard since `moment`."""
    return _with_series(connection, project, moment, _HAS_RAW)


def with_curves(connection: Connection, project: str, moment: float) -> list[str]:
    """Returns runs of a project that were not heard since `moment` and have curves that are rollups only."""
    held = select(rollups.c.series).where(rollups.c.series == series.c.id).exists()
    return _with_series(connection, project, moment, ~_HAS_RAW, held)


def _over(project: str | None, moment: float) -> list[Any]:
    over = [runs.c.state.not_in(BUSY), runs.c.heard_at < moment]
    return over if project is None else [*over, runs.c.project == project]


def _with_series(connection: Connection, project: str | None, moment: float, *such: Any) -> list[str]:
    """Returns runs that are over, were not heard since `moment`, and have a series such as is described."""
    some = select(series.c.id).where(series.c.run == runs.c.id, *such).exists()
    return list(connection.scalars(select(runs.c.id).where(*_over(project, moment), some).order_by(runs.c.id)))


def raw_series(connection: Connection, run: str) -> list[int]:
    """Returns the series of a run that still have single points."""
    return list(connection.scalars(select(series.c.id).where(series.c.run == run, _HAS_RAW).order_by(series.c.id)))


def drop_raw(connection: Connection, run: str, series_id: int, moment: float) -> int:
    """Drops the single points of a series that rollups stand for, if its run was not heard since `moment`.

    Args:
        connection: A write transaction.
        run: The run's id.
        series_id: The series; one that is not the run's is left alone. SQLite gives a number again once the series that
            had it is gone.
        moment: See :func:`lock_if_over`.

    Returns:
        How many points were dropped.
    """
    if not lock_if_over(connection, run, moment):
        return 0
    mine = (series.c.id == series_id, series.c.run == run)
    row = connection.execute(select(series.c.rolled, series.c.dropped).where(*mine).with_for_update()).one_or_none()
    if row is None or not row.rolled or row.rolled <= (row.dropped or 0):
        return 0
    columns = chunks.c
    connection.execute(
        delete(chunks).where(columns.series == series_id, columns.position + columns.points <= row.rolled)
    )
    connection.execute(update(series).where(*mine).values(dropped=row.rolled))
    return int(row.rolled - (row.dropped or 0))


def drop_curves(connection: Connection, run: str, moment: float) -> int:
    """Drops the rollups of a run's series that have nothing else, if the run was not heard since `moment`.

    Returns:
        How many rollups were dropped.
    """
    if not lock_if_over(connection, run, moment):
        return 0
    mine: Any = select(series.c.id).where(series.c.run == run, ~_HAS_RAW)
    return connection.execute(delete(rollups).where(rollups.c.series.in_(mine))).rowcount
