"""What many ask for at once is made once; nobody sees what is older than the news they heard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2
import pytest
import zstandard
from sqlalchemy import event

from tests.server.conftest import running
from tests.server.shipping import RUN, T0, batch, ended, send, started, step
from trainwatch import events
from trainwatch.server.app import create_app
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings

DETAIL = f"/api/runs/{RUN}"
FIGURE = f"/api/runs/{RUN}/charts/loss"


@pytest.mark.parametrize("path", [DETAIL, FIGURE, f"{DETAIL}/series", f"{DETAIL}/series/data?metric=train/loss&rank=0"])
def test_what_the_client_has_already_is_not_sent_again(client: httpx2.Client, path: str) -> None:
    send(client, batch([started(), step(1)]))
    first = client.get(path)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"
    again = client.get(path, headers={"if-none-match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    send(client, batch([step(2)], first=2))
    changed = client.get(path, headers={"if-none-match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


def test_a_reader_sees_every_change_at_once_also_of_a_shared_answer(client: httpx2.Client) -> None:
    send(client, batch([started()]))
    for number in range(1, 40):
        send(client, batch([step(number)], first=number))
        assert client.get(DETAIL).json()["step"] == number
    send(client, batch([ended(39)], first=40))
    assert client.get(DETAIL).json()["state"] == "finished"


def test_languages_and_parameters_are_told_apart(client: httpx2.Client) -> None:
    halt = ended(7, "halted", reason="nonfinite_loss", parameters={"value": "NaN", "action": "halt", "in_a_row": 1})
    send(client, batch([started(), *(step(n) for n in range(1, 8)), halt]))
    english = client.get(DETAIL, headers={"accept-language": "en"}).json()["sentence"]
    chinese = client.get(DETAIL, headers={"accept-language": "zh"}).json()["sentence"]
    assert english.isascii()
    assert not chinese.isascii()
    light, dark = (client.get(FIGURE, params={"theme": theme}).text for theme in ("light", "dark"))
    assert light != dark


def test_encodings_are_told_apart(server: Server) -> None:
    with httpx2.Client(base_url=server.url, timeout=20) as client:
        send(client, batch([started(), *(step(n, 1.0 / n) for n in range(1, 500))]))
        plain = client.get(FIGURE, headers={"accept-encoding": "identity"})
        for encoding in ("gzip", "zstd"):
            for _ in range(2):
                packed = client.get(FIGURE, headers={"accept-encoding": encoding})
                assert packed.headers["content-encoding"] == encoding
                if encoding == "gzip":  # the other the client does not know
                    assert packed.json() == plain.json()
                else:
                    assert zstandard.decompress(packed.content) == plain.content
                assert packed.headers["etag"] == plain.headers["etag"]
    assert "content-encoding" not in plain.headers


def test_there_is_no_such_run_until_there_is(client: httpx2.Client) -> None:
    assert client.get(DETAIL).status_code == 404
    assert client.get(FIGURE).status_code == 404
    send(client, batch([started(), step(1)]))
    assert client.get(DETAIL).status_code == 200
    assert client.get(FIGURE).status_code == 200


def test_what_somebody_changes_they_see_at_once(client: httpx2.Client) -> None:
    finding = events.FindingRaised(time=T0 + 1, rule="run_lost", severity="warning", step=1, parameters={"seconds": 61})
    send(client, batch([started(), step(1), finding]))
    [alert] = client.get(DETAIL).json()["alerts"]
    assert not alert["silenced"]
    answer = client.put(f"/api/runs/{RUN}/alerts/{alert['id']}/silence", json={"hours": 1})
    assert answer.status_code == 204, answer.text
    assert client.get(DETAIL).json()["alerts"][0]["silenced"]


@contextmanager
def counted(server: Server) -> Iterator[list[str]]:
    """Collects the statements that a server sends to its database."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    event.listen(server.services.database.engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(server.services.database.engine, "before_cursor_execute", note)


def test_many_who_ask_at_once_cost_one_query(settings: Settings) -> None:
    with running(settings) as server, httpx2.Client(base_url=server.url, timeout=30) as client:
        send(client, batch([started(), step(1)]))

        def of_runs(statements: list[str]) -> int:
            return sum("sqlite_" not in one and "FROM runs" in one for one in statements)

        with counted(server) as statements:
            client.get(DETAIL)
        alone = of_runs(statements)
        assert alone >= 1
        send(client, batch([step(2)], first=2))
        together = threading.Barrier(16)

        def ask(_: int) -> int:
            with httpx2.Client(base_url=server.url, timeout=30) as mine:
                mine.get("/api/health")
                together.wait(30)
                step_: int = mine.get(DETAIL).json()["step"]
                return step_

        with counted(server) as statements, ThreadPoolExecutor(16) as pool:
            assert set(pool.map(ask, range(16))) == {2}
        # Not one exactly: on a busy machine some come a second later, and the job that looks for silence looks too.
        assert of_runs(statements) <= 5 * alone + 5
        counts = server.services.telemetry.exposition("")[0].decode()
        made, shared = (
            float(counts.partition(f'trainwatch_shared_answers_total{{how="{how}"}} ')[2].split()[0])
            for how in ("made", "shared")
        )
        assert made + shared == 17
        assert made <= 6


def test_the_application_shares_per_server(settings: Settings) -> None:
    one, other = create_app(settings).state.services, create_app(settings).state.services
    assert one.shared is not other.shared
