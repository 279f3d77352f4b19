"""Shipping against a server that does everything a server can do wrong. The clock stands still: nothing waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.scripted import NODE, RUN, Clock, Rank, Server, Store, node_folder, serving, step
from trainwatch import events, journal
from trainwatch.agent.link import Link, Meaning, Reply, backoff, judge
from trainwatch.agent.ship import SHIP_SECONDS, SHIPMENT_BYTES, SLOW_RETRY_SECONDS, Shipper
from trainwatch.agent.trouble import Trouble
from trainwatch.events import TroubleCounted
from trainwatch.shipment import Command, Shipment, decode_commands


class Bench:
    """A shipper, a server and a clock."""

    def __init__(self, home: Path, server: Server) -> None:
        self.server = server
        self.node_directory = node_folder(home)
        self.clock = Clock()
        self.log = home / "log"
        self.trouble = Trouble(self.clock, os.open(self.log, os.O_CREAT | os.O_RDWR | os.O_APPEND))
        self.link = Link(server.url, connect_seconds=2, read_seconds=0.3)
        self.shipper = self.new_shipper()

    def new_shipper(self) -> Shipper:
        return Shipper(self.node_directory, self.link, self.trouble, self.clock)

    def run(self, steps: int = 60, seconds: float = 0.5) -> None:
        for _ in range(steps):
            self.clock.now += max(self.shipper.step(), seconds)

    def lost(self) -> dict[str, int]:
        event = self.trouble.take()
        return event.lost if isinstance(event, TroubleCounted) else {}

    def check(self, *ranks: Rank) -> None:
        for rank in ranks:
            kept = self.server.store.events[(RUN, rank.directory.name)]
            assert [kept[i] for i in range(len(rank.payloads))] == rank.payloads
            assert journal.acknowledged(rank.directory).sequence == len(rank.payloads)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with serving() as server:
        bench = Bench(tmp_path, server)
        yield bench
        bench.link.close()


def test_everything_arrives_once_with_run_project_node_and_rank(bench: Bench) -> None:
    ranks = [Rank(bench.node_directory, f"rank{i}") for i in range(3)] + [Rank(bench.node_directory, f"agent@{NODE}")]
    for rank in ranks:
        rank.start()
        rank.steps(1, 50)
    bench.run(5)
    bench.check(*ranks)
    assert set(bench.server.store.deliveries.values()) == {1}
    batch = bench.server.store.shipments[0].batches[0]
    assert (batch.run, batch.project, batch.node) == (RUN, "tests", NODE)
    found = {b.source: b.rank for s in bench.server.store.shipments for b in s.batches}
    assert found == dict(zip((rank.source for rank in ranks), (0, 1, 2, None), strict=True))
    assert bench.server.headers[0]["Content-Type"] == "application/msgpack"
    assert "Authorization" not in bench.server.headers[0]


def test_a_token_travels_as_a_bearer(bench: Bench) -> None:
    bench.link = Link(bench.server.url + "/", "secret")
    bench.shipper = bench.new_shipper()
    Rank(bench.node_directory).start()
    bench.run(2)
    assert bench.server.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "trouble", [500, 502, 503, (503, 0.5), 429, 408, "hang", "cut", "stored, cut", "garbage", "silent", 401, 404, 302]
)
def test_whatever_the_server_does_nothing_is_lost_and_nothing_kept_twice(bench: Bench, trouble: object) -> None:
    rank = Rank(bench.node_directory)
    rank.start()
    rank.steps(1, 20)
    bench.server.script = [trouble, trouble, 200, trouble]
    bench.run(8, seconds=40)
    rank.steps(21, 40)
    bench.run(8, seconds=40)
    bench.check(rank)
    assert not bench.server.script
    assert bench.lost() == {}


def test_a_server_that_is_not_there_is_asked_again_more_and_more_seldom(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    rank.start()
    bench.server.close()
    waits = []
    for _ in range(10):
        waits.append(bench.shipper.step())
        bench.clock.now += waits[-1]
    assert waits[0] <= 0.5
    assert 5 <= waits[-1] <= 10
    with serving(bench.server.store, bench.server.port) as back:
        bench.server = back
        bench.run(3)
        bench.check(rank)
    assert "the journal keeps everything" in bench.log.read_text()


def test_the_back_off_grows_to_a_limit_and_is_jittered() -> None:
    assert [backoff(n, chance=1.0) for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 10, 10]
    assert backoff(3, chance=0.0) == 1.0
    assert backoff(10_000, chance=1.0) == 10


def test_retry_after_is_honoured_also_in_a_hurry(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    rank.start()
    bench.server.script = [(503, 120)]
    assert bench.shipper.step() >= 120
    bench.shipper.hurry = True
    for _ in range(100):
        bench.clock.now += 1
        assert 0 < bench.shipper.step() <= 1
    assert len(bench.server.times) == 1
    bench.clock.now += 30
    bench.shipper.step()
    bench.check(rank)


def test_a_wrong_token_is_said_in_the_log_and_tried_slowly(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    rank.start()
    bench.server.script = [401] * 3
    waits = [bench.shipper.step()]
    bench.clock.now += waits[0]
    waits.append(bench.shipper.step())
    assert all(SLOW_RETRY_SECONDS / 2 <= wait <= SLOW_RETRY_SECONDS for wait in waits)
    assert "401" in bench.log.read_text()
    bench.run(5, seconds=30)
    bench.check(rank)


def test_a_shipment_too_large_is_split_until_it_fits(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    for _ in range(30):
        rank.write(events.StepEnded(time=1.0, step=1, values={os.urandom(6000).hex(): 1.0}))
    bench.server.largest = 40_000
    bench.run(80)
    bench.check(rank)
    assert bench.lost() == {}
    assert len([size for size in bench.server.sizes if size > 40_000]) < 12


def test_an_event_that_is_too_large_for_the_server_is_counted_and_the_others_arrive(bench: Bench) -> None:
    rank, other = Rank(bench.node_directory), Rank(bench.node_directory, "rank1")
    rank.steps(1, 30)
    rank.write(events.StepEnded(time=1.0, step=31, values={os.urandom(40_000).hex(): 1.0}))
    rank.steps(32, 60)
    other.steps(1, 50)
    bench.server.largest = 20_000
    bench.run(120)
    kept = bench.server.store.events[(RUN, rank.source)]
    assert sorted(set(range(60)) - set(kept)) == [30]
    assert bench.server.store.lost[(RUN, rank.source)] == 1
    bench.check(other)
    assert bench.lost() == {"too large for the server": 1}
    assert bench.shipper.empty_at > 0


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("place", [0, 17, 29])
def test_an_event_that_the_server_refuses_is_found_and_counted(bench: Bench, status: int, place: int) -> None:
    rank, other = Rank(bench.node_directory), Rank(bench.node_directory, "rank1")
    for number in range(30):
        rank.write(step(number + 1, **({"poison": 1.0} if number == place else {})))
    other.steps(1, 20)
    bench.server.refuse = lambda s: status if any(b"poison" in bytes(e) for b in s.batches for e in b.events) else 0
    bench.run(60)
    assert sorted(set(range(30)) - set(bench.server.store.events[(RUN, rank.source)])) == [place]
    bench.check(other)
    assert bench.lost() == {f"refused by the server ({status})": 1}
    # One that starts again asks once more, and comes to the same end.
    bench.shipper = bench.new_shipper()
    rank.steps(31, 40)
    bench.run(60)
    assert len(bench.server.store.events[(RUN, rank.source)]) == 39
    assert bench.server.store.lost[(RUN, rank.source)] == 1


def test_an_event_over_which_the_server_stumbles_holds_up_only_its_own_source(bench: Bench) -> None:
    rank, others = Rank(bench.node_directory), [Rank(bench.node_directory, f"rank{i}") for i in (1, 2)]
    rank.steps(1, 5)
    rank.write(step(6, poison=1.0))
    for other in others:
        other.steps(1, 20)
    bench.server.refuse = lambda s: 500 if any(b"poison" in bytes(e) for b in s.batches for e in b.events) else 0
    bench.run(100)
    for other in others:
        other.steps(21, 40)
    bench.run(100)
    bench.check(*others)
    assert len(bench.server.store.events[(RUN, rank.source)]) == 5
    assert len(bench.server.times) < 150
    bench.server.refuse = lambda s: 0  # repaired
    bench.run(60)
    bench.check(rank)
    assert bench.lost() == {}


def test_a_server_that_lost_its_database_gets_everything_again(bench: Bench) -> None:
    ranks = [Rank(bench.node_directory, f"rank{i}", segment_bytes=2000) for i in range(2)]
    for rank in ranks:
        rank.steps(1, 100)
    bench.run(5)
    bench.check(*ranks)
    bench.server.store = Store()
    for rank in ranks:
        rank.steps(101, 110)
    bench.run(12)
    bench.check(*ranks)


def test_a_server_that_has_more_than_was_noted_is_believed(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    rank.steps(1, 100)
    bench.run(3)
    (rank.directory / "acknowledged").unlink()
    bench.shipper = bench.new_shipper()
    rank.steps(101, 120)
    bench.run(5)
    bench.check(rank)
    assert bench.lost() == {}


def test_a_journal_made_anew_under_an_old_name_is_told(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    bench.server.store.next[(RUN, rank.source)] = 1000
    rank.steps(1, 10)
    bench.run(5)
    assert bench.lost() == {"the server has another journal of this name": 10}
    assert "use a new run id" in bench.log.read_text()


def test_records_that_cannot_be_read_are_told_as_lost(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    rank.steps(1, 30)
    file = next(rank.directory.glob("*.twj"))
    content = file.read_bytes()
    for number in (0, 10, 11, 20):
        content = content.replace(rank.payloads[number], bytes(len(rank.payloads[number])))
    file.write_bytes(content)
    bench.run(5)
    kept = bench.server.store.events[(RUN, rank.source)]
    assert sorted(set(range(30)) - set(kept)) == [0, 10, 11, 20]
    assert bench.server.store.lost[(RUN, rank.source)] == 4
    assert all(kept[number] == rank.payloads[number] for number in kept)


def test_a_backlog_goes_in_shipments_of_bounded_size_at_full_speed(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    for _ in range(60):
        rank.write(events.StepEnded(time=1.0, step=1, values={os.urandom(50_000).hex(): 1.0}))
    waits = []
    while bench.shipper.empty_at < 0:
        waits.append(bench.shipper.step())
    bench.check(rank)
    assert sum(wait == 0 for wait in waits) >= 5
    sizes = [sum(len(bytes(e)) for b in s.batches for e in b.events) for s in bench.server.store.shipments]
    assert max(sizes) < SHIPMENT_BYTES + 110_000


def test_a_heartbeat_names_the_run_when_nothing_happens(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    rank.start()
    bench.run(61)
    beats = [s for s in bench.server.store.shipments if not s.batches]
    assert 5 <= len(beats) <= 6
    assert beats[0].runs == [RUN]


def test_commands_reach_the_control_file_and_leave_it(bench: Bench) -> None:
    Rank(bench.node_directory).start()
    control = bench.node_directory / "control"
    bench.server.store.commands = [
        Command(id=2, run=RUN, action="checkpoint"),
        Command(id=1, run=RUN, action="halt", reason="why not"),
        Command(id=9, run="another", action="halt"),
    ]
    bench.run(1)
    commands = decode_commands(control.read_bytes())
    assert [(c.id, c.action, c.reason) for c in commands] == [(1, "halt", "why not"), (2, "checkpoint", "")]
    stamp = control.stat().st_ino
    bench.run(20)
    assert control.stat().st_ino == stamp
    bench.server.store.commands = []
    bench.run(20)
    assert decode_commands(control.read_bytes()) == []


def test_another_compression_is_used_when_the_server_does_not_know_ours(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    rank.steps(1, 100)
    bench.server.script = [415, 415]
    bench.run(5)
    bench.check(rank)
    assert bench.server.encodings[:3] == ["zstd", "gzip", "identity"]


def test_one_connection_serves_many_shipments_and_a_closed_one_costs_no_pause(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    for number in range(1, 6):
        rank.steps(number, number)
        assert bench.shipper.step() == SHIP_SECONDS
        assert bench.link._connection is not None
        if number == 3:
            bench.server.script = ["cut"]
    bench.check(rank)


def test_every_status_has_a_meaning() -> None:
    for status in range(100, 600):
        assert isinstance(judge(status), Meaning)
    assert judge(200) is Meaning.ACCEPTED
    assert judge(413) is Meaning.TOO_LARGE
    assert judge(403) is Meaning.NOT_ALLOWED
    assert judge(0) is Meaning.LATER
    assert str(Reply(500, b"  boom\n at line 3 ")) == "answer 500: boom at line 3"


@pytest.mark.parametrize("address", ["", "localhost:8420", "ftp://host", "http://"])
def test_an_address_that_is_none_is_refused_with_a_sentence(address: str) -> None:
    with pytest.raises(ValueError, match="is no server address"):
        Link(address)


def test_shipments_are_what_the_schema_says(bench: Bench) -> None:
    rank = Rank(bench.node_directory)
    rank.steps(1, 3)
    bench.shipper.step()
    shipment = bench.server.store.shipments[0]
    assert isinstance(shipment, Shipment)
    assert (shipment.node, shipment.sent_at, shipment.schema) == (NODE, bench.clock.now, events.SCHEMA_VERSION)
