"""Several servers deliver from one outbox: each message once, and each channel's in order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.patience import PATIENCE
from tests.server.locking import wait_for_a_lock
from tests.server.receiver import Answered, Receiver
from tests.server.telling import Telling, finding
from trainwatch.server.db import Database
from trainwatch.server.delivery.addresses import Guard
from trainwatch.server.delivery.sender import Sender
from trainwatch.server.store import deliveries as store

SERVERS = 4
DAY = 24 * 3600.0


@pytest.fixture
def senders(telling: Telling) -> Iterator[list[Sender]]:
    """The senders of several servers, each with connections of its own."""
    databases = [Database(telling.database.url) for _ in range(SERVERS)]
    yield [Sender(database, lambda: telling.now, guard=Guard(["127.0.0.1"])) for database in databases]
    for database in databases:
        database.close()


def drain(many: list[Sender], channels: list[int]) -> list[int]:
    """Has all senders send all channels' deliveries at the same time; returns how many attempts each made."""
    made = [0] * len(many)
    begin = threading.Barrier(len(many))

    def work(number: int) -> None:
        begin.wait(PATIENCE)
        made[number] = sum(many[number].drain(channel) for channel in channels)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(many))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    return made


def test_each_message_is_sent_by_one_of_them(telling: Telling, receiver: Receiver, senders: list[Sender]) -> None:
    channels = [telling.channel(f"{receiver.url}/{number}") for number in range(3)]
    telling.tell(*(finding(moment, key=str(moment)) for moment in range(1, 21)))
    receiver.script = [Answered(wait=0.01)] * 60
    made = drain(senders, channels)
    while sum(made) < 60:  # one that finds a channel's next delivery leased by another has nothing to do just then
        more = drain(senders, channels)
        assert sum(more), "what is left is sent by nobody"
        made = [one + other for one, other in zip(made, more, strict=True)]
    assert max(Counter(taken.delivery for taken in receiver.taken).values()) == 1
    assert len(receiver.taken) == 60
    by_path: dict[str, list[str]] = {}
    for taken in receiver.taken:
        by_path.setdefault(taken.path, []).append(taken.json["alerts"][0]["key"])
    assert {path: sorted(keys, key=int) for path, keys in by_path.items()} == {
        path: [str(moment) for moment in range(1, 21)] for path in by_path
    }
    assert len(by_path) == 3
    assert telling.states() == ["sent"] * 60


def test_what_one_took_up_and_never_finished_another_sends_later_with_the_same_id(
    telling: Telling, receiver: Receiver, senders: list[Sender]
) -> None:
    channel = telling.channel(receiver.url)
    telling.tell(finding(1))
    frozen, other = senders[:2]
    leased = frozen.lease(channel)
    assert leased is not None
    assert other.drain(channel) == 0, "it is leased"
    telling.now += 600
    assert other.drain(channel) == 1
    frozen.attempt(leased)  # it wakes up, and does not know
    assert [taken.delivery for taken in receiver.taken] == [leased.uuid] * 2
    assert receiver.taken[0].body == receiver.taken[1].body
    assert telling.states() == ["sent"]


def test_what_another_takes_up_just_now_is_not_given_up(telling: Telling, receiver: Receiver) -> None:
    if telling.database.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time: nobody takes anything up meanwhile")
    channel = telling.channel(receiver.url)
    telling.tell(finding(1))
    telling.now += DAY + 60
    ended: list[int] = []

    def give_up() -> None:
        with telling.database.write() as connection:
            ended.append(store.give_up(connection, telling.now, DAY))

    with telling.database.write() as connection:
        leased = store.claim(
            connection, channel, now=telling.now, lease_seconds=30, quiet_until=lambda _quiet, _now: None
        )
        assert leased is not None
        thread = threading.Thread(target=give_up)
        thread.start()
        wait_for_a_lock(telling.database.engine)
    thread.join(PATIENCE)
    assert ended == [0]
    [row] = telling.rows()
    assert (row.state, row.lease) == ("waiting", leased.lease)
    telling.now += 31
    give_up()
    assert (ended, telling.states()) == ([0, 1], ["failed"])
