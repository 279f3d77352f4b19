"""What a server remembers of the rows that it wrote holds only while nobody else was there."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import exc, func, select

from tests.server.shipping import RUN, T0, batch, ended, shipment, started, step
from trainwatch.server import archive
from trainwatch.server.db import Database
from trainwatch.server.ingest.remembered import Known, Remembered
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import retention, silence
from trainwatch.server.models import points as rows
from trainwatch.server.store import points, records, removal
from trainwatch.server.store.checking import problems
from trainwatch.server.store.records import Run

LOSS = points.Key("train/loss", 0, "")


def server_of(database: Database, now: float = 0.0) -> Ingest:
    clock = count(now, 0.5)
    return Ingest(database, lambda _run, _version: None, lambda: float(next(clock)))


def ship(to: Ingest, first: int, number: int, run: str = RUN) -> int:
    """Ships steps whose loss is their number, few at a time, and returns which sequence is wanted next."""
    wanted = first
    for at in range(first, first + number, points.PACK_NOW - 1):
        steps = [step(n, float(n)) for n in range(at, min(at + points.PACK_NOW - 1, first + number))]
        wanted = to.accept(shipment(batch(steps, first=at, run=run))).next[run]["rank0"]
    return wanted


def stored(database: Database, run: str = RUN) -> list[float]:
    """Returns the run's losses, which are as many as its series says."""
    with database.read() as connection:
        [series] = points.listed(connection, run, ["train/loss"])
        found = points.read(connection, series.id)
        fresh = connection.scalar(select(func.count()).select_from(rows).where(rows.c.series == series.id))
    assert series.points == len(found.value)
    assert fresh is not None
    assert fresh < 2 * points.PACK_AT
    np.testing.assert_array_equal(found.step, found.value)
    values: list[float] = found.value.tolist()
    return values


def numbers(last: int) -> list[float]:
    return [float(n) for n in range(1, last + 1)]


def test_two_servers_in_turns_lose_and_double_nothing(database: Database) -> None:
    one, other = server_of(database), server_of(database, 0.25)
    one.accept(shipment(batch([started()])))
    at = 1
    for turn in range(60):
        by = (one, other, one)[turn % 3]
        at = ship(by, at, 1 + turn * 7 % 90)
        assert ship(by, 1, at - 1) == at, "what comes again is not stored again"
    assert at > 2 * points.PACK_AT
    assert stored(database) == numbers(at - 1)


def test_what_a_job_changed_meanwhile_is_seen(database: Database) -> None:
    server = server_of(database)
    server.accept(shipment(batch([started()])))
    at = ship(server, 1, 300)
    with database.write() as connection:
        points.seal(connection, RUN)
    at = ship(server, at, 300)
    assert silence.mark_silent(database, now=1e6, late_after=20, lost_after=60)
    at = ship(server, at, 300)
    server.accept(shipment(batch([ended(900)], first=at)))
    assert retention.seal(database, 1e9) == 1
    assert ship(server, at + 1, 50) == at + 51  # it was not over after all
    assert len(stored(database)) == 950
    with database.read() as connection:
        assert list(problems(connection, deep=True)) == []


def test_what_was_rolled_back_is_forgotten(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_of(database)
    server.accept(shipment(batch([started()])))
    at = ship(server, 1, 100)

    def fail(*_: object, **__: object) -> None:
        raise exc.OperationalError("UPDATE", {}, Exception("the disk is full"))

    with monkeypatch.context() as broken:
        broken.setattr(records, "save_runs", fail)
        with pytest.raises(exc.OperationalError):
            ship(server, at, 100)
    assert stored(database) == numbers(100)
    assert ship(server, at, 100) == 201
    assert stored(database) == numbers(200)


def test_a_run_that_was_deleted_and_brought_back_is_another(database: Database, tmp_path: Path) -> None:
    server = server_of(database)
    server.accept(shipment(batch([started()])))
    at = ship(server, 1, 100)
    assert silence.mark_silent(database, now=1e6, late_after=20, lost_after=60)
    archive.write(database, RUN, tmp_path / "run.parquet")
    with database.write() as connection:
        removal.delete_run(connection, RUN, 1.0)
    server.accept(shipment(batch([started(), step(1)], run="another")))  # takes the numbers that were free
    archive.read(database, tmp_path / "run.parquet")
    ship(server, at, 100)
    assert stored(database) == numbers(200)
    assert stored(database, "another") == [1.0]


def test_what_has_no_form_in_sql_comes_back_from_rows(database: Database) -> None:
    values = [1.0, math.nan, math.inf, -math.inf, 1e-320, math.nan, 5.0]
    steps = [1, 2, -1, 4, -1, -1, 2**61]
    new = points.Fresh()
    new.step, new.value, new.time = steps, values, [T0 + n for n in range(len(values))]
    plain = points.Fresh()
    plain.step, plain.value, plain.time = [1], [2.0], [T0]
    server_of(database).accept(shipment(batch([started()])))
    other = points.Key("eval/loss", 3, "cuda:0")
    with database.write() as connection:
        points.append(connection, RUN, {LOSS: new, other: plain})
        points.append(connection, RUN, {LOSS: new, other: plain})
    with database.read() as connection:
        found = {one.metric: points.read(connection, one.id) for one in points.listed(connection, RUN)}
        nulls = connection.execute(select(func.count()).select_from(rows).where(rows.c.value.is_(None))).scalar_one()
    np.testing.assert_array_equal(found["train/loss"].value, values * 2)
    np.testing.assert_array_equal(found["train/loss"].step, steps * 2)
    np.testing.assert_array_equal(found["train/loss"].time, new.time * 2)
    np.testing.assert_array_equal(found["eval/loss"].value, [2.0, 2.0])
    assert nulls == 4


def test_it_remembers_no_more_than_it_may() -> None:
    def known(size: int) -> Known:
        return Known(
            series={0: {points.Key(str(n), 0, ""): points.Series(n, 0, 0, 0, None, 0, 0) for n in range(size)}}
        )

    remembered = Remembered(most=100)
    runs = {
        name: Run(name, "p", "n", started_at=0.0, last_event_at=0.0, heard_at=1.0, version=1)
        for name in ("a", "b", "c")
    }
    for name, size in (("a", 60), ("b", 30), ("c", 50)):
        remembered.keep({name: runs[name]}, {name: known(size)})
    sizes = {name: one.size() for name, one in remembered.take(runs.values()).items()}
    assert sizes == {"a": 0, "b": 30, "c": 50}, "what was heard longest ago goes first"
    assert all(not one.series for one in remembered.take(runs.values()).values()), "it is handed out once"
    remembered.keep(runs, {name: known(10) for name in runs})
    runs["a"].version, runs["b"].heard_at = 2, 2.0
    sizes = {name: one.size() for name, one in remembered.take(runs.values()).items()}
    assert sizes == {"a": 0, "b": 0, "c": 10}
