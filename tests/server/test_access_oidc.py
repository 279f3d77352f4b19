"""Logging in through an OpenID provider that answers on a socket."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc.jwk import RSAKey
from pydantic import SecretStr

from tests.server.keys import TOKEN, client_with, guarded_server
from tests.server.provider import CLIENT_ID, CLIENT_SECRET, Provider, openid_provider
from trainwatch.server.access import COOKIE
from trainwatch.server.access.oidc import FLOW_COOKIE, access_of
from trainwatch.server.main import Server
from trainwatch.server.settings import Refused, Settings, SsoAccess

ACCESS = (
    SsoAccess(group="platform", scopes=("admin",)),
    SsoAccess(domain="example.com", group="vision", project="vision", scopes=("write",)),
    SsoAccess(domain="Example.com", scopes=("read",)),
)


def with_provider(settings: Settings, issuer: str, **changes: Any) -> Settings:
    fields = {
        "token": SecretStr(TOKEN),
        "oidc_issuer": issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": SecretStr(CLIENT_SECRET),
        "oidc_name": "Example Corp",
        "oidc_access": ACCESS,
    }
    return settings.model_copy(update=fields | changes)


@pytest.fixture
def provider() -> Iterator[Provider]:
    """An OpenID provider."""
    with openid_provider() as found:
        yield found


@pytest.fixture
def server(settings: Settings, provider: Provider) -> Iterator[Server]:
    """A server that people log in to through the provider."""
    with guarded_server(with_provider(settings, provider.url)) as found:
        yield found


@pytest.fixture
def browser(server: Server) -> Iterator[httpx2.Client]:
    """A browser that follows nothing by itself."""
    with client_with(server) as found:
        yield found


def go(browser: httpx2.Client, to: str = "/runs/x") -> httpx2.Response:
    """Goes to the provider and back; returns the server's last answer."""
    browser.cookies.clear()
    begun = browser.get("/api/login/oidc", params={"to": to})
    assert begun.status_code == 303
    return browser.get(httpx2.get(begun.headers["location"]).headers["location"])


def test_a_person_logs_in_and_may_what_the_first_entry_says(browser: httpx2.Client, provider: Provider) -> None:
    assert browser.get("/api/login").json() == {"open": False, "sso": {"name": "Example Corp"}}
    for claims, scopes, project in (
        ({}, ["read"], ""),
        ({"groups": ["other", "vision"]}, ["read", "write"], "vision"),
        ({"groups": ["vision", "platform"]}, ["ingest", "read", "write", "admin"], ""),
        ({"groups": ["platform"], "email": "eve@evil.example"}, ["ingest", "read", "write", "admin"], ""),
    ):
        provider.claims = claims
        done = go(browser)
        assert (done.status_code, done.headers["location"]) == (303, "/runs/x")
        told = browser.get("/api/session").json()
        assert (told["scopes"], told["project"], told["logged_in"]) == (scopes, project, True)
    cookie = next(value for value in done.headers.get_list("set-cookie") if value.startswith(COOKIE))
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert FLOW_COOKIE not in browser.cookies
    sessions = browser.get("/api/admin/sessions").json()
    assert {one["name"] for one in sessions} == {"ada@example.com", "eve@evil.example"}
    assert all(one["sso"] and one["token"] is None for one in sessions)


@pytest.mark.parametrize(
    "claims",
    [
        {"email": "eve@evil.example"},
        {"email": "eve@example.com.evil.example"},
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "true"},
        {"email": None},
        {"email": ["ada@example.com"]},
        {"groups": "platform", "email": None},
    ],
)
def test_whom_nobody_gave_access_gets_none(browser: httpx2.Client, provider: Provider, claims: dict[str, Any]) -> None:
    provider.claims = claims
    done = go(browser)
    assert done.headers["location"] == "/?login=nobody"
    assert COOKIE not in browser.cookies
    assert browser.get("/api/runs").status_code == 401


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"aud": "somebody else"},
        {"aud": ["somebody else"], "azp": CLIENT_ID},
        {"nonce": "another"},
        {"nonce": None},
        {"exp": 1_000_000_000},
        {"exp": None},
        {"sub": None},
    ],
)
def test_a_word_that_was_meant_for_something_else_is_not_taken(
    browser: httpx2.Client, provider: Provider, claims: dict[str, Any]
) -> None:
    provider.claims = claims
    assert go(browser).headers["location"] == "/?login=failed"
    assert COOKIE not in browser.cookies


def test_a_word_that_somebody_else_signed_is_not_taken(browser: httpx2.Client, provider: Provider) -> None:
    own = provider.key
    provider.key = RSAKey.generate_key(2048, {"kid": "first"})
    assert go(browser).headers["location"] == "/?login=failed"
    provider.key = own
    # With a key that everybody knows, as the secret of a signature that the provider says it makes too; or none.
    for forging in (("HS256", own.as_pem(private=False)), ("HS256", CLIENT_SECRET.encode()), ("none", b"")):
        provider.forging = forging
        assert go(browser).headers["location"] == "/?login=failed", forging[0]
    provider.forging = None
    assert go(browser).headers["location"] == "/runs/x"


