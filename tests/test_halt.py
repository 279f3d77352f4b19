"""``trainwatch halt``: through the server, and past it, on a real training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.scripted import ending, wait_for
from tests.patience import PATIENCE
from tests.test_cli import NAME, Server, get, record, run
from tests.training.tiny import of, read_events
from trainwatch.events import CheckpointSaved, RunEnded, StepEnded

RUN = "a-run-to-halt"
SCRIPT = """
import sys, time
from pathlib import Path
from transformers import TrainerCallback
from tests.training.tiny import *
class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.05)
make_trainer(Path(sys.argv[1]), steps=20000, data=TinyData(400), callbacks=[Slow()]).train()
"""


def train(home: Path, output: Path, server: str = "") -> subprocess.Popen[bytes]:
    """Starts a training that lasts longer than any test, with an agent if there is a server to ship to."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWATCH_")}
    environment |= {"TRAINWATCH_HOME": str(home), "TRAINWATCH_RUN_ID": RUN, "TRAINWATCH_NODE": NAME}
    environment |= {"TRAINWATCH_SERVER": server} if server else {"TRAINWATCH_AGENT": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(output)], env=environment)
    wait_for(lambda: (home / "journal").exists() and len(of(StepEnded, read_events(home))) > 3)
    return process


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = train(tmp_path / "home", tmp_path / "out")
    with ending(process):
        yield process


def test_without_a_server_the_run_is_halted_where_it_trains(tmp_path: Path, training: subprocess.Popen[bytes]) -> None:
    home = tmp_path / "home"
    options = ("--home", str(home), "--server", "http://127.0.0.1:9", "--wait")
    saved = run("halt", RUN, "--checkpoint-only", *options)
    assert saved.returncode == 0, saved.stderr
    assert "does not answer" in saved.stdout
    assert f"to save a checkpoint, in {home / 'journal' / RUN}" in saved.stdout
    assert "Saved after step" in saved.stdout
    assert training.poll() is None, "it goes on"
    halted = run("halt", RUN, "--reason", "enough is enough", *options)
    assert halted.returncode == 0, halted.stderr
    found = read_events(home)
    (end,) = of(RunEnded, found)
    folder = tmp_path / "out" / f"checkpoint-{end.step}"
    assert f"Halted at step {end.step} by command: enough is enough. Resume from {folder}." in halted.stdout
    assert folder.is_dir()
    assert [event.reason for event in of(CheckpointSaved, found)] == ["command", "halt"]
    assert training.wait(PATIENCE) == 0
    again = run("halt", RUN, *options)
    assert again.returncode == 1
    assert "the run is over: Halted at step" in again.stderr


@pytest.mark.slow
def test_through_the_server(tmp_path: Path) -> None:
    home = tmp_path / "home"
    server = Server(tmp_path / "server")
    with server.process, ending(server.process):
        with ending(training := train(home, tmp_path / "out", server.url)):
            wait_for(lambda: any(one["id"] == RUN for one in get(f"{server.url}/api/runs")["runs"]))
            halted = run("halt", RUN, "--reason", "enough", "--server", server.url, "--wait")
            assert halted.returncode == 0, halted.stderr
            assert f"Asked run {RUN} through {server.url} to halt" in halted.stdout
            assert "by command: enough. Resume from" in halted.stdout
            assert training.wait(PATIENCE) == 0
        again = run("halt", RUN, "--server", server.url)
        assert again.returncode == 1
        assert "The run is over" in again.stderr


def test_a_run_that_nobody_knows_is_a_mistake(tmp_path: Path) -> None:
    record(tmp_path, "over")
    options = ("--home", str(tmp_path), "--server", "http://127.0.0.1:9")
    unknown = run("halt", "nobody", *options)
    assert unknown.returncode == 2
    assert "does not answer" in unknown.stderr
    assert "there is no run 'nobody'" in unknown.stderr
    over = run("halt", "over", *options)
    assert over.returncode == 1
    assert "the run is over: it finished at step 5." in over.stderr
    assert run("halt", "../x", *options).returncode == 2
