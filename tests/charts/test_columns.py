from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.charts.helpers import column
from tests.patience import timing
from trainwatch.charts import Column, thin
from trainwatch.charts.columns import NONFINITE_CAP

MILLION = 1_000_000


@pytest.fixture(scope="module")
def million() -> Column:
    value = np.random.default_rng(1).normal(2.0, 0.1, MILLION)
    value[400_000] *= 1000
    value[700_001] = np.nan
    return column("train/loss", value)


@pytest.mark.parametrize("axis", ["step", "time"])
def test_a_spike_and_a_lone_nan_survive_among_a_million(million: Column, axis: str) -> None:
    thinned = thin(million, axis=axis, low=None, high=None, width=1200)
    assert thinned.value.size <= 4 * 1200 + 1
    assert thinned.step[np.nanargmax(thinned.value)] == 400_001
    assert np.nanmax(thinned.value) == million.value[400_000]
    assert thinned.step[np.isnan(thinned.value)].tolist() == [700_002]
    assert thinned.omitted.total == 0
    assert (thinned.step[0], thinned.step[-1]) == (1, MILLION)


def test_it_is_fast(million: Column) -> None:
    # About 15 ms on a laptop; the bound is for a busy machine.
    taken = []
    for _ in range(5):
        with timing() as timed:
            thin(million, axis="step", low=None, high=None, width=1200)
        taken.append(timed.took)
    assert min(taken) < 0.15


