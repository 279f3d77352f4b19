from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainwatch
from tests.patience import PATIENCE, seconds_to_end, wait_for
from trainwatch import events, journal

NAME = "node1"


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWATCH_")}
    return {**plain, "TRAINWATCH_NODE": NAME, **(extra or {})}


def run(*arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainwatch", *arguments],
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def record(home: Path, name: str, steps: int = 5) -> None:
    """Leaves behind what a finished training recorded while there was no agent."""
    node = home / "journal" / name / NAME
    writer = journal.Writer(journal.create_source(node, "rank0"))
    (node / "project").write_text("tests", "utf-8")
    now = time.time() - 60
    writer.append(events.encode(events.RunStarted(time=now, name="offline", max_steps=steps)))
    for step in range(1, steps + 1):
        now += 1
        writer.append(events.encode(events.StepEnded(time=now, step=step, values={"train/loss": 1.0 / step})))
    writer.append(events.encode(events.RunEnded(time=now, step=steps, outcome="finished")))
    writer.close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


class Server:
    """A ``trainwatch serve`` in a process of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "trainwatch", "serve", "--home", str(home), "--port", "0", *arguments]
        self.process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert "is listening on http://127.0.0.1:" in first, first
        self.url = first.split()[-1]

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    begun: list[Server] = []

    def begin(home: Path, *arguments: str) -> Server:
        begun.append(Server(home, *arguments))
        return begun[-1]

    yield begin
    for server in begun:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.mark.parametrize("command", [["-m", "trainwatch"], ["-m", "trainwatch.cli"]])
def test_it_says_its_version(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"trainwatch {trainwatch.__version__}\n"


def test_the_installed_command_is_the_same() -> None:
    program = Path(sys.executable).with_name("trainwatch")
    if not program.exists():
        pytest.skip("trainwatch is not installed here, only importable")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"trainwatch {trainwatch.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: COMMAND"),
        (["serve", "--port", "http"], "'http' is no port: use a number from 0 to 65535"),
        (["serve", "--port", "65536"], "'65536' is no port"),
        (["demo", "--steps", "0"], "'0' is no number of steps: use one from 10"),
        (["demo", "--scenario", "oom"], "invalid choice: 'oom'"),
        (["sync", "--home", "/nowhere", "no-such-run"], "there is no run 'no-such-run' in /nowhere/journal"),
        (["sync", "--server", "ftp://host"], "ftp://host"),
        (["serve", "--host", "0.0.0.0"], "TRAINWATCH_TOKEN"),
        (["serve", "--port", "0", "--database", "oracle://x"], "database"),
    ],
)
def test_a_mistake_gets_a_sentence_and_status_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    done = run(*arguments, extra={"TRAINWATCH_HOME": str(tmp_path)})
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert "\033" not in done.stderr


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [({"TRAINWATCH_PORT": "many"}, ["serve"]), ({"TRAINWATCH_SAMPLE_SECONDS": "often"}, ["sync"])],
)
def test_a_wrong_variable_is_named(extra: dict[str, str], arguments: list[str]) -> None:
    done = run(*arguments, extra=extra)
    ((name, value),) = extra.items()
    assert done.returncode == 2
    assert f"{name}='{value}'" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_without_the_server_extra_says_what_to_install(tmp_path: Path) -> None:
    # What Python sees of a package that is not installed.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['fastapi'] = sys.modules['uvicorn'] = None\n")
    done = run("serve", extra={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert "not installed (fastapi, uvicorn): pip install 'trainwatch[server]'" in done.stderr


def test_serve_on_a_port_that_is_taken_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run("serve", "--home", str(tmp_path), "--port", str(port))
    assert done.returncode == 2
    assert (
        f"port {port} is taken; another program has it: stop that, or choose another port with --port." in done.stderr
    )


def test_serve_beside_a_trainwatch_says_where_that_is(serve: Callable[..., Server], tmp_path: Path) -> None:
    url = serve(tmp_path).url
    done = run("serve", "--home", str(tmp_path), "--port", url.rpartition(":")[2])
    assert done.returncode == 2
    assert f"TrainWatch already runs at {url}: open that" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: signal.Signals(n).name)
def test_serve_ends_with_status_0_and_takes_its_child_along(
    serve: Callable[..., Server], tmp_path: Path, number: int
) -> None:
    server = serve(tmp_path)
    assert get(f"{server.url}/api/health")["status"] == "ok"
    family = psutil.Process(server.process.pid).children(recursive=True)
    server.process.send_signal(number)
    assert seconds_to_end(server.process) < 5
    assert server.process.wait() == 0
    assert not [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_serve_ships_what_was_recorded_while_no_server_ran(serve: Callable[..., Server], tmp_path: Path) -> None:
    record(tmp_path, "offline1")
    server = serve(tmp_path)
    wait_for(lambda: get(f"{server.url}/api/runs")["total"] == 1)
    wait_for(lambda: get(f"{server.url}/api/runs/offline1")["state"] == "finished")
    assert get(f"{server.url}/api/runs/offline1")["step"] == 5
    assert server.end() == 0


def test_sync_ships_says_what_and_has_nothing_left_to_do(serve: Callable[..., Server], tmp_path: Path) -> None:
    home = tmp_path / "trainer"
    server = serve(tmp_path / "server")
    record(home, "first")
    record(home, "second")
    options = ["--home", str(home), "--server", server.url]

    done = run("sync", "second", *options)
    assert done.returncode == 0, done.stderr
    assert f"{server.url}/runs/second" in done.stdout
    assert [found["id"] for found in get(f"{server.url}/api/runs")["runs"]] == ["second"]

    done = run("sync", *options)
    assert f"of 1 run to {server.url}:\n  {server.url}/runs/first\n" in done.stdout
    assert get(f"{server.url}/api/runs")["total"] == 2

    done = run("sync", *options)
    assert (done.returncode, done.stdout) == (0, f"Nothing to ship: {server.url} has everything in {home}/journal.\n")


@pytest.mark.slow
def test_sync_without_a_server_fails_with_a_sentence_and_loses_nothing(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    record(tmp_path, "kept")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
        done = run("sync", "--home", str(tmp_path), "--server", address)
    assert done.returncode == 1
    assert f"1 folder could not be shipped to {address} and stay" in done.stderr
    assert "Traceback" not in done.stderr
    server = serve(tmp_path / "server")
    done = run("sync", "--home", str(tmp_path), "--server", server.url)
    assert done.returncode == 0
    assert get(f"{server.url}/api/runs/kept")["step"] == 5


def test_colours_only_where_they_show_and_nobody_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    def painted(extra: Mapping[str, str]) -> bool:
        parent, child = pty.openpty()
        try:
            command = [sys.executable, "-m", "trainwatch", "sync", "--home", "/nowhere", "no-such-run"]
            subprocess.run(command, env=environment(extra), stderr=child, timeout=PATIENCE, check=False)
            return b"\033[" in os.read(parent, 10_000)
        finally:
            os.close(parent)
            os.close(child)

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert painted({})
    assert not painted({"NO_COLOR": "1"})
