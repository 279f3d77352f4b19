"""The scenarios: each does something bad again and again under load, and counts what came of it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from tests.faults.load import Count, Shipper, Training, shipping, tally
from tests.faults.network import namespace
from tests.faults.servers import Line, Replica, wait_until
from tests.postgres import Postgres, running_postgres
from trainwatch.server.db import Database
from trainwatch.server.models import leases

_LEASE_SECONDS = "2"


@contextmanager
def opened(url: str) -> Iterator[Database]:
    """Opens a database."""
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


def server_killed(folder: Path, times: int, database: str = "") -> Count:
    """A server dies under four agents that ship as fast as they can, and a real one."""
    count, began, chance = Count("server killed", faults=times), time.monotonic(), random.Random(1)
    replica = Replica(folder, database)
    replica.start()
    shippers = [Shipper([replica.url], f"killed-{number}") for number in range(4)]
    training = Training(folder, replica.url)
    try:
        with shipping(*shippers):
            for _ in range(times):
                progress(shippers)
                time.sleep(chance.uniform(0.0, 0.7))
                replica.kill()
                replica.start()
            progress(shippers)
        training.end()
        with opened(database or f"sqlite:///{folder / 'trainwatch.db'}") as found:
            tally(count, found, shippers)
            training.tally(count, found)
    finally:
        training.close()
        replica.kill()
    count.seconds = time.monotonic() - began
    return count


def postgres_killed(folder: Path, times: int) -> Count:
    """Postgres dies, with all its processes, under a server and its agents, and is started again."""
    count, began, chance = Count("Postgres killed", faults=times), time.monotonic(), random.Random(2)
    with running_postgres("fsync=on") as postgres:
        replica = Replica(folder, postgres.url)
        replica.start()
        shippers = [Shipper([replica.url], f"killed-{number}") for number in range(4)]
        training = Training(folder, replica.url)
        try:
            with shipping(*shippers):
                for _ in range(times):
                    progress(shippers)
                    time.sleep(chance.uniform(0.0, 0.7))
                    postgres.kill()
                    time.sleep(chance.uniform(0.0, 0.5))
                    postgres.start()
                progress(shippers)
            training.end()
            with opened(postgres.url) as found:
                tally(count, found, shippers)
                training.tally(count, found)
            count.notes["answers 503"] = sum(shipper.refused for shipper in shippers)
        finally:
            training.close()
            replica.kill()
    count.seconds = time.monotonic() - began
    return count


def postgres_frozen(folder: Path, times: int) -> Count:
    """Postgres takes what it is sent and answers nothing, longer than the agents wait; then it goes on."""
    count, began = Count("Postgres frozen", faults=times), time.monotonic()
    with running_postgres("fsync=on") as postgres:
        replica = Replica(folder, postgres.url)
        replica.start()
        shippers = [Shipper([replica.url], f"stuck-{number}", patience=3.0) for number in range(4)]
        training = Training(folder, replica.url)
        try:
            with shipping(*shippers):
                for _ in range(times):
                    progress(shippers)
                    postgres.freeze()
                    time.sleep(5.0)
                    postgres.thaw()
                progress(shippers)
            training.end()
            with opened(postgres.url) as found:
                tally(count, found, shippers)
                training.tally(count, found)
            count.notes["answers 503"] = sum(shipper.refused for shipper in shippers)
        finally:
            training.close()
            replica.kill()
    count.seconds = time.monotonic() - began
    return count


def replica_frozen(folder: Path, times: int) -> Count:
    """Of two servers the one that does the periodic work is frozen, wakes up again, and finds another in its place."""
    count, began = Count("replica frozen", faults=times), time.monotonic()
    moved: list[float] = []
    with running_postgres() as postgres, _pair(folder, postgres) as replicas, opened(postgres.url) as found:
        shippers = [Shipper([one.url for one in _turned(replicas, n)], f"frozen-{n}") for n in range(4)]
        try:
            with shipping(*shippers):
                for _ in range(times):
                    wait_until("an owner", lambda: _owner(found, replicas))
                    owner = _owner(found, replicas)
                    assert owner is not None
                    owner.freeze()
                    moved.append(wait_until("another owner", partial(_is_anothers, found, replicas, owner)))
                    progress(shippers)
                    owner.thaw()
                    wait_until("the one that was frozen", owner.answers)
                    progress(shippers)
            tally(count, found, shippers)
        finally:
            for one in replicas:
                one.kill()
    count.notes["seconds until another took over, most"] = round(max(moved), 2)
    count.seconds = time.monotonic() - began
    return count


def line_cut(folder: Path, times: int) -> Count:
    """The line between the agents and the server is cut without a word; what was connected stays so, and dead."""
    count, began = Count("line to the server cut, half-open", faults=times), time.monotonic()
    replica = Replica(folder)
    replica.start()
    line = Line(replica.port)
    url = f"http://127.0.0.1:{line.port}"
    shippers = [Shipper([url], f"cut-{number}", patience=3) for number in range(4)]
    training = Training(folder, url)
    took: list[float] = []
    try:
        with shipping(*shippers):
            for _ in range(times):
                progress(shippers)
                line.cut()
                time.sleep(2)
                line.mend()
                took.append(progress(shippers))
        training.end()
        with opened(f"sqlite:///{folder / 'trainwatch.db'}") as found:
            tally(count, found, shippers)
            training.tally(count, found)
    finally:
        training.close()
        replica.kill()
        line.close()
    count.notes["seconds until all ship again, most"] = round(max(took), 1)
    count.seconds = time.monotonic() - began
    return count


def network_cut(folder: Path, times: int, seconds: float = 4.0) -> Count:
    """A server in a network of its own: the line to its agents and that to Postgres are cut in turns, half-open.

    Args:
        folder: Where to keep everything.
        times: How often each line is cut.
        seconds: How long it stays cut.
    """
    count, began = Count("network cut in a namespace, half-open", faults=2 * times), time.monotonic()
    token = "t" * 32
    with namespace(2) as inside, running_postgres("listen_addresses=*") as postgres:
        outer, inner = inside.cables
        with (postgres.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {inner.there}/32 trust\n")
        with opened(postgres.url) as found, found.write() as connection:
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        replica = Replica(
            folder,
            postgres.url.replace("127.0.0.1", inner.here),
            prefix=inside.command,
            host=outer.there,
            TRAINWATCH_TOKEN=token,
        )
        replica.start()
        shippers = [Shipper([replica.url], f"cut-{number}", patience=4, token=token) for number in range(4)]
        training = Training(folder, replica.url, token=token)
        took: dict[str, list[float]] = {"agents": [], "Postgres": []}
        try:
            with shipping(*shippers):
                for _ in range(times):
                    for name, line in (("agents", outer), ("Postgres", inner)):
                        progress(shippers)
                        line.cut()
                        time.sleep(seconds)
                        line.mend()
                        took[name].append(progress(shippers))
            training.end()
            with opened(postgres.url) as found:
                tally(count, found, shippers)
                training.tally(count, found)
        finally:
            training.close()
            replica.kill()
    for name, values in took.items():
        count.notes[f"seconds until all ship again after a cut to {name}, most"] = round(max(values), 1)
    count.seconds = time.monotonic() - began
    return count


@contextmanager
def _pair(folder: Path, postgres: Postgres) -> Iterator[list[Replica]]:
    replicas = [
        Replica(folder, postgres.url, TRAINWATCH_LEASE_SECONDS=_LEASE_SECONDS, TRAINWATCH_LIVENESS_SECONDS="0.5")
        for _ in range(2)
    ]
    try:
        for one in replicas:
            one.start()
        yield replicas
    finally:
        for one in replicas:
            one.kill()


def _turned(replicas: list[Replica], number: int) -> list[Replica]:
    """The servers in another order for each agent, as a load balancer would spread them."""
    return replicas[number % 2 :] + replicas[: number % 2]


def _owner(database: Database, replicas: list[Replica]) -> Replica | None:
    """Returns the server that looks for silent runs."""
    try:
        with database.read() as connection:
            name = connection.scalar(select(leases.c.owner).where(leases.c.name == "liveness")) or ""
    except SQLAlchemyError:
        return None
    return next((one for one in replicas if f":{one.pid}:" in name), None)


def _is_anothers(database: Database, replicas: list[Replica], before: Replica) -> bool:
    return _owner(database, replicas) not in (None, before)


def progress(shippers: Sequence[Shipper], seconds: float = 120.0) -> float:
    """Waits until each agent got two more answers; returns the seconds that it took."""
    before = [shipper.answers for shipper in shippers]
    return wait_until(
        "all agents to be answered",
        lambda: all(shipper.answers >= old + 2 for shipper, old in zip(shippers, before, strict=True)),
        seconds,
    )
