"""What is kept of tokens, and how long they hold: on both databases."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from tests.server.conftest import running
from tests.server.keys import TOKEN, bearer, client_with, make_token, secret_part
from trainwatch import cli
from trainwatch.server.access import Keyring, NotAdmitted, Principal
from trainwatch.server.access.keyring import KNOWN_SECONDS
from trainwatch.server.access.principal import format_scopes, parse_scopes
from trainwatch.server.access.tokens import id_of, new_token
from trainwatch.server.db import Database
from trainwatch.server.settings import Settings
from trainwatch.server.store import access as store


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def keyring(database: Database, clock: Clock) -> Keyring:
    return Keyring(Settings(token=SecretStr(TOKEN)), database, clock, clock)


def ask(found: Keyring, token: str) -> Principal:
    async def of_token() -> Principal:
        return await found.of_token(token, "203.0.113.7")

    return anyio.run(of_token)


def ask_session(found: Keyring, cookie: str) -> Principal:
    async def of_session() -> Principal:
        return await found.of_session(cookie, "192.0.2.1")

    return anyio.run(of_session)


def last_used(database: Database, token: str) -> float | None:
    with database.read() as connection:
        row = store.token(connection, str(id_of(token)))
    assert row is not None
    found: float | None = row.last_used_at
    return found


def everything_stored(database: Database) -> str:
    with database.read() as connection:
        rows = [connection.execute(text(f"SELECT * FROM {table}")).all() for table in ("tokens", "sessions")]
    return repr(rows)


def test_tokens_are_long_random_and_of_one_form() -> None:
    made = [new_token() for _ in range(100)]
    assert len({one.secret for one in made}) == 100
    for one in made:
        assert re.fullmatch(r"tw_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", one.secret)  # 43 of 6 bits each hold 32 bytes
        assert id_of(one.secret) == one.id
        assert one.secret not in (one.digest, one.id)
    for nonsense in ("", "tw_", "tw_a_b", made[0].secret + "x", made[0].secret[:-1], "x" + made[0].secret, TOKEN):
        assert id_of(nonsense) is None


def test_scopes_survive_storing_and_those_of_later_versions_mean_nothing() -> None:
    assert format_scopes(["write", "ingest"]) == "ingest write"
    assert parse_scopes("ingest write fly") == {"ingest", "write"}
    assert not Principal("k", "n", "", parse_scopes("fly")).may("read")


def test_a_token_holds_until_it_expires(database: Database) -> None:
    clock = Clock()
    token = make_token(database, "read", "ingest", days=1, now=clock.now)
    found = keyring(database, clock)
    principal = ask(found, token)
    assert (principal.name, principal.project, principal.scopes) == ("made", "a", {"read", "ingest"})
    clock.now += 86_399
    assert ask(found, token) == principal
    clock.now += 1
    for one in (found, keyring(database, clock)):  # also that which has it in memory
        with pytest.raises(NotAdmitted, match="'made' has expired"):
            ask(one, token)


def test_a_revoked_token_is_refused_at_once_here_and_within_seconds_by_the_other_replicas(database: Database) -> None:
    clock = Clock()
    token = make_token(database, "read", now=clock.now)
    here, there = keyring(database, clock), keyring(database, clock)
    ask(here, token), ask(there, token)
    with database.write() as connection:
        assert store.revoke_token(connection, str(id_of(token)), clock.now)
    here.forget()
    with pytest.raises(NotAdmitted, match="'made' was revoked"):
        ask(here, token)
    clock.now += KNOWN_SECONDS
    with pytest.raises(NotAdmitted, match="was revoked"):
        ask(there, token)
    with database.write() as connection:
        assert store.revoke_token(connection, str(id_of(token)), clock.now + 5)
        row = store.token(connection, str(id_of(token)))
    assert row is not None
    assert row.revoked_at == clock.now - KNOWN_SECONDS, "it was revoked the first time"


def test_of_two_tokens_only_the_right_secret_counts(database: Database) -> None:
    clock = Clock()
    one, other = make_token(database, "read", now=clock.now), make_token(database, "admin", now=clock.now)
    crossed = other[:16] + one[16:]
    assert id_of(crossed) == id_of(other)
    with pytest.raises(NotAdmitted, match="not a token of this server"):
        ask(keyring(database, clock), crossed)


def test_a_use_is_noted_at_most_once_a_minute(database: Database) -> None:
    clock = Clock()
    token = make_token(database, "read", now=clock.now)
    found = keyring(database, clock)
    assert last_used(database, token) is None
    begin = clock.now
    noted = set()
    for _ in range(13):  # two minutes
        ask(found, token)
        noted.add(last_used(database, token))
        clock.now += 10
    assert noted == {begin, begin + 60, begin + 120}


def test_a_session_is_known_to_every_replica_and_ends(database: Database) -> None:
    clock = Clock()
    token = make_token(database, "read", days=2, now=clock.now)
    here, there = keyring(database, clock), keyring(database, clock)
    made, expires_at = here.open_session(ask(here, token))
    assert expires_at == clock.now + 2 * 86_400, "not longer than its token"
    principal = ask_session(there, made.secret)
    assert (principal.name, principal.project, principal.scopes) == ("made", "a", {"read"})
    here.close_session(made.secret)
    clock.now += KNOWN_SECONDS
    for one in (here, there):
        with pytest.raises(NotAdmitted, match="log in again"):
            ask_session(one, made.secret)


def test_sessions_that_are_over_are_forgotten(database: Database) -> None:
    clock = Clock()
    found = keyring(database, clock)
    installation = ask(found, TOKEN)
    first, expires_at = found.open_session(installation)
    clock.now = expires_at
    with pytest.raises(NotAdmitted, match="is over"):
        ask_session(found, first.secret)
    found.open_session(installation)
    with database.read() as connection:
        assert len(store.listed_sessions(connection, 0.0)) == 1


def test_somebody_who_listens_is_turned_away_when_their_token_is_revoked(database: Database) -> None:
    clock = Clock()
    found = keyring(database, clock)
    token = make_token(database, "read", now=clock.now)
    principal = ask(found, token)

    async def still() -> bool:
        return await found.still(principal)

    assert anyio.run(still)
    with database.write() as connection:
        store.revoke_token(connection, principal.token, clock.now)
    clock.now += KNOWN_SECONDS
    assert not anyio.run(still)


def test_the_database_holds_no_secret(database: Database) -> None:
    clock = Clock()
    found = keyring(database, clock)
    token = make_token(database, "admin", now=clock.now)
    cookies = [found.open_session(ask(found, shown))[0].secret for shown in (token, TOKEN)]
    stored = everything_stored(database)
    for secret in (token, secret_part(token), TOKEN, *cookies):
        assert secret not in stored
    assert str(id_of(token)) in stored


def test_a_token_is_shown_once(settings: Settings) -> None:
    with (
        running(settings.model_copy(update={"token": SecretStr(TOKEN)})) as server,
        client_with(server, TOKEN) as admin,
    ):
        made = admin.post("/api/projects/vision/tokens", json={"name": " ci ", "scopes": ["read", "ingest"]})
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        token = made.json()["token"]
        told = admin.get("/api/projects/vision/tokens").json()
        assert [one["name"] for one in told] == ["ci"]
        assert told[0]["scopes"] == ["ingest", "read"]
        assert told[0]["created_by"] == "the server's own token"
        assert 89 < (told[0]["expires_at"] - told[0]["created_at"]) / 86_400 < 91
        assert secret_part(token) not in repr(told)
        assert "token" not in told[0]
        assert admin.get("/api/runs", headers=bearer(token)).json()["projects"] == ["vision"]
        assert admin.get("/api/admin/tokens").json()[0]["last_used_at"] is not None
        assert admin.get("/api/projects/other/tokens").json() == []


def test_the_admin_of_a_project_makes_and_revokes_tokens_of_it_alone(settings: Settings) -> None:
    with (
        running(settings.model_copy(update={"token": SecretStr(TOKEN)})) as server,
        client_with(server, TOKEN) as admin,
    ):
        wish = {"name": "x", "scopes": ["admin"]}
        mine = admin.post("/api/projects/a/tokens", json=wish).json()
        foreign = admin.post("/api/projects/b/tokens", json=wish).json()
        everywhere = admin.post("/api/admin/tokens", json=wish).json()
        with client_with(server, mine["token"]) as project:
            assert project.post("/api/projects/a/tokens", json=wish).status_code == 201
            assert project.post("/api/projects/b/tokens", json=wish).status_code == 404
            assert project.post("/api/admin/tokens", json=wish).status_code == 403
            for other in (foreign, everywhere):
                assert project.delete(f"/api/projects/a/tokens/{other['id']}").status_code == 404
                assert project.get("/api/session", headers=bearer(other["token"])).status_code == 200
            assert project.delete(f"/api/projects/a/tokens/{mine['id']}").status_code == 204
            assert project.get("/api/session").status_code == 401


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"name": "", "scopes": ["read"]},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["fly"]},
        {"name": "x", "scopes": ["read"], "days": 0},
        {"name": "x", "scopes": ["read"], "days": 1e300},
        {"name": "x", "scopes": ["read"], "project": "../b"},
        {"name": "x" * 101, "scopes": ["read"]},
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(client: httpx2.Client, wish: dict[str, object]) -> None:
    answer = client.post("/api/admin/tokens", json=wish)
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert client.get("/api/admin/tokens").json() == []


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["token", *arguments])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_an_admin_who_is_locked_out_helps_himself(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINWATCH_DATABASE", raising=False)
    home = ("--home", str(tmp_path))
    with running(settings.model_copy(update={"token": SecretStr("forgotten")})) as server:
        status, out, _ = run_cli(capsys, "create", "me again", "--scope", "admin", *home)
        assert status == 0
        token = out.splitlines()[-1]
        with client_with(server, token) as client:
            assert client.get("/api/admin/tokens").json()[0]["created_by"] == "the command line"
            status, out, _ = run_cli(capsys, "list", *home)
            assert "me again" in out
            assert "all projects; admin; last used" in out
            assert secret_part(token) not in out
            assert run_cli(capsys, "list", "--project", "vision", *home)[1] == "There are no tokens.\n"
            assert run_cli(capsys, "revoke", str(id_of(token)), *home)[0] == 0
            deadline = anyio.run(_now) + 60
            while client.get("/api/session").status_code != 401:
                assert anyio.run(_now) < deadline
        assert "revoked" in run_cli(capsys, "list", *home)[1]


async def _now() -> float:
    await anyio.sleep(0.2)
    return anyio.current_time()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "x"], "--scope"),
        (["create", "x", "--scope", "read", "--project", "a b"], "can be no project"),
        (["create", " ", "--scope", "read"], "1 to 100"),
        (["revoke", "nothing"], "there is no token 'nothing'"),
    ],
)
def test_mistakes_on_the_command_line_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    status, _, err = run_cli(capsys, *arguments, "--home", str(tmp_path))
    assert status == 2
    assert words in err


def test_the_command_line_does_not_tell_the_password_of_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run_cli(capsys, "list", "--database", "postgresql://u:hunter2@127.0.0.1:1/x")
    assert status == 1
    assert "hunter2" not in out + err
