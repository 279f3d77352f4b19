from __future__ import annotations

import numpy as np
import pytest

from tests.charts.helpers import BEGAN, GIB, column, draw, trace, traces
from trainwatch.charts import CheckpointMark, Marks, PhaseSpan


def used(value: object, device: str = "cuda:0", metric: str = "memory/peak", rank: int | None = 0) -> object:
    return column(metric, value, device=device, rank=rank)


def test_bytes_are_drawn_in_the_unit_of_the_data() -> None:
    drawn = draw("memory", column("memory/peak", [1.5 * GIB, 2.25 * GIB], device="cuda:0"))
    peak = trace(drawn, metric="memory/peak")
    assert peak["y"].tolist() == [1.5, 2.25]
    assert drawn["layout"]["yaxis"]["ticksuffix"] == " GiB"
    assert "GiB" in peak["hovertemplate"]
    assert drawn["layout"]["meta"]["divisor"] == GIB
    small = draw("memory", column("memory/peak", [300.0 * 2**20, 200.0 * 2**20], device="cpu"))
    assert small["layout"]["yaxis"]["ticksuffix"] == " MiB"


@pytest.mark.parametrize("axis", ["step", "time"])
def test_a_capacity_within_reach_is_a_dashed_line(axis: str) -> None:
    peak = column("memory/peak", [60 * GIB, 70 * GIB], device="cuda:0")
    limit = column("memory/capacity", [80 * GIB, 80 * GIB], device="cuda:0")
    drawn = draw("memory", peak, limit, axis=axis)
    line = trace(drawn, metric="memory/capacity")
    assert line["y"].tolist() == [80.0, 80.0]
    assert line["line"]["dash"] != "solid"
    assert line["name"] == "Capacity 80 GiB"
    assert drawn["layout"]["annotations"] == []


def test_a_far_capacity_does_not_squash_the_sawtooth() -> None:
    peak = column("memory/peak", [1.0 * GIB, 1.2 * GIB], device="cpu")
    limit = column("memory/capacity", [23.4 * GIB, 23.4 * GIB], device="cpu")
    drawn = draw("memory", peak, limit)
    assert traces(drawn, metric="memory/capacity") == []
    assert [note["text"] for note in drawn["layout"]["annotations"]] == ["↑ capacity 23.4 GiB"]
    assert max(t["y"].max() for t in drawn["data"] if t.get("yaxis") != "y2") < 2


def test_equal_capacities_of_eight_gpus_are_one_line() -> None:
    columns = [column("memory/peak", [60 * GIB], rank=r, device=f"cuda:{r}") for r in range(8)]
    columns += [column("memory/capacity", [80 * GIB], rank=r, device=f"cuda:{r}") for r in range(8)]
    columns += [column("memory/capacity", [1000 * GIB], rank=None, device="host")]
    assert [t["name"] for t in traces(draw("memory", *columns), metric="memory/capacity")] == ["Capacity 80 GiB"]


def test_a_limit_that_changes_is_drawn_as_it_was() -> None:
    peak = column("memory/peak", [3 * GIB, 3 * GIB, 3 * GIB], device="cpu")
    limit = column("memory/capacity", [8 * GIB, 8 * GIB, 4 * GIB], device="cpu")
    assert trace(draw("memory", peak, limit), metric="memory/capacity")["y"].tolist() == [8, 8, 4]


def test_the_hosts_memory_does_not_squash_a_process() -> None:
    peak = column("memory/peak", [1.0 * GIB, 1.2 * GIB], device="cpu")
    host = column("memory/device_used", [9 * GIB, 9 * GIB], rank=None, device="host")
    assert trace(draw("memory", peak, host), metric="memory/device_used")["visible"] == "legendonly"
    near = column("memory/device_used", [1.3 * GIB, 1.4 * GIB], rank=None, device="host")
    assert trace(draw("memory", peak, near), metric="memory/device_used")["visible"] is True


