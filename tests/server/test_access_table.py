"""Every route there is, asked for with every kind of token."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.server.keys import TOKEN, guarded_server, make_token
from tests.server.shipping import batch, send, started, step
from trainwatch.server.app import create_app
from trainwatch.server.db import Database
from trainwatch.server.settings import Settings

# What each route needs, and what it is about: a run or a project (its own names are in the address), each his own (it
# shows somebody of one project only that project's), or the whole installation. A new route belongs in here; write down
# what it should need, not what it needs.
ROUTES = """
GET     /{path:path}                                          nothing  files
HEAD    /{path:path}                                          nothing  files
GET     /metrics                                              read     installation
GET     /api/health                                           nothing  -
GET     /api/ready                                            nothing  -
GET     /api/login                                            nothing  -
POST    /api/login                                            nothing  -
POST    /api/logout                                           nothing  -
GET     /api/login/oidc                                       nothing  -
GET     /api/login/oidc/callback                              nothing  -
POST    /api/ingest                                           ingest   own
GET     /api/session                                          any      own
GET     /api/metrics                                          read     own
GET     /api/runs                                             read     own
GET     /api/events                                           read     own
GET     /api/openapi.json                                     nothing  -
GET     /api/runs/{run}                                       read     run
DELETE  /api/runs/{run}                                       admin    run
GET     /api/runs/{run}/series/points                         read     run
GET     /api/projects/{project}/retention                     admin    project
PUT     /api/projects/{project}/retention                     admin    project
GET     /api/runs/{run}/compare/{other}                       read     run
GET     /api/runs/{run}/charts/{chart:path}                   read     run
GET     /api/runs/{run}/series                                read     run
GET     /api/runs/{run}/series/data                           read     run
POST    /api/runs/{run}/commands                              write    run
PUT     /api/runs/{run}/alerts/{alert}/silence                write    run
DELETE  /api/runs/{run}/alerts/{alert}/silence                write    run
GET     /api/runs/{run}/alerts/{alert}/deliveries             read     run
GET     /api/projects/{project}/rules                         read     project
PUT     /api/projects/{project}/rules                         write    project
POST    /api/rules/{rule}/backtest                            write    own
GET     /api/projects/{project}/silences                      read     project
POST    /api/projects/{project}/silences                      write    project
DELETE  /api/projects/{project}/silences/{silence}            write    project
GET     /api/projects/{project}/channels                      admin    project
POST    /api/projects/{project}/channels                      admin    project
PUT     /api/projects/{project}/channels/{channel}            admin    project
DELETE  /api/projects/{project}/channels/{channel}            admin    project
POST    /api/projects/{project}/channels/{channel}/test       admin    project
GET     /api/projects/{project}/channels/{channel}/deliveries admin    project
GET     /api/projects/{project}/tokens                        admin    project
POST    /api/projects/{project}/tokens                        admin    project
DELETE  /api/projects/{project}/tokens/{token}                admin    project
GET     /api/admin/channels                                   admin    installation
POST    /api/admin/channels                                   admin    installation
PUT     /api/admin/channels/{channel}                         admin    installation
DELETE  /api/admin/channels/{channel}                         admin    installation
POST    /api/admin/channels/{channel}/test                    admin    installation
GET     /api/admin/channels/{channel}/deliveries              admin    installation
GET     /api/admin/tokens                                     admin    installation
POST    /api/admin/tokens                                     admin    installation
DELETE  /api/admin/tokens/{token}                             admin    installation
GET     /api/admin/sessions                                   admin    installation
DELETE  /api/admin/sessions/{session}                         admin    installation
"""
BRINGS = {
    "ingest": {"ingest"},
    "read": {"read"},
    "write": {"read", "write"},
    "admin": {"ingest", "read", "write", "admin"},
}


class Row(NamedTuple):
    method: str
    path: str
    needs: str
    about: str


TABLE = [Row(*line.split()) for line in ROUTES.strip().splitlines()]


class Key(NamedTuple):
    """Somebody who asks: with a token of these scopes and this project (empty: all), or with one that is not valid."""

    scopes: tuple[str, ...]
    project: str
    valid: bool = True

    def may(self, row: Row) -> int | None:
        """Returns the status of the refusal; None where there is to be none."""
        if row.needs == "nothing":
            return None
        if not self.valid:
            return 401
        if row.needs == "any":
            return None
        if not any(row.needs in BRINGS[scope] for scope in self.scopes):
            return 403
        if self.project == "":
            return None
        if row.about == "installation":
            return 403
        return 404 if self.project != "a" and row.about in ("run", "project") else None


KEYS = {
    "no token": Key((), "", valid=False),
    "a wrong token": Key((), "", valid=False),
    "a revoked token": Key(("admin",), "a", valid=False),
    "an expired token": Key(("admin",), "a", valid=False),
    "another project": Key(("admin",), "b"),
    "ingest": Key(("ingest",), "a"),
    "read": Key(("read",), "a"),
    "write": Key(("write",), "a"),
    "ingest and read": Key(("ingest", "read"), "a"),
    "admin": Key(("admin",), "a"),
    "ingest of all": Key(("ingest",), ""),
    "read of all": Key(("read",), ""),
    "write of all": Key(("write",), ""),
    "admin of all": Key(("admin",), ""),
    "the installation": Key(("admin",), ""),
}


def routes_of(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for route in routes:
        inner = getattr(route, "original_router", None)  # how newer versions of FastAPI keep an included router
        if inner is not None:
            yield from routes_of(inner.routes, prefix + route.include_context.prefix)
        else:
            for method in sorted(getattr(route, "methods", None) or ["any"]):
                yield method, prefix + route.path


def test_every_route_is_in_the_table() -> None:
    app = create_app(Settings(database="sqlite:///never-opened.db"))
    there = sorted(set(routes_of(app.routes)))
    listed = sorted((row.method, row.path) for row in TABLE)
    assert there == listed, "list the new routes in ROUTES of this file, with what each needs"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx2.Client, dict[str, str]]]:
    """A server with runs of project a, and a token of each kind."""
    settings = Settings(home=tmp_path_factory.mktemp("table"), port=0)
    with guarded_server(settings) as server:
        database = Database(settings.database_url)
        tokens = {
            name: make_token(database, *key.scopes, project=key.project, name=name)  # type: ignore[arg-type]
            for name, key in KEYS.items()
            if key.valid and name != "the installation"
        }
        tokens["a wrong token"] = tokens["admin of all"][:-1] + "~"
        tokens["a revoked token"] = make_token(database, "admin", revoked=True)
        tokens["an expired token"] = make_token(database, "admin", days=1, now=time.time() - 90_000)
        tokens["the installation"] = TOKEN
        with httpx2.Client(base_url=server.url, timeout=20) as client:
            yield client, tokens
        database.close()


@pytest.mark.parametrize("name", KEYS)
def test_each_token_gets_what_it_may_and_nothing_else(asked: tuple[httpx2.Client, dict[str, str]], name: str) -> None:
    client, tokens = asked
    client.cookies.clear()
    with httpx2.Client(base_url=client.base_url, headers={"authorization": f"Bearer {TOKEN}"}) as shipping:
        for run in ("run1", "run2"):
            # Again for each key, since those who may delete what is there do.
            send(shipping, batch([started(), step(1)], run=run, project="a"))
    headers = {"authorization": f"Bearer {tokens[name]}"} if name in tokens else {}
    wrong = []
    for row in sorted(TABLE, key=lambda row: (row.method, row.path) == ("DELETE", "/api/runs/{run}")):
        address = row.path.replace(":path", "").format(
            path="settings/access",
            run="run1",
            other="run2",
            chart="loss",
            project="a",
            alert="1",
            silence="1",
            channel="1",
            rule="x",
            token="x",
            session="x",
        )
        body = {"json": {}} if row.method in ("POST", "PUT") and row.path != "/api/ingest" else {}
        with client.stream(row.method, address, headers=headers, follow_redirects=False, **body) as answer:
            status = answer.status_code
            detail = "" if address == "/api/events" and status == 200 else answer.read().decode()
        refused = KEYS[name].may(row)
        if refused == 404:
            fine = status == 404 and ("There is no run 'run1'" in detail or "There is no project 'a'" in detail)
        elif refused is not None:
            fine = status == refused
        else:
            hidden = status == 404 and ("There is no run" in detail or "There is no project" in detail)
            fine = (status not in (401, 403) or row.path == "/api/login") and status < 500 and not hidden
        if not fine:
            wrong.append(f"{row.method} {address}: {status} instead of {refused or 'no refusal'}: {detail[:100]}")
    assert not wrong, "\n".join(wrong)
