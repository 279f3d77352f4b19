"""How much one may ask for, and how often one may guess."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest
from pydantic import SecretStr

from tests.server.keys import TOKEN, bearer, client_with, guarded_server, make_token
from tests.server.shipping import batch, shipment, started, step
from trainwatch import events, journal
from trainwatch.agent.clock import Clock
from trainwatch.agent.link import Link, Meaning, judge
from trainwatch.agent.ship import Shipper
from trainwatch.agent.trouble import Trouble
from trainwatch.server.access.limits import Buckets, Guesses, place_of
from trainwatch.server.db import Database
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    buckets = Buckets(rate=10, burst=20)
    assert sum(buckets.take("a", 0.0) == 0 for _ in range(100)) == 20
    assert buckets.take("a", 0.0) == pytest.approx(0.1)
    assert buckets.take("b", 0.0) == 0, "each key has its own"
    assert sum(buckets.take("a", 1.0) == 0 for _ in range(100)) == 10
    assert sum(buckets.take("a", 1000.0) == 0 for _ in range(100)) == 20, "no more gathers than the burst"


def test_what_is_charged_later_makes_a_debt() -> None:
    buckets = Buckets(rate=100, burst=1000)
    assert buckets.wait("a", 0.0) == 0
    buckets.charge("a", 0.0, 1500)
    assert buckets.wait("a", 0.0) == pytest.approx(5.0)
    assert buckets.wait("a", 5.0) == 0


def test_no_rate_is_no_limit() -> None:
    buckets = Buckets(rate=0, burst=0)
    assert not any(buckets.take("a", 0.0) for _ in range(10_000))


def test_the_memory_of_buckets_is_bounded() -> None:
    buckets = Buckets(rate=1, burst=1)
    for number in range(30_000):
        buckets.take(str(number), 0.0)
    assert len(buckets._levels._items) == 10_000


def test_guessing_is_slow_and_the_same_guess_is_none() -> None:
    guesses = Guesses(burst=10, every=6.0)
    for _ in range(1000):
        assert guesses.wait("192.0.2.1", "yesterday's", 0.0) == 0
        guesses.wrong("192.0.2.1", "yesterday's", 0.0)
    for number in range(9):
        assert guesses.wait("192.0.2.1", str(number), 0.0) == 0
        guesses.wrong("192.0.2.1", str(number), 0.0)
    assert guesses.wait("192.0.2.1", "the right one", 0.0) == pytest.approx(6.0)
    assert guesses.wait("192.0.2.2", "the right one", 0.0) == 0
    assert guesses.wait("192.0.2.1", "the right one", 6.0) == 0
    tried = sum(_guess(guesses, f"{at}", float(at)) for at in range(10, 3610))
    assert tried <= 601, "in an hour"


def _guess(guesses: Guesses, digest: str, now: float) -> bool:
    if guesses.wait("192.0.2.1", digest, now):
        return False
    guesses.wrong("192.0.2.1", digest, now)
    return True


def test_an_ipv6_client_is_its_network() -> None:
    assert place_of("2001:db8::1") == place_of("2001:db8::ffff:1") != place_of("2001:db8:0:1::1")
    assert place_of("::ffff:192.0.2.1") == place_of("192.0.2.1") == "192.0.2.1"
    assert place_of("a unix socket") == "a unix socket"


@contextmanager
def limited(settings: Settings, **changes: object) -> Iterator[tuple[Server, str]]:
    with guarded_server(settings, **changes) as server:
        database = Database(settings.database_url)
        token = make_token(database, "ingest", "read", project="a")
        database.close()
        yield server, token


def test_a_token_that_asks_too_often_is_told_when_to_come_back(settings: Settings) -> None:
    with limited(settings, requests_per_second=0.05) as (server, token), client_with(server, token) as client:
        answers = [client.get("/api/runs") for _ in range(3)]
        assert answers[-1].status_code == 429
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 21
        assert "wait" in answers[-1].json()["detail"]
        assert client.get("/api/runs", headers=bearer(TOKEN)).status_code == 200, "others are not concerned"


def post(client: httpx2.Client) -> httpx2.Response:
    body = msgspec.msgpack.encode(shipment(batch([started(), *(step(n) for n in range(1, 20))], project="a")))
    return client.post("/api/ingest", content=body, headers={"content-type": "application/msgpack"})


def test_a_shipment_may_make_a_debt_and_the_next_one_waits(settings: Settings) -> None:
    changes = {"ingest_bytes_per_second": 10, "ingest_expanded_bytes": 2048}
    with limited(settings, **changes) as (server, token), client_with(server, token) as client:
        taken = 0
        while (answer := post(client)).status_code == 200:
            taken += 1
            assert taken <= 10
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert taken >= 1, "a debt is made by what was taken"
        assert client.get("/api/runs").status_code == 200, "looking is another limit"


def recorded(home: Path, project: str) -> Path:
    """Records 49 steps, as a rank does."""
    folder = home / "journal" / "run" / "node"
    folder.mkdir(parents=True)
    (folder / "project").write_text(project)
    writer = journal.Writer(journal.create_source(folder, "rank0"))
    for number in range(1, 50):
        writer.append(events.encode(step(number)))
    writer.close()
    return folder


class Later(Clock):
    """A clock that goes faster."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        """This machine's."""
        return time.time()

    def monotonic(self) -> float:
        """This machine's, and what was added."""
        return time.monotonic() + self.ahead


