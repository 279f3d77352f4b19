"""Channels, and silences: what is kept of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from trainwatch.server.models import channels, deliveries, silences


class Listed(NamedTuple):
    """A channel, and how much it still has to send."""

    channel: Row[Any]
    waiting: int


def of_project(connection: Connection, project: str) -> list[Listed]:
    """Returns the channels of a project (empty: those for all projects), the oldest first."""
    waiting = (
        select(deliveries.c.channel, func.count().label("count"))
        .where(deliveries.c.state == "waiting")
        .group_by(deliveries.c.channel)
    )
    counts = {row.channel: row._mapping["count"] for row in connection.execute(waiting)}
    query = select(channels).where(channels.c.project == project).order_by(channels.c.id)
    return [Listed(row, counts.get(row.id, 0)) for row in connection.execute(query)]


def get(connection: Connection, project: str, channel: int) -> Row[Any] | None:
    """Returns a channel; None when the project has no such."""
    query = select(channels).where(channels.c.project == project, channels.c.id == channel)
    return connection.execute(query).one_or_none()


def add(connection: Connection, values: dict[str, Any], now: float) -> int:
    """Adds a channel and returns its id.

    Args:
        connection: Of a write transaction.
        values: Its columns, without id, reason and times.
        now: The server's clock.
    """
    row = {"disabled_reason": "", "created_at": now, "changed_at": now, **values}
    added: int = connection.execute(insert(channels).values(**row).returning(channels.c.id)).scalar_one()
    return added


def change(connection: Connection, channel: int, values: dict[str, Any], now: float) -> None:
    """Changes a channel. What it had put off is looked at again.

    Args:
        connection: Of a write transaction.
        channel: Its id.
        values: The columns to change.
        now: The server's clock.
    """
    connection.execute(update(channels).where(channels.c.id == channel).values(changed_at=now, **values))
    waits = (deliveries.c.channel == channel, deliveries.c.state == "waiting", deliveries.c.due_at > now)
    connection.execute(update(deliveries).where(*waits).values(due_at=now, reason=""))


def disable(connection: Connection, channel: int, reason: str, now: float) -> None:
    """Disables a channel that cannot work, and says why.

    Args:
        connection: Of a write transaction.
        channel: Its id.
        reason: A sentence for people.
        now: The server's clock.
    """
    values = {"enabled": False, "disabled_reason": reason, "changed_at": now}
    connection.execute(update(channels).where(channels.c.id == channel, channels.c.enabled).values(**values))
    waits = (deliveries.c.channel == channel, deliveries.c.state == "waiting")
    connection.execute(update(deliveries).where(*waits).values(reason="the channel is disabled"))


def remove(connection: Connection, project: str, channel: int) -> bool:
    """Removes a channel with all that is on record of it; tells whether there was one."""
    done = connection.execute(delete(channels).where(channels.c.project == project, channels.c.id == channel))
    return bool(done.rowcount)


def silences_of(connection: Connection, project: str, now: float) -> list[Row[Any]]:
    """Returns a project's silences that are not over, the newest first."""
    query = select(silences).where(silences.c.project == project, silences.c.until > now)
    return list(connection.execute(query.order_by(silences.c.id.desc())).all())


def add_silence(connection: Connection, values: dict[str, Any]) -> Row[Any]:
    """Adds a silence, and forgets those that were over before it began."""
    connection.execute(delete(silences).where(silences.c.until <= values["created_at"]))
    return connection.execute(insert(silences).values(**values).returning(*silences.c)).one()


def remove_silence(connection: Connection, project: str, silence: int) -> bool:
    """Ends a silence; tells whether there was one."""
    done = connection.execute(delete(silences).where(silences.c.project == project, silences.c.id == silence))
    return bool(done.rowcount)
