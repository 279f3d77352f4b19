"""Jobs: done again and again, at once when woken, and also after they failed."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from trainwatch.server import migrate
from trainwatch.server.app import create_app
from trainwatch.server.clock import DatabaseClock
from trainwatch.server.db import Database
from trainwatch.server.jobs.runner import Job, Runner
from trainwatch.server.models import leases
from trainwatch.server.services import Services
from trainwatch.server.settings import Settings


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def note(services: Services, what: str) -> None:
    """Writes something down, as a job does."""
    with services.database.write() as connection:
        connection.execute(insert(leases).values(name=what, owner="note", fence=0, expires_at=0.0))


def run_jobs(home: Path, runner: Runner, until: Callable[[Services], None], database: str = "") -> None:
    """Runs `runner` as a server does, and `until` in a thread beside it."""
    services: Services = create_app(Settings(home=home, database=database, lease_seconds=1)).state.services
    migrate.upgrade(services.database)

    async def main() -> None:
        runner.open(services)
        try:
            await asyncio.to_thread(until, services)
        finally:
            await runner.close(services.database)

    asyncio.run(main())
    services.database.close()


def test_a_job_is_done_again_and_again_in_another_thread_also_after_it_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[threading.Thread] = []

    def work(_services: Services) -> None:
        done.append(threading.current_thread())
        if len(done) == 2:
            raise RuntimeError("once")

    runner = Runner([Job("often", 0.01, work, alone=False)])
    with caplog.at_level(logging.ERROR):
        run_jobs(tmp_path, runner, lambda _services: wait_for(lambda: len(done) >= 5))
    [status] = runner.status()
    assert (status.errors, status.runs) == (1, len(done))
    assert threading.main_thread() not in done
    assert "'often'" in caplog.text


def test_a_job_is_woken_from_another_thread(tmp_path: Path) -> None:
    done = threading.Event()
    runner = Runner([Job("seldom", 3600, lambda _services: done.set(), alone=False)])

    def until(_services: Services) -> None:
        assert not done.wait(0.1)
        runner.wake("seldom")
        assert done.wait(20)

    run_jobs(tmp_path, runner, until)
    runner.wake("seldom")  # nobody is there any more, and that is no error


def test_names_are_unique_and_known() -> None:
    job = Job("one", 1, lambda _services: None)
    with pytest.raises(ValueError, match="same name"):
        Runner([job, job])
    with pytest.raises(KeyError):
        Runner([job]).wake("another")


def test_of_two_servers_one_does_it_and_the_other_when_that_one_ends(tmp_path: Path) -> None:
    done: list[str] = []

    def runner(name: str) -> Runner:
        return Runner([Job("alone", 0.05, lambda _services: done.append(name))])

    other = runner("b")

    def until(_services: Services) -> None:
        wait_for(lambda: done.count("a") >= 3)

        def later(_services: Services) -> None:
            time.sleep(1.5)
            assert "b" not in done
            assert [status.held for status in other.status()] == [False]

        run_jobs(tmp_path, other, later)

    run_jobs(tmp_path, runner("a"), until)
    begun = len(done)
    run_jobs(tmp_path, runner("b"), lambda _services: wait_for(lambda: "b" in done[begun:]))
    assert "a" not in done[begun:]


def test_a_server_that_was_frozen_in_the_middle_changes_nothing_when_another_has_taken_over(
    tmp_path: Path, database: Database
) -> None:
    command = [sys.executable, "-m", "tests.server.freezing", database.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frozen:
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "frozen\n"
            taken = threading.Event()
            runner = Runner([Job("halves", 0.05, lambda _services: taken.set())])
            run_jobs(tmp_path, runner, lambda _services: wait_for(taken.is_set, 60), database.url)
            frozen.send_signal(signal.SIGCONT)
            assert frozen.stdout.readline() == "refused\n"
        finally:
            frozen.kill()
    with database.read() as connection:
        notes = set(connection.scalars(select(leases.c.name).where(leases.c.owner == "note")))
    assert notes == {"first half"}


def test_the_clock_of_servers_on_postgres_is_the_databases(tmp_path: Path, postgres: str) -> None:
    services: Services = create_app(Settings(home=tmp_path, database=postgres)).state.services
    assert isinstance(services.clock, DatabaseClock)
    services.set_clock(1000.0, time.monotonic() - 5)
    assert 1005.0 <= services.clock() < 1015.0
    services.database.close()
    alone: Services = create_app(Settings(home=tmp_path)).state.services
    assert alone.clock is time.time
    alone.database.close()