def test_beside_a_gpu_the_hosts_readings_wait_in_the_legend() -> None:
    drawn = draw(
        "memory",
        column("memory/peak", [20 * GIB, 22 * GIB], device="cuda:0"),
        column("memory/resident", [4 * GIB, 4 * GIB], device="cpu"),
        column("memory/device_used", [21 * GIB, 23 * GIB], rank=None, device="cuda:0"),
    )
    shown = {t["meta"]["metric"]: t["visible"] for t in drawn["data"] if "metric" in t.get("meta", {})}
    assert shown == {"memory/peak": True, "memory/resident": "legendonly", "memory/device_used": True}


def test_readings_within_a_step_are_spread_over_it() -> None:
    taken = BEGAN + np.arange(0, 24, 0.5)
    readings = column("memory/process_used", np.tile([1.0, 2.0, 3.0], 16) * GIB, step=np.arange(48) // 12, time=taken)
    x = trace(draw("memory", readings), metric="memory/process_used")["x"]
    assert np.all(np.diff(x) > 0)
    assert x[0] == 0
    assert x[12] == 1
    assert x[6] == pytest.approx(0.5)
    assert x[-1] < 4


def test_readings_that_know_no_step_are_placed_by_the_clock_of_those_that_do() -> None:
    peak = column("memory/peak", np.full(10, GIB), device="cpu")
    host = column(
        "memory/device_used", [GIB, GIB], step=[-1, -1], time=[BEGAN + 2.5, BEGAN + 99], rank=None, device="host"
    )
    drawn = draw("memory", peak, host)
    assert trace(drawn, metric="memory/device_used")["x"].tolist() == [3.5]


def test_the_area_below_the_peak_does_not_force_the_axis_to_zero() -> None:
    drawn = draw("memory", column("memory/peak", [1.0 * GIB, 1.2 * GIB], device="cpu"))
    assert trace(drawn, metric="memory/peak")["fill"] == "tonexty"
    assert 0.9 < trace(drawn, floor=True)["y"][0] < 1.0
    wide = draw("memory", column("memory/peak", [0.1 * GIB, 1.2 * GIB], device="cpu"))
    assert trace(wide, floor=True)["y"][0] == 0


def curve(steps: int = 1000) -> object:
    return column("memory/peak", np.full(steps, GIB), device="cpu")


@pytest.mark.parametrize("axis", ["step", "time"])
def test_phases_are_bands_in_the_units_of_the_axis(axis: str) -> None:
    span = PhaseSpan("eval", BEGAN + 500, BEGAN + 600, 500, 600, 0)
    drawn = draw("memory", curve(), marks=Marks(phases=[span]), axis=axis, origin=BEGAN)
    band = trace(drawn, phase="eval")
    assert (np.nanmin(band["x"]), np.nanmax(band["x"])) == (500, 600)
    assert (band["fill"], band["yaxis"], band["name"]) == ("toself", "y2", "evaluation")


def test_a_phase_between_two_steps_lies_between_them() -> None:
    drawn = draw("memory", curve(100), marks=Marks(phases=[PhaseSpan("save", BEGAN, BEGAN + 1, 50, 50, 0)]))
    x = trace(drawn, phase="save")["x"]
    assert (np.nanmin(x), np.nanmax(x)) == (50, 51)


def test_a_phase_that_lasts_reaches_the_right_edge() -> None:
    drawn = draw("memory", curve(100), marks=Marks(phases=[PhaseSpan("eval", BEGAN + 50, None, 50, None, 0)]))
    assert np.nanmax(trace(drawn, phase="eval")["x"]) == 100


def test_the_same_phase_on_all_ranks_is_one_band() -> None:
    phases = [PhaseSpan("eval", BEGAN + 50 + r, BEGAN + 60 + r, 50, 55, r) for r in range(8)]
    assert trace(draw("memory", curve(100), marks=Marks(phases=phases)), phase="eval")["meta"]["bands"] == 1


def test_thousands_of_short_phases_do_not_become_one_lie() -> None:
    rare = [PhaseSpan("eval", BEGAN + t, BEGAN + t + 1, t, t, 0) for t in range(0, 100_000, 50)]
    drawn = draw("memory", curve(100_000), marks=Marks(phases=rare))
    band = trace(drawn, phase="eval")
    assert band["x"].size == 0
    assert band["name"] == "evaluation (zoom in)"
    zoomed = draw("memory", curve(100_000), marks=Marks(phases=rare), low=1000, high=2000)
    assert trace(zoomed, phase="eval")["meta"]["bands"] == 21
    assert trace(zoomed, phase="eval")["name"] == "evaluation"
    assert zoomed["layout"]["shapes"] == []


def test_many_phases_that_fill_the_time_are_joined() -> None:
    dense = [PhaseSpan("eval", BEGAN + t, BEGAN + t + 40, t, t + 40, 0) for t in range(0, 100_000, 50)]
    assert trace(draw("memory", curve(100_000), marks=Marks(phases=dense)), phase="eval")["meta"]["bands"] == 1


def test_a_short_phase_in_a_long_run_is_still_seen() -> None:
    drawn = draw("memory", curve(100_000), marks=Marks(phases=[PhaseSpan("save", BEGAN, BEGAN, 5000, 5000, 0)]))
    x = trace(drawn, phase="save")["x"]
    assert np.nanmax(x) - np.nanmin(x) >= 100


def test_training_and_charts_without_bands_have_none() -> None:
    phases = [PhaseSpan("train", BEGAN, BEGAN + 9, 0, 9, 0), PhaseSpan("eval", BEGAN + 5, BEGAN + 6, 5, 6, 0)]
    assert [
        t["meta"]["phase"] for t in draw("memory", curve(), marks=Marks(phases=phases))["data"] if "phase" in t["meta"]
    ] == ["eval"]
    drawn = draw("batch", column("train/tokens", [1.0, 2.0]), marks=Marks(phases=phases))
    assert not [t for t in drawn["data"] if "phase" in t["meta"]]


@pytest.mark.parametrize("axis", ["step", "time"])
def test_checkpoints_are_marked_at_the_bottom(axis: str) -> None:
    saved = [
        CheckpointMark(10, BEGAN + 10, "schedule"),
        CheckpointMark(10, BEGAN + 10.2, "schedule"),
        CheckpointMark(42, BEGAN + 42, "halt"),
        CheckpointMark(5000, BEGAN + 5000, "schedule"),
    ]
    marker = trace(draw("memory", curve(100), marks=Marks(checkpoints=saved), axis=axis, origin=BEGAN), checkpoints=2)
    assert marker["x"].tolist() == [10, 42]
    assert marker["y"].tolist() == [0, 0]
    assert marker["text"] == ["checkpoint at step 10", "checkpoint at step 42 · saved by the halt"]
    assert marker["customdata"] == [[10, "schedule"], [42, "halt"]]


def test_what_few_ask_for_waits_in_the_legend() -> None:
    names = ("peak", "allocated", "peak_reserved", "inactive_split", "outside", "others_used")
    drawn = draw("memory", *(column(f"memory/{name}", [4 * GIB], device="cuda:0") for name in names))
    shown = {t["meta"]["metric"]: t["visible"] for t in drawn["data"] if "metric" in t.get("meta", {})}
    assert {name for name, visible in shown.items() if visible is True} == {
        "memory/peak",
        "memory/allocated",
        "memory/others_used",
    }


def test_others_that_use_next_to_nothing_wait_too() -> None:
    little = column("memory/others_used", [0.1 * GIB], device="cuda:0")
    drawn = draw("memory", column("memory/peak", [20 * GIB], device="cuda:0"), little)
    assert trace(drawn, metric="memory/others_used")["visible"] == "legendonly"
