"""Jobs: done again and again, at once when woken, and also after they failed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwatch.server.app import create_app
from trainwatch.server.periodic import Job, Runner
from trainwatch.server.services import Services
from trainwatch.server.settings import Settings


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def run_jobs(home: Path, runner: Runner, until: Callable[[Services], None]) -> None:
    """Runs `runner` as a server does, and `until` in a thread beside it."""
    services: Services = create_app(Settings(home=home)).state.services

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
