"""The log of a server that runs as a process of its own, read from its standard error."""

from __future__ import annotations

import io
import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from tests.server.shipping import RUN
from tests.server.test_serve import process
from trainwatch.server.settings import Settings
from trainwatch.server.telemetry import logs

TOKEN = "correct-horse-battery-staple"


def lines(home: Path, *requests: tuple[str, str, dict[str, str]], **changes: str) -> list[dict[str, Any]]:
    """Runs a server, sends it requests, ends it, and returns what it logged of them."""
    with process(home, TRAINWATCH_LOG_FORMAT="json", **changes) as (child, url), httpx2.Client(base_url=url) as client:
        for method, path, headers in requests:
            client.request(method, path, headers=headers)
        child.send_signal(signal.SIGTERM)
        child.wait(10)
        assert child.stderr is not None
        found = [json.loads(line) for line in child.stderr.read().splitlines()]
    return [line for line in found if line["logger"] == "trainwatch.server.http.observe"]


def test_a_refused_request_is_one_line_that_tells_no_secret(tmp_path: Path) -> None:
    found = lines(
        tmp_path,
        ("GET", "/api/runs", {"authorization": f"Bearer {TOKEN}"}),
        ("GET", "/api/runs?token=abc", {"authorization": "Bearer of-another", "x-request-id": "mine-1"}),
        ("GET", f"/api/runs/{TOKEN}", {"authorization": f"Bearer {TOKEN}", "x-request-id": "no good\tname"}),
        TRAINWATCH_TOKEN=TOKEN,
    )
    assert [line["event"] for line in found] == ["refused", "refused"]
    wrong, absent = found
    assert {name: wrong[name] for name in ("method", "path", "status", "request_id", "client", "level")} == {
        "method": "GET",
        "path": "/api/runs",
        "status": 401,
        "request_id": "mine-1",
        "client": "127.0.0.1",
        "level": "info",
    }
    assert "TRAINWATCH_TOKEN" in wrong["detail"]
    assert absent["path"] == "/api/runs/[hidden]"
    assert absent["detail"] == "There is no run '[hidden]'."
    assert absent["request_id"].isalnum()
    for secret in (TOKEN, "of-another"):
        assert secret not in json.dumps(found)


def test_the_access_log_holds_all_requests(tmp_path: Path) -> None:
    found = lines(tmp_path, ("GET", "/api/health", {}), ("GET", "/api/runs", {}), TRAINWATCH_ACCESS_LOG="1")
    assert [(line["event"], line["path"], line["status"]) for line in found] == [
        ("answered", "/api/health", 200),
        ("answered", "/api/runs", 200),
    ]


def test_warnings_only(tmp_path: Path) -> None:
    assert lines(tmp_path, ("GET", "/api/runs/none", {}), TRAINWATCH_LOG_LEVEL="warning") == []


def test_every_answer_has_the_name_of_its_request(client: httpx2.Client) -> None:
    assert client.get("/api/health", headers={"x-request-id": "mine-2"}).headers["x-request-id"] == "mine-2"
    names = {client.get(path).headers["x-request-id"] for path in ("/api/health", "/api/runs/none", "/", "/api/runs")}
    assert len(names) == 4
    assert client.get(f"/api/runs/{RUN}", headers={"x-request-id": "x" * 65}).headers["x-request-id"] != "x" * 65


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger, and what it writes."""
    root, ours = logging.getLogger(), logging.getLogger("trainwatch")
    before = root.handlers[:], root.level, ours.level
    stream = io.StringIO()
    chosen = Settings(
        token=SecretStr(TOKEN), database="postgresql://watch:p%40ss-word@db/x", log_format="json", log_level="info"
    )
    logs.configure(chosen, stream)
    yield logging.getLogger("trainwatch.made_up"), stream
    root.handlers[:], root.level, ours.level = before


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"the token is {TOKEN}!", TOKEN),
        ("cannot reach postgresql://watch:p%40ss-word@db/x", "p%40ss-word"),
        ("password authentication failed: p@ss-word", "p@ss-word"),
        ("https://me:other-secret@proxy.example/path", "other-secret"),
        ("Authorization: Bearer abc.def", "abc.def"),
        ("Authorization: Basic YWJjOmRlZg==", "YWJjOmRlZg"),
        ("https://hooks.slack.com/services/T000/B000/xyzzy", "xyzzy"),
        ('{"api_key": "k-123456", "a": 1}', "k-123456"),
        ("callback?code=1&client_secret=s3cr3t&state=2", "s3cr3t"),
        ("Set-Cookie: trainwatch_session=abcdef; Path=/", "abcdef"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(log: tuple[logging.Logger, io.StringIO], text: str, hidden: str) -> None:
    logger, stream = log
    logger.warning("said: %s", text, extra={"field": text, "nested": {"deep": [text]}})
    try:
        raise ValueError(text)
    except ValueError:
        logger.exception("failed")
    written = stream.getvalue()
    assert len(written.splitlines()) == 2
    assert hidden not in written
    assert written.count(logs.HIDDEN) >= 4


def test_ordinary_words_stay(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    text = "the run 0123 has no series 'train/loss'; tokens a second: 1200, at http://10.0.0.5:8420/api/runs"
    logger.info(text)
    assert json.loads(stream.getvalue())["event"] == text
