from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import ExitStack, suppress

import httpx2
import pytest
from sqlalchemy.exc import OperationalError

from tests.patience import PATIENCE, timing
from tests.server.conftest import running
from tests.server.shipping import RUN, batch, send, started, step
from trainwatch.server.db import Database
from trainwatch.server.live import updates
from trainwatch.server.live.updates import Live
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings
from trainwatch.server.store import news


def told(lines: Iterator[str]) -> Iterator[tuple[float, dict[str, object]]]:
    """Yields when each event came and what it said."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            assert name == "changed"
            yield time.monotonic(), json.loads(line.removeprefix("data: "))


def test_a_listener_is_told_of_a_change_within_a_second(client: httpx2.Client) -> None:
    send(client, batch([started()]))
    with client.stream("GET", "/api/events", params={"run": RUN}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        news = told(answer.iter_lines())
        assert next(news)[1] == {"run": RUN, "version": 1}
        sent = time.monotonic()
        send(client, batch([step(1)], first=1))
        when, what = next(news)
    assert what == {"run": RUN, "version": 2}
    assert when - sent < 1.0


def test_only_those_who_asked_are_told(client: httpx2.Client) -> None:
    send(client, batch([started()]))
    with (
        client.stream("GET", "/api/events", params={"run": RUN}) as one,
        client.stream("GET", "/api/events") as all_runs,
    ):
        of_one, of_all = told(one.iter_lines()), told(all_runs.iter_lines())
        next(of_one)
        send(client, batch([started()], run="other"))
        send(client, batch([step(1)], first=1))
        assert next(of_one)[1] == {"run": RUN, "version": 2}
        assert {next(of_all)[1]["run"], next(of_all)[1]["run"]} == {"other", RUN}


def test_many_changes_are_told_as_few(client: httpx2.Client) -> None:
    send(client, batch([started()]))
    with client.stream("GET", "/api/events", params={"run": RUN}) as answer:
        news = told(answer.iter_lines())
        next(news)
        begin, heard, last = time.monotonic(), 0, 60
        for number in range(1, last):
            send(client, batch([step(number)], first=number))
        for _, what in news:
            heard += 1
            if what["version"] == last:
                break
        took = time.monotonic() - begin
    assert heard <= took / 0.25 + 2


def test_there_is_nothing_to_tell_of_an_unknown_run(client: httpx2.Client) -> None:
    assert client.get("/api/events", params={"run": "nobody"}).status_code == 404


def test_a_listener_that_does_not_read_holds_up_nobody(server: Server, client: httpx2.Client) -> None:
    send(client, batch([started()]))
    with httpx2.Client(base_url=server.url) as sleeper, sleeper.stream("GET", "/api/events"):
        with timing() as timed:
            for number in range(1, 30):
                send(client, batch([step(number)], first=number))
        assert timed.took < 10


@pytest.mark.parametrize("listeners", [3])
def test_the_server_stops_at_once_while_browsers_listen(settings: Settings, listeners: int) -> None:
    ended = []
    with ExitStack() as stack:
        server = stack.enter_context(running(settings))
        ready = threading.Barrier(listeners + 1)

        def listen() -> None:
            with (
                httpx2.Client(base_url=server.url, timeout=PATIENCE) as client,
                client.stream("GET", "/api/events") as answer,
            ):
                lines = answer.iter_lines()
                next(lines)
                ready.wait(PATIENCE)
                list(lines)
                ended.append(1)

        threads = [threading.Thread(target=listen) for _ in range(listeners)]
        for thread in threads:
            thread.start()
        ready.wait(PATIENCE)
        with timing() as timed:
            stack.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(ended) == listeners
    assert timed.took < 2.0


def test_what_was_missed_is_asked_for_until_the_database_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    async def heard(_url: str) -> AsyncGenerator[tuple[str, int] | None, None]:
        yield None
        await asyncio.sleep(3600)

    def versions_of(_database: Database, followed: Collection[str]) -> list[tuple[str, int]]:
        asked.append(sorted(followed))
        if len(asked) == 1:
            raise OperationalError("SELECT", {}, Exception("it went away again"))
        return [(RUN, 7)]

    monkeypatch.setattr(news, "heard", heard)
    monkeypatch.setattr(news, "versions_of", versions_of)
    monkeypatch.setattr(updates, "_AGAIN_SECONDS", 0.01)

    async def main() -> None:
        live = Live()
        live.open()
        of_one, of_all = live.changes(RUN), live.changes()
        first = asyncio.create_task(anext(of_one))
        rest = asyncio.create_task(anext(of_all, "over"))
        await asyncio.sleep(0)
        following = asyncio.create_task(live.follow(Database("postgresql+psycopg://nobody@127.0.0.1:1/none")))
        assert await asyncio.wait_for(first, PATIENCE) == (RUN, 7)
        assert await asyncio.wait_for(rest, PATIENCE) == (RUN, 7)
        assert await asyncio.wait_for(anext(of_all, "over"), PATIENCE) == "over"
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await of_one.aclose()

    asyncio.run(main())
    assert asked == [[RUN], [RUN]]
