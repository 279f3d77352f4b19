"""A simulated fleet on Postgres and two servers: thousands of ranks at a step a second, 14 series each.

Each node is an agent of eight ranks with a connection of its own to one of the servers. It ships once a second what its
ranks recorded since, as the real agent does, and goes on where the server says; one that is late ships more at once.
At the end the points in the database are counted, and the steps of every rank are compared with those that were sent.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import zstandard
from sqlalchemy import Connection, Select, func, select

from benchmarks.support.report import Report, options, quantile, say
from benchmarks.support.shipments import step
from benchmarks.support.stores import POSTGRES_SETTINGS
from tests.faults.servers import Replica
from tests.postgres import running_postgres
from trainwatch import events
from trainwatch.server.db import Database
from trainwatch.server.models import chunks, points, series
from trainwatch.server.store import points as store
from trainwatch.shipment import Acknowledgement, Batch, Shipment

RANKS_A_NODE: Final = 8
NODES_A_RUN: Final = 5
SERIES: Final = 14
_MOST_AT_ONCE: Final = 60
"""Seconds of steps in one shipment, for an agent that is late."""
_MADE: Final = 512


@dataclass
class Seen:
    """What the agents saw.

    Attributes:
        took: Seconds from sending a shipment to its acknowledgement.
        refused: Shipments that were not acknowledged and sent again.
        behind: Steps that the slowest agent was behind, when it shipped.
    """

    took: list[float] = field(default_factory=list)
    refused: int = 0
    behind: int = 0


class Node:
    """An agent with its ranks.

    Args:
        number: Which.
        port: Its server's.
        made: Steps to choose from.
        seen: Where to count.
    """

    def __init__(self, number: int, port: int, made: list[events.StepEnded], seen: Seen) -> None:
        self._run = f"fleet-{number // NODES_A_RUN}"
        self._node = f"node-{number}"
        self._first = number % NODES_A_RUN * RANKS_A_NODE
        self._port = port
        self._made = made
        self._seen = seen
        self._shift = number * 17
        self._next = 0
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def work(self, began: float, phase: float, steps: int) -> None:
        """Ships a step a second of each rank, and ends when all are acknowledged."""
        due = began + phase
        while self._next < steps + 1:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            reached = min(steps, max(1, int(time.monotonic() - began - phase) + 1))
            self._seen.behind = max(self._seen.behind, reached - self._next)
            sent = time.monotonic()
            try:
                await self._ship(self._next, min(reached + 1, self._next + _MOST_AT_ONCE))
            except (OSError, EOFError, ValueError):
                self._seen.refused += 1
                if self._line is not None:
                    self._line[1].close()
                    self._line = None
                await asyncio.sleep(0.5)
                continue
            now = time.monotonic()
            self._seen.took.append(now - sent)
            due = began + phase + int(now - began - phase) + 1
        if self._line is not None:
            self._line[1].close()

    async def _ship(self, first: int, until: int) -> None:
        batches = [
            Batch(
                run=self._run,
                project="fleet",
                node=self._node,
                source=f"rank{rank}",
                rank=rank,
                first=first,
                events=[msgspec.Raw(events.encode(self._event(rank, number))) for number in range(first, until)],
            )
            for rank in range(self._first, self._first + RANKS_A_NODE)
        ]
        shipment = Shipment(batches=batches, node=self._node, sent_at=time.time(), runs=[self._run])
        body = zstandard.compress(msgspec.msgpack.encode(shipment), 1)
        status, received = await self._post(body)
        if status != 200:
            raise ValueError(f"answered {status}")
        reached = set(msgspec.msgpack.decode(received, type=Acknowledgement).next[self._run].values())
        if reached != {until}:
            raise ValueError(f"{self._run}: sent up to {until}, stored up to {reached}")
        self._next = until

    def _event(self, rank: int, number: int) -> events.Event:
        if number == 0:
            return events.RunStarted(
                time=time.time(), name=self._run, pid=rank + 1, max_steps=10**6, world_size=NODES_A_RUN * RANKS_A_NODE
            )
        made = self._made[(number + self._shift + rank) % len(self._made)]
        return msgspec.structs.replace(made, step=number, time=time.time())

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        if self._line is None:
            self._line = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._line
        head = (
            "POST /api/ingest HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
            f"Content-Encoding: zstd\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        headers = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:] if b": " in line)
        content = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        return int(answer.split(b" ", 2)[1]), content


async def drive(replicas: list[Replica], nodes: int, steps: int, seen: Seen, memory: list[list[int]]) -> float:
    """Lets the fleet train; returns the seconds that it took until all was acknowledged."""
    chance = random.Random(1)
    made = [step(number, chance) for number in range(_MADE)]
    fleet = [Node(number, replicas[number % len(replicas)].port, made, seen) for number in range(nodes)]
    began = time.monotonic()
    working = asyncio.gather(*(node.work(began, number / nodes, steps) for number, node in enumerate(fleet)))
    while not working.done():
        memory.append([replica.resident() for replica in replicas])
        await asyncio.wait([working], timeout=10)
    await working
    return time.monotonic() - began


def count(database: Database, ranks: int, steps: int) -> tuple[int, int, int]:
    """Counts in the database.

    Returns:
        Stored points, lost ones, and double ones.
    """
    with database.read() as connection:
        counted = _by_series(connection, select(series.c.id, series.c.points))
        rows = _by_series(connection, select(points.c.series, func.count()).group_by(points.c.series))
        packed = _by_series(connection, select(chunks.c.series, func.sum(chunks.c.points)).group_by(chunks.c.series))
        stored = {one: rows.get(one, 0) + packed.get(one, 0) for one in counted}
        lost = max(0, ranks * SERIES - len(stored)) * steps + sum(max(0, steps - found) for found in stored.values())
        double = sum(max(0, found - steps) for found in stored.values())
        double += sum(counted[one] != found for one, found in stored.items())
        # And of one series of every rank each step, by its number.
        losses = connection.scalars(select(series.c.id).where(series.c.metric == "train/loss")).all()
        for one in losses:
            found = store.read(connection, one).step.tolist()
            lost += len(set(range(1, steps + 1)).difference(found))
            double += len(found) - len(set(found))
    return sum(stored.values()), lost, double


def _by_series(connection: Connection, query: Select[Any]) -> dict[int, int]:
    return {row[0]: int(row[1]) for row in connection.execute(query)}


def main() -> None:
    """Measures and prints."""
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--replicas", type=int, default=2)
    arguments = parser.parse_args()
    seconds = 20 if arguments.quick else arguments.seconds
    nodes = -(-arguments.ranks // RANKS_A_NODE)
    report = Report("fleet", arguments.quick)
    seen, memory = Seen(), list[list[int]]()
    with tempfile.TemporaryDirectory() as folder, running_postgres(*POSTGRES_SETTINGS) as postgres:
        replicas = [Replica(Path(folder), postgres.url) for _ in range(arguments.replicas)]
        try:
            for replica in replicas:
                replica.start()
            say(f"{nodes * RANKS_A_NODE} ranks for {seconds} s")
            took = asyncio.run(drive(replicas, nodes, seconds, seen, memory))
        finally:
            for replica in replicas:
                replica.kill()
        say("counting")
        database = Database(postgres.url)
        stored, lost, double = count(database, nodes * RANKS_A_NODE, seconds)
        with database.read() as connection:
            size = int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
        database.close()
    add(report, nodes, seconds, seen, memory)
    report.one("from the first step to the last acknowledgement", took, "s")
    report.one("points stored", stored, "")
    report.one("points a second", stored / took, "/s")
    report.one("points lost", lost, "", target=0)
    report.one("points double", double, "", target=0)
    report.one("bytes a point on disk", size / stored, "")
    report.note(
        f"{NODES_A_RUN} nodes of {RANKS_A_NODE} ranks a run; {arguments.replicas} servers; Postgres has fsync on."
    )
    report.finish()


def add(report: Report, nodes: int, seconds: int, seen: Seen, memory: list[list[int]]) -> None:
    """Adds what the agents and the servers' memory showed."""
    report.one("ranks", nodes * RANKS_A_NODE, "")
    report.one("seconds of training", seconds, "s")
    report.one("shipments", len(seen.took), "")
    report.one("sent again", seen.refused, "")
    report.one("a shipment acknowledged, p50", quantile(seen.took, 0.5) * 1000, "ms")
    report.one("a shipment acknowledged, p99", quantile(seen.took, 0.99) * 1000, "ms")
    report.one("steps behind, most", seen.behind, "")
    settled = memory[len(memory) // 4 :] or memory
    for name, place in (("after a quarter", 0), ("at the end", -1)):
        report.one(f"memory of a server {name}", max(settled[place]) / 2**20, "MiB")
    report.one("memory of a server, most", max(max(one) for one in memory) / 2**20, "MiB")


if __name__ == "__main__":
    main()
