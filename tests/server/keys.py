"""Servers that want a token, and tokens of every kind for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from pydantic import SecretStr

from tests.server.conftest import running
from trainwatch.server.access.issue import issue
from trainwatch.server.access.principal import Scope
from trainwatch.server.db import Database
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings
from trainwatch.server.store import access as store

TOKEN = "correct horse battery staple"


@contextmanager
def guarded_server(settings: Settings, **changes: Any) -> Iterator[Server]:
    """Runs a server whose own token is :data:`TOKEN`."""
    with running(settings.model_copy(update={"token": SecretStr(TOKEN), **changes})) as server:
        yield server


def make_token(
    database: Database,
    *scopes: Scope,
    project: str = "a",
    name: str = "made",
    days: float | None = 1.0,
    now: float | None = None,
    revoked: bool = False,
) -> str:
    """Makes a token in a database, as ``trainwatch token create`` does."""
    moment = time.time() if now is None else now
    with database.write() as connection:
        made, secret = issue(connection, name=name, project=project, scopes=scopes, days=days, by="a test", now=moment)
        if revoked:
            store.revoke_token(connection, made, moment)
    return secret


def bearer(token: str) -> dict[str, str]:
    """Returns the header that shows a token."""
    return {"authorization": f"Bearer {token}"}


def secret_part(token: str) -> str:
    """Returns what is secret of a token; it may have underscores of its own."""
    return token.split("_", 2)[2]


def client_with(server: Server, token: str = "") -> httpx2.Client:
    """Returns a client that shows a token, or none."""
    return httpx2.Client(base_url=server.url, timeout=20, headers=bearer(token) if token else {})
