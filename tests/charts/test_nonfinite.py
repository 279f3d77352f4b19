from __future__ import annotations

import numpy as np
import pytest

from tests.charts.helpers import BEGAN, column, draw, trace, traces
from trainwatch.charts import Marks, NonFiniteMark, thin

NAN, INF = float("nan"), float("inf")


def seen(
    step: int, *, rank: int | None = 0, where: str = "loss", value: float = NAN, action: str = "skipped"
) -> NonFiniteMark:
    return NonFiniteMark(step, BEGAN + step - 1, rank, where, value, action)


def test_each_kind_has_its_place_and_symbol_at_the_edge() -> None:
    drawn = draw("loss", column("train/loss", [2.0, NAN, INF, -INF, 1.0]))
    nan, plus, minus = (trace(drawn, kind=kind) for kind in ("NaN", "+Inf", "-Inf"))
    assert [t["x"].tolist() for t in (nan, plus, minus)] == [[2], [3], [4]]
    assert nan["y"][0] == plus["y"][0] > 0.9
    assert minus["y"][0] < 0.1
    assert [t["marker"]["symbol"] for t in (nan, plus, minus)] == ["x", "triangle-up", "triangle-down"]
    assert [t["name"] for t in (nan, plus, minus)] == ["NaN ×1", "+Inf ×1", "-Inf ×1"]
    assert {t["yaxis"] for t in (nan, plus, minus)} == {"y2"}
    overlay = drawn["layout"]["yaxis2"]
    assert (overlay["range"], overlay["overlaying"], overlay["visible"]) == ([0, 1], "y", False)


def test_the_line_breaks_at_each_of_them() -> None:
    line = trace(draw("loss", column("train/loss", [2.0, NAN, INF, -INF, 1.0])), metric="train/loss")
    np.testing.assert_array_equal(line["y"], [2.0, NAN, NAN, NAN, 1.0])
    assert line["connectgaps"] is False


def test_the_hover_says_step_rank_and_what_was_done() -> None:
    value = np.ones(60)
    value[39] = NAN
    drawn = draw(
        "loss",
        column("train/loss", np.ones(60)),
        column("train/loss", value, rank=1),
        marks=Marks(nonfinite=[seen(40, rank=1)]),
    )
    marker = trace(drawn, kind="NaN")
    assert marker["customdata"] == [[40, 1, "train/loss", "skipped"]]
    assert marker["text"] == ["NaN at step 40 · rank 1 · step skipped"]


@pytest.mark.parametrize(
    ("action", "words"), [("halt", " · run halted"), ("recorded", ""), ("scaler", " · step skipped by the loss scaler")]
)
def test_the_words_for_what_was_done(action: str, words: str) -> None:
    drawn = draw("loss", column("train/loss", [1.0, NAN]), marks=Marks(nonfinite=[seen(2, action=action)]))
    assert trace(drawn, kind="NaN")["text"] == [f"NaN at step 2 · rank 0{words}"]


def test_an_event_without_its_point_is_shown_too() -> None:
    drawn = draw("loss", column("train/loss", [2.0, 1.0, 1.0]), marks=Marks(nonfinite=[seen(2, value=-INF)]))
    assert trace(drawn, kind="-Inf")["customdata"] == [[2, 0, "train/loss", "skipped"]]


def test_events_alone_make_a_chart() -> None:
    drawn = draw("loss", marks=Marks(nonfinite=[seen(2)]))
    assert trace(drawn, kind="NaN")["x"].tolist() == [2]


def test_an_event_of_the_gradients_is_not_on_the_loss() -> None:
    marks = Marks(nonfinite=[seen(2, where="gradient")])
    assert traces(draw("loss", column("train/loss", [2.0, 1.0, 1.0]), marks=marks), kind="NaN") == []
    drawn = draw("gradients", column("train/grad_norm", [2.0, 1.0, 1.0]), marks=marks)
    assert trace(drawn, kind="NaN")["x"].tolist() == [2]


@pytest.mark.parametrize("chart", ["memory", "speed", "batch", "learning_rate"])
def test_events_are_not_on_other_charts(chart: str) -> None:
    assert draw(chart, marks=Marks(nonfinite=[seen(2)]))["data"] == []


