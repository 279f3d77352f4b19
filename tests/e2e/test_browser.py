"""What a person sees: a real training, a real server, a real Chromium."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from tests.e2e.shipping import ship
from tests.e2e.world import World, wait_for
from tests.patience import PATIENCE
from trainwatch import events

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# What plotly has drawn: per trace its name and the points, with the numbers as plotly understood them.
DRAWN = """(chart) => {
  const plot = document.querySelector(`[data-chart="${chart}"] .js-plotly-plot`);
  if (!plot || !plot._fullData) return null;
  return plot._fullData.map(trace => ({
    name: trace.name || '', visible: trace.visible, x: Array.from(trace.x || []), y: Array.from(trace.y || [], String),
    mode: trace.mode, origin: (plot.layout.meta || {}).origin || 0,
  }));
}"""


def open_run(page: Any, world: World, run_id: str) -> None:
    """Goes to a run's page as a person does: from the list."""
    page.goto(world.url)
    page.locator(f'[data-testid="run-row"][data-run="{run_id}"]').click()
    page.locator(f'[data-testid="run"][data-run="{run_id}"]').wait_for()


def chart(page: Any, name: str, seconds: float = 20) -> list[dict[str, Any]]:
    """Waits until a chart is drawn and returns its traces."""
    panel = page.locator(f'[data-testid="chart"][data-chart="{name}"]')
    panel.scroll_into_view_if_needed()
    page.locator(f'[data-chart="{name}"][data-ready="true"]').wait_for(timeout=seconds * 1000)
    traces: list[dict[str, Any]] = page.evaluate(DRAWN, name)
    return traces


def last_x(traces: list[dict[str, Any]]) -> float:
    return max((max(trace["x"]) for trace in traces if trace["x"]), default=0)


def test_curves_appear_while_the_training_runs_within_two_seconds(world: World, page: Any) -> None:
    world.start_server()
    page.goto(world.url)
    page.locator('[data-testid="empty"]').wait_for()
    enough = world.folder / "enough"
    training = world.train("--name", "live", "--steps", "5000", "--pause", "0.1", "--until", str(enough), wait=False)
    # The run appears in the list by itself.
    row = page.locator('[data-testid="run-row"][data-run="live"]')
    row.wait_for(timeout=100_000)
    assert row.get_attribute("data-state") == "running"
    row.click()
    chart(page, "loss")
    delays, shown = [], 0.0
    while len(delays) < 25 or shown < 110:
        traces = page.evaluate(DRAWN, "loss")
        now, shown = time.time(), last_x(traces)
        notes = [line.split() for line in (world.folder / "live.steps").read_text().splitlines()]
        unseen = [float(moment) for step, moment, _ in notes if int(step) > shown]
        delays.append(now - min(unseen) if unseen else 0.0)
        time.sleep(0.3)
    delays.sort()
    assert delays[-2] < 2.0, f"steps were on the page only after {delays}"
    enough.touch()
    assert training.wait(PATIENCE) == 0
    page.locator('[data-testid="run"][data-state="finished"]').wait_for(timeout=60_000)
    last = world.finished_steps("live")[-1]
    wait_for("the last step", lambda: last_x(page.evaluate(DRAWN, "loss")) >= last)
    memory = chart(page, "memory")
    assert any("eak" in trace["name"] and len(trace["x"]) > 100 for trace in memory)


@pytest.mark.parametrize("logging_steps", [1, 10])
@pytest.mark.parametrize(("value", "name"), [("nan", "NaN"), ("inf", "+Inf"), ("-inf", "-Inf")])
def test_a_nonfinite_loss_is_a_marker_at_its_step(
    world: World, page: Any, value: str, name: str, logging_steps: int
) -> None:
    world.start_server()
    world.train(
        "--name", "bad", "--steps", "20", "--bad", "12", f"--value={value}", "--logging-steps", str(logging_steps)
    )
    world.wait_state("bad", "finished")
    open_run(page, world, "bad")
    traces = chart(page, "loss")
    marker = [
        trace for trace in traces if trace["name"].replace("\u2212", "-").lstrip("+").startswith(name.lstrip("+"))
    ]
    assert marker, [trace["name"] for trace in traces]
    assert [step for trace in marker for step in trace["x"] if step is not None].count(12) >= 1
    assert all(math.isfinite(float(x)) for trace in marker for x in trace["x"] if x is not None)
    # The marker has pixels within the plot.
    boxes = page.evaluate(
        """() => [...document.querySelectorAll('[data-chart="loss"] .scatterlayer .trace .points path')]
             .map(path => path.getBoundingClientRect()).map(box => [box.x, box.y, box.width, box.height])"""
    )
    plot = page.locator('[data-chart="loss"] .js-plotly-plot').bounding_box()
    inside = [box for box in boxes if plot["x"] <= box[0] <= plot["x"] + plot["width"] and box[2] > 3 and box[3] > 3]
    assert inside


