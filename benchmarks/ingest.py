"""How fast a server stores what an agent ships: points a second through HTTP into SQLite, beside plain executemany.

A server process with a fresh SQLite database takes the shipments of one agent. In turns with it the same rows go into a
table of the same shape on the same disk by ``sqlite3``'s executemany, one transaction for each shipment.
"""

from __future__ import annotations

import math
import random
import signal
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.support.report import Report, options, quantile, say
from benchmarks.support.shipments import Client, encode, pieces, step
from tests.e2e.world import World
from trainwatch.events import StepEnded

_BACKLOG: Final = 1500
"""Steps of a shipment when an agent catches up: about the megabyte at which it cuts them."""
_LIVE: Final = 50
"""Steps of a shipment in half a second of a quick training."""
_IN_TURN: Final = 4

Row = tuple[int, int, int, float, float | None]


class Plain:
    """A table as the server's ``points``, filled with executemany.

    Args:
        path: The database's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA cache_size = -32768")
        self._connection.execute(
            "CREATE TABLE points (series INTEGER, position INTEGER, step INTEGER, time DOUBLE NOT NULL, value DOUBLE,"
            " PRIMARY KEY (series, position)) WITHOUT ROWID"
        )
        self._series: dict[tuple[str, str], int] = {}

    def rows(self, steps: list[StepEnded]) -> list[Row]:
        """Makes the rows of steps, in the order in which they come."""
        found: list[Row] = []
        for one in steps:
            found += [self._row(one, "", name, value) for name, value in one.values.items()]
            for device, values in one.devices.items():
                found += [self._row(one, device, name, value) for name, value in values.items()]
        return found

    def store(self, rows: list[Row]) -> float:
        """Stores rows in one transaction, and returns the seconds that it took."""
        began = time.perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")
        return time.perf_counter() - began

    def close(self) -> int:
        """Closes the database; returns its size in bytes."""
        self._connection.close()
        return size_of(self._path)

    def _row(self, one: StepEnded, device: str, name: str, value: float) -> Row:
        series = self._series.setdefault((name, device), len(self._series) + 1)
        return (series, one.step - 1, one.step, one.time, None if math.isnan(value) else value)


def size_of(database: Path) -> int:
    """Returns the bytes of a database's files."""
    return sum(file.stat().st_size for file in database.parent.glob(f"{database.name}*"))


def measure(report: Report, world: World, groups: int, live: int) -> None:
    """Measures, and adds the figures.

    Args:
        report: Where to.
        world: The server.
        groups: Turns of shipments and executemany.
        live: Small shipments.
    """
    chance = random.Random(1)
    plain = Plain(world.folder / "plain.db")
    client = Client(world.url, "backlog")
    total = groups * _IN_TURN * _BACKLOG
    client.start("backlog", total)
    http: list[float] = []
    table: list[float] = []
    acknowledged: list[float] = []
    points = 0
    batches = pieces(total, _BACKLOG)
    for group in range(groups):
        say(f"turn {group + 1} of {groups}")
        prepared = [[step(number, chance) for number in next(batches)] for _ in range(_IN_TURN)]
        encoded = [encode(steps) for steps in prepared]
        rows = [plain.rows(steps) for steps in prepared]
        count = sum(map(len, rows))
        points += count

        def by_http(encoded: list[list[bytes]] = encoded, count: int = count) -> None:
            took = [client.ship(steps) for steps in encoded]
            acknowledged.extend(took)
            http.append(count / sum(took))

        def by_table(rows: list[list[Row]] = rows, count: int = count) -> None:
            table.append(count / sum(plain.store(some) for some in rows))

        for run in (by_http, by_table) if group % 2 == 0 else (by_table, by_http):
            run()
    client.close()
    report.many("points a second through HTTP into SQLite", http, "1/s", note=f"{points:,} points")
    report.many("points a second by plain executemany", table, "1/s", note="the same rows")
    ratios = [ours / theirs for ours, theirs in zip(http, table, strict=True)]
    report.many("HTTP to executemany", ratios, note="more is better")
    _milliseconds(report, f"acknowledgement of {_BACKLOG} steps", acknowledged)
    _milliseconds(report, f"acknowledgement of {_LIVE} steps", _live(world, live, chance))
    assert world.server is not None
    world.server.send_signal(signal.SIGTERM)
    world.server.wait(30)
    stored = points + live * _LIVE * 14
    ours = size_of(world.home / "trainwatch.db") / stored
    theirs = plain.close() / points
    report.one("on disk for a point, TrainWatch", ours, "bytes", note="all that the server keeps")
    report.one("on disk for a point, plain table", theirs, "bytes")
    report.one("on disk, TrainWatch to plain table", ours / theirs)


def _live(world: World, count: int, chance: random.Random) -> list[float]:
    say("small shipments, as of a training that is being watched")
    client = Client(world.url, "live")
    client.start("live", count * _LIVE)
    took = [client.ship(encode(step(number, chance) for number in numbers)) for numbers in pieces(count * _LIVE, _LIVE)]
    client.close()
    return took


def _milliseconds(report: Report, name: str, seconds: list[float]) -> None:
    report.one(f"{name}, p50", statistics.median(seconds) * 1000, "ms")
    report.one(f"{name}, p99", quantile(seconds, 0.99) * 1000, "ms", note=f"of {len(seconds)}")


def main() -> None:
    """Measures."""
    chosen = options(__doc__).parse_args()
    report = Report("ingest", chosen.quick)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            world.start_server()
            measure(report, world, groups=3 if chosen.quick else 12, live=60 if chosen.quick else 400)
        finally:
            world.close()
    report.note(
        "The server runs in a process of its own, on the machine's other core; the client waits for each answer."
    )
    report.finish()


if __name__ == "__main__":
    main()
