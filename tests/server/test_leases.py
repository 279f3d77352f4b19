"""Leases: one owner at a time, by the database's clock, and an owner of before changes nothing any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import select, update

from trainwatch.server.db import Database, guarded
from trainwatch.server.models import leases as table
from trainwatch.server.store import leases
from trainwatch.server.store.leases import Lease, Outdated

LONG = 3600.0


def keep(database: Database, owner: str, *names: str, seconds: float = LONG) -> dict[str, int]:
    with database.write() as connection:
        held = leases.keep(connection, names or ("work",), owner, seconds)
    assert all(lease.owner == owner and lease.name == name for name, lease in held.leases.items())
    return {name: lease.fence for name, lease in held.leases.items()}


def expire(database: Database, name: str = "work") -> None:
    with database.write() as connection:
        connection.execute(update(table).where(table.c.name == name).values(expires_at=1.0))


def owners(database: Database) -> dict[str, str]:
    with database.read() as connection:
        return {row.name: row.owner for row in connection.execute(select(table))}


def test_one_holds_it_until_it_ends(database: Database) -> None:
    assert keep(database, "a") == {"work": 1}
    assert keep(database, "b") == {}
    assert keep(database, "a") == {"work": 1}, "renewed, not begun anew"
    expire(database)
    assert keep(database, "a") == {"work": 1}, "nobody took it meanwhile"
    expire(database)
    assert keep(database, "b") == {"work": 2}
    assert keep(database, "a") == {}


def test_it_ends_by_the_databases_clock(database: Database) -> None:
    assert keep(database, "a", seconds=0.3) == {"work": 1}
    assert keep(database, "b") == {}
    deadline = time.monotonic() + 20
    while not keep(database, "b"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with database.read() as connection:
        now, asked_at = leases.clock(connection)
    assert abs(now - time.time()) < 5, "here both run by one clock"
    assert abs(asked_at - time.monotonic()) < 5


def test_each_job_has_its_own(database: Database) -> None:
    assert keep(database, "a", "one", "two") == {"one": 1, "two": 1}
    expire(database, "two")
    assert keep(database, "b", "one", "two", "three") == {"two": 2, "three": 1}


def test_what_is_given_back_is_taken_at_once(database: Database) -> None:
    keep(database, "a", "one", "two")
    keep(database, "b", "three")
    with database.write() as connection:
        leases.release(connection, "a")
    assert keep(database, "b", "one", "two") == {"one": 2, "two": 2}
    assert set(owners(database).values()) == {"b"}


def ended(database: Database, seconds: float) -> None:
    """Lets the lease have ended so many seconds ago."""
    with database.write() as connection:
        now, _ = leases.clock(connection)
        connection.execute(update(table).where(table.c.name == "work").values(expires_at=now - seconds))


def unbroken_since(database: Database) -> float:
    with database.read() as connection:
        return leases.unbroken_since(connection, "work")


def give_back(database: Database, owner: str) -> None:
    with database.write() as connection:
        leases.release(connection, owner)


@pytest.mark.parametrize("after", ["a", "b"])
def test_when_nobody_did_it_for_a_while_it_is_known_since_when_somebody_does(database: Database, after: str) -> None:
    assert unbroken_since(database) == 0.0
    keep(database, "a", seconds=6)
    ended(database, 5)
    assert abs(unbroken_since(database) - time.time()) < 5, "whether somebody does it is not known just now"
    keep(database, after, seconds=6)
    assert unbroken_since(database) == 0.0, "as long as it takes until another has it"
    ended(database, 7)
    keep(database, after, seconds=6)
    since = unbroken_since(database)
    assert abs(since - time.time()) < 5
    give_back(database, after)
    keep(database, "c", seconds=6)
    assert unbroken_since(database) == since, "it moved on, and is remembered"
    with database.read() as connection:
        assert leases.unbroken_since(connection, "other") == 0.0


def test_since_when_it_was_given_back_is_known(database: Database) -> None:
    keep(database, "a", seconds=6)
    give_back(database, "a")
    ended(database, 600)
    give_back(database, "")  # by nobody, or again: it is over since then and not since now
    keep(database, "b", seconds=6)
    assert abs(unbroken_since(database) - time.time()) < 5


def test_of_many_who_want_it_at_once_one_gets_it(database: Database) -> None:
    for round_ in range(1, 6):
        together = threading.Barrier(6)

        def want(owner: str, together: threading.Barrier = together) -> dict[str, int]:
            together.wait(20)
            return keep(database, owner)

        with ThreadPoolExecutor(6) as pool:
            held = [one for one in pool.map(want, (f"{round_}-{n}" for n in range(6))) if one]
        assert held == [{"work": round_}]
        expire(database)


def test_an_owner_of_before_changes_nothing(database: Database) -> None:
    keep(database, "a")
    before = Lease("work", "a", 1)

    def do(lease: Lease, value: str) -> None:
        with guarded(lambda connection: leases.check(connection, lease)), database.write() as connection:
            connection.execute(table.insert().values(name=value, owner="", fence=0, expires_at=0.0))

    do(before, "first")
    expire(database)
    do(before, "second")
    keep(database, "b")
    with pytest.raises(Outdated):
        do(before, "third")
    do(Lease("work", "b", 2), "fourth")
    assert {"first", "second", "fourth"} < owners(database).keys()
    assert "third" not in owners(database)
    with database.write() as connection:  # not guarded any more
        connection.execute(table.insert().values(name="fifth", owner="", fence=0, expires_at=0.0))


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(20)
        assert not thread.is_alive()


def test_while_a_transaction_works_in_its_name_a_lease_is_renewed_and_not_taken(database: Database) -> None:
    """What was checked at the begin of the transaction holds until its end."""
    if database.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time: nobody renews or takes anything meanwhile")
    keep(database, "a")
    expire(database)
    working, leave = threading.Event(), threading.Event()

    def work() -> None:
        lease = Lease("work", "a", 1)
        with guarded(lambda connection: leases.check(connection, lease)), database.write():
            working.set()
            leave.wait(20)

    with beside(work):
        try:
            assert working.wait(20)
            assert keep(database, "b") == {}, "it is over, but somebody works in its name just now"
            assert keep(database, "a") == {"work": 1}
        finally:
            leave.set()
    expire(database)
    assert keep(database, "b") == {"work": 2}
