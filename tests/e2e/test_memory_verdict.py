"""What a run's memory does stands above the chart that shows it, and not among the alerts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e import made
from tests.e2e.shipping import ship
from tests.e2e.world import World
from trainwatch import events

pytestmark = pytest.mark.browser

GIB = 2**30
VERDICT: dict[str, Any] = {
    "device": "cuda:0",
    "kind": "padding_sawtooth",
    "steps": 50,
    "swing": 30 * GIB,
    "lowest": 43 * GIB,
    "highest": 73 * GIB,
    "share": 0.96,
    "padding": 0.61,
    "period_steps": 24.0,
    "period_seconds": 30.0,
    "base": 20 * GIB,
    "remedies": [
        {"kind": "length_cap", "saves": 21 * GIB, "value": 4096, "share": 0.01},
        {"kind": "smaller_batch", "saves": 16 * GIB, "value": 1, "share": None},
        {"kind": "gradient_checkpointing", "saves": None, "value": None, "share": None},
    ],
}
FORECAST: dict[str, Any] = {
    "device": "cuda:0",
    "length": 5980,
    "samples": 2,
    "at": 1204,
    "need": 83.1 * GIB,
    "low": 81.0 * GIB,
    "high": 85.2 * GIB,
    "limit": 79.3 * GIB,
    "steps": 58,
    "reach": 2.4,
    "complete": True,
    "longest_seen": 2490,
    "cap": 5430,
    "longer": 0.0004,
}


def sawing(world: World) -> None:
    began = time.time() - 60
    content: list[events.Event] = [
        made.started(began),
        *made.phases(began, 0),
        *made.steps(began, 1, 60),
        events.FindingRaised(
            time=began + 20, rule="memory_verdict", severity="info", step=50, rank=0, key="cuda:0", parameters=VERDICT
        ),
        events.FindingRaised(
            time=began + 21,
            rule="peak_forecast",
            severity="warning",
            step=50,
            rank=0,
            key="cuda:0",
            parameters=FORECAST,
        ),
    ]
    ship(world.url, "sawing", content)


def test_the_verdict_stands_above_the_memory_chart(world: World, page: Any) -> None:
    world.start_server()
    sawing(world)
    page.goto(f"{world.url}/runs/sawing")
    verdict = page.locator("[data-testid=memory-verdict]")
    verdict.wait_for()
    text = verdict.inner_text()
    assert "96 % of the memory swing is explained by padded tokens. 61 % of the tokens are padding." in text
    assert "a length of at most 4,096 tokens (saves 21 GiB)" in text
    alerts = page.locator("[data-testid=alert]")
    assert [alert.get_attribute("data-rule") for alert in alerts.all()] == ["peak_forecast"]
    assert "that batch will need 83.1 GiB (81.0–85.2 GiB) of 79.3 GiB" in alerts.first.inner_text()
    memory = page.locator("[data-chart=memory]")
    if memory.count():
        assert verdict.bounding_box()["y"] < memory.first.bounding_box()["y"]
