"""What the database knows, in a few numbers, for those who watch the server."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, func, select

from trainwatch.server.models import alerts, deliveries, delivery_attempts, runs, series


def runs_by_state(connection: Connection) -> dict[str, int]:
    """Returns how many runs are in each state."""
    rows = connection.execute(select(runs.c.state, func.count()).group_by(runs.c.state))
    return {row[0]: row[1] for row in rows}


def firing_by_severity(connection: Connection) -> dict[str, int]:
    """Returns how many alerts of running runs fire, silenced ones included."""
    query = (
        select(alerts.c.severity, func.count())
        .join(runs, runs.c.id == alerts.c.run)
        .where(runs.c.state == "running", alerts.c.state == "firing")
        .group_by(alerts.c.severity)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


class Outbox(NamedTuple):
    """What is still to be delivered, and what was.

    Attributes:
        by_state: Deliveries by their state.
        attempts: Attempts on record.
        failures: Those that failed.
        oldest_due: When the longest overdue waiting delivery was due, in Unix seconds; None when none waits.
    """

    by_state: dict[str, int]
    attempts: int
    failures: int
    oldest_due: float | None


def outbox(connection: Connection) -> Outbox:
    """Looks into the outbox of alerts."""
    states = connection.execute(select(deliveries.c.state, func.count()).group_by(deliveries.c.state))
    return Outbox(
        by_state={row[0]: row[1] for row in states},
        attempts=connection.scalar(select(func.count()).select_from(delivery_attempts)) or 0,
        failures=connection.scalar(select(func.count()).where(delivery_attempts.c.error != "")) or 0,
        oldest_due=connection.scalar(select(func.min(deliveries.c.due_at)).where(deliveries.c.state == "waiting")),
    )


class LastValue(NamedTuple):
    """The newest point of a series of a running run."""

    run: str
    name: str
    project: str
    rank: int
    device: str
    metric: str
    value: float


def last_values(connection: Connection, most: int) -> tuple[list[LastValue], int]:
    """Returns the last values of running runs, the newest runs' first.

    Args:
        connection: A read transaction.
        most: How many series at most.

    Returns:
        The values, and how many series there are.
    """
    running = runs.c.state == "running"
    joined = series.join(runs, runs.c.id == series.c.run)
    total = connection.scalar(select(func.count()).select_from(joined).where(running)) or 0
    rows = connection.execute(
        select(
            runs.c.id,
            runs.c.name,
            runs.c.project,
            series.c.rank,
            series.c.device,
            series.c.metric,
            series.c.last_value,
        )
        .select_from(joined)
        .where(running)
        .order_by(runs.c.started_at.desc(), runs.c.id, series.c.metric, series.c.rank, series.c.device)
        .limit(most)
    )
    return [LastValue._make(row) for row in rows], total
