"""What is to be sent: who sends which delivery now, what became of it, and every attempt.

A delivery is leased before it is sent: whoever dies while sending leaves it to another once the lease has run out. So
each is sent at least once, and after a death in the wrong moment twice, under the same id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, FromClause, Row, and_, case, func, insert, select, update

from trainwatch.rules.base import SEVERITIES
from trainwatch.server.models import channels, deliveries

GATHERED_MOST: Final = 200
"""How many deliveries one digest holds."""
_QUIET: Final = "quiet hours"
_HELD: Final = "more than the channel takes at a time; gathered into one message"
_TESTS: Final = ("test",)
_CRITICAL: Final = "critical"


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

    1. What is due in quiet hours, is not critical and leads to nothing critical is put off until they end.
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
    end = quiet_until(owner.quiet, now)
    if end is not None:
        _hush(connection, channel, now, end)
    ready = _ready(connection, channel, now)
    if not ready:
        return None
    # What was begun already counts where it began, and its receiver may know its id: it goes on as it is.
    if ready[0].lease or ready[0].change == "digest":
        return _lease(connection, owner, ready[0], now, lease_seconds)
    free_at = _free_at(connection, owner, now)
    if free_at is not None:
        _hold(connection, channel, now, free_at)
        return None
    return _begin(connection, owner, ready[0], now, lease_seconds)


def _begin(connection: Connection, owner: Row[Any], oldest: Row[Any], now: float, seconds: float) -> Leased | None:
    """Leases what a channel sends first of what it did not begin: the oldest, or what was held, as one message."""
    held = deliveries.c.reason == _HELD
    if len(_ready(connection, owner.id, now, held, most=2)) < 2:
        return _lease(connection, owner, oldest, now, seconds)
    digest = connection.execute(
        select(deliveries.c.due_at).where(
            deliveries.c.channel == owner.id, deliveries.c.state == "waiting", deliveries.c.change == "digest"
        )
    ).first()
    if digest is None:
        return _gather(connection, owner, _ready(connection, owner.id, now, most=GATHERED_MOST), now, seconds)
    # A receiver that did not take one digest is given no other: while it is away they would only become many. What is
    # new still goes out alone, as far as the window allows.
    if digest.due_at > now:
        _hold(connection, owner.id, now, digest.due_at, held)
    new = _ready(connection, owner.id, now, ~held)
    return _lease(connection, owner, new[0], now, seconds) if new else None


def _due(channel: int, now: float) -> ColumnElement[bool]:
    """Returns what is true of deliveries that wait for nothing but their turn."""
    return and_(
        deliveries.c.channel == channel,
        deliveries.c.state == "waiting",
        deliveries.c.due_at <= now,
        deliveries.c.lease_until <= now,
    )


def _in_turn(channel: int, now: float) -> ColumnElement[bool]:
    """Returns what is true of deliveries whose alert has no earlier change that has to come before and may not now.

    An earlier one that is due as well is no obstacle: it goes before, or into the same digest.
    """
    earlier = deliveries.alias("earlier")
    kept = (earlier.c.due_at > now) | (earlier.c.lease_until > now)
    return ~_has_other(
        earlier,
        (earlier.c.channel == channel)
        & (earlier.c.id < deliveries.c.id)
        & ((earlier.c.state == "gathered") | ((earlier.c.state == "waiting") & kept)),
    )


def _has_other(other: FromClause, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Returns what is true of deliveries to whose alert belongs another one of which the condition is true.

    The condition is wrapped, so that Postgres finds the other by its alert alone. When thousands come at once, its
    statistics still say that next to none waits, and it would go through all that wait for each that waits.
    """
    found = select(other.c.id).where(other.c.alert == deliveries.c.alert, case((condition, True), else_=False))
    return found.correlate(deliveries).exists()


def _ready(
    connection: Connection, channel: int, now: float, *also: ColumnElement[bool], most: int = 1
) -> Sequence[Row[Any]]:
    """Returns what a channel may send now: what was begun before, then the oldest.

    Args:
        connection: Of a write transaction.
        channel: The channel's id.
        now: The server's clock.
        also: What else is to be true.
        most: How many are wanted. Thousands may wait, and each has its evidence with it.
    """
    begun = (deliveries.c.lease != "") | (deliveries.c.change == "digest")
    query = select(deliveries).where(_due(channel, now), *also, _in_turn(channel, now))
    return connection.execute(query.order_by(case((begun, 0), else_=1), deliveries.c.id).limit(most)).all()


def _hush(connection: Connection, channel: int, now: float, end: float) -> None:
    """Puts off what is not critical until the quiet hours end.

    But not what leads to something critical: that goes before it, as the changes of an alert are told in their order.
    """
    later = deliveries.alias("later")
    leads = _has_other(
        later,
        (later.c.channel == channel)
        & (later.c.id > deliveries.c.id)
        & (later.c.state == "waiting")
        & (later.c.severity == _CRITICAL),
    )
    put_off = (deliveries.c.state == "waiting") & (deliveries.c.reason == _QUIET) & (deliveries.c.due_at > now)
    connection.execute(
        update(deliveries).where(deliveries.c.channel == channel, put_off, leads).values(due_at=now, reason="")
    )
    connection.execute(
        update(deliveries)
        .where(_due(channel, now), deliveries.c.severity != _CRITICAL, ~leads)
        .values(due_at=end, reason=_QUIET)
    )


def _hold(connection: Connection, channel: int, now: float, until: float, *which: ColumnElement[bool]) -> None:
    """Puts off what a channel may send now, to be gathered then."""
    connection.execute(
        update(deliveries).where(_due(channel, now), *which, _in_turn(channel, now)).values(due_at=until, reason=_HELD)
    )


def _free_at(connection: Connection, owner: Row[Any], now: float) -> float | None:
    """Returns when a channel takes the next message after those of its window; None: now."""
    sent = _sent_since(connection, owner.id, now - owner.digest_seconds)
    under_way = connection.scalar(
        select(func.count())
        .select_from(deliveries)
        .where(deliveries.c.channel == owner.id, deliveries.c.state == "waiting", deliveries.c.lease_until > now)
    )
    if len(sent) + (under_way or 0) < owner.digest_most:
        return None
    return max(min(sent) + owner.digest_seconds if sent else now + 1.0, now + 0.05)


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
    ended = 0
    for row in connection.execute(select(deliveries.c.id, deliveries.c.reason).where(too_old)).all():
        reason = f"It could not be delivered within {round(after / 3600)} hours: {row.reason or 'the channel was off'}"
        values = {"state": "failed", "reason": reason, "done_at": now, "lease": ""}
        # Whether it is leased is looked at once more: somebody may send it just now.
        ended += _finish(connection, (deliveries.c.id == row.id) & too_old, values)
    return ended


def is_anything_old(connection: Connection, now: float, after: float) -> bool:
    """Tells whether :func:`give_up` has something to do."""
    query = select(deliveries.c.id).where(deliveries.c.state == "waiting", deliveries.c.created_at < now - after)
    return connection.execute(query.limit(1)).first() is not None


def _finish(connection: Connection, where: ColumnElement[bool], values: dict[str, Any]) -> bool:
    """Ends a delivery if it waits, and with a digest what it gathered; returns whether there was one."""
    done = update(deliveries).where(where, deliveries.c.state == "waiting").values(**values)
    ids = list(connection.scalars(done.returning(deliveries.c.id)))
    if ids:
        connection.execute(update(deliveries).where(deliveries.c.digest.in_(ids)).values(**values))
    return bool(ids)
