"""What two hundred browsers cost the database that follow one run: what one of them costs.

A server process takes a step a second of one run. Followers do what the web page does: each holds a stream of live
updates, and for each change that it is told of asks for the run and for a figure. The server counts the statements that
it sends to its database (``/metrics``), with no follower, with one, and with many.
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.support.report import Report, options, quantile, say
from benchmarks.support.shipments import Client, encode, step
from benchmarks.support.stores import store
from tests.e2e.world import World

RUN: Final = "followed"
MANY: Final = 200
_WARM: Final = 300
_STATEMENTS: Final = re.compile(r'^trainwatch_database_query_duration_seconds_count\{operation="select"\} (\S+)', re.M)
_MADE: Final = re.compile(r'^trainwatch_shared_answers_total\{how="made"\} (\S+)', re.M)


@dataclass
class Seen:
    """What the followers saw.

    Attributes:
        told: How many changes they were told of, all together.
        answers: How many answers they got.
        unchanged: How many of these were 304.
        took: Seconds from a change's word to its last answer.
    """

    told: int = 0
    answers: int = 0
    unchanged: int = 0
    took: list[float] = field(default_factory=list)


class Follower:
    """A page that is open: a stream, and a connection for what it asks.

    Args:
        port: The server's.
        seen: Where to count.
    """

    paths: Final = (f"/api/runs/{RUN}", f"/api/runs/{RUN}/charts/loss?width=1200")

    def __init__(self, port: int, seen: Seen) -> None:
        self._port = port
        self._seen = seen
        self._tags: dict[str, bytes] = {}

    async def follow(self) -> None:
        """Follows until it is cancelled."""
        stream, ask = await self._connect(), await self._connect()
        changed = asyncio.Event()
        listening = asyncio.create_task(self._listen(*stream, changed))
        try:
            while True:
                await changed.wait()
                changed.clear()
                began = time.perf_counter()
                for path in self.paths:
                    await self._get(*ask, path)
                self._seen.took.append(time.perf_counter() - began)
                await asyncio.sleep(0.5)  # as the page does
        finally:
            listening.cancel()
            for _, writer in (stream, ask):
                writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: asyncio.Event) -> None:
        writer.write(f"GET /api/events?run={RUN} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"event: changed"):
                self._seen.told += 1
                changed.set()

    async def _get(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        tag = self._tags.get(path, b"")
        known = b"If-None-Match: " + tag + b"\r\n" if tag else b""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n".encode() + known + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        await reader.readexactly(int(headers.get(b"content-length", b"0")))
        status = int(head.split(b" ", 2)[1])
        if status not in (200, 304):
            raise RuntimeError(f"{path} was answered with {status}")
        self._seen.answers += 1
        self._seen.unchanged += status == 304
        match = re.search(rb"(?i)^etag: (.+?)\r$", head, re.M)
        self._tags[path] = match[1] if match else b""


@dataclass(frozen=True)
class Phase:
    """What a number of followers cost."""

    followers: int
    seconds: float
    statements: float
    made: float
    seen: Seen

    @property
    def rate(self) -> float:
        """Reading statements a second."""
        return self.statements / self.seconds


def measure(world: World, followers: int, seconds: float) -> Phase:
    """Lets some followers follow for some seconds."""
    seen = Seen()

    async def main() -> tuple[float, float, float]:
        tasks = [asyncio.create_task(Follower(world.port, seen).follow()) for _ in range(followers)]
        await asyncio.sleep(3)  # all are there
        before, began = await asyncio.to_thread(_counted, world.url), time.perf_counter()
        seen.told = seen.answers = seen.unchanged = 0
        seen.took.clear()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        after = await asyncio.to_thread(_counted, world.url)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        return took, after[0] - before[0], after[1] - before[1]

    took, statements, made = asyncio.run(main())
    return Phase(followers, took, statements, made, seen)


def _counted(url: str) -> tuple[float, float]:
    """Returns how many statements read from the database so far, and how many answers were made."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    statements, made = (pattern.search(text) for pattern in (_STATEMENTS, _MADE))
    return float(statements[1]) if statements else 0.0, float(made[1]) if made else 0.0


class Training(threading.Thread):
    """Ships a step a second."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = Client(url, RUN)
        self._chance = random.Random(1)
        self._over = threading.Event()
        self._client.start(RUN, 100_000)
        self._client.ship(encode(step(number, self._chance) for number in range(1, _WARM)))

    def run(self) -> None:
        """Ships until it is over."""
        number = _WARM
        while not self._over.wait(1.0):
            self._client.ship(encode([step(number, self._chance)]))
            number += 1

    def end(self) -> None:
        """Ends it."""
        self._over.set()
        self.join(30)


def main() -> None:
    """Measures and prints."""
    parser = options(__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="postgres")
    parser.add_argument("--followers", type=int, default=MANY)
    arguments = parser.parse_args()
    report = Report("followers", arguments.quick)
    seconds = 8.0 if arguments.quick else 30.0
    with tempfile.TemporaryDirectory() as folder, store(arguments.database, Path(folder)) as database:
        world = World(Path(folder))
        world.environment["TRAINWATCH_DATABASE"] = database.url
        try:
            world.start_server()
            training = Training(world.url)
            training.start()
            phases = []
            for followers in (0, 1, arguments.followers):
                say(f"{followers} followers")
                phases.append(measure(world, followers, seconds))
            training.end()
        finally:
            world.close()
    add(report, phases)
    report.note(f"A step a second, {seconds:.0f} s each, {arguments.database}.")
    report.finish()


def add(report: Report, phases: list[Phase]) -> None:
    """Adds what was measured."""
    nobody, one, many = phases
    alone = one.rate - nobody.rate
    for phase in phases:
        report.one(f"SELECT statements a second, {phase.followers} followers", phase.rate, "/s")
    report.one(
        f"what {many.followers} followers cost, in those of one", (many.rate - nobody.rate) / alone, "", target=2.0
    )
    made = many.made / many.seconds / len(Follower.paths)
    asked = many.seen.answers / many.seconds / len(Follower.paths)
    report.one(
        f"times a second that the server makes the page, and the figure, for {many.followers} followers",
        made,
        "/s",
        target=1.2,
        note=f"each is asked for {asked:.0f} times; a step comes once a second",
    )
    report.one("changes told, of each follower", many.seen.told / many.followers / many.seconds, "/s")
    report.one("answers", many.seen.answers / many.seconds, "/s")
    report.one("of these 304", many.seen.unchanged / max(1, many.seen.answers) * 100, "%")
    report.one("from word to page, p50", quantile(many.seen.took, 0.5) * 1000, "ms")
    report.one("from word to page, p95", quantile(many.seen.took, 0.95) * 1000, "ms")


if __name__ == "__main__":
    main()
