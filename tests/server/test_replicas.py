"""Two servers on one Postgres: what one is told the other shows, and work for one is done by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import create_engine, text

from tests.server.conftest import running
from tests.server.shipping import RUN, batch, send, started, step
from tests.server.test_events import told
from trainwatch.server.db import Database
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings
from trainwatch.server.store import records


@pytest.fixture
def shared(tmp_path: Path, postgres: str) -> Settings:
    """Settings for servers on one empty Postgres database."""
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return Settings(home=tmp_path, port=0, database=postgres, lease_seconds=2, liveness_seconds=0.2)


@pytest.fixture
def pair(shared: Settings) -> Iterator[tuple[Server, Server]]:
    """Two running servers."""
    with running(shared) as one, running(shared) as other:
        yield one, other


def test_what_one_server_stores_the_listeners_of_the_other_hear_within_a_second(pair: tuple[Server, Server]) -> None:
    with httpx2.Client(base_url=pair[0].url, timeout=20) as one, httpx2.Client(base_url=pair[1].url, timeout=20) as two:
        send(one, batch([started()]))
        with (
            two.stream("GET", "/api/events", params={"run": RUN}) as answer,
            two.stream("GET", "/api/events") as all_runs,
        ):
            news, of_all = told(answer.iter_lines()), told(all_runs.iter_lines())
            assert next(news)[1] == {"run": RUN, "version": 1}
            took = []
            for number in range(1, 6):
                sent = time.monotonic()
                send(one, batch([step(number)], first=number))
                when, what = next(news)
                assert what == {"run": RUN, "version": number + 1}
                assert next(of_all)[1] == what
                took.append(when - sent)
        assert sorted(took)[2] < 1.0, took
        assert two.get(f"/api/runs/{RUN}").json()["step"] == 5


def test_after_a_line_was_cut_those_who_listen_to_all_runs_come_again(
    pair: tuple[Server, Server], shared: Settings
) -> None:
    """What happened to which run meanwhile leaves no trace that could be told: they ask for everything anew."""
    database = Database(shared.database_url)
    with httpx2.Client(base_url=pair[0].url, timeout=20) as one:
        send(one, batch([started()]))
        with (
            one.stream("GET", "/api/events") as all_runs,
            one.stream("GET", "/api/events", params={"run": RUN}) as same,
        ):
            lines, news = all_runs.iter_lines(), told(same.iter_lines())
            next(lines)
            next(news)
            with database.write() as connection:
                connection.execute(
                    text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
                ).all()
            for _ in lines:
                pass
            send(one, batch([step(1)], first=1))
            assert next(news)[1]["version"] == 2, "who follows one run stays"
    database.close()


def test_a_line_that_was_cut_is_mended_and_nothing_is_missed(pair: tuple[Server, Server], shared: Settings) -> None:
    database = Database(shared.database_url)

    def cut() -> int:
        with database.write() as connection:
            return len(
                connection.execute(
                    text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
                ).all()
            )

    with httpx2.Client(base_url=pair[0].url, timeout=20) as one, httpx2.Client(base_url=pair[1].url, timeout=20) as two:
        send(one, batch([started()]))
        with two.stream("GET", "/api/events", params={"run": RUN}) as answer:
            news = told(answer.iter_lines())
            next(news)
            assert cut() >= 1
            send(one, batch([step(1)], first=1))
            assert next(news)[1] == {"run": RUN, "version": 2}
            send(one, batch([step(2)], first=2))
            assert next(news)[1] == {"run": RUN, "version": 3}
    database.close()


def test_what_is_not_committed_is_not_told(pair: tuple[Server, Server], shared: Settings) -> None:
    database = Database(shared.database_url)

    def change(fail: bool) -> int:
        with database.write() as connection:
            version = records.touch_version(connection, RUN)
            if fail:
                raise ZeroDivisionError
            return version

    with httpx2.Client(base_url=pair[0].url, timeout=20) as one:
        send(one, batch([started()]))
        with one.stream("GET", "/api/events", params={"run": RUN}) as answer:
            news = told(answer.iter_lines())
            next(news)
            with pytest.raises(ZeroDivisionError):
                change(fail=True)
            assert change(fail=False) == 2
            assert next(news)[1] == {"run": RUN, "version": 2}
    database.close()
