"""How long data is kept, and deleting a run, in a real browser."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e import made
from tests.e2e.shipping import ship
from tests.e2e.world import World, wait_for
from trainwatch import events

pytestmark = pytest.mark.browser


def test_how_long_data_is_kept_is_set_after_a_question(world: World, page: Any) -> None:
    world.start_server()
    page.goto(f"{world.url}/settings/data")
    page.get_by_test_id("retention-raw").fill("30")
    page.get_by_test_id("retention-runs").fill("10")
    page.get_by_test_id("retention-save").click()
    page.get_by_test_id("retention-confirm").click()
    page.get_by_role("alert").filter(has_text="raw ≤ rollups ≤ runs").wait_for()
    page.get_by_test_id("retention-runs").fill("365")
    page.get_by_test_id("retention-save").click()
    page.get_by_test_id("retention-confirm").click()
    found = wait_for(
        "the setting", lambda: (k := world.get("projects/default/retention"))["changed_at"] is not None and k
    )
    assert (found["raw"], found["rollups"], found["runs"]) == (30, None, 365)
    page.reload()
    wait_for("the page", lambda: page.get_by_test_id("retention-raw").input_value() == "30 days")


def test_a_run_that_is_over_is_deleted_after_a_question(world: World, page: Any) -> None:
    world.start_server()
    began = time.time() - 60
    over = events.RunEnded(time=began + 41, step=40, outcome="finished")
    ship(world.url, "over", [made.started(began), *made.steps(began, 1, 40), over])
    page.goto(f"{world.url}/runs/over")
    page.get_by_test_id("delete-run").click()
    page.get_by_test_id("delete-confirm").click()
    page.wait_for_url(f"{world.url}/")
    assert world.runs() == []
