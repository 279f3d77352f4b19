from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.server.conftest import running
from tests.server.shipping import RUN
from trainwatch.server import access
from trainwatch.server.app import create_app
from trainwatch.server.settings import Settings

TOKEN = "correct horse battery staple"
OPEN = {("GET", "/api/health"), ("GET", "/api/ready"), ("POST", "/api/login"), ("POST", "/api/logout")}


@pytest.fixture
def guarded(settings: Settings) -> Iterator[httpx2.Client]:
    """A client without credentials, of a server with a token."""
    with (
        running(settings.model_copy(update={"token": type(settings.token)(TOKEN)})) as server,
        httpx2.Client(base_url=server.url) as client,
    ):
        yield client


def routes() -> list[tuple[str, str]]:
    paths: dict[str, dict[str, Any]] = create_app(Settings(database="sqlite:///never-opened.db")).openapi()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def test_every_route_wants_the_token_except_health_and_login(guarded: httpx2.Client) -> None:
    assert len(routes()) >= 12
    for method, path in routes():
        url = path.format_map(defaultdict(lambda: "x", run=RUN, chart="loss"))
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Basic {TOKEN}"},
            {"authorization": "Bearer"},
            {"cookie": f"{access.COOKIE}=1.abc"},
            {"cookie": f"{access.COOKIE}={access.session('wrong', 2e9)}"},
        ):
            answer = guarded.request(method, url, headers=headers)
            if (method, path) in OPEN:
                assert answer.status_code != 401, (method, path)
            else:
                assert answer.status_code == 401, (method, path, headers)
                assert "TRAINWATCH_TOKEN" in answer.json()["detail"]
        if path != "/api/events":
            allowed = guarded.request(method, url, headers={"authorization": f"Bearer {TOKEN}"})
            assert allowed.status_code not in (401, 403), (method, path)


def test_a_browser_logs_in_and_out(guarded: httpx2.Client) -> None:
    wrong = guarded.post("/api/login", json={"token": "wrong"})
    assert (wrong.status_code, wrong.json()) == (401, {"detail": "This is not the server's token."})
    right = guarded.post("/api/login", json={"token": f" {TOKEN}\n"})
    assert right.status_code == 204
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/api/runs").status_code == 200
    assert guarded.post("/api/logout").status_code == 204
    assert guarded.get("/api/runs").status_code == 401


def test_sessions_end() -> None:
    made = access.session(TOKEN, 1000.0)
    assert access.is_session(made, TOKEN, 1000.0)
    assert access.is_session(made, TOKEN, 1000.0 + access.SESSION_SECONDS)
    assert not access.is_session(made, TOKEN, 1001.0 + access.SESSION_SECONDS)
    assert not access.is_session(made, "other", 1000.0)
    assert not access.is_session(made.replace("1000", "2000"), TOKEN, 2000.0)
    for nonsense in ("", ".", "²." + "a" * 64, "1e9.x", "9" * 400 + ".x"):
        assert not access.is_session(nonsense, TOKEN, 1000.0)


def test_with_a_token_the_server_has_any_name(guarded: httpx2.Client) -> None:
    headers = {"host": "trainwatch.example.com", "authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/api/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/api/runs", "/api/health", "/"])
def test_without_a_token_it_answers_only_to_this_machine(client: httpx2.Client, path: str) -> None:
    for good in ("127.0.0.1:8420", "localhost:8420", "localhost", "[::1]:8420", "LOCALHOST"):
        assert client.get(path, headers={"host": good}).status_code == 200, good
    for bad in (
        "evil.example",
        "evil.example:8420",
        "127.0.0.1.evil.example",
        "localhost:8420.evil.example",
        "10.0.0.5",
    ):
        answer = client.get(path, headers={"host": bad})
        assert answer.status_code == 403, bad
        assert "TRAINWATCH_TOKEN" in answer.json()["detail"]


def test_pages_of_other_sites_change_nothing(client: httpx2.Client) -> None:
    for origin in ("https://evil.example", "http://localhost:9999", "null"):
        answer = client.post(f"/api/runs/{RUN}/commands", json={"action": "halt"}, headers={"origin": origin})
        assert answer.status_code == 403, origin
    own = str(client.base_url).rstrip("/")
    answer = client.post(f"/api/runs/{RUN}/commands", json={"action": "halt"}, headers={"origin": own})
    assert answer.status_code == 404


@pytest.mark.parametrize("path", ["/api/health", "/api/nothing", "/", "/api/runs?limit=0"])
def test_every_answer_has_the_security_headers(client: httpx2.Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self';" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
