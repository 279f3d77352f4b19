"""The periodic job that packs what runs left behind when they ended, and drops what projects do not keep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from sqlalchemy import Connection

from trainwatch.server.db import Database
from trainwatch.server.jobs import rolling
from trainwatch.server.jobs.one_by_one import complain, each
from trainwatch.server.services import Services
from trainwatch.server.store import points, removal
from trainwatch.server.store.removal import Kept

EVERY_SECONDS: Final = 60.0
SEAL_AFTER: Final = 600.0
"""Seconds after a run that is over was heard last until its last points are packed."""
_DAY: Final = 86_400.0
_Find = Callable[[Connection, str, float], list[str]]


def run(services: Services) -> None:
    """Packs and drops."""
    work(services.database, services.clock())


def work(database: Database, now: float) -> None:
    """Packs the last points of runs that are over, and drops what their projects do not keep.

    A run or some series at a time, in a transaction of their own: nobody waits long, and what was interrupted goes on
    next time. A run may be heard again at any moment, so each of these transactions begins with a look whether it was.

    Args:
        database: The database.
        now: The server's clock.

    Raises:
        Incomplete: Some runs could not be dealt with; all others were.
    """
    failed: set[str] = set()
    seal(database, now, failed)
    with database.read() as connection:
        found = removal.all_kept(connection)
    for project, kept in found.items():
        _drop(database, project, kept, now, failed)
    complain(failed)


def seal(database: Database, now: float, failed: set[str] | None = None) -> int:
    """Packs the points that are rows of runs that are over.

    Args:
        database: The database.
        now: The server's clock.
        failed: The runs where that failed are added to it.

    Returns:
        Of how many runs.
    """
    moment = now - SEAL_AFTER
    with database.read() as connection:
        ids = removal.unsealed(connection, moment)
    return each(ids, partial(_seal, database, moment=moment), set() if failed is None else failed)


def _drop(database: Database, project: str, kept: Kept, now: float, failed: set[str]) -> None:
    raw = kept.raw if kept.rollups is None else min(kept.rollups, kept.rollups if kept.raw is None else kept.raw)
    steps: tuple[tuple[float | None, _Find, Callable[..., int]], ...] = (
        (kept.runs, removal.silent_since, partial(_delete, now=now)),
        (raw, removal.with_raw, _drop_raw),
        (kept.rollups, removal.with_curves, _drop_curves),
    )
    for days, find, drop in steps:
        if days is not None:
            moment = now - days * _DAY
            with database.read() as connection:
                ids = find(connection, project, moment)
            each(ids, partial(drop, database, moment=moment), failed)


def _seal(database: Database, run: str, moment: float) -> int:
    more = True
    while more:
        with database.write() as connection:
            more = removal.lock_if_over(connection, run, moment) and points.seal(connection, run)
    return 1


def _delete(database: Database, run: str, moment: float, now: float) -> int:
    with suppress(removal.InUse), database.write() as connection:
        removal.delete_run(connection, run, now, moment=moment)
    return 1


def _drop_raw(database: Database, run: str, moment: float) -> int:
    _seal(database, run, moment)
    with database.read() as connection:
        numbers = removal.raw_series(connection, run)
    for number in numbers:
        rolling.roll(database, run, number, over_before=moment)
        with database.write() as connection:
            removal.drop_raw(connection, run, number, moment)
    return 1


def _drop_curves(database: Database, run: str, moment: float) -> int:
    with database.write() as connection:
        removal.drop_curves(connection, run, moment)
    return 1
