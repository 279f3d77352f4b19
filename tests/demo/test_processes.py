from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.patience import PATIENCE, timing
from trainwatch.demo.processes import MARK, Processes, StopRequest

SLEEP = "import time; time.sleep(1000)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)"
ORPHANING = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)"


@pytest.fixture
def stop() -> StopRequest:
    return StopRequest()


@pytest.fixture
def processes(stop: StopRequest) -> Processes:
    return Processes(os.environ, stop)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_child_is_ended_politely(processes: Processes, tmp_path: Path) -> None:
    child = processes.start(python(SLEEP), log=tmp_path / "log")
    processes.end(child)
    assert child.returncode == -signal.SIGTERM


def test_a_child_that_does_not_listen_is_ended_by_force(processes: Processes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = processes.start(python(STUBBORN), log=log)
    assert processes.wait(lambda: log.read_text() != "", PATIENCE)
    processes.end(child, seconds=0.2)
    assert child.returncode == -signal.SIGKILL


def test_a_grandchild_in_a_session_of_its_own_is_found_and_ended(processes: Processes, tmp_path: Path) -> None:
    child = processes.start(python(ORPHANING), log=tmp_path / "log")
    assert child.wait(PATIENCE) == 0
    (orphan,) = processes.descendants()
    assert orphan.ppid() != os.getpid()
    processes.end_all()
    assert processes.descendants() == []
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


def test_only_its_own_are_touched(processes: Processes, stop: StopRequest, tmp_path: Path) -> None:
    other = Processes(os.environ, stop)
    child = other.start(python(SLEEP), log=tmp_path / "log")
    try:
        assert processes.descendants() == []
        processes.end_all()
        assert child.poll() is None
    finally:
        other.end_all()
    assert child.wait(PATIENCE) == -signal.SIGTERM


def test_the_children_know_the_mark_and_the_extra_variables(processes: Processes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = f"import os; print(len(os.environ[{MARK!r}]), os.environ['COLOUR'])"
    assert processes.start(python(code), log=log, extra={"COLOUR": "green"}).wait(PATIENCE) == 0
    assert log.read_text() == "32 green\n"


def test_waiting_ends_when_the_demo_is_to_stop(processes: Processes, stop: StopRequest) -> None:
    with stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with timing() as timed:
            assert processes.wait(lambda: False, PATIENCE) is False
    assert timed.took < 5
    assert stop


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_is_ignored_stays_ignored(number: int) -> None:
    """As under ``nohup``, and in the background of a script."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), number)
            time.sleep(0.05)
            assert not stop
            assert signal.getsignal(number) is signal.SIG_IGN
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_let_end_waits_for_others_but_not_for_the_one_it_is_told(processes: Processes, tmp_path: Path) -> None:
    server = processes.start(python(SLEEP), log=tmp_path / "log")
    started = time.monotonic()
    short: subprocess.Popen[bytes] = processes.start(python("import time; time.sleep(0.6)"), log=tmp_path / "log")
    try:
        with timing() as timed:
            processes.let_end(PATIENCE, but=server)
        assert timed.took < 60
        assert time.monotonic() - started > 0.6
        assert short.wait(PATIENCE) == 0
        assert server.poll() is None
    finally:
        processes.end_all()
