"""The periodic job that makes coarser copies of long series, and large chunks of small ones."""

from __future__ import annotations

from typing import Final

from trainwatch.server.db import Database
from trainwatch.server.jobs.one_by_one import complain, each
from trainwatch.server.services import Services
from trainwatch.server.store import compacting, removal, rollups

EVERY_SECONDS: Final = 20.0
_SERIES: Final = 200
_AT_ONCE: Final = 32
"""Rollups that are stored in one transaction: half a million points take some 50 ms to read and 10 to store."""


def run(services: Services) -> None:
    """Makes what is missing."""
    catch_up(services.database)


def catch_up(database: Database) -> int:
    """Makes the rollups of all series that lack some.

    Returns:
        How many of the first level were made.

    Raises:
        Incomplete: Some could not be made; all others were.
    """
    total = 0
    failed: set[tuple[str, int]] = set()
    while True:
        with database.read() as connection:
            found = rollups.lagging(connection, limit=_SERIES + len(failed))
        made = each(found, lambda one: roll(database, *one), failed)
        total += made
        if not made:
            complain(failed)
            return total


def roll(database: Database, run: str, series: int, *, over_before: float | None = None) -> int:
    """Makes the rollups that a series lacks.

    Args:
        database: The database.
        run: The run's id.
        series: The series' number; nothing is made of one that is not the run's.
        over_before: Also what is less than a whole stretch is rolled up, as long as the run is over and was not heard
            since then; None: whole stretches only.

    Returns:
        How many of the first level.
    """
    total = 0
    while True:
        # Computed outside of the write transaction, so that nobody waits: what is packed stays as it is.
        with database.read() as connection:
            made = rollups.prepare(connection, run, series, most=_AT_ONCE, partly=over_before is not None)
        if not made:
            return total
        with database.write() as connection:
            if over_before is not None and not removal.lock_if_over(connection, run, over_before):
                return total
            if not rollups.save(connection, run, series, made):
                return total
            last = made[-1]
            compacting.compact(connection, series, made[0]["position"], last["position"] + last["points"])
        total += len(made)