def test_a_halted_run_tells_its_story(world: World, page: Any) -> None:
    world.start_server()
    world.train("--name", "ruined", "--steps", "40", "--bad", "20,21,22")
    world.wait_state("ruined", "halted")
    page.goto(world.url)
    row = page.locator('[data-testid="run-row"][data-run="ruined"]')
    row.wait_for()
    assert row.get_attribute("data-state") == "halted"
    assert "steps 20 to 22" in row.locator('[data-testid="run-sentence"]').inner_text()
    row.click()
    sentence = page.locator('[data-testid="banner-sentence"]').inner_text()
    assert "NaN" in sentence
    assert "steps 20 to 22" in sentence
    assert "checkpoint-22" in page.locator('[data-testid="resume-from"]').inner_text()
    assert (world.folder / "ruined.out" / "checkpoint-22" / "model.safetensors").is_file()


def test_two_ranks_are_both_on_the_page(world: World, page: Any) -> None:
    world.start_server()
    world.train("--name", "pair", "--steps", "30", ranks=2)
    world.wait_state("pair", "finished")
    open_run(page, world, "pair")
    lines = [trace for trace in chart(page, "loss") if len(trace["x"]) >= 30]
    assert len({trace["name"] for trace in lines}) >= 2
    assert any("rank 0" in trace["name"].lower() for trace in lines)
    assert any("rank 1" in trace["name"].lower() for trace in lines)


def test_a_fault_of_ours_is_counted_on_the_page(world: World, page: Any) -> None:
    world.start_server()
    ship(
        world.url,
        "odd",
        [
            events.RunStarted(time=time.time(), name="odd"),
            events.StepEnded(time=time.time(), step=1, values={"train/loss": 1.0}),
            events.TroubleCounted(time=time.time(), errors={"forward hook": 3}, message="forward hook: KeyError: 'x'"),
        ],
    )
    open_run(page, world, "odd")
    assert "3" in page.locator('[data-testid="trouble"]').inner_text()


def test_a_spike_and_a_lone_nan_among_a_million_points_are_visible(world: World, page: Any) -> None:
    world.start_server()
    count, spike, lone = 1_000_000, 424_242, 777_777
    began = time.time() - count * 0.01
    ship(world.url, "long", [events.RunStarted(time=began, name="long", max_steps=count)])
    for first in range(1, count + 1, 50_000):
        steps = []
        for step in range(first, first + 50_000):
            loss = 2.0 + math.sin(step / 9_000) * 0.2 + (step * 7919 % 1000) / 10_000
            loss = 2000.0 if step == spike else math.nan if step == lone else loss
            steps.append(events.StepEnded(time=began + step * 0.01, step=step, values={"train/loss": loss}))
        ship(world.url, "long", steps, first=first)
    open_run(page, world, "long")
    traces = chart(page, "loss")
    values = {x: float(y) for trace in traces for x, y in zip(trace["x"], trace["y"], strict=False) if x == spike and y}
    assert values.get(spike) == 2000.0
    assert any(lone in trace["x"] for trace in traces if trace["name"].startswith("NaN"))
    assert sum(len(trace["x"]) for trace in traces) < 30_000, "the browser was sent too much"


def test_an_unknown_run_says_so(world: World, page: Any) -> None:
    world.start_server()
    page.goto(f"{world.url}/runs/nonsense")
    page.get_by_text("There is no such run").wait_for()
