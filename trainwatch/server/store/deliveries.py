"""What is to be sent: who sends which delivery now, what became of it, and every attempt.

A delivery is leased before it is sent: whoever dies while sending leaves it to another once the lease has run out. So
each is sent at least once, and after a death in the wrong moment twice, under the same id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, Update, insert, or_, select, update

from trainwatch.rules.base import SEVERITIES
from trainwatch.server.models import channels, deliveries

GATHERED_MOST: Final = 200
"""How many deliveries one digest holds."""
_HELD: Final = "more than the channel takes at a time; gathered into one message"
_TESTS: Final = ("test",)


@dataclass(frozen=True, slots=True)
class Leased:
    """A delivery that is this sender's to send.

    Attributes:
        id: The row's id.
        uuid: The delivery id that the receiver sees.
        lease: What the sender shows when it is done.
        change: fired, raised, resolved, digest or test.
        created_at: When the alert changed, by the server's clock.
        attempts: How many were made before.
        channel: The channel's row.
        alerts: The rows to tell of: itself, or what a digest gathers; the oldest first.
    """

    id: int
    uuid: str
    lease: str
    change: str
    created_at: float
    attempts: int
    channel: Row[Any]
    alerts: Sequence[Row[Any]]


def due_channels(connection: Connection, now: float) -> list[int]:
    """Returns the channels that may have something to send now."""
    query = (
        select(deliveries.c.channel)
        .join(channels, channels.c.id == deliveries.c.channel)
        .where(
            deliveries.c.state == "waiting",
            deliveries.c.due_at <= now,
            deliveries.c.lease_until <= now,
            channels.c.enabled,
        )
        .distinct()
        .order_by(deliveries.c.channel)
    )
    return list(connection.scalars(query))


def claim(
    connection: Connection,
    channel: int,
    *,
    now: float,
    lease_seconds: float,
    quiet_until: Callable[[dict[str, Any], float], float | None],
) -> Leased | None:
    """Leases what a channel sends next.

    1. What is due and not critical in quiet hours is put off until they end.
    2. Changes of one alert go in their order: while an earlier one waits for its next attempt, the later ones wait.
    3. Within a window, the channel sends so many messages; what is more waits, and is then gathered into one.

    Args:
        connection: Of a write transaction.
        channel: The channel's id.
        now: The server's clock.
        lease_seconds: For how long nobody else may send it; longer than sending can take.
        quiet_until: Says when the quiet hours end in which a moment lies.

    Returns:
        What to send; None when there is nothing now, or another server looks at this channel just now.
    """
    # Not the key: whoever adds a delivery to the channel just now shares that, and neither is to wait for the other.
    owner = connection.execute(
        select(channels)
        .where(channels.c.id == channel, channels.c.enabled)
        .with_for_update(skip_locked=True, key_share=True)
    ).one_or_none()
    if owner is None:
        return None
    waiting = connection.execute(
        select(deliveries)
        .where(deliveries.c.channel == channel, deliveries.c.state.in_(("waiting", "gathered")))
        .order_by(deliveries.c.id)
        .limit(5 * GATHERED_MOST)
    ).all()
    ready = _in_order(waiting, now)
    end = quiet_until(owner.quiet, now)
    if end is not None:
        later = [row.id for row in ready if SEVERITIES.get(row.severity, 0) < SEVERITIES["critical"]]
        _put_off(connection, later, end, "quiet hours")
        ready = [row for row in ready if row.id not in set(later)]
    # What was begun already counts where it began, and its receiver may know its id: it goes on as it is.
    begun = [row for row in ready if row.lease or row.change == "digest"]
    if begun:
        return _lease(connection, owner, begun[0], now, lease_seconds)
    if not ready:
        return None
    since = now - owner.digest_seconds
    sent = _sent_since(connection, channel, since)
    under_way = sum(row.lease_until > now for row in waiting)
    if len(sent) + under_way >= owner.digest_most:
        free = (min(sent) + owner.digest_seconds) if sent else now + 1.0
        _put_off(connection, [row.id for row in ready], max(free, now + 0.05), _HELD)
        return None
    held = [row for row in ready if row.reason == _HELD]
    if len(held) > 1:
        return _gather(connection, owner, ready[:GATHERED_MOST], now, lease_seconds)
    return _lease(connection, owner, ready[0], now, lease_seconds)


def _in_order(waiting: Sequence[Row[Any]], now: float) -> list[Row[Any]]:
    """Returns what may be sent now, without those whose alert has an earlier change that may not."""
    blocked: set[int] = set()
    ready = []
    for row in waiting:
        if row.state == "gathered" or row.due_at > now or row.lease_until > now or row.alert in blocked:
            if row.alert is not None:
                blocked.add(row.alert)
        else:
            ready.append(row)
    return ready


def _sent_since(connection: Connection, channel: int, since: float) -> list[float]:
    """Returns when the channel's messages of a window were sent; a digest is one."""
    query = select(deliveries.c.done_at).where(
        deliveries.c.channel == channel,
        deliveries.c.state == "sent",
        deliveries.c.done_at > since,
        deliveries.c.digest.is_(None),
        deliveries.c.change.not_in(_TESTS),
    )
    return list(connection.scalars(query))