def test_the_provider_changes_its_keys(browser: httpx2.Client, provider: Provider) -> None:
    assert go(browser).headers["location"] == "/runs/x"
    provider.key = RSAKey.generate_key(2048, {"kid": "second"})
    provider.published = [provider.key]
    assert go(browser).headers["location"] == "/runs/x"


def test_a_login_that_another_browser_began_is_not_ended_here(browser: httpx2.Client, server: Server) -> None:
    with client_with(server) as attacker:
        begun = attacker.get("/api/login/oidc")
        callback = httpx2.get(begun.headers["location"]).headers["location"]
    assert browser.get(callback).headers["location"] == "/?login=expired"
    own = browser.get("/api/login/oidc")  # also not while it has one of its own
    assert own.status_code == 303
    assert browser.get(callback).headers["location"] == "/?login=expired"
    assert COOKIE not in browser.cookies


def test_what_comes_back_may_be_nonsense(browser: httpx2.Client, provider: Provider) -> None:
    for query in ("", "?code=x", "?code=x&state=y", "?error=access_denied", "?code=" + "x" * 3000):
        assert browser.get(f"/api/login/oidc/callback{query}").headers["location"].startswith("/?login=")
    for flow in ("x", "eyJ9", "bnVsbA==", "W10=", "MQ==", "e30="):
        answer = browser.get("/api/login/oidc/callback?code=x&state=y", headers={"cookie": f"{FLOW_COOKIE}={flow}"})
        assert answer.headers["location"] == "/?login=expired"
    provider.status = 500
    assert go(browser).headers["location"] == "/?login=failed"


@pytest.mark.parametrize("to", ["https://evil.example", "//evil.example", "/\\evil.example", "evil", "/\nx", ""])
def test_it_leads_to_no_other_site(browser: httpx2.Client, to: str) -> None:
    assert go(browser, to).headers["location"] == "/"


def test_a_code_is_bound_to_the_browser_that_asked_for_it(browser: httpx2.Client, provider: Provider) -> None:
    begun = browser.get("/api/login/oidc")
    asked = parse_qs(urlsplit(begun.headers["location"]).query)
    assert asked["redirect_uri"] == [f"{str(browser.base_url).rstrip('/')}/api/login/oidc/callback"]
    assert asked["scope"] == ["openid email profile"]
    callback = httpx2.get(begun.headers["location"]).headers["location"]
    code = parse_qs(urlsplit(callback).query)["code"][0]
    _, nonce, redirect = provider.challenges[code]
    provider.challenges[code] = "of another verifier", nonce, redirect
    assert browser.get(callback).headers["location"] == "/?login=failed"


def test_a_provider_that_is_away_is_said(settings: Settings) -> None:
    with guarded_server(with_provider(settings, "http://127.0.0.1:9")) as server, client_with(server) as browser:
        assert browser.get("/api/login/oidc").headers["location"] == "/?login=failed"
        assert browser.post("/api/login", json={"token": TOKEN}).status_code == 204, "the token still opens"


def test_sessions_end_when_the_provider_is_no_longer_asked(settings: Settings, provider: Provider) -> None:
    with guarded_server(with_provider(settings, provider.url)) as server, client_with(server) as browser:
        go(browser)
        assert browser.get("/api/session").status_code == 200
        cookies = dict(browser.cookies)
    with guarded_server(settings) as server, httpx2.Client(base_url=server.url, cookies=cookies) as browser:
        assert browser.get("/api/session").status_code == 401
        assert browser.get("/api/login").json()["sso"] is None
        assert browser.get("/api/login/oidc").status_code == 404


def test_logs_hold_nothing_that_opens(
    browser: httpx2.Client, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trainwatch")
    go(browser)
    provider.status = 500
    go(browser)
    provider.status = 0
    provider.claims = {"nonce": "another"}
    go(browser)
    assert "cannot take the provider's word" in caplog.text
    assert len(provider.seen) > 10
    for secret in [*provider.seen, CLIENT_SECRET, TOKEN]:
        assert secret not in caplog.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token": SecretStr("")}, "TRAINWATCH_TOKEN"),
        ({"oidc_issuer": "http://accounts.example.com"}, "https://"),
        ({"oidc_client_id": ""}, "TRAINWATCH_OIDC_CLIENT_ID"),
        ({"oidc_access": ()}, "TRAINWATCH_OIDC_ACCESS"),
        ({"oidc_access": (SsoAccess(scopes=("admin",)),)}, "needs a domain or a group"),
    ],
)
def test_settings_that_would_let_the_wrong_ones_in_are_refused(
    settings: Settings, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        with_provider(settings, "https://accounts.example.com", **changes).check()


def test_the_entries_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWATCH_OIDC_ACCESS", '[{"group": "g", "project": "p", "scopes": ["read", "write"]}]')
    (one,) = Settings().oidc_access
    assert (one.group, one.project, one.scopes) == ("g", "p", ("read", "write"))
    assert access_of({"groups": ["g"]}, Settings()) == one
    assert access_of({"roles": ["g"]}, Settings()) is None
    assert access_of({"roles": ["g"]}, Settings(oidc_groups_claim="roles")) == one
