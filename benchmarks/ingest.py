"""How fast a server stores what agents ship: points a second through HTTP into SQLite and into Postgres.

A server process with a fresh database takes the shipments of 1, 8 and 64 agents, each with a run and a connection of
its own. First they catch up: large shipments, each sent as soon as the one before is acknowledged. Then they are live:
small shipments at a fixed pace, whose acknowledgement is timed from when they were due. In turns with the one agent's
shipments the same number of rows goes into a plain table of the same kind of database on the same disk, over one
connection, one transaction for each shipment.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.support.load import POINTS_A_STEP, Load, Outcome, Plan
from benchmarks.support.mlflow import running_mlflow
from benchmarks.support.report import Report, options, quantile, say
from benchmarks.support.stores import Store, rows_of, store
from tests.e2e.world import World

_BACKLOG: Final = 1500
"""Steps of a shipment when an agent catches up: about the megabyte at which it cuts them."""
_LIVE: Final = 50
"""Steps of a live shipment: half a second of a quick training."""
_LIVE_EVERY: Final = 0.5
_AGENTS: Final = (1, 8, 64)
_SETTLE_SECONDS: Final = 60.0
_FASTEST_ACKNOWLEDGED: Final = 250.0
_TARGETS: Final = {"sqlite": 200_000, "postgres": 120_000}


@dataclass(frozen=True)
class Measured:
    """One load, and what it cost."""

    plan: Plan
    outcome: Outcome
    server_cpu: float
    store_cpu: float

    @property
    def rate(self) -> float:
        """Points a second."""
        return self.plan.points / self.outcome.seconds


class Bench:
    """One kind of database with a server before it.

    Args:
        kind: ``sqlite`` or ``postgres``.
        found: The database.
        world: Where the server runs.
        quick: Few repetitions.
    """

    def __init__(self, kind: str, found: Store, world: World, quick: bool) -> None:
        self._kind = kind
        self._store = found
        self._world = world
        self._quick = quick
        self._stored = 0
        world.environment["TRAINWATCH_DATABASE"] = found.url
        world.start_server()
        assert world.server is not None
        self._server = psutil.Process(world.server.pid)

    def run(self, report: Report) -> None:
        """Measures, and adds the figures."""
        name = self._store.name
        turns = 3 if self._quick else 8
        rates: list[float] = []
        raw: list[float] = []
        filled = 0
        alone: list[Measured] = []
        for turn in range(turns):
            say(f"{name}: turn {turn + 1} of {turns} of one agent and a plain table")

            def by_http(turn: int = turn) -> None:
                alone.append(self._load(f"alone{turn}", 1, shipments=4, steps=_BACKLOG))
                rates.append(alone[-1].rate)

            def by_table(turn: int = turn) -> None:
                chance = random.Random(turn)
                begin = turn * 4 * _BACKLOG + 1
                pieces = [
                    rows_of(range(at, at + _BACKLOG), chance) for at in range(begin, begin + 4 * _BACKLOG, _BACKLOG)
                ]
                raw.append(sum(map(len, pieces)) / sum(self._store.fill(rows) for rows in pieces))

            works: list[Callable[[], None]] = [by_http, by_table]
            for work in works if turn % 2 == 0 else reversed(works):
                work()
            filled += 4 * _BACKLOG * POINTS_A_STEP
        report.many(f"{name}: points a second by {self._store.means} into a plain table, one connection", raw, "1/s")
        report.many(f"{name}: points a second through HTTP, 1 agent", rates, "1/s")
        ratios = [ours / theirs for ours, theirs in zip(rates, raw, strict=True)]
        report.many(f"{name}: HTTP to plain table", ratios, note="at least 0.5 is wanted")
        self._costs(report, alone)
        for agents in _AGENTS:
            if agents > 1:
                say(f"{name}: {agents} agents catch up")
                shipments = max(2, (24 if self._quick else 96) // agents)
                caught_up = self._load(f"many{agents}", agents, shipments=shipments, steps=_BACKLOG)
                report.one(
                    f"{name}: points a second through HTTP, {agents} agents",
                    caught_up.rate,
                    "1/s",
                    note=f"{caught_up.plan.points:,} points; at least {_TARGETS[self._kind]:,} are wanted",
                )
                self._costs(report, [caught_up])
            self._live(report, agents)
        assert self._world.server is not None
        self._world.server.send_signal(signal.SIGTERM)
        self._world.server.wait(60)
        report.one(f"{name}: on disk for a point", self._store.size() / self._stored, "bytes", note="all that is kept")
        report.one(f"{name}: on disk for a point of the plain table", self._store.plain_size() / filled, "bytes")

    def _settle(self) -> None:
        """Waits until what the load before left to do (rollups, the database's own tidying) is done."""
        end = time.monotonic() + _SETTLE_SECONDS
        before = self._cpu() + self._store.cpu()
        while time.monotonic() < end:
            time.sleep(1.0)
            now = self._cpu() + self._store.cpu()
            if now - before < 0.1:
                return
            before = now

    def _live(self, report: Report, agents: int) -> None:
        self._settle()
        seconds = 5 if self._quick else 20
        say(f"{self._store.name}: {agents} agents live, {seconds} s")
        live = self._load(
            f"live{agents}", agents, shipments=round(seconds / _LIVE_EVERY), steps=_LIVE, interval=_LIVE_EVERY
        )
        sent = agents * _LIVE * POINTS_A_STEP / _LIVE_EVERY
        name = f"{self._store.name}: acknowledgement, {agents} live agents"
        took = [1000 * seconds for seconds in live.outcome.took]
        report.one(f"{name}, p50", quantile(took, 0.5), "ms", note=f"{sent:,.0f} points a second")
        report.one(f"{name}, p99", quantile(took, 0.99), "ms", target=_FASTEST_ACKNOWLEDGED, note=f"of {len(took):,}")
        self._costs(report, [live], live=True)

    def _load(self, name: str, agents: int, *, shipments: int, steps: int, interval: float = 0.0) -> Measured:
        plan = Plan(self._world.url, f"{self._kind}-{name}", agents, shipments, steps, interval)
        load = Load(plan)
        server, own = self._cpu(), self._store.cpu()
        outcome = load.go()
        self._stored += plan.points
        return Measured(plan, outcome, self._cpu() - server, self._store.cpu() - own)

    def _costs(self, report: Report, measured: list[Measured], *, live: bool = False) -> None:
        agents = measured[0].plan.agents
        million = sum(one.plan.points for one in measured) / 1e6
        name = f"{self._store.name}: processor seconds for a million points, {agents} {'live ' if live else ''}agents"
        server = sum(one.server_cpu for one in measured) / million
        own = sum(one.store_cpu for one in measured) / million
        report.one(name, server + own, "s", note=f"server {server:.2f}, database {own:.2f}")

    def _cpu(self) -> float:
        times = self._server.cpu_times()
        return times.user + times.system


def _beside_mlflow(report: Report, command: str, quick: bool) -> None:
    """Measures MLflow's server and ours in turns, both on SQLite, each at its best request size."""
    turns = 3 if quick else 8
    with tempfile.TemporaryDirectory() as its, tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        with store("sqlite", Path(folder)) as found, running_mlflow(command, Path(its)) as mlflow:
            world.environment["TRAINWATCH_DATABASE"] = found.url
            try:
                world.start_server()
                for agents in (1, 8):
                    ours: list[float] = []
                    theirs: list[float] = []
                    for turn in range(turns):
                        say(f"MLflow, {agents} agents: turn {turn + 1} of {turns}")
                        plan = Plan(world.url, f"beside{agents}-{turn}", agents, max(1, 8 // agents), _BACKLOG)
                        ours.append(plan.points / Load(plan).go().seconds)
                        theirs.append(mlflow.rate(agents, max(2, 24 // agents)))
                    report.many(f"MLflow: points a second through HTTP, {agents} agents", theirs, "1/s")
                    report.many(
                        f"TrainWatch to MLflow, {agents} agents",
                        [one / other for one, other in zip(ours, theirs, strict=True)],
                        note="in turns, both on SQLite; at least 20 is wanted",
                    )
            finally:
                world.close()


def main() -> None:
    """Measures."""
    parser = options(__doc__)
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one kind of database")
    parser.add_argument("--mlflow", default=shutil.which("mlflow"), help="the program mlflow, of any environment")
    chosen = parser.parse_args()
    report = Report("ingest", chosen.quick)
    for kind in ("sqlite", "postgres"):
        if chosen.only not in (None, kind):
            continue
        with tempfile.TemporaryDirectory() as folder, store(kind, Path(folder)) as found:
            world = World(Path(folder))
            try:
                Bench(kind, found, world, chosen.quick).run(report)
            finally:
                world.close()
    if chosen.mlflow:
        _beside_mlflow(report, chosen.mlflow, chosen.quick)
    else:
        report.note(
            "MLflow is not installed here; name its program with --mlflow to have its server in the same table."
        )
    report.note(
        "Server, database and agents share the machine's cores. Postgres runs with fsync and synchronous commit."
    )
    report.finish()


if __name__ == "__main__":
    main()
