"""Whatever is refused: neither the log nor the answer holds what was shown."""

from __future__ import annotations

import logging

import pytest

from tests.server.keys import TOKEN, bearer, client_with, guarded_server, make_token, secret_part
from trainwatch.server.access import COOKIE
from trainwatch.server.db import Database
from trainwatch.server.settings import Settings


def test_refusals_tell_no_secret(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with guarded_server(settings, requests_per_second=2) as server, client_with(server) as client:
        database = Database(settings.database_url)
        tokens = {
            "valid": make_token(database, "ingest", project="a"),
            "revoked": make_token(database, "read", revoked=True, name="gone"),
            "expired": make_token(database, "read", days=1, now=0.0),
            "unknown": "tw_" + "0" * 12 + "_" + "k" * 43,
            "typed": "my secret passphrase",
            "own": TOKEN,
        }
        database.close()
        answers = []
        for token in tokens.values():
            for method, path in (("GET", "/api/runs"), ("POST", "/api/ingest"), ("GET", "/api/admin/tokens")):
                answers.append(client.request(method, path, headers=bearer(token)))
            answers.append(client.get("/api/session", headers={"cookie": f"{COOKIE}={token}"}))
            answers.append(client.post("/api/login", json={"token": token}))
            answers.append(client.post("/api/login", json={"token": token, "more": [token]}))
            answers.append(client.post("/api/login", json={"token": {"token": token}}))
            answers.append(client.post("/api/login", json=[token]))
            answers.append(client.post("/api/login", content=f'{{"token": "{token}'.encode()))
        for n in range(12):
            answers.append(client.post("/api/login", json={"token": f"guess number {n}"}))
        made = client.post("/api/admin/tokens", json={"name": "x", "scopes": ["read"]}, headers=bearer(TOKEN))
        cookies = [answer.cookies[COOKIE] for answer in answers if COOKIE in answer.cookies]
        assert client.get("/api/runs", headers={"authorization": "Bearer \\x00\\xff"}).status_code in (401, 429)
    assert {401, 403, 422, 429} <= {answer.status_code for answer in answers}
    assert cookies
    told = "\n".join(answer.text for answer in answers)
    secrets = [*tokens.values(), *cookies, "guess number"]
    if made.status_code == 201:
        secrets.append(made.json()["token"])
    # Not what the client of this very test logs: it sees the cookies that it is given.
    logged = "\n".join(
        f"{record.getMessage()} {record.exc_text or ''} {record.__dict__}"
        for record in caplog.records
        if not record.name.startswith(("httpx2", "httpcore2"))
    )
    for text in (logged, told):
        for secret in secrets:
            assert secret not in text
            if secret.startswith("tw_"):
                assert secret_part(secret) not in text
    assert "refused a token" in logged, "that there was one is told"
    assert "tw_000000000000_…" in logged
