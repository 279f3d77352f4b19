"""Postgres dies in the middle of a load and comes back: nothing acknowledged is lost, nothing is double."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest
from sqlalchemy import create_engine, text

from tests.patience import PATIENCE
from tests.postgres import Postgres, running_postgres
from tests.server.conftest import running
from tests.server.shipping import batch, ended, shipment, started, step
from trainwatch import events
from trainwatch.server import upkeep
from trainwatch.server.db import Database
from trainwatch.server.settings import Settings
from trainwatch.server.store import points
from trainwatch.server.store.reading import read
from trainwatch.shipment import Acknowledgement

KILLS = 3
AGENTS = 4
STEPS = 60  # of a shipment


class Agent(threading.Thread):
    """Ships steps one shipment after the other, each again and again until it is acknowledged."""

    def __init__(self, url: str, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.run_id = f"run{number}"
        self.acknowledged = 0
        self.refused = 0
        self._client = httpx2.Client(base_url=url, timeout=20)
        self._over = stop
        self._next = 0

    def run(self) -> None:
        self._ship([started()])
        while not self._over.is_set():
            self._ship([step(n) for n in range(self.acknowledged + 1, self.acknowledged + STEPS + 1)])
            self.acknowledged += STEPS
        self._ship([ended(self.acknowledged)])
        self._client.close()

    def _ship(self, content: list[events.Event]) -> None:
        body = msgspec.msgpack.encode(shipment(batch(content, run=self.run_id, first=self._next)))
        self._next += len(content)
        while True:
            answer = None
            try:
                answer = self._client.post("/api/ingest", content=body, headers={"content-type": "application/msgpack"})
            except httpx2.HTTPError:
                self.refused += 1
            if answer is not None and answer.status_code == 200:
                found = msgspec.msgpack.decode(answer.content, type=Acknowledgement).next
                assert found == {self.run_id: {"rank0": self._next}}
                return
            if answer is not None:
                assert answer.status_code == 503, answer.text
                self.refused += 1
            time.sleep(0.05)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A Postgres that may be killed."""
    with running_postgres() as server:
        yield server


def test_a_postgres_that_is_killed_under_load_loses_nothing_that_was_acknowledged(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    chance = random.Random(5)
    stop = threading.Event()
    with running(Settings(home=tmp_path, port=0, database=own_postgres.url)) as server:
        agents = [Agent(server.url, number, stop) for number in range(AGENTS)]
        for agent in agents:
            agent.start()
        for _ in range(KILLS):
            before = [agent.acknowledged for agent in agents]
            _wait_until(lambda before=before: all(a.acknowledged > b for a, b in zip(agents, before, strict=True)))
            time.sleep(chance.uniform(0, 0.5))
            own_postgres.kill()
            time.sleep(chance.uniform(0, 0.5))
            own_postgres.start()
        after = [agent.acknowledged for agent in agents]
        _wait_until(lambda: all(a.acknowledged > b for a, b in zip(agents, after, strict=True)))
        stop.set()
        for agent in agents:
            agent.join(120)
            assert not agent.is_alive()
    assert sum(agent.refused for agent in agents) > 0, "Postgres was never away"
    database = Database(own_postgres.url)
    try:
        problems, counted = upkeep.check(database, deep=True)
        assert problems == []
        assert counted["points in all"] == sum(agent.acknowledged for agent in agents)
        with database.read() as connection:
            for agent in agents:
                [one] = points.listed(connection, agent.run_id)
                assert read(connection, one.id).step.tolist() == list(range(1, agent.acknowledged + 1))
    finally:
        database.close()


def test_connections_that_are_cut_are_replaced(own_postgres: Postgres, tmp_path: Path) -> None:
    stop = threading.Event()
    with running(Settings(home=tmp_path, port=0, database=own_postgres.url)) as server:
        agents = [Agent(server.url, number, stop) for number in range(AGENTS)]
        for agent in agents:
            agent.start()
        admin = Database(own_postgres.url)
        for _ in range(5):
            before = [agent.acknowledged for agent in agents]
            _wait_until(lambda before=before: all(a.acknowledged > b for a, b in zip(agents, before, strict=True)))
            with admin.engine.connect() as connection:  # as a fail-over does with those who are connected
                connection.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )
        admin.close()
        stop.set()
        for agent in agents:
            agent.join(120)
            assert not agent.is_alive()
    database = Database(own_postgres.url)
    try:
        problems, counted = upkeep.check(database, deep=True)
        assert problems == []
        assert counted["points in all"] == sum(agent.acknowledged for agent in agents)
    finally:
        database.close()


def _wait_until(reached: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "the agents do not get on"
        time.sleep(0.02)


def test_a_postgres_that_takes_no_more_writes_is_no_fault_of_the_server(own_postgres: Postgres, tmp_path: Path) -> None:
    """As after a failover, on the side that is the standby now."""
    with running(Settings(home=tmp_path, port=0, database=own_postgres.url)) as server:
        engine = create_engine(own_postgres.url)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ALTER SYSTEM SET default_transaction_read_only = on"))
            connection.execute(text("SELECT pg_reload_conf()"))
        engine.dispose()
        with httpx2.Client(base_url=server.url, timeout=20) as client:
            wanted = {"name": "x", "kind": "slack", "url": "https://hooks.slack.com/services/x"}
            deadline = time.monotonic() + PATIENCE
            while (answer := client.post("/api/projects/p/channels", json=wanted)).status_code == 201:
                assert time.monotonic() < deadline, "it still takes them"
                time.sleep(0.05)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2"), answer.text
