"""Logging in and out, and what every answer says."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from pydantic import SecretStr

from tests.server.conftest import running
from tests.server.keys import TOKEN, bearer, client_with, guarded_server, make_token
from tests.server.shipping import RUN
from trainwatch.server import access
from trainwatch.server.db import Database
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings


@pytest.fixture
def server_with_token(settings: Settings) -> Iterator[Server]:
    """A server whose own token is TOKEN."""
    with guarded_server(settings) as server:
        yield server


@pytest.fixture
def guarded(server_with_token: Server) -> Iterator[httpx2.Client]:
    """A client without credentials, of a server with a token."""
    with client_with(server_with_token) as client:
        yield client


@pytest.fixture
def database(settings: Settings, server_with_token: Server) -> Iterator[Database]:
    """The server's database."""
    found = Database(settings.database_url)
    yield found
    found.close()


def login(client: httpx2.Client, token: str) -> httpx2.Response:
    client.cookies.clear()
    return client.post("/api/login", json={"token": token})


def test_what_is_no_token_opens_nothing(guarded: httpx2.Client) -> None:
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN} {TOKEN}"},
        {"cookie": f"{access.COOKIE}=1.abc"},
        {"cookie": f"{access.COOKIE}={TOKEN}"},
        {"cookie": f"{access.COOKIE}=%ff%00"},
    ):
        answer = guarded.get("/api/runs", headers=headers)
        assert answer.status_code == 401, headers
        assert "TRAINWATCH_TOKEN" in answer.json()["detail"]
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_browser_logs_in_and_out(guarded: httpx2.Client) -> None:
    wrong = guarded.post("/api/login", json={"token": "wrong"})
    assert (wrong.status_code, wrong.json()) == (401, {"detail": "This is not a token of this server."})
    right = guarded.post("/api/login", json={"token": f" {TOKEN}\n"})
    assert right.status_code == 204
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert guarded.get("/api/runs").status_code == 200
    kept = dict(guarded.cookies)
    assert guarded.post("/api/logout").status_code == 204
    assert not dict(guarded.cookies)
    assert guarded.get("/api/runs").status_code == 401
    # Not only the cookie is gone: whoever copied it has nothing.
    assert guarded.get("/api/runs", headers={"cookie": f"{access.COOKIE}={kept[access.COOKIE]}"}).status_code == 401


def test_a_session_can_do_what_its_token_can(guarded: httpx2.Client, database: Database) -> None:
    assert login(guarded, make_token(database, "read", name="alice")).status_code == 204
    told = guarded.get("/api/session").json()
    assert (told["name"], told["project"], told["scopes"], told["logged_in"]) == ("alice", "a", ["read"], True)
    assert guarded.get("/api/projects/a/rules").status_code == 200
    assert guarded.get("/api/projects/b/rules").status_code == 404
    assert guarded.put("/api/projects/a/rules", json={"settings": {}}).status_code == 403
    refused = login(guarded, make_token(database, "ingest"))
    assert refused.status_code == 403
    assert "scope read" in refused.json()["detail"]
    assert "set-cookie" not in refused.headers


def test_a_session_ends_with_its_token(guarded: httpx2.Client, database: Database) -> None:
    login(guarded, make_token(database, "read", name="bob"))
    assert guarded.get("/api/runs").status_code == 200
    token = next(one for one in guarded.get("/api/admin/tokens", headers=bearer(TOKEN)).json() if one["name"] == "bob")
    assert guarded.delete(f"/api/admin/tokens/{token['id']}", headers=bearer(TOKEN)).status_code == 204
    assert guarded.get("/api/runs").status_code == 401


def test_an_admin_ends_the_session_of_another_browser(guarded: httpx2.Client, server_with_token: Server) -> None:
    login(guarded, TOKEN)
    with client_with(server_with_token) as admin:
        login(admin, TOKEN)
        theirs, mine = sorted(admin.get("/api/admin/sessions").json(), key=lambda one: one["own"])
        assert (theirs["own"], mine["own"]) == (False, True)
        assert admin.delete(f"/api/admin/sessions/{theirs['id']}").status_code == 204
        assert admin.delete(f"/api/admin/sessions/{theirs['id']}").status_code == 404
        assert guarded.get("/api/runs").status_code == 401
        assert admin.get("/api/runs").status_code == 200


def test_another_token_of_the_server_ends_the_sessions_of_the_old_one(settings: Settings) -> None:
    with guarded_server(settings) as server, client_with(server) as client:
        login(client, TOKEN)
        assert client.get("/api/session").status_code == 200
        cookies = dict(client.cookies)
    for token, status in ((TOKEN, 200), ("another one", 401)):
        with (
            guarded_server(settings, token=SecretStr(token)) as server,
            httpx2.Client(base_url=server.url, cookies=cookies) as client,
        ):
            assert client.get("/api/session").status_code == status


