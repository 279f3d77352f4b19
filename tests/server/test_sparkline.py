from __future__ import annotations

import math

import pytest

from trainwatch.server.store.sparkline import CAPACITY, Sparkline


def test_a_short_one_shows_every_point() -> None:
    line = Sparkline()
    line.extend([(1, 3.0), (2, 2.0), (3, 1.0)])
    assert (line.step.tolist(), line.value.tolist()) == ([1, 2, 3], [3.0, 2.0, 1.0])


@pytest.mark.parametrize("size", [1, 17, 10_000])
def test_it_is_the_same_however_the_points_arrive(size: int) -> None:
    points = [(n, float(n % 100)) for n in range(10_000)]
    packed = None
    for at in range(0, len(points), size):
        line = Sparkline(packed)
        line.extend(points[at : at + size])
        packed = line.to_bytes()
    whole = Sparkline()
    whole.extend(points)
    assert packed == whole.to_bytes()
    assert CAPACITY / 2 <= len(whole.value) <= CAPACITY
    assert whole.step[-1] == 9_999


def test_means_are_means() -> None:
    line = Sparkline()
    line.extend((n, float(n)) for n in range(CAPACITY * 4))
    width = line.step[1] - line.step[0]
    assert line.value[0] == pytest.approx((width - 1) / 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_lone_non_finite_value_stays_visible(value: float) -> None:
    line = Sparkline()
    line.extend((n, value if n == 4321 else 1.0) for n in range(100_000))
    shown = [v for v in line.value if not math.isfinite(v)]
    assert len(shown) == 1
    assert repr(shown[0]) == repr(value)


def test_a_resumed_run_goes_on_from_where_it_was_resumed() -> None:
    line = Sparkline()
    line.extend((n, 1.0) for n in range(1, 1001))
    line = Sparkline(line.to_bytes())
    line.extend((n, 2.0) for n in range(501, 1201))
    assert line.step.tolist() == sorted(line.step)
    assert line.step[-1] == 1200
    assert len(line.value) <= CAPACITY
    assert set(zip((step > 500 for step in line.step), line.value, strict=True)) == {(False, 1.0), (True, 2.0)}
    line.extend([(1, 3.0)])
    assert (line.step.tolist(), line.value.tolist()) == ([1], [3.0])
