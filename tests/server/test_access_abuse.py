"""What somebody could do to a server who has no token, or one that may do little."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import msgspec
import pytest
import zstandard

from tests.patience import PATIENCE
from tests.server.conftest import running
from tests.server.keys import TOKEN, bearer, client_with, guarded_server, make_token
from tests.server.shipping import batch, shipment, started, step
from trainwatch.local import ask
from trainwatch.server import access
from trainwatch.server.access import gate, limits
from trainwatch.server.access.keyring import STRANGERS, Keyring
from trainwatch.server.access.limits import Limits
from trainwatch.server.access.principal import Principal
from trainwatch.server.db import Database
from trainwatch.server.ingest import body
from trainwatch.server.ingest.shipments import Ingest, NotYours
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings
from trainwatch.server.store import access as store
from trainwatch.server.store import removal

MIB = 1024 * 1024
PACKED = {"content-type": "application/msgpack", "content-encoding": "zstd"}


def expanding(size: int) -> bytes:
    """Returns few bytes that expand to many."""
    return zstandard.compress(bytes(size))


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via"])
def test_without_a_token_nobody_gets_in_through_a_proxy_on_the_machine(client: httpx2.Client, name: str) -> None:
    assert client.get("/api/session").status_code == 200
    answer = client.get("/api/session", headers={name: "203.0.113.9"})
    assert (answer.status_code, "TRAINWATCH_TOKEN" in answer.text) == (403, True)


def test_with_a_token_a_proxy_is_welcome(settings: Settings) -> None:
    with guarded_server(settings) as server, client_with(server, TOKEN) as client:
        assert client.get("/api/session", headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 200


def test_a_body_that_expands_to_too_much_is_paid_for(settings: Settings) -> None:
    bomb = expanding(8 * MIB)
    changes = {"ingest_expanded_bytes": 6 * MIB, "ingest_bytes_per_second": MIB}
    with guarded_server(settings, **changes) as server, client_with(server, TOKEN) as client:
        answers = [client.post("/api/ingest", content=bomb, headers=PACKED) for _ in range(4)]
    assert [one.status_code for one in answers] == [413, 413, 429, 429], "the second is on credit"
    assert int(answers[2].headers["retry-after"]) >= 1


def test_bodies_that_expand_to_much_are_not_in_memory_all_at_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, most, lock = 0, 0, threading.Lock()
    expand = body.expand

    def counted(received: bytes, encoding: str, limit: int) -> bytes:
        nonlocal inside, most
        if limit <= body.SMALL_BYTES:
            return expand(received, encoding, limit)
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.05)
        try:
            return expand(received, encoding, limit)
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(body, "expand", counted)
    large = batch([started(name="x" * 6 * MIB), step(1)])
    packed = zstandard.compress(msgspec.msgpack.encode(shipment(large)))
    with guarded_server(settings, ingest_bytes_per_second=0) as server, client_with(server, TOKEN) as client:
        with ThreadPoolExecutor(8) as pool:
            sent = [pool.submit(client.post, "/api/ingest", content=packed, headers=PACKED) for _ in range(16)]
        assert {one.result().status_code for one in sent} == {200}
    assert most == 2


def test_sessions_of_a_token_count_as_the_token(settings: Settings) -> None:
    with guarded_server(settings, requests_per_second=0.5) as server:
        database = Database(settings.database_url)
        token = make_token(database, "read")
        database.close()
        for shown in (token, TOKEN):
            statuses = []
            for _ in range(4):
                with client_with(server) as browser:
                    statuses.append(browser.post("/api/login", json={"token": shown}).status_code)
                    statuses.append(browser.get("/api/runs").status_code)
            assert statuses.count(200) + statuses.count(204) <= 3, statuses
            assert 429 in statuses


def test_sessions_of_a_token_are_not_more_and_more(settings: Settings, sqlite: Database) -> None:
    keyring = Keyring(settings, sqlite, time.time, time.monotonic)
    one, other = (Principal(f"token:{n}", n, "", frozenset({"read"}), token=None) for n in ("one", "other"))  # type: ignore[arg-type]
    last = ""
    for _ in range(120):
        last = keyring.open_sso_session("https://id", "one", "", one.scopes)[0].digest
    keyring.open_sso_session("https://id", "other", "", other.scopes)
    with sqlite.read() as connection:
        kept = [row.name for row in store.listed_sessions(connection, time.time())]
        assert store.session(connection, last) is not None, "the newest stays"
    assert (kept.count("one"), kept.count("other")) == (100, 1)


def test_logging_out_of_nothing_takes_no_place_of_the_writer(settings: Settings) -> None:
    with guarded_server(settings) as server, client_with(server, TOKEN) as client:
        assert client.get("/api/session").status_code == 200
        with server.services.database.write():  # somebody else writes
            answer = httpx2.post(
                f"{server.url}/api/logout", headers={"cookie": f"{access.COOKIE}=1.nothing"}, timeout=PATIENCE
            )
        assert answer.status_code == 204


def test_tokens_and_cookies_that_never_were_are_soon_not_looked_up(settings: Settings) -> None:
    most = int(STRANGERS[1])
    with guarded_server(settings) as server, client_with(server) as client:
        began = time.monotonic()
        answers = [
            client.get("/api/runs", headers=bearer(f"tw_{n:012d}_{'x' * 43}")).status_code for n in range(most // 2)
        ]
        answers += [
            client.get("/api/runs", headers={"cookie": f"{access.COOKIE}={n}.x"}).status_code for n in range(most)
        ]
        refilled = STRANGERS[0] * (time.monotonic() - began)
        assert 401 in answers
        assert answers.count(429) >= most // 2 - refilled - 1
        assert client.get("/api/runs", headers=bearer(TOKEN)).status_code == 200


def test_the_same_token_of_yesterday_locks_nobody_out(settings: Settings) -> None:
    with guarded_server(settings) as server, client_with(server) as client:
        old = bearer(f"tw_{'a' * 12}_{'x' * 43}")
        assert {client.get("/api/runs", headers=old).status_code for _ in range(int(STRANGERS[1]) + 50)} == {401}


def test_live_streams_of_a_token_are_bounded(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setattr(limits, "MOST_STREAMS", 2)
    found = Limits(settings)
    somebody, other = (Principal(key, key, "", frozenset({"read"})) for key in ("token:1", "token:2"))
    with found.streaming(somebody), found.streaming(somebody):
        assert not found.may_stream(somebody)
        assert found.may_stream(other)
    assert found.may_stream(somebody)
    with running(settings) as server, httpx2.Client(base_url=server.url, timeout=PATIENCE) as client:
        with client.stream("GET", "/api/events") as one, client.stream("GET", "/api/events") as two:
            lines = one.iter_lines(), two.iter_lines()  # kept: one that is forgotten closes its stream
            assert [next(line) for line in lines] == [": listening"] * 2
            assert client.get("/api/events").status_code == 429
        end = time.monotonic() + PATIENCE
        while not server.services.limits.may_stream(access.OPEN) and time.monotonic() < end:
            time.sleep(0.05)
        with client.stream("GET", "/api/events") as again:
            assert again.status_code == 200


def test_a_body_that_never_comes_keeps_no_place(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(gate, "_BODY_SECONDS", 0.3)
    host, port = server.url.removeprefix("http://").split(":")
    for path in ("/api/ingest", "/api/login"):
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as line:
            kind = "application/msgpack" if path.endswith("ingest") else "application/json"
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: {kind}\r\nContent-Length: 1000\r\n\r\n"
            )
            line.sendall(head.encode() + b"x")
            answer = http.client.HTTPResponse(line)
            answer.begin()
            assert (answer.status, b"did not come" in answer.read()) == (408, True)


def test_a_run_that_another_project_makes_meanwhile_is_not_written_to(sqlite: Database) -> None:
    ingest = Ingest(sqlite, lambda _run, _version: None, time.time)
    ingest.accept(shipment(batch([started(), step(1)], run="same", project="b")), "b")
    with pytest.raises(NotYours, match="'same' is not of project 'a'"):
        ingest.accept(shipment(batch([step(2)], run="same", project="a", source="rank1", rank=1)), "a")
    with pytest.raises(NotYours):
        ingest.accept(shipment(runs=("same",)), "a")
    with sqlite.read() as connection:
        assert store.owners_of(connection, ["same"]) == {"same": "b"}
        assert connection.exec_driver_sql("SELECT count(*) FROM sources").scalar() == 1


def test_a_deleted_run_of_another_project_is_as_foreign_as_a_living_one(settings: Settings) -> None:
    with guarded_server(settings) as server:
        database = Database(settings.database_url)
        mine, theirs = (make_token(database, "ingest", project=project) for project in "ab")

        def ship(token: str, *, first: int = 0) -> httpx2.Response:
            content = msgspec.msgpack.encode(shipment(batch([started()], run="gone", project="b", first=first)))
            headers = {"content-type": "application/msgpack"}
            with client_with(server, token) as client:
                return client.post("/api/ingest", content=content, headers=headers)

        assert ship(theirs).status_code == 200
        alive = ship(mine, first=7)
        with database.write() as connection:
            connection.exec_driver_sql("UPDATE runs SET state = 'finished'")
            removal.delete_run(connection, "gone", time.time())
        deleted = ship(mine, first=7)
        assert (deleted.status_code, deleted.text) == (alive.status_code, alive.text)
        assert deleted.status_code == 403
        with database.read() as connection:
            assert connection.exec_driver_sql("SELECT refused FROM deleted_runs").scalar() == 0
        database.close()


def test_a_token_goes_to_no_other_server() -> None:
    heard: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("authorization", ""))
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        assert ask(f"http://127.0.0.1:{listening.server_address[1]}/api/health", "secret") == {}
        listening.shutdown()
        thread.join()
    assert heard == ["Bearer secret"]


def test_what_can_be_no_file_is_not_there(client: httpx2.Client) -> None:
    assert client.get("/%00").status_code == 404
    assert client.get("/runs%00.js").status_code == 404


@pytest.mark.parametrize("run", [".", "..", "..."])
def test_a_run_is_not_called_like_a_folder(client: httpx2.Client, run: str) -> None:
    content = msgspec.msgpack.encode(shipment(batch([started()], run=run)))
    answer = client.post("/api/ingest", content=content, headers={"content-type": "application/msgpack"})
    assert answer.status_code == 400


def test_behind_tls_that_only_the_settings_know_of_cookies_are_secure(settings: Settings, tmp_path: Path) -> None:
    with guarded_server(settings, public_url="https://watch.example.org") as server, client_with(server) as client:
        assert "Secure" in client.post("/api/login", json={"token": TOKEN}).headers["set-cookie"]