def test_every_pixel_keeps_its_range(million: Column) -> None:
    width = 500
    thinned = thin(million, axis="step", low=None, high=None, width=width)
    pixel = (million.step - 1) * width // MILLION
    for at in (0, 17, 200, 250, width - 1):
        here = million.value[pixel == at]
        kept = thinned.value[(thinned.step - 1) * width // MILLION == at]
        assert kept.size <= 8
        assert np.nanmin(kept) == pytest.approx(np.nanmin(here), abs=0.05)
        assert np.nanmax(kept) == pytest.approx(np.nanmax(here), abs=0.05)
        assert kept[0] == here[0]


def test_few_points_are_left_alone() -> None:
    whole = column("train/loss", [1.0, np.nan, np.inf, -np.inf, 2.0])
    thinned = thin(whole, axis="step", low=None, high=None, width=100)
    np.testing.assert_array_equal(thinned.value, whole.value)
    np.testing.assert_array_equal(thinned.step, whole.step)


def test_zoom_cuts_and_keeps_one_neighbour_on_each_side() -> None:
    thinned = thin(column("train/loss", np.arange(100.0)), axis="step", low=40, high=50, width=300)
    assert thinned.step.tolist() == list(range(39, 52))


def test_zoom_between_two_points_keeps_both() -> None:
    whole = column("train/loss", [1.0, 2.0, 3.0], step=[10, 20, 30])
    assert thin(whole, axis="step", low=21, high=24, width=300).step.tolist() == [20, 30]


def test_zoom_on_time_is_in_unix_seconds() -> None:
    whole = column("train/loss", np.arange(100.0))
    thinned = thin(whole, axis="time", low=whole.time[10], high=whole.time[12], width=300)
    assert thinned.value.tolist() == [9.0, 10.0, 11.0, 12.0, 13.0]


def test_a_zoomed_million_shows_all_points_in_view(million: Column) -> None:
    thinned = thin(million, axis="step", low=400_000, high=400_100, width=1200)
    assert thinned.step.tolist() == list(range(399_999, 400_102))


def test_a_resumed_run_keeps_both_attempts_in_order() -> None:
    step = np.concatenate((np.arange(1, 60_001), np.arange(50_001, 100_001)))
    value = np.ones(step.size)
    value[55_000] = 500.0  # in the first attempt
    value[62_000] = np.nan  # in the second
    thinned = thin(column("train/loss", value, step=step), axis="step", low=None, high=None, width=400)
    assert np.all(np.diff(thinned.time) > 0)
    assert np.count_nonzero(np.diff(thinned.step) < 0) == 1
    assert thinned.step[thinned.value == 500.0].tolist() == [55_001]
    assert thinned.step[np.isnan(thinned.value)].tolist() == [52_001]
    assert thinned.value.size < 4 * 400 + 20


def test_points_sorted_by_step_are_put_back_in_the_order_of_time() -> None:
    whole = column("train/loss", [1.0, 2.0, 20.0, 3.0, 30.0], step=[1, 2, 2, 3, 3], time=[1.0, 2.0, 10.0, 3.0, 11.0])
    thinned = thin(whole, axis="step", low=None, high=None, width=100)
    assert thinned.value.tolist() == [1.0, 2.0, 3.0, 20.0, 30.0]


def test_beyond_the_cap_one_of_each_kind_stays_in_every_pixel_and_the_rest_is_counted() -> None:
    value = np.ones(60_000)
    value[::3] = np.nan
    value[1] = np.inf
    value[59_998] = -np.inf
    thinned = thin(column("train/loss", value), axis="step", low=None, high=None, width=100)
    kept = thinned.value[~np.isfinite(thinned.value)]
    assert 100 <= np.isnan(kept).sum() <= 102
    assert (np.isposinf(kept).sum(), np.isneginf(kept).sum()) == (1, 1)
    assert np.isnan(kept).sum() + thinned.omitted.nan == 20_000
    assert (thinned.omitted.positive, thinned.omitted.negative) == (0, 0)


def test_up_to_the_cap_every_nonfinite_point_stays() -> None:
    value = np.ones(100_000)
    value[1000 : 1000 + NONFINITE_CAP] = np.nan
    thinned = thin(column("train/loss", value), axis="step", low=None, high=None, width=100)
    assert np.isnan(thinned.value).sum() == NONFINITE_CAP
    assert thinned.omitted.total == 0


def test_readings_of_one_long_step_are_not_lost_when_zoomed() -> None:
    # Four readings a second, a minute a step: on the step axis, 240 readings have the same step.
    taken = np.arange(0.0, 600.0, 0.25)
    whole = column("memory/process_used", np.sin(taken) + 2, step=(taken // 60).astype(np.int64), time=taken)
    thinned = thin(whole, axis="step", low=4, high=5, width=100)
    assert thinned.value.size > 200


def test_a_column_without_steps_is_thinned_by_time() -> None:
    value = np.ones(50_000)
    value[30_000] = 9.0
    whole = column("memory/device_used", value, step=np.full(50_000, -1), rank=None, device="host")
    thinned = thin(whole, axis="step", low=3, high=5, width=100)
    assert 100 < thinned.value.size <= 401
    assert thinned.value.max() == 9.0


def test_points_without_a_step_have_no_place_on_the_step_axis() -> None:
    whole = column("memory/resident", [1.0, 2.0, 3.0], step=[-1, 1, 2])
    assert thin(whole, axis="step", low=None, high=None, width=10).value.tolist() == [2.0, 3.0]
    assert thin(whole, axis="time", low=None, high=None, width=10).value.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("axis", ["step", "time"])
def test_an_empty_column_stays_empty(axis: str) -> None:
    assert thin(column("train/loss", []), axis=axis, low=1, high=2, width=10).value.size == 0


@pytest.mark.parametrize(("low", "high", "width"), [(None, None, 0), (5.0, 4.0, 100)])
def test_nonsense_is_refused(low: float | None, high: float | None, width: int) -> None:
    with pytest.raises(ValueError, match=r"width|low"):
        thin(column("train/loss", [1.0]), axis="step", low=low, high=high, width=width)


values = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.sampled_from([float("nan"), float("inf"), float("-inf")])),
    min_size=1,
    max_size=300,
)


@settings(deadline=None, max_examples=150)
@given(value=values, width=st.integers(1, 12), data=st.data())
def test_whatever_comes_extremes_and_nonfinite_points_stay(value: list[float], width: int, data: st.DataObject) -> None:
    size = len(value)
    step = data.draw(st.lists(st.integers(-1, 40), min_size=size, max_size=size))
    whole = column("train/loss", value, step=step)
    low = data.draw(st.none() | st.integers(0, 20))
    high = data.draw(st.none() | st.integers(20, 40))
    thinned = thin(whole, axis="step", low=low, high=high, width=width)

    pairs = list(zip(whole.time.tolist(), map(repr, whole.value.tolist()), whole.step.tolist(), strict=True))
    kept = list(zip(thinned.time.tolist(), map(repr, thinned.value.tolist()), thinned.step.tolist(), strict=True))
    assert set(kept) <= set(pairs)
    assert len(set(kept)) == len(kept)
    assert np.all(np.diff(thinned.time) > 0)

    if max(step) < 0:
        return  # placed by time
    known = whole.step >= 0
    inside = known & (whole.step >= (0 if low is None else low)) & (whole.step <= (40 if high is None else high))
    shown = whole.value[inside]
    assert (~np.isfinite(shown)).sum() == sum(
        1
        for t, v in zip(thinned.time, thinned.value, strict=True)
        if not np.isfinite(v) and inside[whole.time == t].all()
    )
    finite = shown[np.isfinite(shown)]
    if finite.size:
        rest = thinned.value[np.isfinite(thinned.value)]
        assert rest.min() <= finite.min()
        assert rest.max() >= finite.max()
