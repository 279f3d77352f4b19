"""The outside world of an end-to-end test: a real server process, real trainings, and what they say of themselves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.patience import PATIENCE

T = TypeVar("T")

ROOT = Path(__file__).parents[2]


def wait_for(what: str, look: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Looks again and again until there is something.

    Raises:
        AssertionError: Nothing came in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")


class World:
    """A home, a port, a server that can be killed and started again, and trainings.

    Args:
        folder: Everything is kept below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "TRAINWATCH_HOME": str(self.home),
            "TRAINWATCH_SERVER": self.url,
            "TRAINWATCH_PORT": str(self.port),
            "PYTHONPATH": str(ROOT),
            # Two trainings on two cores with two threads each spend their time waiting for each other.
            "OMP_NUM_THREADS": "1",
        }
        for name in ("TRAINWATCH_RUN_ID", "TRAINWATCH_AGENT", "TRAINWATCH_TOKEN", "TRAINWATCH_DISABLED"):
            self.environment.pop(name, None)
        self.server: subprocess.Popen[bytes] | None = None
        self._children: list[subprocess.Popen[Any]] = []

    def start_server(self, *, sync: bool = False) -> None:
        """Starts the server; with `sync` as ``trainwatch serve`` does it, which ships what lies on disk."""
        if sync:
            command = [sys.executable, "-m", "trainwatch", "serve", "--port", str(self.port)]
        else:
            command = [sys.executable, "-m", "trainwatch.server"]
        with (self.folder / "server.log").open("ab") as log:
            self.server = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self._children.append(self.server)
        wait_for("the server", self._is_up)

    def kill_server(self) -> None:
        """Kills the server so that it can't say a word."""
        assert self.server is not None
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()

    def train(self, *arguments: str, ranks: int = 1, wait: bool = True, **variables: str) -> subprocess.Popen[str]:
        """Starts :mod:`tests.e2e.trainings` in a process of its own."""
        command = [sys.executable, "-m"]
        if ranks > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command += ["torch.distributed.run", f"--nproc_per_node={ranks}", f"--master_port={port}", "-m"]
        command += ["tests.e2e.trainings", "--folder", str(self.folder), *arguments]
        with (self.folder / "training.log").open("ab") as log:
            process = subprocess.Popen(
                command, env={**self.environment, **variables}, stdout=log, stderr=log, text=True, cwd=ROOT
            )
        self._children.append(process)
        if wait:
            assert process.wait(280) == 0, (self.folder / "training.log").read_text()[-3000:]
        return process

    def get(self, path: str) -> Any:
        """Reads from the API."""
        with urllib.request.urlopen(f"{self.url}/api/{path}", timeout=PATIENCE) as answer:
            return json.load(answer)

    def runs(self) -> list[dict[str, Any]]:
        """Returns the runs that the server knows."""
        found: list[dict[str, Any]] = self.get("runs?limit=200")["runs"]
        return found

    def run(self, run_id: str) -> dict[str, Any]:
        """Returns a run whole."""
        found: dict[str, Any] = self.get(f"runs/{run_id}")
        return found

    def wait_state(self, run_id: str, *states: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Waits until a run is in one of some states, and returns it."""

        def look() -> dict[str, Any] | None:
            run = next((run for run in self.runs() if run["id"] == run_id), None)
            return self.run(run_id) if run and run["state"] in states else None

        return wait_for(f"run {run_id} to be {states}", look, seconds)

    def steps(self, run_id: str, rank: int = 0, metric: str = "train/loss") -> list[int]:
        """Returns the steps of a series as they are stored, one by one, in order."""
        data = self.get(f"runs/{run_id}/series/data?metric={metric}&rank={rank}&device=&points=100000")
        return [int(step) for step in data["step"]]

    def finished_steps(self, run_id: str) -> list[int]:
        """Returns the steps that a training itself noted as finished, independently of TrainWatch."""
        path = self.folder / f"{run_id}.steps"
        return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        """Ends everything that was started."""
        for child in self._children:
            if child.poll() is None:
                child.terminate()
        for child in self._children:
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _is_up(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, (self.folder / "server.log").read_text()[-3000:]
        try:
            return bool(self.get("health"))
        except OSError:
            return False
