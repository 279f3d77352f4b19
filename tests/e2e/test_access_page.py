"""Logging in, making a token and revoking it, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.keys import TOKEN, bearer, guarded_server
from trainwatch.server.settings import Settings

pytestmark = pytest.mark.browser


def test_an_admin_logs_in_makes_a_token_and_revokes_it(page: Any, tmp_path: Path) -> None:
    page.set_default_timeout(60_000)
    with guarded_server(Settings(home=tmp_path, port=0)) as server:
        page.goto(f"{server.url}/settings/access")
        page.get_by_label("Token").first.fill("wrong")
        page.get_by_role("button", name="Log in", exact=True).click()
        page.get_by_text("This is not a token of this server.").wait_for()
        page.get_by_label("Token").first.fill(TOKEN)
        page.get_by_role("button", name="Log in", exact=True).click()
        page.get_by_test_id("access-who").wait_for()

        page.get_by_test_id("token-new").click()
        page.get_by_role("textbox", name="Name").fill("cluster A")
        page.get_by_placeholder("all projects").fill("vision")
        page.get_by_test_id("token-make").click()
        token = page.get_by_test_id("token-secret").inner_text().strip()
        assert token.startswith("tw_")
        page.get_by_test_id("token-done").click()
        assert token not in page.content(), "it is shown once"
        told = httpx2.get(f"{server.url}/api/session", headers=bearer(token)).json()
        assert (told["name"], told["project"], told["scopes"]) == ("cluster A", "vision", ["ingest"])

        page.get_by_role("button", name="Revoke cluster A").click()
        page.get_by_test_id("token-revoke").click()
        page.locator("[data-testid=tokens] tr[data-state=revoked]").wait_for()
        assert httpx2.get(f"{server.url}/api/session", headers=bearer(token)).status_code == 401

        page.get_by_role("button", name="Log out").click()
        page.get_by_test_id("login").wait_for()
        assert not page.context.cookies()
