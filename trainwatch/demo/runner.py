"""Runs the demo: a server, one training run after the other, and one screen of text about it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from trainwatch import __version__, settings
from trainwatch.demo.processes import Processes, StopRequest
from trainwatch.local import ask, free_port, port_is_free, version_at

_SERVER_SECONDS: Final = 60.0
_SHIP_SECONDS: Final = 30.0
_ENDED: Final = frozenset({"finished", "halted", "failed", "died"})


class DemoError(Exception):
    """The demo cannot go on; the message says why and what can be done."""


class Scenario(NamedTuple):
    """One of the demo's runs.

    Attributes:
        steps: How many steps it has unless told otherwise; they take about two minutes, or one, on two cores.
        outcome: The state it ends in when everything works.
        story: What happens in it.
        look: What to look at in the dashboard.
    """

    name: str
    steps: int
    outcome: str
    story: str
    look: tuple[str, ...]


SCENARIOS: Final = {
    "healthy": Scenario(
        "healthy",
        400,
        "finished",
        "a small GPT-2 learns Python from the functions of its standard library",
        (
            "Loss falls, eval loss follows it; the learning rate warms up, then decays.",
            "Memory jumps with the longest function in each batch: a real sawtooth, read anew for every step.",
        ),
    ),
    "nan": Scenario(
        "nan",
        200,
        "halted",
        "the same, but its newest data has no sample weights: a mean of 0/0 from 60 % of the steps on",
        (
            "The Trainer's own log says loss 0.0 there. The chart marks what it really was.",
            "The guard keeps the weights from being touched, and halts at the third such step in a row.",
        ),
    ),
}


class Demo:
    """One call of ``trainwatch demo``.

    Args:
        home: Where journals, database and checkpoints go.
        port: The dashboard's port; None takes the default, or a free one when that is taken.
        steps: Steps of each run; None takes each scenario's own.
    """

    def __init__(self, home: Path, port: int | None = None, steps: int | None = None) -> None:
        self._home = home
        self._port = port
        self._steps = steps
        self._token = settings.load().token
        self._url = ""

    def run(self, names: list[str], *, stay: bool, browser: bool) -> int:
        """Runs the scenarios.

        Args:
            names: Which, in which order.
            stay: Keep the dashboard until Ctrl-C when the runs have ended.
            browser: Open the dashboard in the browser.

        Returns:
            The process's exit status: 0 if every run ended as it was meant to, or somebody ended the demo.

        Raises:
            DemoError: The server or a run did not work.
        """
        folder = self._home / "demo" / time.strftime("%Y%m%d-%H%M%S")
        folder.mkdir(parents=True, exist_ok=True)
        with StopRequest() as stop:
            processes = Processes({**os.environ, "TRAINWATCH_HOME": str(self._home)}, stop)
            server: subprocess.Popen[bytes] | None = None
            try:
                server = self._start_server(processes, folder)
                if stop:
                    return 0
                self._introduce(folder, own_server=server is not None)
                if browser:
                    webbrowser.open(self._url)
                good = all([self._train(SCENARIOS[name], processes, folder, stop) for name in names if not stop])
                if stay and not stop:
                    _say("\nThe dashboard stays until you press Ctrl-C.")
                    processes.wait(lambda: server is not None and server.poll() is not None)
                    if not stop:
                        raise DemoError(f"The server ended by itself; its log is {folder / 'server.log'}.")
                return 0 if good or stop else 1
            finally:
                if stop:
                    _say("\nEnding …")
                    processes.let_end(3.0, but=server)
                if server is not None:
                    processes.end(server)
                processes.end_all()

    def _start_server(self, processes: Processes, folder: Path) -> subprocess.Popen[bytes] | None:
        """Starts a server, or finds the one that already runs; returns None for that."""
        port = free_port() if self._port == 0 else self._port or urlsplit(settings.DEFAULT_SERVER).port or 8420
        self._url = f"http://127.0.0.1:{port}"
        if not port_is_free(port):
            if version_at(self._url) == __version__:
                return None
            if self._port:
                raise DemoError(f"Port {port} is taken by another program. Choose another one with --port.")
            port = free_port()
            self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "trainwatch", "serve", "--host", "127.0.0.1", "--port", str(port)]
        log = folder / "server.log"
        server = processes.start([*command, "--home", str(self._home)], log=log)
        up = processes.wait(lambda: server.poll() is not None or bool(version_at(self._url)), _SERVER_SECONDS)
        # A Ctrl-C in the moment of its start, before it is out of the terminal's group, ends the server too.
        if not processes.stopping and (server.poll() is not None or not up):
            raise DemoError(f"The server did not start. Its log, {log}, ends with:\n{_tail(log)}")
        return server

    def _introduce(self, folder: Path, *, own_server: bool) -> None:
        whose = "" if own_server else "   (a TrainWatch server was already running; the demo's runs go there)"
        _say(f"TrainWatch {__version__}")
        _say(f"  Dashboard  {_bold(self._url)}{whose}")
        _say(f"  Files      {folder}")

    def _train(self, scenario: Scenario, processes: Processes, folder: Path, stop: StopRequest) -> bool:
        """Runs one scenario; returns whether it ended as it was meant to."""
        run = f"demo-{scenario.name}-{folder.name}-{os.getpid()}"
        steps, log = self._steps or scenario.steps, folder / f"{scenario.name}.log"
        _say(f"\n{_bold(scenario.name)}: {scenario.story}")
        _say(f"  {self._url}/runs/{run}")
        for sentence in scenario.look:
            _say(f"  - {sentence}")
        command = [sys.executable, "-m", "trainwatch.demo.train", "--scenario", scenario.name, "--steps", str(steps)]
        trainer = processes.start(
            [*command, "--output", str(folder / scenario.name)],
            log=log,
            extra={**_TRAINER_ENVIRONMENT, "TRAINWATCH_SERVER": self._url, "TRAINWATCH_RUN_ID": run},
            show=True,
        )
        processes.wait(lambda: trainer.poll() is not None)
        if stop:
            processes.end(trainer, seconds=2.0)
            return False
        state = self._shipped(run, processes)
        if trainer.returncode != 0:
            _say(f"  the run did not end as it was meant to (status {trainer.returncode}). Its log, {log}, ends with:")
            _say(_tail(log))
            return False
        if state.get("state") != scenario.outcome:
            if not stop:
                _say(f"  the dashboard shows the run as {state.get('state', 'unknown')}, not as {scenario.outcome}")
            return False
        if said := state.get("sentence"):
            _say(f"  {said}")
        return True

    def _shipped(self, run: str, processes: Processes) -> dict[str, Any]:
        """Waits until the run's end has reached the server; returns the run as the server has it."""
        answer: dict[str, Any] = {}

        def ended() -> bool:
            nonlocal answer
            answer = ask(f"{self._url}/api/runs/{run}", self._token)
            return answer.get("state") in _ENDED

        processes.wait(ended, _SHIP_SECONDS)
        return answer


_TRAINER_ENVIRONMENT: Final = {
    "TRAINWATCH_AGENT": "1",
    "TRAINWATCH_DISABLED": "0",
    "TRAINWATCH_PROJECT": "demo",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # glibc raises these limits by itself and then keeps freed memory: the curve would only ever rise.
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}


def _tail(log: Path, lines: int = 15) -> str:
    try:
        text = log.read_text("utf-8", "replace")
    except OSError as error:
        return f"    ({error})"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def _bold(text: str) -> str:
    plain = "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return text if plain else f"\033[1m{text}\033[0m"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
