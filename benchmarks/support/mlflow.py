"""MLflow's tracking server, to measure beside ours: the same values, by its own bulk request, into SQLite."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.support.shipments import step

_STEPS: Final = 71
"""Steps of a request: MLflow takes at most 1,000 values in one."""
_START_SECONDS: Final = 90


class MlflowServer:
    """A running server.

    Args:
        port: Where it listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._experiment = self._ask(self._connect(), "experiments/create", {"name": "benchmark"})["experiment_id"]

    def rate(self, agents: int, requests: int) -> float:
        """Logs values over some connections at once, and returns how many a second it took.

        Args:
            agents: Connections, each with a run of its own.
            requests: How many each of them sends.
        """
        ready = [self._prepare(number, requests) for number in range(agents)]
        problems: list[str] = []

        def work(bodies: list[bytes]) -> None:
            connection = self._connect()
            try:
                for body in bodies:
                    self._send(connection, "runs/log-batch", body)
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                problems.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=work, args=(bodies,)) for bodies, _ in ready]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        if problems:
            raise RuntimeError(f"MLflow: {problems[0]}")
        return sum(count for _, count in ready) / took

    def _prepare(self, number: int, requests: int) -> tuple[list[bytes], int]:
        created = {"experiment_id": self._experiment, "start_time": round(time.time() * 1000)}
        run = self._ask(self._connect(), "runs/create", created)["run"]["info"]["run_id"]
        chance = random.Random(number)
        bodies, count = [], 0
        for request in range(requests):
            metrics = []
            for at in range(request * _STEPS + 1, (request + 1) * _STEPS + 1):
                one = step(at, chance)
                values = dict(one.values)
                for device, readings in one.devices.items():
                    values |= {f"{name}/{device}": value for name, value in readings.items()}
                metrics += [
                    {"key": name, "value": value, "timestamp": round(one.time * 1000), "step": at}
                    for name, value in values.items()
                ]
            count += len(metrics)
            bodies.append(json.dumps({"run_id": run, "metrics": metrics}).encode())
        return bodies, count

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)

    def _ask(self, connection: http.client.HTTPConnection, path: str, content: dict[str, Any]) -> Any:
        return json.loads(self._send(connection, path, json.dumps(content).encode()))

    def _send(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
        connection.request("POST", f"/api/2.0/mlflow/{path}", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered with {answer.status}: {content[:200]!r}")
        return content


@contextmanager
def running_mlflow(command: str, folder: Path) -> Iterator[MlflowServer]:
    """Starts a server with a fresh SQLite database, as ``mlflow server`` does it by default.

    Args:
        command: The program ``mlflow``; it may be of another virtual environment.
        folder: Where its files are to lie.

    Raises:
        RuntimeError: It does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [command, "server", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    arguments += ["--default-artifact-root", str(folder / "artifacts")]
    with (folder / "mlflow.log").open("ab") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        end = time.monotonic() + _START_SECONDS
        while not _is_up(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"MLflow does not start: {(folder / 'mlflow.log').read_text()[-500:]}")
            time.sleep(0.3)
        yield MlflowServer(port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