def _put_off(connection: Connection, ids: list[int], until: float, reason: str) -> None:
    if ids:
        connection.execute(update(deliveries).where(deliveries.c.id.in_(ids)).values(due_at=until, reason=reason))


def _lease(connection: Connection, owner: Row[Any], row: Row[Any], now: float, seconds: float) -> Leased:
    lease = uuid.uuid4().hex
    values = {"lease": lease, "lease_until": now + seconds, "attempts": row.attempts + 1}
    connection.execute(update(deliveries).where(deliveries.c.id == row.id).values(**values))
    alerts: Sequence[Row[Any]] = [row]
    if row.change == "digest":
        alerts = connection.execute(
            select(deliveries).where(deliveries.c.digest == row.id).order_by(deliveries.c.id)
        ).all()
    return Leased(row.id, row.uuid, lease, row.change, row.created_at, row.attempts + 1, owner, alerts)


def _gather(connection: Connection, owner: Row[Any], rows: Sequence[Row[Any]], now: float, seconds: float) -> Leased:
    """Makes one delivery of several and leases it."""
    worst = max((row.severity for row in rows), key=lambda severity: SEVERITIES.get(severity, 0))
    made = connection.execute(
        insert(deliveries)
        .values(
            uuid=str(uuid.uuid4()),
            channel=owner.id,
            change="digest",
            severity=worst,
            content={},
            state="waiting",
            reason="",
            created_at=rows[0].created_at,
            due_at=now,
            attempts=0,
            lease="",
            lease_until=0.0,
        )
        .returning(*deliveries.c)
    ).one()
    members = [row.id for row in rows]
    connection.execute(
        update(deliveries).where(deliveries.c.id.in_(members)).values(state="gathered", reason="", digest=made.id)
    )
    return _lease(connection, owner, made, now, seconds)


def add_test(connection: Connection, channel: Row[Any], now: float, lease_seconds: float) -> Leased:
    """Writes a test message down and leases it, for the one who sends it at once."""
    row = connection.execute(
        insert(deliveries)
        .values(
            uuid=str(uuid.uuid4()),
            channel=channel.id,
            change="test",
            severity="info",
            content={},
            state="waiting",
            reason="",
            created_at=now,
            due_at=now,
            attempts=0,
            lease="",
            lease_until=0.0,
        )
        .returning(*deliveries.c)
    ).one()
    return _lease(connection, channel, row, now, lease_seconds)


def mark_sent(connection: Connection, leased: Leased, now: float) -> None:
    """Notes that a delivery arrived, whoever holds its lease by now."""
    values = {"state": "sent", "reason": "", "done_at": now, "lease_until": 0.0}
    _finish(connection, deliveries.c.id == leased.id, values)


def mark_failed(connection: Connection, leased: Leased, reason: str, now: float) -> None:
    """Notes that a delivery will never arrive."""
    values = {"state": "failed", "reason": reason, "done_at": now, "lease_until": 0.0}
    _finish(connection, (deliveries.c.id == leased.id) & (deliveries.c.lease == leased.lease), values)


def mark_waiting(connection: Connection, leased: Leased, reason: str, due_at: float) -> None:
    """Notes that a delivery is to be tried again."""
    connection.execute(
        update(deliveries)
        .where(deliveries.c.id == leased.id, deliveries.c.lease == leased.lease, deliveries.c.state == "waiting")
        .values(reason=reason, due_at=due_at, lease_until=0.0)
    )


def give_up(connection: Connection, now: float, after: float) -> int:
    """Ends what could not be sent for long; returns how many.

    Args:
        connection: Of a write transaction.
        now: The server's clock.
        after: Seconds since the alert changed.
    """
    too_old = (
        (deliveries.c.state == "waiting") & (deliveries.c.created_at < now - after) & (deliveries.c.lease_until <= now)
    )
    old = connection.execute(select(deliveries.c.id, deliveries.c.reason).where(too_old)).all()
    for row in old:
        reason = f"It could not be delivered within {round(after / 3600)} hours: {row.reason or 'the channel was off'}"
        _finish(
            connection, deliveries.c.id == row.id, {"state": "failed", "reason": reason, "done_at": now, "lease": ""}
        )
    return len(old)


def is_anything_old(connection: Connection, now: float, after: float) -> bool:
    """Tells whether :func:`give_up` has something to do."""
    query = select(deliveries.c.id).where(deliveries.c.state == "waiting", deliveries.c.created_at < now - after)
    return connection.execute(query.limit(1)).first() is not None


def _finish(connection: Connection, where: Any, values: dict[str, Any]) -> None:
    """Ends a delivery, and with a digest what it gathered."""
    chosen = select(deliveries.c.id).where(where, deliveries.c.state == "waiting")
    ids = list(connection.scalars(chosen))
    if not ids:
        return
    done: Update = update(deliveries).where(or_(deliveries.c.id.in_(ids), deliveries.c.digest.in_(ids)))
    connection.execute(done.values(**values))
