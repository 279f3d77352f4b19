"""The demo as people meet it: real processes, a real server, a real Trainer."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from tests.patience import PATIENCE
from trainwatch.local import free_port, port_is_free

pytestmark = pytest.mark.slow


def belonging_to(home: Path) -> list[psutil.Process]:
    """Finds every process that keeps its data in `home`, whoever its parent is."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRAINWATCH_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


class Terminal:
    """A demo that was started from a terminal of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self.port = free_port()
        self.screen = home / "screen"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWATCH_")}
        command = [sys.executable, "-m", "trainwatch", "demo", "--home", str(home), "--port", str(self.port)]
        with self.screen.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, *arguments],
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
                # The tests themselves may run in a script's background, where Ctrl-C is ignored, and this is inherited.
                preexec_fn=_as_in_a_terminal,
            )

    def text(self) -> str:
        return self.screen.read_text("utf-8")

    def wait_for(self, words: str, seconds: float = 200) -> None:
        end = time.monotonic() + seconds
        while words not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.05)

    def interrupt(self, number: int) -> int:
        # As a terminal does: to the whole group.
        os.killpg(self.process.pid, number)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            alive = [process.cmdline() for process in belonging_to(self.home)]
            pytest.fail(f"signal {number} did not end it; alive: {alive}; it said:\n{self.text()}")


def _as_in_a_terminal() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Any]:
    home = (tmp_path / "home").resolve()
    home.mkdir()
    begun: list[Terminal] = []

    def begin(*arguments: str) -> Terminal:
        begun.append(Terminal(home, *arguments))
        return begun[-1]

    yield begin
    for terminal in begun:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()
    for process in belonging_to(home):
        process.kill()


def test_both_runs_end_as_they_are_meant_to_and_nothing_stays_behind(terminals: Any) -> None:
    terminal: Terminal = terminals("--steps", "20", "--exit")
    assert terminal.process.wait(240) == 0, terminal.text()
    text = terminal.text()
    assert f"http://127.0.0.1:{terminal.port}\n" in text
    assert "finished all 20 steps" in text
    # The broken weights begin with step 13; the third step in a row is the last.
    assert "halted at step 15; checkpoint-15 holds the last good state: every weight in it is finite" in text
    assert "Halted: the loss is NaN in steps 13 to 15" in text
    assert "Traceback" not in text
    assert belonging_to(terminal.home) == []
    assert port_is_free(terminal.port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: signal.Signals(n).name)
def test_a_signal_in_the_middle_of_training_leaves_no_process(terminals: Any, number: int) -> None:
    terminal: Terminal = terminals("--scenario", "healthy", "--steps", "5000")
    terminal.wait_for("training: 5000 steps")
    assert len(belonging_to(terminal.home)) >= 3  # server, trainer, agent
    assert terminal.interrupt(number) == 0
    assert belonging_to(terminal.home) == []
    assert "Traceback" not in terminal.text()


def test_a_signal_at_any_moment_leaves_no_process(terminals: Any, tmp_path: Path) -> None:
    for delay in [0.3, 1.0, *(random.uniform(1, 12) for _ in range(2))]:
        shutil.rmtree(tmp_path / "home" / "demo", ignore_errors=True)
        terminal: Terminal = terminals("--scenario", "healthy", "--steps", "5000")
        time.sleep(delay)
        begun = list(terminal.home.glob("demo/*/server.log")) != []
        status = terminal.interrupt(signal.SIGINT)
        # Before Python has even read the program, the signal is Python's own to answer.
        assert status == 0 or not begun, (delay, status, terminal.text())
        assert belonging_to(terminal.home) == [], delay


def test_a_port_that_is_taken_is_told_in_a_sentence(terminals: Any, tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        home = tmp_path / "home"
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "trainwatch", "demo", "--home", str(home), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert f"Port {port} is taken by another program. Choose another one with --port." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_training_that_fails_is_told_with_the_end_of_its_log(terminals: Any) -> None:
    terminal: Terminal = terminals("--scenario", "healthy", "--steps", "5000", "--exit")
    terminal.wait_for("training: 5000 steps")
    (trainer,) = [p for p in belonging_to(terminal.home) if "trainwatch.demo.train" in p.cmdline()]
    trainer.kill()
    assert terminal.process.wait(PATIENCE) == 1
    assert "did not end as it was meant to (status -9)" in terminal.text()
    assert belonging_to(terminal.home) == []


def test_the_dashboard_stays_until_ctrl_c_and_serves_another_demo_too(terminals: Any) -> None:
    first: Terminal = terminals("--scenario", "healthy", "--steps", "10")
    first.wait_for("until you press Ctrl-C")
    command = [sys.executable, "-m", "trainwatch", "demo", "--home", str(first.home), "--port", str(first.port)]
    second = subprocess.run(
        [*command, "--scenario", "healthy", "--steps", "10", "--exit"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert second.returncode == 0, second.stderr
    assert "a TrainWatch server was already running" in second.stdout
    assert not port_is_free(first.port)
    assert first.interrupt(signal.SIGINT) == 0
    assert port_is_free(first.port)
    assert belonging_to(first.home) == []
