from __future__ import annotations

import numpy as np
import pytest

from tests.charts.helpers import BEGAN, column, draw, trace, traces
from trainwatch.charts import Column


def split(count: int = 4, rank: int = 0, factor: float = 1.0) -> list[Column]:
    parts = {"step": 0.4, "data": 0.1, "compute": 0.25, "optimizer": 0.05}
    return [column(f"train/{name}_seconds", np.full(count, factor * s), rank=rank) for name, s in parts.items()]


def test_the_parts_add_up_to_the_step_and_its_wait_for_data() -> None:
    drawn = draw("time", *split())
    parts = {t["name"]: t["y"] for t in drawn["data"]}
    assert list(parts) == ["Waiting for data", "Forward and backward", "Optimizer", "Other"]
    assert [y[0] for y in parts.values()] == pytest.approx([100, 250, 50, 100])
    assert drawn["layout"]["yaxis"]["ticksuffix"] == " ms"
    assert trace(drawn, part="Waiting for data")["customdata"][0] == pytest.approx(0.2)
    assert {t["stackgroup"] for t in drawn["data"]} == {"parts"}


def test_of_several_ranks_it_is_the_mean() -> None:
    drawn = draw("time", *split(), *split(rank=1, factor=3.0))
    assert trace(drawn, part="Forward and backward")["y"].tolist() == pytest.approx([0.5] * 4)  # in seconds


def test_parts_that_were_not_measured_are_not_made_up() -> None:
    drawn = draw("time", *(c for c in split() if c.metric in ("train/step_seconds", "train/data_seconds")))
    assert [t["name"] for t in drawn["data"]] == ["Waiting for data", "Other"]
    assert trace(drawn, part="Other")["y"].tolist() == pytest.approx([400.0] * 4)


def test_parts_longer_than_the_step_leave_no_negative_rest() -> None:
    late = [column("train/step_seconds", [0.2]), column("train/compute_seconds", [0.3])]
    assert trace(draw("time", *late), part="Other")["y"].tolist() == [0.0]


def test_many_steps_are_drawn_as_means() -> None:
    count = 50_000
    seconds = np.full(count, 0.2)
    seconds[::2] = 0.4
    drawn = draw("time", column("train/step_seconds", seconds), column("train/compute_seconds", seconds / 2))
    y = trace(drawn, part="Forward and backward")["y"]
    assert 300 <= y.size <= 400
    np.testing.assert_allclose(y, 150, rtol=0.02)


def test_a_value_that_is_not_finite_spoils_no_mean() -> None:
    parts = split()
    parts[1].value[2] = np.nan
    drawn = draw("time", *parts)
    assert all(np.isfinite(t["y"]).all() for t in drawn["data"])


def test_on_the_time_axis_it_names_the_time_and_the_step() -> None:
    drawn = draw("time", *split(), axis="time", origin=BEGAN - 60)
    assert trace(drawn, header=True)["text"][0] == "<b>1m 00s</b> · step 1"
    assert trace(drawn, part="Optimizer")["x"].tolist() == [60, 61, 62, 63]


def test_the_range_asked_for_is_shown() -> None:
    drawn = draw("time", *split(100), low=10.0, high=20.0)
    assert trace(drawn, part="Optimizer")["x"].tolist() == list(range(10, 21))
    assert traces(draw("time", *split(100), low=200.0, high=300.0), part="Optimizer") == []
