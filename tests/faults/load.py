"""Load that survives faults: agents that ship as fast as they are acknowledged, a real agent, and what was stored."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import zstandard
from sqlalchemy.exc import SQLAlchemyError

from tests.agent.scripted import ending, find_source, node_folder, start_agent, start_rank
from tests.server.shipping import T0, batch, shipment, started, step
from trainwatch import events, journal
from trainwatch.events import Event, StepEnded
from trainwatch.server.db import Database
from trainwatch.server.store import points, records
from trainwatch.shipment import Acknowledgement

_HEADERS = {"content-type": "application/msgpack", "content-encoding": "zstd"}


@dataclass
class Count:
    """What came of a scenario.

    Attributes:
        scenario: Its name.
        faults: How many faults there were.
        acknowledged: Events that a server said were stored.
        stored: Steps in the database at the end.
        lost: Events that were acknowledged and are not there.
        double: Steps that are there twice.
        reported: Events that were never acknowledged and are counted with a reason.
        seconds: How long it took.
        notes: Whatever else there is to say.
    """

    scenario: str
    faults: int = 0
    acknowledged: int = 0
    stored: int = 0
    lost: int = 0
    double: int = 0
    reported: int = 0
    seconds: float = 0.0
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether nothing acknowledged is lost and nothing is double."""
        return self.lost == 0 and self.double == 0

    def line(self) -> str:
        """The count as a line of JSON."""
        return json.dumps(asdict(self) | {"sound": self.sound})


class Shipper(threading.Thread):
    """An agent without a journal: its events can be made again from their number. It tries one server after the other.

    Args:
        urls: The servers.
        run: Its run.
        pause: Seconds between two shipments.
        patience: Seconds that it waits for an answer.
        token: What it shows.
    """

    def __init__(
        self, urls: Sequence[str], run: str, *, pause: float = 0.0, patience: float = 6.0, token: str = ""
    ) -> None:
        super().__init__(daemon=True, name=run)
        self.run_id = run
        self.acknowledged = 0
        self.sent = 0
        self.forgotten = 0
        self.refused = 0
        self.answers = 0
        self._urls = [urlsplit(url) for url in urls]
        self._pause = pause
        self._patience = patience
        self._headers = _HEADERS | ({"authorization": f"Bearer {token}"} if token else {})
        self._chance = random.Random(run)
        self._over = threading.Event()

    def run(self) -> None:
        """Ships until it is over."""
        place = 0
        connection: http.client.HTTPConnection | None = None
        while not self._over.wait(self._pause):
            if connection is None:
                url = self._urls[place % len(self._urls)]
                connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=self._patience)
            try:
                self._ship(connection)
            except (OSError, http.client.HTTPException):
                connection.close()
                connection, place = None, place + 1
                self._over.wait(0.1)
        if connection is not None:
            connection.close()

    def end(self) -> None:
        """Ends it."""
        self._over.set()

    def _ship(self, connection: http.client.HTTPConnection) -> None:
        first, size = self.acknowledged, self._chance.choice([1, 5, 50, 300])
        content: list[Event] = [self._event(number) for number in range(first, first + size)]
        self.sent = max(self.sent, first + size)
        body = zstandard.compress(msgspec.msgpack.encode(shipment(batch(content, first=first, run=self.run_id))))
        connection.request("POST", "/api/ingest", body, self._headers)
        answer = connection.getresponse()
        received = answer.read()
        if answer.status != 200:
            self.refused += 1
            self._over.wait(0.1)
            return
        # More than was sent when an earlier one was stored and could not be answered any more.
        reached = msgspec.msgpack.decode(received, type=Acknowledgement).next[self.run_id]["rank0"]
        self.forgotten += max(0, first - reached)
        self.acknowledged = max(self.acknowledged, reached)
        self.answers += 1

    def _event(self, number: int) -> Event:
        return step(number, 1.0 / number, time=T0 + number) if number else started()


@contextmanager
def shipping(*shippers: Shipper) -> Iterator[None]:
    """Lets shippers ship while the block runs."""
    for shipper in shippers:
        shipper.start()
    try:
        yield
    finally:
        for shipper in shippers:
            shipper.end()
        for shipper in shippers:
            shipper.join(60)


def steps_of(database: Database, run: str, rank: int = 0) -> list[int]:
    """Returns the steps of a rank's loss as they lie in the database, one by one."""
    with database.read() as connection:
        for one in points.listed(connection, run, ["train/loss"]):
            if one.rank == rank:
                found: list[int] = points.read(connection, one.id).step.tolist()
                if len(found) != one.points:
                    raise AssertionError(f"{run}: the series counts {one.points} points, and there are {len(found)}")
                return found
    return []


def tally(count: Count, database: Database, shippers: Sequence[Shipper]) -> None:
    """Compares what shippers were told with what is stored."""
    for shipper in shippers:
        stored = steps_of(database, shipper.run_id)
        acknowledged = set(range(1, shipper.acknowledged))
        count.acknowledged += shipper.acknowledged
        count.stored += len(stored)
        count.lost += len(acknowledged.difference(stored)) + shipper.forgotten
        count.double += len(stored) - len(set(stored)) + len(set(stored).difference(range(1, shipper.sent)))


class Training:
    """A rank that writes a real journal, and the real agent beside it.

    Args:
        home: Where the journal is.
        server: Where the agent ships to.
        pause: Seconds between two steps.
        run: The run's id.
        token: What the agent shows.
    """

    def __init__(self, home: Path, server: str, *, pause: float = 0.005, run: str = "trained", token: str = "") -> None:
        self.run_id = run
        self.folder = node_folder(home, run)
        self._server, self._token = server, token
        self.rank = start_rank(self.folder, pause=pause)
        self._agents = [start_agent(self.folder, server, token=token)]

    def end(self) -> None:
        """Kills the rank; the agent, or one that is started later, ships what is left."""
        self.rank.kill()
        self.rank.wait(10)

    def close(self) -> None:
        """Leaves no process behind."""
        with ending(self.rank, *self._agents):
            pass

    def tally(self, count: Count, database: Database, seconds: float = 90.0) -> None:
        """Waits until everything is shipped, and compares the journal with what is stored."""
        source = find_source(self.folder, "rank0")
        written = list(_records(source))
        decoded = [events.decode(record.payload) for record in written]
        steps = [one.step for one in decoded if isinstance(one, StepEnded)]
        wanted = written[-1].sequence + 1
        deadline = time.monotonic() + seconds
        while _next(database, self.run_id, source.name) < wanted and time.monotonic() < deadline:
            time.sleep(0.2)
            # Once its ranks have ended, an agent that waits for an answer in vain leaves the rest to the next one.
            if self._agents[-1].poll() is not None:
                self._agents.append(start_agent(self.folder, self._server, token=self._token))
        stored = steps_of(database, self.run_id)
        count.acknowledged += _next(database, self.run_id, source.name)
        count.stored += len(stored)
        count.lost += len(set(steps).difference(stored))
        count.double += len(stored) - len(set(stored))


def _records(source: Path) -> Iterator[journal.Record]:
    reader = journal.Reader(source)
    while records_ := reader.read():
        yield from records_


def _next(database: Database, run: str, source: str) -> int:
    try:
        with database.read() as connection:
            found = records.sources_of(connection, run, [source]).get(source)
    except SQLAlchemyError:
        return 0
    return 0 if found is None else found.next