def test_an_agent_waits_as_it_is_told_and_loses_nothing(settings: Settings, tmp_path: Path) -> None:
    folder = recorded(tmp_path, "a")
    with limited(settings, requests_per_second=0.5) as (server, token), client_with(server, TOKEN) as admin:
        link = Link(server.url, token)
        while (reply := link.post(b"")).status != 429:
            assert reply.status != 0
        assert judge(reply.status) is Meaning.LATER
        assert reply.retry_after is not None
        shipper = Shipper(folder, link, Trouble())
        wait = shipper.step()
        assert wait >= 1, "it asked for that long"
        assert "429" in shipper.problem
        deadline = time.monotonic() + 60
        while shipper.events < 49:
            assert time.monotonic() < deadline, shipper.problem
            time.sleep(min(shipper.step(), 1.0))
        assert admin.get("/api/runs/run").json()["step"] == 49
        link.close()


def test_an_agent_that_is_refused_keeps_its_journal_and_says_so_once(settings: Settings, tmp_path: Path) -> None:
    folder = recorded(tmp_path, "b")
    log = tmp_path / "log"
    with limited(settings) as (server, token), log.open("wb") as stream:
        for shown, words in (("tw_nothing", "answer 401"), (token, "TRAINWATCH_PROJECT=a")):
            log.write_bytes(b"")
            link = Link(server.url, shown)
            clock = Later()
            trouble = Trouble(clock, stream.fileno())
            shipper = Shipper(folder, link, trouble, clock)
            for _ in range(10):
                wait = shipper.step()
                assert wait > 10, "slowly: a person has to put it right"
                clock.ahead += wait + 0.01
            assert words in shipper.problem
            assert shipper.events == 0
            assert log.read_text().count(words) == 1
            assert shown not in log.read_text()
            assert trouble.take() is None, "nothing counts as lost"
            link.close()


def test_wrong_tokens_are_counted_by_address_and_neighbours_who_have_a_token_stay(settings: Settings) -> None:
    with limited(settings) as (server, token), client_with(server) as client:
        statuses = [client.post("/api/login", json={"token": f"guess {n}"}).status_code for n in range(12)]
        assert statuses[:10] == [401] * 10
        assert statuses[-1] == 429
        answer = client.post("/api/login", json={"token": TOKEN})
        assert answer.status_code == 429, "else guessing would not be slowed at all"
        assert int(answer.headers["retry-after"]) <= 7
        assert client.get("/api/runs", headers=bearer("another guess")).status_code == 429
        assert client.get("/api/runs", headers=bearer(token)).status_code == 200
        stale = "tw_" + "0" * 12 + "_" + "x" * 43
        assert {client.get("/api/runs", headers=bearer(stale)).status_code for _ in range(30)} == {401}


def test_behind_a_trusted_proxy_it_is_the_client_that_is_counted(settings: Settings) -> None:
    changed = settings.model_copy(update={"trusted_proxies": "127.0.0.1"})
    with guarded_server(changed) as server, client_with(server) as client:

        def login(token: str, address: str) -> int:
            headers = {"x-forwarded-for": address}
            return client.post("/api/login", json={"token": token}, headers=headers).status_code

        assert [login(f"guess {n}", "203.0.113.1") for n in range(11)][-1] == 429
        assert login(TOKEN, "203.0.113.2") == 204
        assert login(TOKEN, "203.0.113.1") == 429


def test_who_tells_another_address_each_time_without_being_a_proxy_is_counted_all_the_same(settings: Settings) -> None:
    with guarded_server(settings, token=SecretStr(TOKEN)) as server, client_with(server) as client:
        answers = [
            client.post("/api/login", json={"token": f"guess {n}"}, headers={"x-forwarded-for": f"203.0.113.{n}"})
            for n in range(12)
        ]
    assert answers[-1].status_code == 429


def test_a_body_that_is_no_shipment_is_bounded(settings: Settings) -> None:
    with guarded_server(settings) as server, client_with(server) as client:
        for content in (b"[" * 1_500_000, iter([b"[" * 100_000] * 15)):
            answer = client.post("/api/login", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 413
            assert "1048576" in answer.json()["detail"]
        deep = client.post("/api/login", content=b"[" * 1_000_000, headers={"content-type": "application/json"})
        assert deep.status_code in (400, 422)
        assert httpx2.get(f"{server.url}/api/health").status_code == 200
