from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.server.conftest import running
from trainwatch.server.http import ui
from trainwatch.server.settings import Settings


@pytest.fixture
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>the UI</title>")
    (folder / "assets" / "index-1a2b.js").write_text("let x = 1;\n" * 1000)
    (tmp_path / "secret.txt").write_text("secret")
    monkeypatch.setattr(ui, "DIRECTORY", folder)
    return folder


@pytest.fixture
def browser(static: Path, settings: Settings) -> Iterator[httpx2.Client]:
    with running(settings) as server, httpx2.Client(base_url=server.url) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/runs/abc", "/runs/abc/metric", "/index.html"])
def test_every_address_of_the_ui_shows_its_page_and_asks_again(browser: httpx2.Client, path: str) -> None:
    answer = browser.get(path)
    assert (answer.status_code, answer.text) == (200, "<title>the UI</title>")
    assert answer.headers["cache-control"] == "no-cache"
    again = browser.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "identity"])
def test_assets_are_kept_for_ever_and_sent_small(browser: httpx2.Client, static: Path, encoding: str) -> None:
    answer = browser.get("/assets/index-1a2b.js", headers={"accept-encoding": encoding})
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].partition(";")[0] in ("text/javascript", "application/javascript")
    if encoding != "identity":
        assert answer.headers["content-encoding"] == encoding
        assert int(answer.headers["content-length"]) < 1000
    if encoding != "zstd":
        assert answer.text == (static / "assets" / "index-1a2b.js").read_text()


@pytest.mark.parametrize("path", ["/assets/index-0000.js", "/favicon.ico", "/api", "/api/nothing"])
def test_what_is_not_there_is_not_answered_with_the_page(browser: httpx2.Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/assets/..%2f..%2fsecret.txt"]
)
def test_nothing_outside_the_folder_is_served(browser: httpx2.Client, path: str) -> None:
    assert "secret" not in browser.get(path).text


def test_head_has_no_body(browser: httpx2.Client) -> None:
    answer = browser.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


def test_without_the_ui_a_page_says_how_to_build_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui, "DIRECTORY", tmp_path / "absent")
    with running(settings) as server, httpx2.Client(base_url=server.url) as client:
        answer = client.get("/")
    assert answer.status_code == 200
    assert "make web" in answer.text
