from __future__ import annotations

import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.charts.helpers import BEGAN, trace, traces
from tests.patience import timing
from trainwatch.charts import EndMark, LayerColumn, Marks, chart_for, layers_figure, to_json
from trainwatch.charts.cells import cells_of
from trainwatch.charts.heatmap import short_names


def measured(value: Any, *, rank: int = 0, step: Any = None, layers: list[str] | None = None) -> LayerColumn:
    """Measurements × layers, every ten steps unless told otherwise; None where there was no gradient."""
    known = np.array([[cell is not None for cell in row] for row in value])
    numbers = np.array([[np.nan if cell is None else cell for cell in row] for row in value], np.float64)
    step = 10 * np.arange(1, len(numbers) + 1) if step is None else np.asarray(step, np.int64)
    names = layers or [f"model.layers.{n}" for n in range(numbers.shape[1])]
    return LayerColumn(rank, names, step.astype(np.int64), BEGAN + step, numbers, known)


def draw(*columns: LayerColumn, chart: str = "layers", marks: Marks | None = None, **options: Any) -> dict[str, Any]:
    options = {"axis": "step", "theme": "light", "width": 1200, **options}
    drawn = layers_figure(chart_for(chart), columns, marks or Marks(), **options)
    checked = json.loads(to_json(drawn))
    assert all("shape" in t["z"] for t in checked["data"] if t["type"] == "heatmap")
    go.Figure({"layout": checked["layout"]})  # raises ValueError for what Plotly does not know
    for one in drawn["data"]:
        go.Figure({"data": [one]})
    return drawn


def test_cells_are_layers_over_steps_on_a_logarithmic_scale() -> None:
    drawn = draw(measured([[1.0, 0.01], [10.0, 0.001]]))
    cells = trace(drawn, map=True)
    np.testing.assert_allclose(cells["z"], [[0, 1], [-2, -3]], atol=1e-6)
    assert (cells["zmin"], cells["zmax"]) == (-3.0, 1.0)
    assert cells["x"].tolist() == [5.0, 15.0, 25.0]
    assert cells["customdata"][1, 0].tolist() == pytest.approx([0.01, 10, 10, 0])
    assert cells["text"][1] == ["model.layers.1"] * 2
    # The first layer is at the top.
    low, high = drawn["layout"]["yaxis"]["range"]
    assert low > high


def test_shares_of_zeros_are_on_a_linear_scale_from_nothing() -> None:
    cells = trace(draw(measured([[0.25, 0.5]]), chart="layers/zeros"), map=True)
    np.testing.assert_allclose(cells["z"], [[0.25], [0.5]])
    assert (cells["zmin"], cells["zmax"]) == (0.0, 0.5)
    assert "%" in cells["hovertemplate"]


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "+Inf"), (-np.inf, "-Inf")])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_not_finite_has_a_colour_of_its_own_and_says_what_it_is(bad: float, kind: str, theme: str) -> None:
    drawn = draw(measured([[1.0, 2.0], [1.0, bad]]), theme=theme)
    cells, loud = trace(drawn, map=True), trace(drawn, bad=True)
    assert np.isnan(cells["z"][1, 1])
    assert np.isfinite(cells["z"]).sum() == 3
    np.testing.assert_array_equal(loud["z"], [[np.nan, np.nan], [np.nan, 1.0]])
    assert loud["text"][1][1] == f"<b>model.layers.1</b><br>{kind} at step 20 · rank 0"
    assert loud["colorscale"][0][1] not in {colour for _, colour in cells["colorscale"]}
    mark = trace(drawn, kind=kind)
    assert mark["x"].tolist() == [20.0]
    assert mark["text"] == [f"{kind} at step 20 in 1 of 2 layers"]
    assert drawn["layout"]["meta"]["nonfinite"] == 1


def test_a_layer_without_a_gradient_is_a_gap_and_a_zero_is_not() -> None:
    cells = trace(draw(measured([[1.0, None, 0.0]])), map=True)
    assert np.isnan(cells["z"][1, 0])
    assert cells["z"][2, 0] == cells["zmin"]
    assert cells["customdata"][2, 0, 0] == 0.0


def test_nothing_but_nan_is_a_readable_map() -> None:
    drawn = draw(measured([[np.nan, np.nan]]))
    assert trace(drawn, kind="NaN")["meta"]["count"] == 2
    assert np.isnan(trace(drawn, map=True)["z"]).all()


def test_of_several_ranks_the_largest_is_shown_and_named() -> None:
    drawn = draw(measured([[1.0, 5.0]]), measured([[2.0, 4.0]], rank=3))
    cells = trace(drawn, map=True)
    assert cells["customdata"][:, 0, 0].tolist() == [2.0, 5.0]
    assert cells["customdata"][:, 0, 3].tolist() == [3.0, 0.0]
    assert "rank %{customdata[3]" in cells["hovertemplate"]
    bad = draw(measured([[1.0]]), measured([[np.nan]], rank=3))
    assert trace(bad, bad=True)["text"] == [["<b>model.layers.0</b><br>NaN at step 10 · rank 3"]]


def test_layers_that_came_later_stand_in_their_place() -> None:
    old = measured([[1.0, 2.0]], layers=["embed", "head"])
    new = measured([[3.0, 4.0, 5.0]], step=[20], layers=["embed", "adapter", "head"])
    cells = trace(draw(old, new), map=True)
    assert [row[0] for row in cells["text"]] == ["embed", "adapter", "head"]
    assert np.isnan(cells["z"][1, 0])
    assert 10 ** cells["z"][1, 1] == pytest.approx(4.0)


