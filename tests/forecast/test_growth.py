"""Growth of memory: what is one, what is none, and how well its end is foreseen."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwatch.events import Sampled
from trainwatch.forecast.growth import Forecast, Growth
from trainwatch.forecast.limits import Limits
from trainwatch.rules import RULES, Engine
from trainwatch.rules.growth import OOM_FORECAST

MIB = 2**20
LIMIT = 7000 * MIB

Point = Callable[[int, random.Random], tuple[float, float]]


def follow(point: Point, steps: int, limit: float = LIMIT) -> tuple[int | None, list[tuple[int, Forecast]]]:
    """Returns the step whose peak exceeds the limit, and what was forecast after each step before it."""
    noise, growth, said = random.Random(3), Growth(), []
    for step in range(1, steps):
        trough, peak = point(step, noise)
        if peak > limit:
            return step, said
        growth.observe(step, trough, peak)
        forecast = growth.forecast(limit)
        if forecast is not None:
            said.append((step, forecast))
    return None, said


@pytest.mark.parametrize("leak", [1, 3, 10, 30, 100])
@pytest.mark.parametrize("noise", [2, 75])
def test_the_end_of_a_leak_is_foreseen_when_half_the_headroom_is_gone(leak: int, noise: int) -> None:
    def leaking(step: int, numbers: random.Random) -> tuple[float, float]:
        trough = (500 + leak * step + numbers.random() * noise) * MIB
        return trough, trough + (50 + numbers.random() * noise) * MIB

    end, said = follow(leaking, 9000)
    assert end is not None
    for step, forecast in said:
        if step > end / 2:
            assert forecast.step == pytest.approx(end, rel=0.15)
            assert forecast.low <= forecast.step <= forecast.high
            assert forecast.bytes_per_step == pytest.approx(leak * MIB, rel=0.3)
    assert any(end * 0.4 < step < end * 0.6 for step, _ in said)
    # Up to the last step there is something to say, or a run could not be halted.
    assert said[-1][0] >= end - 3
    near = 0.005 * end + 2
    within = [forecast.low - near <= end <= forecast.high + near for step, forecast in said if step > end / 2]
    assert sum(within) > 0.8 * len(within)


NO_LEAKS: dict[str, Point] = {
    "flat": lambda step, noise: (1000 * MIB, 3000 * MIB),
    "noise": lambda step, noise: ((1000 + noise.random() * 300) * MIB, 6000 * MIB),
    "long batches": lambda step, noise: (1000 * MIB, (2000 + 4900 * noise.random() ** 8) * MIB),
    "one stair": lambda step, noise: ((1000 + 3000 * (step > 100) + noise.random()) * MIB, 5000 * MIB),
    "stairs": lambda step, noise: (
        (1000 + 400 * sum(step > at for at in (60, 150, 700, 850)) + noise.random()) * MIB,
        5000 * MIB,
    ),
    "a saw": lambda step, noise: ((1000 + 1000 * (step % 7)) * MIB, 6990 * MIB),
    "a fall": lambda step, noise: ((6000 - step) * MIB, 6100 * MIB),
    "warm-up": lambda step, noise: ((5000 - 3000 * math.exp(-step / 30)) * MIB, 5500 * MIB),
}


@pytest.mark.parametrize("name", NO_LEAKS)
def test_what_comes_back_or_stops_is_no_leak(name: str) -> None:
    assert follow(NO_LEAKS[name], 3000)[1] == []


def test_a_saw_is_known_after_its_first_tooth() -> None:
    def saw(step: int, noise: random.Random) -> tuple[float, float]:
        held = (1000 + 30 * (step % 180)) * MIB
        return held, held

    end, said = follow(saw, 3000)
    assert end is None
    assert all(step < 180 for step, _ in said)


def test_a_leak_that_begins_late_is_seen_within_its_first_steps() -> None:
    def late(step: int, noise: random.Random) -> tuple[float, float]:
        held = (1000 + noise.random() + max(step - 20_000, 0) * 40) * MIB
        return held, held + 100 * MIB

    end, said = follow(late, 30_000)
    assert end is not None
    assert 20_000 < said[0][0] < 20_060
    # The window that is trusted may hold some steps from before.
    assert said[-1][1].step == pytest.approx(end, abs=8)
    assert said[-1][1].low <= end + 8


def test_a_forecast_does_not_look_further_than_it_has_seen() -> None:
    growth = Growth()
    for step in range(1, 40):
        growth.observe(step, step * MIB, step * MIB)
    assert growth.trend() is not None
    assert growth.forecast(10_000 * MIB) is None
    assert growth.forecast(60 * MIB) is not None


def test_memory_that_falls_ends_a_trend_at_once() -> None:
    growth = Growth()
    for step in range(1, 201):
        growth.observe(step, step * MIB, step * MIB)
    assert growth.trend() is not None
    growth.observe(201, 10 * MIB, 10 * MIB)
    assert growth.trend() is None


def test_a_resumed_run_begins_anew() -> None:
    growth = Growth()
    for step in range(1, 201):
        growth.observe(step, step * MIB, step * MIB)
    growth.observe(150, 300 * MIB, 300 * MIB)
    assert growth.trend() is None
    assert growth.newest == 150


numbers = st.floats() | st.sampled_from([0.0, 1.0, 1e308, -1e308, math.nan, math.inf, 5e-324])


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=200), numbers)
@settings(max_examples=200, deadline=None)
def test_nothing_makes_it_raise(points: list[tuple[float, float, float]], limit: float) -> None:
    growth = Growth()
    for point in points:
        growth.observe(*point)
        growth.forecast(limit)


@given(st.lists(st.tuples(numbers, numbers), max_size=200), numbers)
@settings(max_examples=200, deadline=None)
def test_steps_in_order_with_any_values_make_nothing_raise(points: list[tuple[float, float]], limit: float) -> None:
    growth = Growth()
    for step, point in enumerate(points):
        growth.observe(step, *point)
        growth.forecast(limit)


@given(st.lists(st.floats(0, 1e6), min_size=14, max_size=300), st.sets(st.integers(0, 300)))
@settings(max_examples=100, deadline=None)
def test_when_one_asks_does_not_matter(rises: list[float], asked: set[int]) -> None:
    often, seldom, held = Growth(), Growth(), 0.0
    for step, rise in enumerate(rises):
        held += rise
        often.observe(step, held, held)
        seldom.observe(step, held, held)
        often.forecast(2 * held + 1)
        if step in asked:
            assert seldom.forecast(2 * held + 1) == often.forecast(2 * held + 1)


def test_a_million_points_need_a_few_kilobytes() -> None:
    growth, noise = Growth(), random.Random(1)
    for step in range(1_000_000):
        growth.observe(step, 1000.0 + noise.random(), 2000.0)
    size = sum(
        sys.getsizeof(block) + sum(map(sys.getsizeof, block)) for level in growth._levels for block in level.blocks
    )
    assert len(growth._levels) <= 20
    assert size < 64_000


def test_limits_of_a_process_in_a_control_group() -> None:
    from trainwatch.events import Sampled, StepEnded

    limits = Limits()
    assert limits.limit(0, "cpu") is None
    step = StepEnded(time=1, step=1, devices={"cpu": {"memory/resident": 3e9, "memory/capacity": 10e9}})
    limits.observe(step, 0)
    assert limits.limit(0, "cpu") == 10e9
    for time in range(3):
        limits.observe(Sampled(time=time, rank=0, devices={"cpu": {"memory/resident": 3e9}}), 0)
        host = {"memory/device_used": 5e9, "memory/capacity": 8e9}
        limits.observe(Sampled(time=time, devices={"host": host}), None)
    assert limits.limit(0, "cpu") == 6e9
    # Libraries that are charged to another group make resident memory larger than the group's use.
    for time in range(3, 20):
        limits.observe(Sampled(time=time, devices={"host": {"memory/device_used": 2e9}}), None)
    assert limits.limit(0, "cpu") == 9e9


def test_memory_that_is_full_is_said_a_few_times() -> None:
    engine = Engine(RULES)
    said = []
    for number in range(2000):
        devices = {"host": {"memory/device_used": (4.0 + number * 0.01) * 2**30, "memory/capacity": 12.0 * 2**30}}
        said += engine.observe(Sampled(time=5.0 * number, devices=devices), None)
    # Each half of what is left is news; that nothing is left is so only once.
    assert 1 < sum(one.rule == OOM_FORECAST and one.state == "firing" for one in said) < 30


@pytest.mark.parametrize("top", [12.0, 13.0, 14.0, 14.5])
@pytest.mark.parametrize("pace", [100, 200, 400, 800])
def test_a_warm_up_that_slows_down_and_ends_below_the_limit_is_no_leak(pace: int, top: float) -> None:
    growth = Growth()
    for step in range(1, 6 * pace):
        held = (2.0 + (top - 2.0) * (1.0 - math.exp(-step / pace))) * 2**30
        growth.observe(step, held, held + 0.2 * 2**30)
        forecast = growth.forecast(16 * 2**30)
        # In its first part it looks like anything; from where half of it is done the end is in sight.
        assert forecast is None or step < pace, (step, forecast)
