from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from tests.server.shipping import RUN, batch, ended, shipment, started, step
from trainwatch.charts.attempts import Cut
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import rolling, silence
from trainwatch.server.jobs.one_by_one import Incomplete
from trainwatch.server.models import chunks
from trainwatch.server.models import rollups as table
from trainwatch.server.store import points, removal, rollups
from trainwatch.server.store.checking import problems
from trainwatch.server.store.codec import Columns, pack_chosen, unpack_chosen
from trainwatch.server.store.reading import read, read_thinned
from trainwatch.server.store.rollups import NONFINITE_MOST, STRETCH, Chosen, choose

SPECIAL = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7e308]


def chosen_of(values: list[float], begin: int = 0) -> Chosen:
    count = len(values)
    position = np.arange(begin, begin + count)
    return Chosen(position, Columns(position + 1, 1e9 + position / 3, np.array(values, np.float64)))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.floats(), st.sampled_from(SPECIAL)), min_size=1, max_size=600),
    st.integers(0, 200),
    st.sampled_from([1, 2, 7, 64]),
)
def test_each_bucket_keeps_its_extremes_its_ends_and_every_nonfinite_value(
    values: list[float], begin: int, bucket: int
) -> None:
    whole = chosen_of(values, begin)
    for once in (choose(whole, bucket), choose(choose(whole, bucket), bucket * 8)):
        size = bucket if once.position.size == choose(whole, bucket).position.size else bucket * 8
        position, columns = unpack_chosen(2, pack_chosen(once.position, once.columns))
        np.testing.assert_array_equal(position, once.position)
        assert columns.value.tobytes() == once.columns.value.tobytes()
        before = whole.columns.value
        lost = ~np.isfinite(before)
        assert set(once.position[~np.isfinite(once.columns.value)]) == set(whole.position[lost])
        assert once.omitted == (0, 0, 0)
        for number in np.unique(whole.position // size):
            mine = whole.position // size == number
            kept = once.position // size == number
            assert whole.position[mine][[0, -1]].tolist() == once.position[kept][[0, -1]].tolist()
            finite = before[mine & ~lost]
            held = once.columns.value[kept]
            held = held[np.isfinite(held)]
            if finite.size:
                assert (held.min(), held.max()) == (finite.min(), finite.max())
            assert kept.sum() <= 4 + (mine & lost).sum()


def test_of_too_many_nonfinite_values_one_of_each_kind_a_bucket_stays_and_the_others_are_counted() -> None:
    values = np.full(STRETCH, math.nan)
    values[::5] = math.inf
    values[1::7] = -math.inf
    values[100] = 3.0
    once = choose(chosen_of(values.tolist()), 64)
    twice = choose(once, 512)
    for found in (once, twice):
        held = found.columns.value
        counts = [np.isnan(held).sum(), (held == math.inf).sum(), (held == -math.inf).sum()]
        wanted = [np.isnan(values).sum(), (values == math.inf).sum(), (values == -math.inf).sum()]
        assert [count + left for count, left in zip(counts, found.omitted, strict=True)] == wanted
        assert len(held) <= max(NONFINITE_MOST, 5 * STRETCH // 64) + 1
        assert 3.0 in held


def fill(database: Database, values: np.ndarray, *, again_from: int | None = None) -> int:
    """Stores a series of values at steps 1, 2, …; from a place on the steps begin again at half of it."""
    Ingest(database, lambda _run, _version: None, lambda: 0.0).accept(shipment(batch([started()])))
    step = np.arange(1, len(values) + 1)
    if again_from is not None:
        step[again_from:] -= again_from // 2
    with database.write() as connection:
        for at in range(0, len(values), 3000):
            new = points.Fresh()
            new.step = step[at : at + 3000].tolist()
            new.time = (1e9 + np.arange(at, min(at + 3000, len(values))) / 4).tolist()
            new.value = values[at : at + 3000].tolist()
            points.append(connection, RUN, {points.Key("train/loss", 0, ""): new})
        [one] = points.listed(connection, RUN)
    return one.id


def curve(count: int) -> np.ndarray:
    values = np.random.default_rng(4).normal(size=count)
    values[[5, 70, count // 2, count // 2 + 1, count - 4]] = [math.nan, math.inf, -math.inf, math.nan, math.nan]
    values[count // 3], values[2 * count // 3] = 1e6, -1e6
    return values


def test_rollups_are_made_and_read_with_everything_that_matters_in_them(database: Database) -> None:
    values = curve(400_000)
    number = fill(database, values)
    assert rolling.catch_up(database) == len(values) // STRETCH
    assert rolling.catch_up(database) == 0
    with database.read() as connection:
        query = select(table.c.level, func.count(), func.sum(table.c.points)).group_by(table.c.level)
        levels = {level: (count, stands_for) for level, count, stands_for in connection.execute(query)}
        assert levels == {1: (24, 24 * STRETCH), 2: (6, 24 * STRETCH), 3: (1, 16 * STRETCH)}
        whole = read(connection, number)
        thin = read_thinned(connection, number).columns
        np.testing.assert_array_equal(whole.value, values)
        assert len(thin.value) < 40_000
        assert (np.nanmin(thin.value[np.isfinite(thin.value)]), thin.value[np.isfinite(thin.value)].max()) == (
            -1e6,
            1e6,
        )
        np.testing.assert_array_equal(thin.step[~np.isfinite(thin.value)], whole.step[~np.isfinite(whole.value)])
        for low, high in ((0, 99_999.5), (30_001, 250_000), (123_456, 123_999), (399_000, 500_000), (5e5, 6e5)):
            for axis in ("step", "time"):
                scale = (lambda x: x) if axis == "step" else (lambda x: 1e9 + (x - 1) / 4)
                found = read_thinned(connection, number, axis=axis, low=scale(low), high=scale(high)).columns
                every = read(connection, number, axis=axis, low=scale(low), high=scale(high))
                inside = (every.step >= low) & (every.step <= high)
                near = (found.step >= low) & (found.step <= high)
                assert inside.sum() == max(0, min(int(high), len(values)) - max(math.ceil(low), 1) + 1)
                bad, good = every.value[inside], every.value[inside][np.isfinite(every.value[inside])]
                if good.size:
                    held = found.value[near][np.isfinite(found.value[near])]
                    assert (held.min(), held.max()) == (good.min(), good.max())
                np.testing.assert_array_equal(
                    found.step[near][~np.isfinite(found.value[near])], every.step[inside][~np.isfinite(bad)]
                )


def test_what_was_done_again_is_cut_exactly(sqlite: Database) -> None:
    values = curve(300_000)
    again = 200_123
    values[again - 40] = 5e7  # the highest of its bucket, and replaced: those beside it must not go with it
    number = fill(sqlite, values, again_from=again)
    rolling.catch_up(sqlite)
    cut = Cut(1e9 + again / 4, again + 1 - again // 2)
    with sqlite.read() as connection:
        thin = read_thinned(connection, number, cuts=[cut]).columns
        whole = read(connection, number)
    kept, all_kept = (found.take(~((found.time < cut.time) & (found.step >= cut.step))) for found in (thin, whole))
    assert len(kept.value) < 60_000
    finite, all_finite = (found.value[np.isfinite(found.value)] for found in (kept, all_kept))
    assert (finite.min(), finite.max()) == (all_finite.min(), all_finite.max())
    near, all_near = (found.take(abs(found.step - cut.step) < 20) for found in (kept, all_kept))
    assert set(zip(all_near.step, all_near.time, strict=True)) >= set(zip(near.step, near.time, strict=True))
    np.testing.assert_array_equal(np.sort(near.value), np.sort(all_near.value))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_view_has_the_extremes_and_nonfinite_values_of_its_points(
    rolled: tuple[Database, int, np.ndarray], data: st.DataObject
) -> None:
    database, number, values = rolled
    low = data.draw(st.integers(-10, len(values)))
    high = data.draw(st.integers(low, len(values) + 10))
    with database.read() as connection:
        found = read_thinned(connection, number, low=low, high=high)
    inside = values[max(low - 1, 0) : max(high, 0)]
    near = (found.columns.step >= low) & (found.columns.step <= high)
    held = found.columns.value[near]
    finite = inside[np.isfinite(inside)]
    if finite.size:
        assert (held[np.isfinite(held)].min(), held[np.isfinite(held)].max()) == (finite.min(), finite.max())
    steps = np.flatnonzero(~np.isfinite(inside)) + max(low, 1)
    np.testing.assert_array_equal(found.columns.step[near][~np.isfinite(held)], steps)
    assert (found.nan, found.positive, found.negative) == (0, 0, 0)


@pytest.fixture
def rolled(sqlite: Database) -> tuple[Database, int, np.ndarray]:
    chance = np.random.default_rng(8)
    values = chance.normal(size=150_000)
    values[chance.integers(0, len(values), 400)] = math.nan
    values[chance.integers(0, len(values), 50)] = math.inf
    number = fill(sqlite, values)
    rolling.catch_up(sqlite)
    return sqlite, number, values


def test_a_series_that_is_gone_is_not_rolled_up(sqlite: Database) -> None:
    number = fill(sqlite, curve(40_000))
    with sqlite.read() as connection:
        made = rollups.prepare(connection, RUN, number, most=10)
    assert len(made) == 2
    rolling.catch_up(sqlite)
    with sqlite.write() as connection:
        assert not rollups.save(connection, RUN, number, made)  # somebody else was faster
        assert rollups.prepare(connection, RUN, 12345, most=10) == []


def test_a_number_that_a_series_of_another_run_got_is_not_taken_for_it(sqlite: Database) -> None:
    number = fill(sqlite, curve(40_000))
    with sqlite.read() as connection:
        made = rollups.prepare(connection, RUN, number, most=10)
    silence.mark_silent(sqlite, now=100.0, late_after=20, lost_after=60)
    with sqlite.write() as connection:
        removal.delete_run(connection, RUN, 100.0)
    ingest = Ingest(sqlite, lambda _run, _version: None, lambda: 0.0)
    ingest.accept(shipment(batch([started(), *(step(n, 1 / n) for n in range(1, 40_001)), ended(40_000)], run="next")))
    ingest.accept(shipment(batch([started(), ended(1)], run="other")))
    with sqlite.write() as connection:
        assert [one.id for one in points.listed(connection, "next")] == [number]
        assert not rollups.save(connection, RUN, number, made)
        assert not rollups.save(connection, "other", number, made)
        assert rollups.prepare(connection, "other", number, most=10) == []
        assert not rollups.save(connection, "next", number, [{**made[0], "points": 40_002}]), "more than is packed"
    for run in (RUN, "other"):
        assert rolling.roll(sqlite, run, number, over_before=math.inf) == 0
    assert rolling.roll(sqlite, "next", number, over_before=math.inf) == 3
    with sqlite.write() as connection:
        assert removal.drop_raw(connection, RUN, number, math.inf) == 0
        assert removal.drop_raw(connection, "other", number, math.inf) == 0
        assert len(points.read(connection, number).step) == 40_000
        assert list(problems(connection, deep=True)) == []
        assert removal.drop_raw(connection, "next", number, math.inf) == 40_000


def test_a_series_that_cannot_be_rolled_up_keeps_no_other_waiting(sqlite: Database) -> None:
    good = fill(sqlite, curve(3 * STRETCH + 3000))
    new = points.Fresh()
    new.step, new.time, new.value = list(range(2 * STRETCH)), [1.0] * (2 * STRETCH), [1.0] * (2 * STRETCH)
    with sqlite.write() as connection:
        points.append(connection, RUN, {points.Key("broken", 0, ""): new})
        [damaged] = [one.id for one in points.listed(connection, RUN) if one.id != good]
        connection.execute(update(chunks).where(chunks.c.series == damaged).values(data=b"no zstd"))
    with pytest.raises(Incomplete, match=": 1, among them"):
        rolling.catch_up(sqlite)
    with sqlite.read() as connection:
        made = connection.execute(select(table.c.series).where(table.c.level == 1)).scalars().all()
    assert made == [good] * 3
