"""Setting up channels and looking where alerts were told, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.test_rules_page import troubled
from tests.e2e.world import World, wait_for
from tests.server.receiver import Answered, receiving

pytestmark = pytest.mark.browser


def test_a_channel_is_added_tested_disabled_and_repaired(world: World, page: Any) -> None:
    world.environment["TRAINWATCH_ALERT_PRIVATE_HOSTS"] = "127.0.0.1"
    world.start_server()
    with receiving() as receiver:
        page.goto(f"{world.url}/settings/alerts")
        page.click("[data-testid=channel-new]")
        form = page.get_by_role("dialog").get_by_test_id("channel-form")
        form.get_by_test_id("channel-name").fill("on call")
        form.get_by_test_id("channel-kind").click()
        page.get_by_role("option", name="Webhook").click()
        form.get_by_test_id("channel-url").fill("ftp://127.0.0.1/very-secret")
        form.get_by_role("button", name="Make one").click()
        form.get_by_test_id("channel-save").click()
        form.get_by_text("begins with https://").wait_for()
        form.get_by_test_id("channel-url").fill(f"http://127.0.0.1:{receiver.port}/very-secret")
        form.get_by_test_id("channel-save").click()
        page.get_by_test_id("channel-open").click()
        assert "very-secret" not in page.content(), "what is secret is never shown"

        page.get_by_test_id("channel-test").click()
        page.get_by_text("It arrived").wait_for()
        assert receiver.taken[0].json["kind"] == "test"

        receiver.script = [Answered(), Answered(410, body=b"no such hook")]
        troubled(world)
        page.get_by_test_id("channel-reason").get_by_text("no such hook").wait_for(timeout=20_000)
        page.get_by_test_id("deliveries").get_by_text("failed").wait_for(timeout=20_000)

        page.goto(f"{world.url}/runs/troubled")
        told = [taken.json["alerts"][0]["rule"] for taken in wait_for("messages", lambda: receiver.taken[1:3])]
        page.locator(f"[data-testid=alert][data-rule={told[0]}]").get_by_test_id("silence").first.click()
        page.get_by_test_id("alert-told").click()
        page.get_by_test_id("deliveries").get_by_text("arrived").wait_for()
        page.keyboard.press("Escape")

        page.goto(f"{world.url}/settings/alerts")
        page.get_by_test_id("channel-on").click(force=True)
        page.get_by_test_id("channel-reason").wait_for(state="detached")


def test_a_project_silences_a_rule(world: World, page: Any) -> None:
    world.start_server()
    troubled(world)
    page.goto(f"{world.url}/settings/alerts")
    page.get_by_test_id("alerts-project").click()
    page.get_by_role("option", name="default").click()
    silences = page.get_by_test_id("silences")
    silences.get_by_label("Rules").fill("nonfinite_*")
    silences.get_by_label("Why").fill("known")
    silences.get_by_test_id("silence-add").click()
    row = silences.get_by_role("row").filter(has_text="nonfinite_*")
    row.get_by_text("known").wait_for()
    row.get_by_role("button", name="End").click()
    row.wait_for(state="detached")
    assert world.get("projects/default/silences") == {"silences": []}
