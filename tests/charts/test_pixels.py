"""What a browser makes of a figure's JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from tests.browser import ARGS, find_chromium
from tests.charts.helpers import BEGAN, column
from trainwatch.charts import Column, Marks, NonFiniteMark, chart_for, figure, thin, to_json

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGS)
        tab = browser.new_page(viewport={"width": 900, "height": 400})
        tab.set_content("<div id=plot style='width:880px;height:380px'></div>")
        tab.add_script_tag(content=get_plotlyjs())
        yield tab
        browser.close()


def show(page: Any, *columns: Column, marks: Marks | None = None) -> None:
    drawn = to_json(figure(chart_for("loss"), columns, marks or Marks(), axis="step", theme="light"))
    page.evaluate("async text => { const f = JSON.parse(text); await Plotly.react('plot', f.data, f.layout) }", drawn)


def points(page: Any) -> dict[str, list[list[float]]]:
    """Legend name to the centres of the trace's drawn markers, in pixels of the page."""
    found: dict[str, list[list[float]]] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.scatterlayer .trace')].map(g => [
            g.__data__[0].trace.name,
            [...g.querySelectorAll('.point')].filter(p => p.style.display !== 'none').map(p => {
                const box = p.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })]))"""
    )
    return found


def plot_box(page: Any) -> list[float]:
    """Left, top, width and height of the area between the axes."""
    box: list[float] = page.evaluate(
        """() => { const b = document.querySelector('.nsewdrag').getBoundingClientRect();
                   return [b.x, b.y, b.width, b.height] }"""
    )
    return box


def test_nan_and_infinities_are_seen_at_their_step_and_edge(page: Any) -> None:
    value = np.full(101, 2.0)
    value[[25, 50, 75]] = [np.nan, np.inf, -np.inf]
    marks = Marks(nonfinite=[NonFiniteMark(26, BEGAN, 0, "loss", float("nan"), "skipped")])
    show(page, column("train/loss", value), marks=marks)
    drawn = points(page)
    left, top, width, height = plot_box(page)
    for name, share, at_top in (("NaN ×1", 0.25, True), ("+Inf ×1", 0.5, True), ("-Inf ×1", 0.75, False)):
        ((x, y),) = drawn[name]
        assert x == pytest.approx(left + share * width, abs=0.02 * width)
        assert (y < top + 0.1 * height) if at_top else (y > top + 0.9 * height)
    page.mouse.move(*drawn["NaN ×1"][0])
    page.wait_for_function("document.querySelector('.hoverlayer')?.textContent.includes('NaN at step 26')")
    assert "NaN at step 26 · rank 0 · step skipped" in page.text_content(".hoverlayer")


def test_the_line_of_a_million_points_shows_its_spike_and_breaks_at_its_nan(page: Any) -> None:
    value = np.random.default_rng(0).normal(2.0, 0.1, 1_000_000)
    value[400_000] *= 1000
    value[700_000] = np.nan
    show(page, thin(column("train/loss", value), axis="step", low=None, high=None, width=800))
    pieces: list[str] = page.evaluate(
        """[...document.querySelectorAll('.scatterlayer .trace')].find(g => g.__data__[0].trace.name === 'Loss')
            .querySelectorAll('.js-line').values().map(line => line.getAttribute('d')).toArray()"""
    )
    assert len(pieces) == 2  # broken where the NaN is
    heights = [float(y) for piece in pieces for y in re.findall(r"[ML][\d.]+,([\d.]+)", piece)]
    left, _, width, height = plot_box(page)
    assert min(heights) < 0.15 * height
    assert float(np.median(heights)) > 0.5 * height
    ((x, _),) = points(page)["NaN ×1"]
    assert x == pytest.approx(left + 0.7 * width, abs=0.02 * width)
