"""The periodic job that notices runs that fell silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection

from trainwatch import journal
from trainwatch.server import liveness
from trainwatch.server.db import Database
from trainwatch.server.store import leases, records
from trainwatch.server.store.records import Run

if TYPE_CHECKING:
    from trainwatch.server.services import Services

JOB: Final = "liveness"


def mark_silent(
    database: Database,
    *,
    now: float,
    lost_after: float,
    late_after: float | None = None,
    listening_since: float = 0.0,
) -> list[tuple[str, int]]:
    """Marks the runs of which nothing was heard for a while as late, and those of which nothing was heard for long.

    What counts is when a shipment or a heartbeat came here: the clocks of the machines that train do not. While no
    server was there nobody could be heard, so silence is counted from when one was there again, at the earliest.

    Args:
        database: The database.
        now: The database's clock.
        lost_after: Seconds of silence that are too many.
        late_after: Seconds of silence that are to be noticed; None: no run is ever late.
        listening_since: Since when there is always a server that listens, by the database's clock.

    Returns:
        The ids and new versions of the runs that changed.
    """
    late_after = lost_after if late_after is None else min(late_after, lost_after)
    if listening_since >= now - late_after:
        return []
    with database.read() as connection:
        silent = records.silent_since(connection, (liveness.RUNNING,), now - late_after)
        if listening_since < now - lost_after:
            silent += records.silent_since(connection, (liveness.LATE,), now - lost_after)
    if not silent:
        return []
    changed = []
    with database.write() as connection:
        for run in records.lock_runs(connection, silent).values():
            if run.state not in (liveness.RUNNING, liveness.LATE) or run.heard_at >= now - late_after:
                continue  # heard in the meantime
            if max(run.heard_at, listening_since) < now - lost_after:
                _lose(connection, run, now)
            elif run.state == liveness.RUNNING and run.node != journal.IMPORTED_NODE:
                run.state = liveness.LATE
            else:
                continue
            run.version += 1
            records.save_run(connection, run, described=False)
            changed.append((run.id, run.version))
    return changed


def _lose(connection: Connection, run: Run, now: float) -> None:
    """Settles a run that was silent for long: what is known of its ranks may tell how it ended."""
    found = liveness.judge(run, records.ranks_of(connection, run.id).values(), silent=True)
    if found is not None:
        liveness.settle(run, found)
        records.close_commands(connection, run.id)
        return
    run.state = liveness.LOST
    if run.node != journal.IMPORTED_NODE:  # its file does not say how it ended, and that is no alarm
        liveness.tell_lost(connection, run, now=now, silent_since=run.heard_at, state="firing")


def run(services: Services) -> None:
    """Looks for silent runs once."""
    settings = services.settings
    with services.database.read() as connection:
        listening_since = leases.unbroken_since(connection, JOB)
    changed = mark_silent(
        services.database,
        now=services.clock(),
        lost_after=settings.lost_after,
        late_after=settings.late_after,
        listening_since=listening_since,
    )
    for run_id, version in changed:
        services.live.publish(run_id, version)
