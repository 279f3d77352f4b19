"""The server as a process: its address, its refusals, its end, and what is left when it is killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.patience import PATIENCE, seconds_to_end
from tests.server.shipping import RUN, T0, batch, send, started, step
from trainwatch.events import Event
from trainwatch.server.db import Database
from trainwatch.server.store import points


def environment(home: Path, **changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWATCH_")}
    return kept | {"TRAINWATCH_HOME": str(home), "TRAINWATCH_PORT": "0"} | changes


@contextmanager
def process(home: Path, **changes: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs ``python -m trainwatch.server``; yields it and its address, and kills it if it still runs."""
    command = [sys.executable, "-m", "trainwatch.server"]
    with subprocess.Popen(
        command, env=environment(home, **changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            url = child.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), child.stderr.read()
            yield child, url
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_quietly(tmp_path: Path, number: signal.Signals) -> None:
    with process(tmp_path) as (child, url), httpx2.Client(base_url=url) as client:
        assert client.get("/api/health").json()["status"] == "ok"
        with client.stream("GET", "/api/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            child.send_signal(number)
            assert seconds_to_end(child) < 2.5
            list(lines)
            assert child.wait() in (0, -number)
        assert child.stderr is not None
        assert child.stderr.read() == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TRAINWATCH_HOST": "0.0.0.0"}, "TRAINWATCH_TOKEN="),
        ({"TRAINWATCH_HOST": "no-such-host.invalid", "TRAINWATCH_TOKEN": "t" * 12}, "cannot listen on"),
        ({"TRAINWATCH_HOST": "0.0.0.0", "TRAINWATCH_TOKEN": "set-me"}, "6 characters"),
        ({"TRAINWATCH_PORT": "99999"}, "port"),
        ({"TRAINWATCH_DATABASE": "sqlite:////proc/nowhere/trainwatch.db"}, "cannot open its sqlite database"),
        ({"TRAINWATCH_DATABASE": "postgresql://u:hunter2@127.0.0.1:1/x"}, "cannot open its postgresql"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainwatch.server"],
        env=environment(tmp_path, **changes),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr
    assert done.stdout == ""


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "trainwatch.server"],
            env=environment(tmp_path, TRAINWATCH_PORT=port),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "TRAINWATCH_PORT" in done.stderr


def test_killed_in_mid_ingest_nothing_acknowledged_is_lost_and_nothing_is_double(tmp_path: Path) -> None:
    """An agent that ships as fast as it can, a server that is killed under it eight times."""
    chance = random.Random(4)
    acknowledged = 0
    events: list[Event] = [started()]
    for _ in range(8):
        with process(tmp_path) as (child, url), httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            killer = threading.Timer(chance.uniform(0.05, 0.6), child.kill)
            killer.start()
            try:
                while True:
                    size = chance.choice([1, 5, 300, 1500])
                    events += (step(n, 1.0 / n, time=T0 + n) for n in range(len(events), acknowledged + size))
                    answer = send(client, batch(events[acknowledged : acknowledged + size], first=acknowledged))
                    reached = answer.next[RUN]["rank0"]
                    # More than was sent when the killed one had stored it and could not say so any more.
                    assert reached >= acknowledged + size, "the server forgot what it had acknowledged"
                    acknowledged = reached
            except httpx2.TransportError:
                killer.join()
    assert acknowledged > 1000
    database = Database(f"sqlite:///{tmp_path / 'trainwatch.db'}")
    with database.read() as connection:
        [series] = points.listed(connection, RUN)
        stored = points.read(connection, series.id).step.tolist()
    database.close()
    assert len(stored) >= acknowledged - 1
    assert stored == list(range(1, len(stored) + 1))
    assert series.points == len(stored)