def test_a_trusted_proxy_says_that_the_browser_came_by_https(settings: Settings) -> None:
    headers = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.7"}
    for trusted, is_secure in (
        ("", False),
        ("203.0.113.1", False),
        ("127.0.0.1", True),
        ("10.0.0.0/8, 127.0.0.0/8", True),
    ):
        with guarded_server(settings, trusted_proxies=trusted) as server, client_with(server) as client:
            cookie = client.post("/api/login", json={"token": TOKEN}, headers=headers).headers["set-cookie"]
        assert ("Secure" in cookie) is is_secure, trusted


def test_with_a_token_the_server_has_any_name(guarded: httpx2.Client) -> None:
    headers = {"host": "trainwatch.example.com", **bearer(TOKEN)}
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


def test_without_a_token_everybody_may_do_everything_but_a_token_is_what_it_is(
    client: httpx2.Client, settings: Settings
) -> None:
    assert client.get("/api/session").json()["open"] is True
    assert client.get("/api/admin/tokens").status_code == 200
    assert client.get("/api/runs", headers=bearer("what an agent has from another server")).status_code == 200
    database = Database(settings.database_url)
    token = make_token(database, "ingest")
    assert client.get("/api/runs", headers=bearer(token)).status_code == 403
    assert client.get("/api/runs", headers=bearer(make_token(database, "read", revoked=True))).status_code == 401
    database.close()


def test_pages_of_other_sites_change_nothing(client: httpx2.Client) -> None:
    for origin in ("https://evil.example", "http://localhost:9999", "null"):
        answer = client.post(f"/api/runs/{RUN}/commands", json={"action": "halt"}, headers={"origin": origin})
        assert answer.status_code == 403, origin
    own = str(client.base_url).rstrip("/")
    answer = client.post(f"/api/runs/{RUN}/commands", json={"action": "halt"}, headers={"origin": own})
    assert answer.status_code == 404


def test_pages_of_other_sites_change_nothing_with_a_session_either(guarded: httpx2.Client) -> None:
    login(guarded, TOKEN)
    evil = {"origin": "https://evil.example"}
    assert guarded.post("/api/admin/tokens", json={"name": "x", "scopes": ["admin"]}, headers=evil).status_code == 403
    assert guarded.post("/api/login", json={"token": TOKEN}, headers=evil).status_code == 403
    assert guarded.get("/api/admin/tokens").json() == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/health", 200),
        ("GET", "/api/nothing", 404),
        ("GET", "/", 200),
        ("GET", "/favicon.svg", 200),
        ("GET", "/assets/none.js", 404),
        ("GET", "/api/runs?limit=0", 422),
        ("DELETE", "/api/runs", 405),
        ("OPTIONS", "/api/runs", 405),
        ("POST", "/api/ingest", 415),
    ],
)
def test_every_answer_has_the_security_headers(client: httpx2.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path, headers={"origin": str(client.base_url).rstrip("/")})
    assert answer.status_code == status
    _assert_secured(answer)


def test_refusals_have_the_security_headers_too(guarded: httpx2.Client) -> None:
    for answer, status in (
        (guarded.get("/api/runs"), 401),
        (guarded.post("/api/logout", headers={"origin": "https://evil.example"}), 403),
        (guarded.post("/api/login", content=b"x" * 2_000_000), 413),
        (guarded.post("/api/login", content=iter([b"x" * 600_000] * 2)), 413),
        (guarded.options("/api/runs", headers={"origin": "https://evil.example"}), 405),
    ):
        assert answer.status_code == status
        _assert_secured(answer)


def test_the_answer_to_a_fault_of_the_server_has_them_too(settings: Settings) -> None:
    with running(settings) as server, client_with(server) as client:
        database = Database(settings.database_url)
        with database.write() as connection:
            connection.exec_driver_sql(
                "INSERT INTO runs (id, project, name, state, node, started_at, last_event_at, heard_at,"
                " superseded_until, step, max_steps, world_size, policy, loss_source, output_dir, arguments,"
                " environment, model, ending, version) VALUES ('bad', 'a', '', 'running', 'n', 0, 0, 0, 0, 0, 0, 1, '',"
                " '', '', 'no JSON', 'no JSON', 'no JSON', 'no JSON', 1)"
            )
        database.close()
        answer = client.get("/api/runs/bad")
    assert answer.status_code == 500
    assert "no JSON" not in answer.text
    _assert_secured(answer)


def _assert_secured(answer: httpx2.Response) -> None:
    headers = answer.headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert "script-src 'self';" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert not [name for name in headers if name.startswith("access-control-")]
