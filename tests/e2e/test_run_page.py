"""What a run's page shows of everything but its curves, in a real browser."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from tests.e2e import made
from tests.e2e.shipping import ship
from tests.e2e.world import World
from trainwatch import events

pytestmark = pytest.mark.browser

DATASET = {
    "train": {
        "kind": "Dataset",
        "samples": 52_002,
        "read": 52_002,
        "complete": True,
        "column": "input_ids",
        "lengths": {"min": 12, "p50": 301, "p99": 1503, "max": 3970, "mean": 348.2},
        "histogram": {"edges": [0, 1000, 2000, 3000, 4000], "counts": [40_000, 12_000, 0, 2]},
    }
}


def everything(world: World) -> None:
    """A run of two ranks that has it all: rank 1 has a NaN at step 37, and ends for want of memory."""
    began, names = time.time() - 120, made.layer_names(6)
    for rank in range(2):
        version = "2.9.0" if rank == 0 else "2.8.1"
        content: list[events.Event] = [
            made.started(began, rank, ranks=2, environment={"packages": {"torch": version}}, dataset=DATASET),
            made.signals(began + 1, rank),
            *made.phases(began, rank),
            *made.steps(began, 1, 60, rank),
            *made.layers(began, 1, 60, rank, names=names, every=3, bad={37: (3, math.nan)} if rank == 1 else None),
        ]
        if rank == 1:
            content += [
                events.NonFiniteSeen(
                    time=began + 19, step=37, where="loss", value=math.nan, action="skipped", culprit=1, micro_batches=1
                ),
                made.autopsy(began + 19, 37),
                events.FindingRaised(
                    time=began + 19,
                    rule="nonfinite_loss",
                    severity="warning",
                    step=37,
                    rank=1,
                    parameters={"value": "NaN", "action": "skipped"},
                ),
                made.overflow(began + 25, 49),
                made.out_of_memory(began + 31, 60, 1),
            ]
        error = "OutOfMemoryError: CUDA out of memory." if rank == 1 else "RuntimeError: peer is gone"
        content.append(events.RunEnded(time=began + 32 + 1 - rank, step=60, outcome="failed", error=error))
        ship(world.url, "everything", content, rank=rank)


def open_page(page: Any, world: World, path: str) -> None:
    page.goto(f"{world.url}/runs/{path}")
    page.wait_for_selector("[data-testid=run]")


def text(page: Any, selector: str) -> str:
    found: str = page.locator(selector).inner_text()
    return found


def test_everything_has_its_place(world: World, page: Any) -> None:
    world.start_server()
    everything(world)

    open_page(page, world, "everything")
    assert text(page, "[data-testid=loss-source]") == "as compute_loss returned it"
    memory = page.locator("[data-testid=out-of-memory]")
    assert "cuda:1 ran out of memory on rank 1 after step 60 while evaluating" in memory.inner_text()
    memory.get_by_text("Show the allocator's summary").click()
    page.wait_for_selector("text=PyTorch CUDA memory summary")

    # From the alert to the autopsy of its step, and on to another one.
    page.locator("[data-testid=alert]").get_by_text("Why?").click()
    assert text(page, "[data-testid=autopsy-sentence]").startswith("All 512 labels of this batch are -100")
    assert "autopsy=" in page.url
    report = text(page, "[data-testid=autopsy]")
    for part in ("3 of the step", "18204, 911, 52007, 33", "28 % of 512", "all −100", "0 to 128,255"):
        assert part in report
    page.select_option("[data-testid=autopsy-choice]", label="Step 49 on rank 1")
    assert "model.layers.11.mlp.down_proj" in text(page, "[data-testid=autopsy-module]")
    bad = page.locator("[data-testid=autopsy-outputs] [data-bad]")
    assert "3 NaN, 217 Inf" in bad.inner_text()

    page.click("[data-testid=tab-nonfinite]")
    page.locator("[data-testid=nonfinite-row]").get_by_text("Autopsy").click()
    assert page.locator("[data-testid=autopsy]").get_attribute("data-step") == "37"

    page.click("[data-testid=tab-ranks]")
    rows = page.locator("[data-testid=phase-row]").all_inner_texts()
    assert [row.split()[:2] for row in rows] == [
        ["loading", "1×"],
        ["training", "3×"],
        ["evaluation", "2×"],
        ["saving", "1×"],
    ]
    assert "30.6 GiB cuda:1, rank 1" in rows[2]

    page.click("[data-testid=tab-setup]")
    assert page.locator("[data-testid=difference-row]").get_attribute("data-key") == "environment.packages.torch"
    assert "2.8.1" in text(page, "[data-testid=difference-row]")
    missing = page.locator("[data-testid=signal-row][data-signal=samples]").inner_text()
    assert "not available with an IterableDataset" in missing
    assert "52,002" not in text(page, "[data-testid=lengths]")
    assert "longest3,970" in text(page, "[data-testid=lengths]")


def test_the_heat_map_shows_the_bad_layer_and_can_be_asked_for_a_rank(world: World, page: Any) -> None:
    world.start_server()
    everything(world)
    open_page(page, world, "everything")
    chart = page.locator("[data-testid=chart][data-chart=layers]")
    chart.scroll_into_view_if_needed()
    page.wait_for_selector("[data-chart=layers][data-ready]")
    from playwright.sync_api import expect  # not where it is imported without a browser

    assert chart.locator(".legend").text_content().strip() == "NaN in 3 cells"
    # Two maps: the values, and over them what is not finite.
    assert chart.locator(".heatmaplayer .hm").count() == 2

    page.select_option("[data-testid=layers-rank]", label="Rank 0")
    expect(chart.locator(".heatmaplayer .hm")).to_have_count(1)
    page.locator("[data-testid=layers-quantity]").get_by_text("Zeros").click()
    page.wait_for_selector("[data-chart='layers/zeros'][data-ready]")
    assert "Zero gradients of each layer" in page.locator("[data-chart='layers/zeros']").inner_text()


def test_charts_appear_only_with_data(world: World, page: Any) -> None:
    world.start_server()
    began = time.time() - 60
    plain = [
        events.RunStarted(time=began, name="plain", loss_source="model output", max_steps=3),
        *(
            events.StepEnded(time=began + n, step=n, values={"train/loss": 1.0, "train/step_seconds": 0.1})
            for n in range(1, 4)
        ),
    ]
    ship(world.url, "plain", plain)
    open_page(page, world, "plain")
    assert text(page, "[data-testid=loss-source]") == "as the model returned it"
    assert [one.get_attribute("data-chart") for one in page.locator("[data-testid=chart]").all()] == ["loss", "speed"]
    assert page.locator("[data-testid=tab-autopsy]").count() == 0
    assert page.locator("[data-testid=out-of-memory]").count() == 0
    page.click("[data-testid=tab-ranks]")
    assert page.locator("[data-testid=phases]").count() == 0
    page.click("[data-testid=tab-setup]")
    page.wait_for_selector("[data-testid=setup]")
    for part in ("differences", "signals", "lengths"):
        assert page.locator(f"[data-testid={part}]").count() == 0
    page.goto(f"{world.url}/runs/plain?tab=autopsy")
    page.wait_for_selector("text=No step has been examined")


def test_nothing_is_wider_than_the_window(world: World, page: Any) -> None:
    world.start_server()
    everything(world)
    for width in (400, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        for tab in ("charts", "autopsy", "ranks", "nonfinite", "setup"):
            open_page(page, world, f"everything?tab={tab}")
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{tab} at {width}"
