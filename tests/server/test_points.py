from __future__ import annotations

import math
import random

import numpy as np
import pytest
from sqlalchemy import func, select

from tests.patience import timing
from tests.server.shipping import RUN, batch, shipment
from trainwatch import events
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import rolling
from trainwatch.server.models import chunks
from trainwatch.server.models import points as rows
from trainwatch.server.store import codec, points
from trainwatch.server.store.checking import problems
from trainwatch.server.store.codec import Columns
from trainwatch.server.store.reading import read_packed
from trainwatch.server.store.rollups import STRETCH


def columns(values: list[float]) -> Columns:
    count = len(values)
    return Columns(np.arange(count, dtype=np.int64) - 1, 1.7e9 + np.arange(count) / 3, np.array(values))


@pytest.mark.parametrize("count", [1, 2, 1000, 4096])
def test_every_bit_survives_packing(count: int) -> None:
    values = np.random.default_rng(1).normal(size=count)
    for place, value in enumerate([math.nan, math.inf, -math.inf, -0.0, 5e-324][:count]):
        values[place * (count // 6)] = value
    packed = columns(list(values))
    found = codec.unpack(codec.CODEC, codec.pack(packed))
    for before, after in zip(packed, found, strict=True):
        assert before.tobytes() == after.tobytes()


def test_a_codec_of_the_future_is_named() -> None:
    with pytest.raises(ValueError, match="codec 7"):
        codec.unpack(7, b"")


def ship(database: Database, first: int, values: list[float]) -> None:
    ingest = Ingest(database, lambda _run, _version: None, lambda: 0.0)
    steps = [
        events.StepEnded(time=1e9 + n, step=n, values={"train/loss": value})
        for n, value in enumerate(values, start=first)
    ]
    assert ingest.accept(shipment(batch(steps, first=first))).next == {RUN: {"rank0": first + len(values)}}


@pytest.mark.parametrize("size", [1, 7, 700, 5000])
def test_points_come_back_in_order_however_they_were_shipped(database: Database, size: int) -> None:
    total = {1: 60, 7: 1600}.get(size, 6000)
    values = np.random.default_rng(2).normal(size=total).tolist()
    values[3], values[total // 2], values[-1] = math.nan, math.inf, -math.inf
    for at in range(0, total, size):
        ship(database, at, values[at : at + size])
    with database.read() as connection:
        [series] = points.listed(connection, RUN)
        found = points.read(connection, series.id)
        as_rows = len(connection.execute(select(rows.c.position)).all())
        packed = connection.execute(select(chunks.c.points, chunks.c.nonfinite)).all()
    np.testing.assert_array_equal(found.value, values)
    np.testing.assert_array_equal(found.step, np.arange(total))
    np.testing.assert_array_equal(found.time, 1e9 + np.arange(total))
    assert (series.points, series.nonfinite, series.last_step) == (total, 3, total - 1)
    assert series.last_value == -math.inf
    assert as_rows + sum(chunk.points for chunk in packed) == total
    assert as_rows < points.PACK_AT * 2
    assert as_rows or sum(chunk.nonfinite for chunk in packed) == 3


def test_a_range_brings_its_neighbours_and_not_everything(database: Database) -> None:
    for at in range(0, 20_000, 2000):
        ship(database, at, [float(n) for n in range(at, at + 2000)])
    with database.read() as connection:
        [series] = points.listed(connection, RUN)
        found = points.read(connection, series.id, axis="step", low=9000, high=9100)
        by_time = points.read(connection, series.id, axis="time", low=1e9 + 9000, high=1e9 + 9100)
        before = points.read(connection, series.id, axis="step", low=-50, high=-10)
        behind = points.read(connection, series.id, axis="step", low=10**6, high=None)
    assert found.step.min() < 9000 < 9100 < found.step.max()
    assert len(found.step) < 12_000
    np.testing.assert_array_equal(found.step, by_time.step)
    assert before.step.min() == 0
    assert behind.step.max() == 19_999


def test_small_chunks_become_large_ones_and_no_bit_changes(database: Database) -> None:
    chance = random.Random(3)
    values = [chance.choice([math.nan, -math.inf, chance.random()]) for _ in range(3 * STRETCH + 5000)]
    at = 0
    while at < len(values):
        size = chance.choice([3, 31, 32, 50, 400, 900])
        ship(database, at, values[at : at + size])
        at += size

    def look() -> tuple[int, Columns]:
        with database.read() as connection:
            [series] = points.listed(connection, RUN)
            assert list(problems(connection, deep=True)) == []
            count = connection.scalar(select(func.count()).select_from(chunks)) or 0
            return count, points.read(connection, series.id)

    before, found = look()
    assert rolling.catch_up(database) == 3
    after, again = look()
    assert before > 150
    assert after < before / 4
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(again.value, values)
    with database.read() as connection:
        [series] = points.listed(connection, RUN)
        np.testing.assert_array_equal(read_packed(connection, series.id, 100, 40_000).value, values[100:40_000])


def test_a_million_points_are_read_fast(sqlite: Database) -> None:
    ship(sqlite, 0, [1.0])
    with sqlite.write() as connection:
        for at in range(1, 1_000_000, 1500):  # chunks as a live run makes them
            new = points.Fresh()
            new.step = list(range(at, min(at + 1500, 1_000_000)))
            new.time = [1e9 + n / 3 for n in new.step]
            new.value = [1 / n for n in new.step]
            points.append(connection, RUN, {points.Key("train/loss", 0, ""): new})
    with sqlite.read() as connection:
        [series] = points.listed(connection, RUN)
        took = []
        for _ in range(3):
            with timing() as timed:
                found = points.read(connection, series.id)
            took.append(timed.took)
    assert len(found.step) == 1_000_000
    assert min(took) < 0.6, f"reading took {took} s (about 0.1 s on a quiet machine)"
