"""Setting rules, trying them on past runs, and silencing alerts, in a real browser."""

from __future__ import annotations

import json
import math
import time
import urllib.request
from typing import Any

import pytest

from tests.e2e import made
from tests.e2e.shipping import ship
from tests.e2e.world import World, wait_for
from trainwatch import events
from trainwatch.events import FindingRaised

pytestmark = pytest.mark.browser


def finding(moment: float, rule: str, state: Any = "firing", **changes: Any) -> FindingRaised:
    evidence = {"value": "NaN", "action": "skipped", "nonfinite": 7, "batches": 10, "since": 20, "reported": None}
    fields: dict[str, Any] = {"severity": "warning", "step": 30, "rank": 0, "parameters": evidence}
    return FindingRaised(time=moment, rule=rule, state=state, **{**fields, **changes})


def troubled(world: World, run: str = "troubled") -> None:
    """A running run with alerts in every state, and a step without a finite loss."""
    began = time.time() - 60
    content: list[events.Event] = [
        made.started(began),
        *made.steps(began, 1, 40),
        events.StepEnded(time=began + 30, step=41, values={"train/loss": math.nan}),
        finding(began + 10, "nonfinite_eval_loss", severity="critical"),
        finding(began + 11, "nonfinite_loss", severity="critical"),
        finding(began + 12, "nonfinite_gradient", "pending"),
        finding(began + 13, "nonfinite_gradient", "resolved", rank=None, key="cuda:0"),
    ]
    ship(world.url, run, content)


def kept(world: World) -> Any:
    with urllib.request.urlopen(f"{world.url}/api/projects/default/rules", timeout=5) as answer:
        return json.load(answer)["settings"]


def rule(page: Any, name: str) -> Any:
    return page.locator(f"[data-testid=rule][data-rule={name}]")


def test_rules_are_set_refused_tried_and_set_back(world: World, page: Any) -> None:
    world.start_server()
    troubled(world)
    page.goto(world.url)
    page.click("[data-testid=nav-rules]")
    page.wait_for_selector("[data-testid=rule]")
    assert page.locator("[data-testid=rule]").count() > 20

    padding = rule(page, "padding_waste")
    padding.get_by_test_id("rule-open").click()
    assert padding.get_by_test_id("rule-save").is_disabled()
    share = padding.get_by_label("share")
    share.fill("1.5")
    padding.get_by_test_id("rule-save").click()
    padding.get_by_text("A number of at most 1 is wanted.").wait_for()
    assert kept(world) == {}
    share.fill("0.6")
    assert padding.get_by_text("is wanted").count() == 0
    padding.get_by_test_id("rule-save").click()
    padding.get_by_text("1 set").wait_for()
    assert kept(world) == {"padding_waste": {"share": 0.6}}

    # Off and on again, at once, beside what is set.
    padding.locator(".mantine-Switch-track").first.click()
    page.wait_for_selector("[data-rule=padding_waste][data-on=false]")
    padding.get_by_text("2 set").wait_for()
    assert kept(world) == {"padding_waste": {"share": 0.6, "enabled": False}}
    page.reload()
    padding.wait_for()
    assert padding.get_attribute("data-on") == "false"
    padding.get_by_test_id("rule-open").click()
    padding.get_by_test_id("rule-reset").click()
    page.wait_for_selector("[data-rule=padding_waste][data-on=true]")
    wait_for("the defaults", lambda: kept(world) == {})

    loss = rule(page, "nonfinite_loss")
    loss.get_by_test_id("rule-open").click()
    loss.get_by_test_id("rule-backtest").click()
    found = loss.get_by_test_id("backtest-run")
    found.wait_for()
    assert found.get_attribute("data-fired") == "true"
    assert "critical at step 41" in found.inner_text()
    assert "fired on 1 of 1 runs" in loss.get_by_test_id("backtest").inner_text()


def test_an_alert_is_silenced_and_heard_again(world: World, page: Any) -> None:
    world.start_server()
    troubled(world)
    page.goto(f"{world.url}/runs/troubled")
    alerts = page.locator("[data-testid=alert]")
    alerts.nth(3).wait_for()
    states = [alerts.nth(at).get_attribute("data-state") for at in range(4)]
    assert states == ["firing", "firing", "pending", "resolved"]
    assert "over, " in alerts.nth(3).inner_text()
    assert "cuda:0" in alerts.nth(3).inner_text()

    first = alerts.nth(0)
    assert first.get_attribute("data-rule") == "nonfinite_loss"
    first.get_by_test_id("silence").click()
    page.click("[data-testid=silence-24]")
    page.wait_for_selector("[data-testid=alert][data-rule=nonfinite_loss][data-silenced=true]")
    assert alerts.nth(0).get_attribute("data-rule") == "nonfinite_eval_loss"
    silenced = page.locator("[data-testid=alert][data-rule=nonfinite_loss]")
    assert "silenced until" in silenced.inner_text()
    page.goto(world.url)
    row = page.locator("[data-run=troubled]")
    row.wait_for()
    assert row.locator("td").nth(4).inner_text().split() == ["1", "critical"]

    page.goto(f"{world.url}/runs/troubled")
    silenced.get_by_test_id("silence").click()
    page.click("[data-testid=silence-end]")
    page.wait_for_selector("[data-testid=alert][data-rule=nonfinite_loss][data-silenced=false]")


def test_sentences_come_in_the_language_that_is_chosen_and_stay_so(world: World, page: Any) -> None:
    world.start_server()
    troubled(world)
    page.goto(f"{world.url}/runs/troubled")
    first = page.locator("[data-testid=alert][data-rule=nonfinite_eval_loss]")
    first.get_by_text("in 7 of 10 batches").wait_for()
    page.click("[data-testid=language]")
    page.click("[data-testid=language-zh]")
    first.get_by_text("个评估批次").wait_for()
    page.reload()
    first.get_by_text("个评估批次").wait_for()