@pytest.mark.parametrize(("count", "labels"), [(4, 4), (24, 24), (100, 34)])
def test_labels_stay_readable(count: int, labels: int) -> None:
    drawn = draw(measured([[1.0] * count]))
    axis, meta = drawn["layout"]["yaxis"], drawn["layout"]["meta"]
    assert len(axis["ticktext"]) == labels
    assert axis["ticktext"][:2] == (["0", "1"] if count < 50 else ["0", "3"])
    assert 220 <= meta["height"] <= 620


def test_names_lose_what_all_of_them_begin_with() -> None:
    assert short_names(["base.model.embed", "base.model.layers.0", "base.model.layers.1"], 30) == [
        "embed",
        "layers.0",
        "layers.1",
    ]
    assert short_names(["only.one"], 30) == ["only.one"]
    (long,) = short_names(["transformer.encoder.block.attention.query_key_value"], 20)
    assert len(long) == 20
    assert long.startswith("transf…")
    assert long.endswith("key_value")


def test_on_the_time_axis_cells_lie_at_their_time() -> None:
    drawn = draw(measured([[1.0], [2.0]]), axis="time", origin=BEGAN)
    assert trace(drawn, map=True)["x"].tolist() == [5.0, 15.0, 25.0]
    assert drawn["layout"]["meta"]["origin"] == BEGAN


def test_the_range_asked_for_is_shown_with_its_neighbours() -> None:
    drawn = draw(measured([[float(n)] for n in range(1, 101)]), low=300.0, high=400.0)
    assert drawn["layout"]["xaxis"]["range"] == [300.0, 400.0]
    assert trace(drawn, map=True)["z"].shape == (1, 13)
    empty = draw(low=300.0, high=400.0)
    assert [note["text"] for note in empty["layout"]["annotations"]] == ["no data in this range"]
    assert [note["text"] for note in draw()["layout"]["annotations"]] == ["no data yet"]


def test_how_the_run_ended_is_marked() -> None:
    drawn = draw(measured([[1.0], [2.0]]), marks=Marks(end=EndMark(22, BEGAN, "halted")))
    assert [label["text"] for label in drawn["layout"]["annotations"]] == ["halted at step 22"]


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.integers(1, 20_000), min_size=1, max_size=300, unique=True),
    ranks=st.integers(1, 3),
    most=st.integers(1, 60),
    data=st.data(),
)
def test_nothing_extreme_and_nothing_bad_can_hide(steps: list[int], ranks: int, most: int, data: st.DataObject) -> None:
    steps.sort()
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    parts, everything = [], []
    for rank in range(ranks):
        value = random.choice(
            [0.5, 3.0, 1e9, np.nan, np.inf, -np.inf], (len(steps), 4), p=[0.5, 0.45, 0.02, 0.01, 0.01, 0.01]
        )
        known = random.random(value.shape) > 0.1
        at = np.array(steps)
        parts.append((rank, np.arange(4), at.astype(np.float64), at, value, known))
        everything.append((at, value, known))
    cells = cells_of(parts, layers=4, most=most, low=None, high=None)
    assert cells.edges.size - 1 <= most + 1
    assert np.all(np.diff(cells.edges) > 0)
    for at, value, known in everything:
        column = np.searchsorted(cells.edges, at, "right") - 1
        for layer in range(4):
            for place, number, has in zip(column, value[:, layer], known[:, layer], strict=True):
                if not has:
                    continue
                place = min(int(place), cells.edges.size - 2)
                assert cells.known[layer, place]
                if np.isfinite(number):
                    assert cells.value[layer, place] >= number
                else:
                    assert cells.bad[layer, place] > 0
    worst = {1: np.nan, 2: np.inf, 3: -np.inf}
    for layer, place in zip(*np.nonzero(cells.bad), strict=True):
        _, value, known = everything[int(cells.bad_rank[layer, place])]
        inside = (np.array(steps) >= cells.step_low[place]) & (np.array(steps) <= cells.step_high[place])
        there = value[inside & known[:, layer], layer]
        np.testing.assert_equal(worst[int(cells.bad[layer, place])] in there or np.isnan(there).any(), True)


def test_measurements_that_lie_farther_apart_later_leave_no_empty_columns() -> None:
    step = np.concatenate((np.arange(1, 5_001, 5), np.arange(5_001, 200_000, 500)))
    cells = cells_of(
        [(0, np.arange(1), step.astype(np.float64), step, np.ones((step.size, 1)), np.ones((step.size, 1), np.bool_))],
        layers=1,
        most=300,
        low=None,
        high=None,
    )
    assert cells.known.all()
    assert 100 < cells.edges.size <= 302


def test_eight_ranks_with_ten_thousand_measurements_of_a_hundred_layers_are_drawn_in_a_second() -> None:

    random = np.random.default_rng(1)
    value = random.random((10_000, 100))
    columns = [measured(np.zeros((0, 100)), rank=rank, step=np.arange(0)) for rank in range(0)]
    known = np.ones(value.shape, np.bool_)
    step = np.arange(10, 100_010, 10)
    names = [f"layers.{n}" for n in range(100)]
    columns = [LayerColumn(rank, names, step, BEGAN + step, value, known) for rank in range(8)]
    with timing() as timed:
        drawn = to_json(layers_figure(chart_for("layers"), columns, Marks(), axis="step", theme="light", width=1200))
    assert timed.took < 4, f"{timed.took:.2f} s (about 0.5 s on a quiet machine)"
    assert len(drawn) < 3_000_000


def test_without_ranks_to_tell_apart_none_is_named() -> None:
    assert "rank" not in trace(draw(measured([[1.0]])), map=True)["hovertemplate"]
    assert traces(draw(measured([[1.0]])), bad=True) == []
