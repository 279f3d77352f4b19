"""The periodic job that packs what runs left behind when they ended, and drops what projects do not keep."""

from __future__ import annotations

from typing import Final

from trainwatch.server.db import Database
from trainwatch.server.jobs import rolling
from trainwatch.server.services import Services
from trainwatch.server.store import points, removal
from trainwatch.server.store.removal import Kept

EVERY_SECONDS: Final = 60.0
SEAL_AFTER: Final = 600.0
"""Seconds after a run that is over was heard last until its last points are packed."""
_DAY: Final = 86_400.0
_RUNS: Final = 50
_SERIES: Final = 500


def run(services: Services) -> None:
    """Packs and drops."""
    work(services.database, services.clock())


def work(database: Database, now: float) -> None:
    """Packs the last points of runs that are over, and drops what their projects do not keep.

    A run at a time, each in a transaction of its own: nobody waits long, and what was interrupted goes on next time.

    Args:
        database: The database.
        now: The server's clock.
    """
    seal(database, now)
    with database.read() as connection:
        found = removal.all_kept(connection)
    for project, kept in found.items():
        _drop(database, project, kept, now)


def seal(database: Database, now: float) -> int:
    """Packs the points that are rows of runs that are over; returns of how many runs."""
    total = 0
    while True:
        with database.read() as connection:
            ids = removal.unsealed(connection, now - SEAL_AFTER, limit=_RUNS)
        for name in ids:
            with database.write() as connection:
                points.seal(connection, name)
        total += len(ids)
        if len(ids) < _RUNS:
            return total


def _drop(database: Database, project: str, kept: Kept, now: float) -> None:
    if kept.runs is not None:
        _drop_runs(database, project, now - kept.runs * _DAY, now)
    raw = kept.raw if kept.rollups is None else min(kept.rollups, kept.rollups if kept.raw is None else kept.raw)
    if raw is not None:
        _drop_raw(database, project, now - raw * _DAY)
    if kept.rollups is not None:
        with database.write() as connection:
            removal.drop_curves(connection, project, now - kept.rollups * _DAY)


def _drop_runs(database: Database, project: str, moment: float, now: float) -> None:
    while True:
        with database.read() as connection:
            ids = removal.silent_since(connection, project, moment, limit=_RUNS)
        for name in ids:
            with database.write() as connection:
                removal.delete_run(connection, name, now)
        if len(ids) < _RUNS:
            return


def _drop_raw(database: Database, project: str, moment: float) -> None:
    sealed: set[str] = set()
    while True:
        with database.read() as connection:
            found = removal.with_raw(connection, project, moment, limit=_SERIES)
        dropped = 0
        for name, number in found:
            if name not in sealed:
                sealed.add(name)
                with database.write() as connection:
                    points.seal(connection, name)
            rolling.roll(database, number, partly=True)
            with database.write() as connection:
                dropped += removal.drop_raw(connection, number)
        if not dropped:
            return
