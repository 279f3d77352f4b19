"""Leases: which server does a job that only one may do, for how long, and whether it still may.

Two means keep a job from being done by two. A lease ends by the database's clock, so that the clocks of the servers do
not matter. And each new owner gets a greater number, the fence: a server that was frozen, and believes that it is the
owner, is refused by the transaction in which it wants to change something.

When a job goes on after nobody held its lease for a while, a row ``… resumed`` says since when: who looks for silence
must know since when anybody listens. It stays when the lease moves from one server to another.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, case, select, text, update

from trainwatch.server.db import insert_for
from trainwatch.server.models import leases

_CLOCK: Final = {
    "postgresql": text("SELECT extract(epoch FROM clock_timestamp())::double precision"),
    # SQLite's is this machine's, as is its file.
    "sqlite": text("SELECT (julianday('now') - 2440587.5) * 86400.0"),
}


_RESUMED: Final = " resumed"
_ENDS: Final = select(leases.c.name, leases.c.expires_at).where(leases.c.name.in_(bindparam("names", expanding=True)))
_MOMENT: Final = 0.01
"""Seconds by which a lease that is given back is over, so that it is over for whoever looks at the same moment."""


class Outdated(Exception):
    """Another server has taken over the job in whose name something was to be changed."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to do a job, as an owner knows it."""

    name: str
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class Hold:
    """What an owner holds.

    Attributes:
        leases: Its leases, by name.
        now: The database's clock, in Unix seconds.
        asked_at: This process's monotonic clock at the same moment, in the middle of question and answer.
    """

    leases: dict[str, Lease]
    now: float
    asked_at: float


def clock(connection: Connection) -> tuple[float, float]:
    """Returns the database's clock in Unix seconds, and this process's monotonic clock at that moment."""
    before = time.monotonic()
    now = float(connection.execute(_CLOCK[connection.dialect.name]).scalar_one())
    return now, (before + time.monotonic()) / 2


def keep(connection: Connection, names: Collection[str], owner: str, seconds: float) -> Hold:
    """Renews the leases that `owner` holds, and takes those that nobody holds any more.

    Args:
        connection: A write transaction.
        names: The jobs' names.
        owner: Who wants to do them; the same name for the whole life of a server, and no other's.
        seconds: How long they are its to do from now on.

    Returns:
        What it holds.
    """
    now, asked_at = clock(connection)
    wanted = sorted(names)
    ends = {row.name: row.expires_at for row in connection.execute(_ENDS, {"names": wanted})}
    renew = (
        update(leases)
        .where(leases.c.name.in_(wanted), leases.c.owner == owner)
        .values(expires_at=now + seconds)
        .returning(leases.c.name, leases.c.fence)
    )
    held = {row.name: Lease(row.name, owner, row.fence) for row in connection.execute(renew)}
    for name in wanted:
        if name not in held:
            taken = _take(connection, name, owner, now, seconds)
            if taken is not None:
                held[name] = taken
    _note_breaks(connection, [name for name in held if ends.get(name, now) < now - seconds], now)
    return Hold(held, now, asked_at)


def _note_breaks(connection: Connection, names: Collection[str], now: float) -> None:
    """Notes that jobs go on only now: longer than it takes to notice that an owner is gone, nobody did them."""
    for name in names:
        note = insert_for(connection.dialect.name, leases).values(
            name=name + _RESUMED, owner="", fence=0, expires_at=now
        )
        connection.execute(note.on_conflict_do_update(index_elements=["name"], set_={"expires_at": now}))


def unbroken_since(connection: Connection, name: str) -> float:
    """Returns since when a job is done without a break, whichever servers did it; 0: since its begin.

    While the lease is over that is now: whether there was a break is not known before it is renewed or taken.

    Args:
        connection: A transaction.
        name: The job's name.
    """
    now, _ = clock(connection)
    found = {row.name: row.expires_at for row in connection.execute(_ENDS, {"names": [name, name + _RESUMED]})}
    return now if found.get(name, now) < now else found.get(name + _RESUMED, 0.0)


def _take(connection: Connection, name: str, owner: str, now: float, seconds: float) -> Lease | None:
    """Takes a lease that is over or never was; None when it is somebody's."""
    query = select(leases.c.fence, leases.c.expires_at).where(leases.c.name == name)
    row = connection.execute(query).one_or_none()
    if row is None:
        fresh = insert_for(connection.dialect.name, leases).values(
            name=name, owner=owner, fence=1, expires_at=now + seconds
        )
        made = connection.scalar(fresh.on_conflict_do_nothing().returning(leases.c.fence))
        return None if made is None else Lease(name, owner, made)
    if row.expires_at >= now:
        return None
    # Not waiting: whoever holds the lock takes the lease too, or works in its name just now (see `check`).
    row = connection.execute(query.with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        return None
    change = (
        update(leases)
        .where(leases.c.name == name, leases.c.fence == row.fence, leases.c.expires_at < now)
        .values(owner=owner, fence=row.fence + 1, expires_at=now + seconds)
    )
    return Lease(name, owner, row.fence + 1) if connection.execute(change).rowcount == 1 else None


def check(connection: Connection, lease: Lease) -> None:
    """Makes sure that a job is still `lease.owner`'s to do, and that it stays so until the transaction ends.

    A lease that is over and was taken by nobody is still good. On Postgres the lock lets the owner renew its lease
    meanwhile and keeps others from taking it.

    Raises:
        Outdated: It is another's now.
    """
    query = select(leases.c.name).where(
        leases.c.name == lease.name, leases.c.owner == lease.owner, leases.c.fence == lease.fence
    )
    if connection.execute(query.with_for_update(read=True, key_share=True)).one_or_none() is None:
        raise Outdated(lease.name)


def release(connection: Connection, owner: str) -> None:
    """Gives back all that an owner holds, so that others need not wait. Since when nobody does it stays known."""
    over = clock(connection)[0] - _MOMENT
    earlier = case((leases.c.expires_at < over, leases.c.expires_at), else_=over)
    connection.execute(update(leases).where(leases.c.owner == owner).values(owner="", expires_at=earlier))
