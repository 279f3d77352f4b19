"""What a batch needs, learned from steps: right where it can be told, wide where it cannot, else silent."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwatch.forecast.length import LEAST_STEPS, Batch, LengthFit
from trainwatch.forecast.remedies import length_cap, longest_that_fits, smaller_batch
from trainwatch.forecast.upcoming import Upcoming, largest_micro_batch, share_longer

GIB = 2.0**30
MIB = 2.0**20


def true_peak(batch: Batch, linear: float = 2e6, quadratic: float = 300.0) -> float:
    return 10 * GIB + linear * batch.tokens + quadratic * batch.tokens * batch.length


def batches(count: int, longest: int = 1000, seed: int = 1) -> list[Batch]:
    numbers = random.Random(seed)
    lengths = [numbers.randint(100, longest) for _ in range(count)]
    return [Batch(4.0 * length, float(length)) for length in lengths]


def learned(count: int, noise: float, seed: int = 1, *, linear: float = 2e6, quadratic: float = 300.0) -> LengthFit:
    numbers = random.Random(seed + 100)
    fit = LengthFit()
    for batch in batches(count, seed=seed):
        fit.add(batch, true_peak(batch, linear, quadratic) + numbers.gauss(0, noise))
    return fit


FAR = Batch(12_000.0, 3000.0)


@pytest.mark.parametrize(("linear", "quadratic"), [(2e6, 300.0), (2e6, 0.0), (0.0, 300.0)])
def test_both_parts_are_found_and_extrapolated(linear: float, quadratic: float) -> None:
    prediction = learned(60, MIB, linear=linear, quadratic=quadratic).predict(FAR)
    assert prediction is not None
    assert prediction.peak == pytest.approx(true_peak(FAR, linear, quadratic), rel=0.02)
    assert prediction.reach == pytest.approx(3, rel=0.1)
    assert prediction.share > 0.99


def test_nineteen_of_twenty_lie_in_the_interval_and_it_is_no_wider_than_need_be() -> None:
    inside, errors = 0, []
    for seed in range(200):
        prediction = learned(40, 40 * MIB, seed).predict(FAR)
        assert prediction is not None
        inside += prediction.low <= true_peak(FAR) <= prediction.high
        errors.append(prediction.error)
    assert inside >= 190
    assert sorted(errors)[100] < 0.12


def kept(seed: int, share: float, steps: int = 100) -> tuple[LengthFit, LengthFit]:
    """An allocator keeps what was freed, now and then gives it back: one fit knows what was held, one does not."""
    numbers, knowing, blind = random.Random(seed), LengthFit(), LengthFit()
    held = 0.0
    for batch in batches(steps, seed=seed):
        peak = max(held, true_peak(batch, 5e5, 100.0) + numbers.gauss(0, 20 * MIB))
        knowing.add(batch, peak, held)
        blind.add(batch, peak)
        held = peak if numbers.random() < share else 10.2 * GIB
    return knowing, blind


def test_what_an_allocator_keeps_does_not_bring_the_high_end_down() -> None:
    inside, inside_blind = 0, 0
    for seed in range(200):
        told, untold = (fit.predict(FAR) for fit in kept(seed, 0.9))
        assert untold is not None
        inside_blind += untold.low <= true_peak(FAR, 5e5, 100.0) <= untold.high
        if told is None:
            continue
        assert (told.peak, told.low) == (untold.peak, untold.low)
        assert told.high >= untold.high
        inside += told.low <= true_peak(FAR, 5e5, 100.0) <= told.high
    assert inside >= 190 > inside_blind


def test_of_an_allocator_that_gives_nothing_back_nothing_is_said() -> None:
    silent = sum(kept(seed, 1.0)[0].predict(FAR) is None for seed in range(200))
    assert silent >= 190


def test_errors_that_follow_each_other_count_as_the_fewer_that_they_are_worth() -> None:
    inside = 0
    for seed in range(200):
        numbers, fit, drift = random.Random(seed), LengthFit(), 0.0
        for batch in batches(100, seed=seed):
            drift = 0.7 * drift + numbers.gauss(0, 20 * MIB)
            fit.add(batch, true_peak(batch) + drift)
        prediction = fit.predict(FAR)
        assert prediction is not None
        inside += prediction.low <= true_peak(FAR) <= prediction.high
    assert inside >= 190


def test_the_interval_is_wide_when_the_noise_is() -> None:
    calm, noisy = learned(40, MIB).predict(FAR), learned(40, 200 * MIB).predict(FAR)
    assert calm is not None
    assert noisy is not None
    assert noisy.error > 10 * calm.error


def test_a_line_and_a_curve_that_fit_alike_are_both_in_the_interval() -> None:
    fit = LengthFit()
    numbers = random.Random(2)
    for length in [numbers.randint(900, 1100) for _ in range(40)]:
        batch = Batch(4.0 * length, float(length))
        fit.add(batch, true_peak(batch) + numbers.gauss(0, 150 * MIB))
    prediction = fit.predict(FAR)
    if prediction is not None:
        assert prediction.low <= true_peak(FAR) <= prediction.high
        assert prediction.error > 0.1


@pytest.mark.parametrize("floor", [0.0, 10.3, 10.7])
def test_small_batches_whose_peak_is_the_optimizers_do_not_bend_the_line(floor: float) -> None:
    inside = 0
    for seed in range(50):
        fit, numbers = LengthFit(floored=True), random.Random(seed)
        for batch in batches(40, seed=seed):
            fit.add(batch, max(floor * GIB, true_peak(batch, 5e5, 0.0)) + numbers.gauss(0, MIB))
        prediction = fit.predict(FAR)
        assert prediction is not None
        assert prediction.peak == pytest.approx(true_peak(FAR, 5e5, 0.0), rel=0.06)
        inside += prediction.low <= true_peak(FAR, 5e5, 0.0) <= prediction.high
    assert inside >= 46


def test_outliers_hardly_count() -> None:
    fit, calm = LengthFit(), LengthFit()
    for place, batch in enumerate(batches(120)):
        calm.add(batch, true_peak(batch))
        fit.add(batch, true_peak(batch) + (8 * GIB if place > 20 and place % 17 == 0 else 0.0))
    prediction = fit.predict(FAR)
    assert prediction is not None
    assert prediction.peak == pytest.approx(true_peak(FAR), rel=0.03)


def test_a_new_level_is_learned_anew() -> None:
    fit = LengthFit()
    for place, batch in enumerate(batches(160)):
        fit.add(batch, true_peak(batch) + (5 * GIB if place >= 80 else 0.0))
    prediction = fit.predict(FAR)
    assert prediction is not None
    assert prediction.peak == pytest.approx(true_peak(FAR) + 5 * GIB, rel=0.03)
    assert prediction.steps < 90


def test_too_little_says_nothing() -> None:
    assert learned(LEAST_STEPS - 1, 0.0).predict(FAR) is None
    alike = LengthFit()
    for _ in range(50):
        alike.add(Batch(4000.0, 1000.0), 12 * GIB)
    assert alike.predict(FAR) is None


def test_memory_that_falls_as_batches_grow_is_no_model() -> None:
    fit = LengthFit()
    for batch in batches(50):
        fit.add(batch, 20 * GIB - 1e6 * batch.tokens)
    assert fit.predict(FAR) is None


def test_only_what_follows_is_taken_for_the_largest_micro_batch() -> None:
    step = {"train/batch_length": 100.0, "train/padded_tokens": 200.0, "train/samples": 2.0, "train/micro_batches": 1.0}
    assert largest_micro_batch(step) == Batch(200.0, 100.0)
    several = {**step, "train/padded_tokens": 500.0, "train/samples": 6.0, "train/micro_batches": 3.0}
    assert largest_micro_batch(several) == Batch(200.0, 100.0)
    assert largest_micro_batch({**several, "train/samples": 5.0}) is None
    assert largest_micro_batch({**several, "train/padded_tokens": 900.0}) is None
    assert largest_micro_batch({}) is None


def test_remedies_follow_from_the_fit() -> None:
    fit = learned(60, MIB)
    limit = true_peak(Batch(4 * 2000.0, 2000.0))
    cap = longest_that_fits(fit, 4, 3000.0, limit)
    assert cap is not None
    assert 1900 <= cap <= 2000
    cut = length_cap(fit, 4, 3000.0, 1500, 0.01)
    assert cut is not None
    assert cut.saves == pytest.approx(true_peak(FAR) - true_peak(Batch(6000.0, 1500.0)), rel=0.03)
    half = smaller_batch(fit, 4, 3000.0)
    assert half is not None
    assert half.saves == pytest.approx(true_peak(FAR) - true_peak(Batch(6000.0, 3000.0)), rel=0.03)
    assert smaller_batch(fit, 1, 3000.0) is None
    assert longest_that_fits(fit, 4, 3000.0, 1 * GIB) is None


def test_shares_of_a_histogram() -> None:
    histogram = {"edges": [0, 100, 200], "counts": [75, 25]}
    assert share_longer(histogram, 99) == pytest.approx(0.25)
    assert share_longer(histogram, 50, surely=True) == pytest.approx(0.25)
    assert share_longer({"edges": [0], "counts": []}, 5) is None
    assert share_longer({"edges": ["a", 2], "counts": [1]}, 5) is None


anything = st.floats(allow_nan=True, allow_infinity=True) | st.floats(min_value=0, max_value=1e12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(anything, anything, anything), max_size=80), anything, anything)
def test_no_series_makes_the_fit_fail(rows: list[tuple[float, float, float]], tokens: float, length: float) -> None:
    fit = LengthFit()
    for batch_tokens, batch_length, peak in rows:
        fit.add(Batch(batch_tokens, batch_length), peak)
        if fit.count % 5:
            continue
        prediction = fit.predict(Batch(tokens, length))
        if prediction is not None and math.isfinite(prediction.peak):
            assert prediction.low <= prediction.high or math.isnan(prediction.low)
        assert math.isnan(fit.share) or 0 <= fit.share <= 1


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["max", "mean", "p99", "first", "longest", "edges", "counts"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["lengths", "order", "complete", "histogram"]), plain),
    st.lists(st.tuples(st.integers(-5, 10**7), anything, anything, anything), max_size=40),
)
def test_no_description_of_data_makes_what_is_to_come_fail(
    train: dict[str, object], steps: list[tuple[int, float, float, float]]
) -> None:
    upcoming = Upcoming({"train": train})
    for step, length, samples, tokens in steps:
        upcoming.saw(step, {"train/batch_length": length, "train/samples": samples, "train/tokens": tokens})
        upcoming.coming(step)
        upcoming.share_longer(step)