def test_a_nan_that_reached_all_ranks_is_shown_where_it_came_from() -> None:
    reduced = [column("train/grad_norm", [1.0, NAN, 1.0], rank=rank) for rank in range(4)]
    own = [column("train/grad_norm_local", [1.0, NAN if rank == 1 else 1.0, 1.0], rank=rank) for rank in range(4)]
    marker = trace(draw("gradients", *reduced, *own), kind="NaN")
    assert (marker["name"], marker["customdata"]) == ("NaN ×1", [[2, 1, "train/grad_norm_local", ""]])


def test_without_own_gradients_it_is_one_marker_for_all_ranks() -> None:
    reduced = [column("train/grad_norm", [1.0, NAN, 1.0], rank=rank) for rank in range(4)]
    marker = trace(draw("gradients", *reduced), kind="NaN")
    assert (marker["text"], marker["x"].tolist()) == (["NaN at step 2"], [2])


def test_the_loss_scalers_work_is_told_apart() -> None:
    value = np.ones(10)
    value[[2, 5]] = INF
    marks = Marks(nonfinite=[seen(3, where="gradient", value=INF, action="scaler")])
    calm, alarm = traces(draw("gradients", column("train/grad_norm", value), marks=marks), kind="+Inf")[::-1]
    assert calm["name"] == "+Inf ×1 (loss scaler)"
    assert alarm["name"] == "+Inf ×1"
    assert calm["marker"]["color"] != alarm["marker"]["color"]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("chart", ["loss", "gradients", "memory", "speed", "metric:my/score"])
@pytest.mark.parametrize("axis", ["step", "time"])
def test_nothing_but_nonfinite_values_is_a_readable_chart(bad: float, chart: str, axis: str) -> None:
    metric = {
        "loss": "train/loss",
        "gradients": "train/grad_norm",
        "memory": "memory/peak",
        "speed": "train/step_seconds",
    }.get(chart, "my/score")
    drawn = draw(chart, column(metric, [bad] * 40), axis=axis)
    (marker,) = [t for t in drawn["data"] if "kind" in t.get("meta", {})]
    assert marker["x"].size == 40
    assert marker["name"].endswith("×40")
    assert [note["text"] for note in drawn["layout"]["annotations"]] == ["no finite value to draw"]
    assert drawn["layout"]["yaxis"]["range"] == [0, 1]


def test_the_count_includes_what_thinning_left_out() -> None:
    thinned = thin(column("train/loss", np.full(50_000, NAN)), axis="step", low=None, high=None, width=300)
    drawn = draw("loss", thinned, marks=Marks(nonfinite=[seen(step) for step in range(1, 900)]))
    marker = trace(drawn, kind="NaN")
    assert marker["name"] == "NaN ×50,000"
    assert marker["x"].size < 1500
    assert drawn["layout"]["meta"]["nonfinite"] == 50_000


def test_only_what_is_in_view_is_counted() -> None:
    value = np.ones(100)
    value[[10, 50, 90]] = NAN
    thinned = thin(column("train/loss", value), axis="step", low=40, high=60, width=300)
    marks = Marks(nonfinite=[seen(11), seen(51), seen(91)])
    marker = trace(draw("loss", thinned, marks=marks, low=40, high=60), kind="NaN")
    assert (marker["name"], marker["x"].tolist()) == ("NaN ×1", [51])


def test_a_neighbour_outside_of_the_view_is_not_counted() -> None:
    thinned = thin(column("train/loss", [1.0, NAN, 1.0, 1.0]), axis="step", low=3, high=4, width=300)
    assert np.isnan(thinned.value[0])
    assert traces(draw("loss", thinned, low=3, high=4), kind="NaN") == []


def test_an_eval_loss_names_itself() -> None:
    drawn = draw("loss", column("train/loss", [1.0, 1.0]), column("eval/loss", [NAN], step=[2]))
    assert trace(drawn, kind="NaN")["text"] == ["NaN at step 2 · rank 0 · Eval loss"]


def test_on_the_time_axis_it_stands_at_its_time() -> None:
    drawn = draw("loss", column("train/loss", [1.0, NAN, 1.0]), axis="time", origin=BEGAN - 60)
    assert trace(drawn, kind="NaN")["x"].tolist() == [61.0]
