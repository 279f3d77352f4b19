"""What is on record of deliveries: every attempt, and what a message says of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from trainwatch.server.models import channels, deliveries, delivery_attempts, runs


def add_attempt(
    connection: Connection, delivery: int, *, at: float, seconds: float, status: int | None, error: str
) -> None:
    """Puts an attempt on record."""
    connection.execute(
        insert(delivery_attempts).values(delivery=delivery, at=at, seconds=seconds, status=status, error=error)
    )


def prune(connection: Connection, before: float) -> int:
    """Forgets deliveries that were done with before a moment; returns how many."""
    old = deliveries.c.state.not_in(("waiting", "gathered")) & (deliveries.c.done_at < before)
    return connection.execute(delete(deliveries).where(old)).rowcount


def run_facts(connection: Connection, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Returns what a message says of runs, by their ids."""
    columns = (
        "id",
        "name",
        "project",
        "state",
        "step",
        "max_steps",
        "world_size",
        "loss_rank",
        "last_loss",
        "sparkline",
    )
    query = select(*(runs.c[name] for name in columns)).where(runs.c.id.in_(set(ids)))
    return {row.id: row for row in connection.execute(query)}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A delivery, and what was tried."""

    delivery: Row[Any]
    channel: str
    kind: str
    project: str
    digest: str | None
    attempts: Sequence[Row[Any]]


def listed(
    connection: Connection,
    *,
    channel: int | None = None,
    alert: int | None = None,
    run: str | None = None,
    limit: int = 100,
) -> list[Recorded]:
    """Returns deliveries, the newest first, of a channel or of a run's alert.

    Args:
        connection: Of a read transaction.
        channel: Only this channel's.
        alert: Only this alert's.
        run: Only this run's.
        limit: How many.
    """
    digest = deliveries.alias()
    query = (
        select(
            deliveries,
            channels.c.name.label("name"),
            channels.c.kind,
            channels.c.project,
            digest.c.uuid.label("carrier"),
        )
        .join(channels, channels.c.id == deliveries.c.channel)
        .outerjoin(digest, digest.c.id == deliveries.c.digest)
    )
    for column, wanted in ((deliveries.c.channel, channel), (deliveries.c.alert, alert), (deliveries.c.run, run)):
        if wanted is not None:
            query = query.where(column == wanted)
    rows = connection.execute(query.order_by(deliveries.c.id.desc()).limit(limit)).all()
    tried: dict[int, list[Row[Any]]] = {row.id: [] for row in rows}
    for row in rows:  # what a digest carried was tried with it
        if row.digest is not None:
            tried.setdefault(row.digest, [])
    attempts = select(delivery_attempts).where(delivery_attempts.c.delivery.in_(list(tried)))
    for one in connection.execute(attempts.order_by(delivery_attempts.c.id)):
        tried[one.delivery].append(one)
    return [
        Recorded(row, row.name, row.kind, row.project, row.carrier, tried[row.digest or row.id] or tried[row.id])
        for row in rows
    ]
