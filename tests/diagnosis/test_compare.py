"""Where two curves part: found at the step at which it was planted, and nowhere where there is only noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trainwatch.diagnosis.compare import FEWEST, parting

STEPS = np.arange(1, 201)


def noisy(seed: int, level: float = 1.0, noise: float = 0.05) -> np.ndarray[Any, Any]:
    return level * (1 + noise * np.random.default_rng(seed).standard_normal(len(STEPS)))


def test_two_runs_of_the_same_kind_do_not_part() -> None:
    found = parting(STEPS, noisy(1), STEPS, noisy(2))
    assert found
    assert (found.step, found.common) == (None, 200)
    assert found.ours == pytest.approx(found.theirs, rel=0.02)


@pytest.mark.parametrize("planted", [1, 40, 150])
def test_a_curve_that_leaves_the_other_parts_there(planted: int) -> None:
    leak = noisy(2) + np.where(planted <= STEPS, 0.5 + 0.02 * (STEPS - planted), 0.0)
    found = parting(STEPS, noisy(1), STEPS, leak)
    assert found
    assert found.step is not None
    assert abs(found.step - planted) <= 3
    assert found.theirs > 1.3 * found.ours


def test_curves_that_differ_from_the_first_step_part_there() -> None:
    found = parting(STEPS, noisy(1, 20.0, 0.001), STEPS, noisy(2, 25.0, 0.001))
    assert found
    assert found.step == 1


def test_nan_is_apart_from_what_is_finite() -> None:
    broken = noisy(1)
    broken[99:] = np.nan
    found = parting(STEPS, noisy(1), STEPS, broken)
    assert found
    assert found.step == 100
    assert np.isnan(found.theirs)
    broken[99:197] = noisy(1)[99:197]
    late = parting(STEPS, noisy(1), STEPS, broken)
    assert late
    assert late.step == 198
    same = parting(STEPS, broken, STEPS, broken)
    assert same
    assert same.step is None
    assert np.isfinite(same.ours)


def test_a_spike_that_is_over_is_no_parting() -> None:
    spike = noisy(1)
    spike[50:60] *= 9
    found = parting(STEPS, noisy(1), STEPS, spike)
    assert found
    assert found.step is None


def test_only_common_steps_count() -> None:
    assert parting(STEPS[:4], noisy(1)[:4], STEPS, noisy(1)) is None
    found = parting(STEPS[::10], noisy(1)[::10], STEPS, noisy(1) * 2)
    assert found
    assert (found.common, found.step) == (20, 1)


@given(arrays(float, st.integers(0, 40)), arrays(float, st.integers(0, 40)))
def test_no_curve_is_too_odd(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> None:
    found = parting(np.arange(len(ours)), ours, np.arange(len(theirs)), theirs)
    assert (found is None) == (min(len(ours), len(theirs)) < FEWEST)
