from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.charts.helpers import BEGAN, GIB, column, decoded, draw, trace, traces
from trainwatch.charts import CHARTS, EndMark, Marks, thin, to_json


def visible(drawn: dict[str, Any]) -> list[dict[str, Any]]:
    return [t for t in drawn["data"] if "metric" in t.get("meta", {}) and t.get("visible", True) is True]


@pytest.mark.parametrize("chart", [chart.id for chart in CHARTS] + ["metric:my/score"])
@pytest.mark.parametrize("axis", ["step", "time"])
def test_nothing_to_draw_is_said(chart: str, axis: str) -> None:
    drawn = draw(chart, axis=axis)
    assert drawn["data"] == []
    assert [note["text"] for note in drawn["layout"]["annotations"]] == ["no data yet"]
    zoomed = draw(chart, axis=axis, low=10.0, high=20.0)
    assert [note["text"] for note in zoomed["layout"]["annotations"]] == ["no data in this range"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_shows_through_and_a_refresh_keeps_the_zoom(theme: str) -> None:
    layout = draw("loss", column("train/loss", [2.0, 1.0]), theme=theme)["layout"]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert layout["uirevision"] == draw("loss")["layout"]["uirevision"]
    assert "width" not in layout
    assert "title" not in layout
    assert layout["hovermode"] == "x unified"


def test_themes_differ_in_text_and_lines() -> None:
    light = draw("loss", column("train/loss", [2.0, 1.0]))
    dark = draw("loss", column("train/loss", [2.0, 1.0]), theme="dark")
    assert light["layout"]["font"]["color"] != dark["layout"]["font"]["color"]
    assert trace(light, metric="train/loss")["line"] != trace(dark, metric="train/loss")["line"]


def test_a_single_point_is_visible() -> None:
    drawn = draw("loss", column("train/loss", [2.5], step=[7]))
    line = trace(drawn, metric="train/loss")
    assert (line["mode"], line["x"].tolist(), line["y"].tolist()) == ("lines+markers", [7.0], [2.5])
    ends = drawn["layout"]["xaxis"]["autorangeoptions"]
    assert ends["minallowed"] < 7 < ends["maxallowed"]


def test_the_step_axis_is_in_steps_and_the_time_axis_in_seconds_since_the_run_began() -> None:
    loss = column("train/loss", [3.0, 2.0, 1.0])
    by_step = draw("loss", loss)
    assert trace(by_step, metric="train/loss")["x"].tolist() == [1, 2, 3]
    assert (by_step["layout"]["meta"]["axis"], by_step["layout"]["meta"]["origin"]) == ("step", 0)
    by_time = draw("loss", loss, axis="time", origin=BEGAN - 30)
    assert trace(by_time, metric="train/loss")["x"].tolist() == [30, 31, 32]
    assert (by_time["layout"]["meta"]["axis"], by_time["layout"]["meta"]["origin"]) == ("time", BEGAN - 30)
    assert draw("loss", loss, axis="time")["layout"]["meta"]["origin"] == BEGAN


@pytest.mark.parametrize("axis", ["step", "time"])
def test_a_zoomed_figure_shows_the_range_asked_for(axis: str) -> None:
    whole = column("train/loss", np.linspace(3, 1, 1000))
    low, high = (200.0, 300.0) if axis == "step" else (BEGAN + 200, BEGAN + 300)
    loss = thin(whole, axis=axis, low=low, high=high, width=500)
    drawn = draw("loss", loss, axis=axis, low=low, high=high, origin=BEGAN - 5)
    layout = drawn["layout"]
    assert layout["xaxis"]["range"] == [low - layout["meta"]["origin"], high - layout["meta"]["origin"]]
    x = trace(drawn, metric="train/loss")["x"]
    assert x.min() < layout["xaxis"]["range"][0] < layout["xaxis"]["range"][1] < x.max()


def test_without_zoom_the_range_is_left_to_autorange() -> None:
    axis = draw("loss", column("train/loss", [2.0, 1.0]))["layout"]["xaxis"]
    assert axis["autorange"] is True
    assert "range" not in axis


def test_a_resumed_run_is_drawn_as_two_lines() -> None:
    drawn = draw("loss", column("train/loss", [5.0, 4.0, 3.0, 4.5, 3.5], step=[1, 2, 3, 2, 3]))
    line = trace(drawn, metric="train/loss")
    assert line["x"].tolist() == [1, 2, 3, 2, 2, 3]
    np.testing.assert_array_equal(line["y"], [5.0, 4.0, 3.0, np.nan, 4.5, 3.5])


def test_repeated_steps_of_evaluations_stay_where_they_are() -> None:
    drawn = draw("loss", column("eval/loss", [3.0, 2.0, 2.5], step=[10, 20, 20]))
    line = trace(drawn, metric="eval/loss")
    assert line["x"].tolist() == [10, 20, 20]
    assert line["mode"] == "lines+markers"
    assert line["marker"]["size"] >= 6


def test_the_log_of_the_trainer_is_fainter_than_the_loss() -> None:
    drawn = draw("loss", column("train/loss", [2.0, 1.0]), column("train/loss_logged", [2.0, 1.0]))
    assert trace(drawn, metric="train/loss_logged")["opacity"] < trace(drawn, metric="train/loss")["opacity"]


def test_gradients_are_on_a_log_axis_only_when_that_is_possible_and_of_use() -> None:
    wide = column("train/grad_norm", [100.0, 1.0, 0.5, 2.0])
    narrow = column("train/grad_norm", [1.2, 1.0, 0.8, 1.1])
    zero = column("train/grad_norm", [100.0, 0.0, 0.5, 2.0])
    kinds = [draw("gradients", c)["layout"]["yaxis"]["type"] for c in (wide, narrow, zero)]
    assert kinds == ["log", "linear", "linear"]


def test_a_spike_does_not_flatten_the_loss() -> None:
    value = np.full(1000, 2.0)
    assert draw("loss", column("train/loss", value))["layout"]["yaxis"]["type"] == "linear"
    value[500] = 2000.0
    drawn = draw("loss", column("train/loss", value))
    assert drawn["layout"]["yaxis"]["type"] == "log"
    assert trace(drawn, metric="train/loss")["y"].max() == 2000.0


def test_seconds_are_in_milliseconds_where_short() -> None:
    short = draw("speed", column("train/step_seconds", [0.2, 0.3]))
    assert short["layout"]["yaxis"]["ticksuffix"] == " ms"
    assert trace(short, metric="train/step_seconds")["y"].tolist() == pytest.approx([200, 300])
    assert draw("speed", column("train/step_seconds", [2, 3]))["layout"]["yaxis"]["ticksuffix"] == " s"


def test_a_rank_has_one_colour_in_all_charts() -> None:
    loss = draw("loss", *(column("train/loss", [2.0, 1.0], rank=rank) for rank in range(8)))
    memory = draw("memory", *(column("memory/peak", [GIB, GIB], rank=r, device=f"cuda:{r}") for r in range(8)))
    for rank in range(8):
        assert (
            trace(loss, metric="train/loss", rank=rank)["line"]["color"]
            == trace(memory, metric="memory/peak", rank=rank)["line"]["color"]
        )
    assert len({t["line"]["color"] for t in traces(loss, metric="train/loss")}) == 8


def eight_ranks() -> list[Any]:
    names = ("memory/peak", "memory/allocated", "memory/reserved", "memory/process_used")
    columns = [column(n, [3 * GIB, 4 * GIB], rank=r, device=f"cuda:{r}") for n in names for r in range(8)]
    columns += [column("memory/resident", [5 * GIB, 5 * GIB], rank=r, device="cpu") for r in range(8)]
    return [*columns, column("memory/device_used", [300 * GIB, 310 * GIB], rank=None, device="host")]


def test_eight_ranks_stay_readable() -> None:
    drawn = draw("memory", *eight_ranks())
    assert [t["meta"]["metric"] for t in visible(drawn)] == ["memory/peak"] * 8
    entries = [t["name"] for t in drawn["data"] if t.get("showlegend", True)]
    assert len(entries) == len(set(entries)) == 8 + 5
    # One entry switches all ranks of a metric on.
    allocated = traces(drawn, metric="memory/allocated")
    assert {t["legendgroup"] for t in allocated} == {"memory/allocated"}
    assert [t["showlegend"] for t in allocated] == [True] + [False] * 7
    assert "<extra>Allocated · rank 3</extra>" in allocated[3]["hovertemplate"]


def test_what_is_the_same_on_all_ranks_is_drawn_once() -> None:
    drawn = draw("learning_rate", *(column("train/learning_rate", [1e-4, 9e-5], rank=rank) for rank in range(4)))
    assert len(visible(drawn)) == 1
    assert len(drawn["data"]) == 4


def test_with_own_gradients_the_reduced_norm_is_one_line() -> None:
    columns = [
        column(name, [1.0, 2.0], rank=r) for name in ("train/grad_norm", "train/grad_norm_local") for r in (0, 1)
    ]
    shown = [(t["meta"]["metric"], t["meta"]["rank"]) for t in visible(draw("gradients", *columns))]
    assert shown == [("train/grad_norm", 0), ("train/grad_norm_local", 0), ("train/grad_norm_local", 1)]


def test_two_ranks_with_two_metrics_differ_in_colour_and_dash() -> None:
    columns = [column(n, [GIB, GIB], rank=r, device="cpu") for n in ("memory/peak", "memory/resident") for r in (0, 1)]
    lines = visible(draw("memory", *columns))
    assert len({(t["line"]["color"], t["line"]["dash"]) for t in lines}) == 4
    assert len({t["name"] for t in lines}) == 4


def test_columns_of_other_metrics_are_ignored() -> None:
    assert draw("loss", column("train/epoch", [1.0, 2.0]))["data"] == []


def test_numbers_travel_as_bytes_and_nan_arrives() -> None:
    sent = draw("loss", column("train/loss", [2.0, np.nan, 1.0 / 3.0]))
    received = json.loads(to_json(sent))
    line = next(t for t in received["data"] if t.get("meta", {}).get("metric") == "train/loss")
    np.testing.assert_array_equal(decoded(line["y"]), [2.0, np.nan, 1.0 / 3.0])
    np.testing.assert_array_equal(decoded(line["x"]), [1, 2, 3])
    assert isinstance(sent["data"][0]["x"], np.ndarray)  # the figure itself is left as it was


def test_steps_beyond_32_bits_arrive() -> None:
    big = 2**31 + 5
    received = json.loads(to_json(draw("loss", column("eval/loss", [1.0], step=[big]), axis="time")))
    line = next(t for t in received["data"] if t.get("meta", {}).get("metric") == "eval/loss")
    assert decoded(line["customdata"]).tolist() == [big]


def test_the_time_axis_names_time_and_step_under_the_mouse() -> None:
    drawn = draw("loss", column("train/loss", np.ones(5000)), axis="time", origin=BEGAN - 60)
    header = trace(drawn, header=True)
    assert header["text"][0] == "<b>1m 00s</b> · step 1"
    assert header["text"][-1] == "<b>1h 24m 19s</b> · step 5,000"
    assert len(header["text"]) <= 800


def test_a_finite_point_between_nans_has_a_marker() -> None:
    value = np.ones(500)
    value[[99, 101]] = np.nan
    line = trace(draw("loss", column("train/loss", value)), metric="train/loss")
    assert np.flatnonzero(line["marker"]["size"]).tolist() == [100]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("halted", "halted at step 3"),
        ("failed", "failed at step 3"),
        ("died", "process died at step 3"),
        ("lost", "not heard since"),
    ],
)
@pytest.mark.parametrize("axis", ["step", "time"])
def test_how_a_run_ended_badly_is_marked(state: str, text: str, axis: str) -> None:
    marks = Marks(end=EndMark(3, BEGAN + 2, state))
    layout = draw("loss", column("train/loss", [3.0, 2.0, 1.0]), marks=marks, axis=axis)["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [3.0 if axis == "step" else 2.0]
    assert [note["text"] for note in layout["annotations"]] == [text]


@pytest.mark.parametrize("end", [None, EndMark(3, BEGAN + 2, "finished"), EndMark(None, None, "died")])
def test_a_good_end_is_not_marked(end: EndMark | None) -> None:
    layout = draw("loss", column("train/loss", [3.0, 2.0, 1.0]), marks=Marks(end=end))["layout"]
    assert (layout["shapes"], layout["annotations"]) == ([], [])


def test_the_end_outside_of_the_view_is_left_out() -> None:
    marks = Marks(end=EndMark(900, BEGAN, "died"))
    layout = draw("loss", column("train/loss", np.ones(10)), marks=marks, low=1, high=10)["layout"]
    assert layout["shapes"] == []
