from __future__ import annotations

import pytest

from trainwatch.charts import CHARTS, LAYER_CHARTS, chart_for
from trainwatch.charts.lines import _STYLES
from trainwatch.metrics import CATALOGUE


def test_the_charts_and_their_metrics_exist() -> None:
    assert [chart.id for chart in CHARTS] == [
        *("loss", "gradients", "learning_rate", "memory", "fragmentation", "batch", "speed"),
        *("time", "padding", "throughput", "mfu"),
    ]
    for chart in CHARTS:
        assert chart_for(chart.id) is chart
        assert {*chart.metrics, *chart.counters} <= set(CATALOGUE)
        assert {CATALOGUE[metric].unit for metric in chart.metrics} == {chart.unit}
        assert set(chart.metrics) <= set(_STYLES)
    assert [chart.quantity for chart in LAYER_CHARTS] == ["norms", "zeros", "updates"]
    for chart in LAYER_CHARTS:
        assert chart_for(chart.id) is chart


def test_every_memory_metric_of_the_catalogue_is_on_a_chart_of_memory() -> None:
    shown = {*chart_for("memory").metrics, *chart_for("fragmentation").counters}
    assert shown == {name for name in CATALOGUE if name.startswith("memory/")}


def test_a_chart_has_something_to_show_when_a_metric_of_its_own_is_there() -> None:
    assert chart_for("loss").shows({"eval/loss"})
    assert not chart_for("loss").shows({"train/grad_norm"})
    assert chart_for("fragmentation").shows({"memory/ooms"})
    assert chart_for("time").shows({"train/step_seconds", "train/data_seconds"})
    assert not chart_for("time").shows({"train/step_seconds"}), "the whole alone is no split"


def test_any_metric_has_a_chart() -> None:
    known = chart_for("metric:device/utilization")
    assert (known.id, known.title, known.unit) == ("metric:device/utilization", "Utilization", "ratio")
    own = chart_for("metric:eval/accuracy:top5")
    assert own.metrics == ("eval/accuracy:top5",)
    assert own.title == "eval/accuracy:top5"


@pytest.mark.parametrize("name", ["", "metric:", "losses", "metric"])
def test_an_unknown_chart_is_a_helpful_error(name: str) -> None:
    with pytest.raises(KeyError, match=r"learning_rate, memory, .*, layers/updates, or metric:NAME"):
        chart_for(name)
