from __future__ import annotations

import numpy as np
import pytest

from tests.charts.helpers import BEGAN, column
from trainwatch.charts import Attempt, Column, Cuts, Marks, NonFiniteMark, PhaseSpan, newest, newest_marks

# Steps 1 to 30 from BEGAN on, one a second; taken up again at step 21, 100 s later.
TWICE = np.concatenate((np.arange(1, 31), np.arange(21, 41)))
TIMES = BEGAN + np.concatenate((np.arange(30), 100 + np.arange(20)))
RESUMED = Cuts((Attempt(0, BEGAN - 1, 1), Attempt(0, BEGAN + 99, 21)))


def twice(rank: int | None = 0, metric: str = "train/loss") -> Column:
    return column(metric, np.arange(50.0), step=TWICE, time=TIMES, rank=rank)


def test_of_steps_that_were_done_twice_the_newest_count() -> None:
    (kept,) = newest([twice()], RESUMED)
    assert kept.step.tolist() == list(range(1, 41))
    assert kept.value.tolist() == [*range(20), *range(30, 50)]


def test_an_attempt_that_has_done_nothing_yet_replaces_nothing() -> None:
    (kept,) = newest([twice()], Cuts(RESUMED.attempts[:1]))
    assert kept.step.tolist() == TWICE.tolist()


def test_one_that_went_on_behind_the_last_step_replaces_nothing() -> None:
    whole = column("train/loss", np.arange(30.0))
    assert newest([whole], Cuts((Attempt(0, BEGAN - 1, 1), Attempt(0, BEGAN + 99, 31)))) == [whole]


def test_what_was_done_three_times_is_there_once() -> None:
    step = np.concatenate((np.arange(1, 11), np.arange(6, 13), np.arange(4, 16)))
    time = BEGAN + np.concatenate((np.arange(10), 50 + np.arange(7), 90 + np.arange(12)))
    cuts = Cuts((Attempt(0, BEGAN - 1, 1), Attempt(0, BEGAN + 49, 6), Attempt(0, BEGAN + 89, 4)))
    (kept,) = newest([column("train/loss", np.zeros(29), step=step, time=time)], cuts)
    assert kept.step.tolist() == list(range(1, 16))
    assert np.all(kept.time[3:] >= BEGAN + 89)


def test_each_rank_has_its_own_clock() -> None:
    late = Cuts((*RESUMED.attempts, Attempt(1, BEGAN - 1, 1), Attempt(1, BEGAN + 40, 21)))
    own = column("train/loss", np.zeros(50), step=TWICE, time=np.where(TIMES < BEGAN + 50, TIMES, TIMES - 59), rank=1)
    first, second = newest([twice(), own], late)
    assert first.step.tolist() == second.step.tolist() == list(range(1, 41))


def test_a_rank_that_a_smaller_launch_does_not_have_is_cut_by_it() -> None:
    cuts = Cuts((Attempt(0, BEGAN - 1, 1, 2), Attempt(1, BEGAN - 1, 1, 2), Attempt(0, BEGAN + 99, 21, 1)))
    (kept,) = newest([column("train/loss", np.arange(30.0), rank=1)], cuts)
    assert kept.step.tolist() == list(range(1, 21))


def test_readings_of_the_node_while_lost_steps_were_done_are_left_out() -> None:
    node = column(
        "memory/device_used", np.arange(12.0), step=np.full(12, -1), time=BEGAN + 10 * np.arange(12), rank=None
    )
    _, kept = newest([twice(), node], RESUMED)
    # From the first lost step (at 20 s) to the new begin (at 99 s).
    assert (kept.time - BEGAN).tolist() == [0, 10, 100, 110]
    assert newest([node], Cuts(RESUMED.attempts[:1])) == [node]


def test_marks_of_lost_steps_are_left_out() -> None:
    def mark(step: int, time: float) -> NonFiniteMark:
        return NonFiniteMark(step, BEGAN + time, 0, "loss", np.nan, "skipped")

    def span(step: int, time: float) -> PhaseSpan:
        return PhaseSpan("eval", BEGAN + time, BEGAN + time + 1, step, step, 0)

    marks = Marks(
        phases=[span(20, 20), span(25, 25), span(25, 104)], nonfinite=[mark(20, 19), mark(25, 24), mark(25, 104)]
    )
    kept = newest_marks(marks, RESUMED)
    assert kept.phases == [marks.phases[0], marks.phases[2]]
    assert kept.nonfinite == [marks.nonfinite[0], marks.nonfinite[2]]


@pytest.mark.parametrize(("step", "time", "replaced"), [(25, 24, True), (25, 104, False), (20, 19, False)])
def test_it_can_be_asked_of_one_step(step: int, time: float, replaced: bool) -> None:
    assert RESUMED.replaced(0, step, BEGAN + time) is replaced
    assert not RESUMED.replaced(1, step, BEGAN + time)
    assert not RESUMED.replaced(None, step, BEGAN + time)
