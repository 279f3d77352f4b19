"""What the agent's tests talk to: a real HTTP server that keeps what it is sent and misbehaves on demand, and ranks."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from tests.patience import PATIENCE, wait_for
from trainwatch import events, journal
from trainwatch.events import AnyEvent, RuleSettings, RunStarted, StepEnded
from trainwatch.probes import host
from trainwatch.shipment import Acknowledgement, Command, Shipment

RUN, NODE = "0123456789abcdef", "node7"


class Store:
    """Keeps events as the server's contract says."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, str], dict[int, bytes]] = {}
        self.next: dict[tuple[str, str], int] = {}
        self.lost: Counter[tuple[str, str]] = Counter()
        self.deliveries: Counter[tuple[str, str, int]] = Counter()
        self.arrived: dict[tuple[str, str, int], float] = {}
        self.shipments: list[Shipment] = []
        self.commands: list[Command] = []
        self.rules: dict[str, RuleSettings] = {}

    def take(self, shipment: Shipment) -> Acknowledgement:
        self.shipments.append(shipment)
        answer: dict[str, dict[str, int]] = {}
        for batch in shipment.batches:
            key = (batch.run, batch.source)
            wanted = self.next.get(key, 0)
            if batch.first - batch.lost <= wanted:
                if batch.first > wanted:
                    self.lost[key] += batch.first - wanted
                    wanted = batch.first
                for sequence, payload in enumerate(batch.events, batch.first):
                    if sequence == wanted:
                        self.events.setdefault(key, {})[sequence] = bytes(payload)
                        self.arrived[(batch.run, batch.source, sequence)] = time.time()
                        wanted += 1
                    self.deliveries[(batch.run, batch.source, sequence)] += 1
                self.next[key] = wanted
            answer.setdefault(batch.run, {})[batch.source] = wanted
        commands = [command for command in self.commands if command.run in shipment.runs]
        return Acknowledgement(next=answer, commands=commands, rules=self.rules)

    def decoded(self, source: str, run: str = RUN) -> list[AnyEvent]:
        return [events.decode(payload) for _, payload in sorted(self.events.get((run, source), {}).items())]

    def of_type(self, kind: type[Any]) -> list[Any]:
        named = sorted(self.events, key=lambda key: (key[0], key[1].partition("~")[0]))  # by attempt
        return [e for run, source in named for e in self.decoded(source, run) if isinstance(e, kind)]


class Server:
    """A scripted server. `script` holds what to do with the next requests; when it is empty all is well.

    ``200`` accept · ``500`` … any status · ``(503, 2.0)`` with Retry-After · ``"hang"`` · ``"cut"`` close without an
    answer · ``"stored, cut"`` keep the events and send half an answer · ``"garbage"`` · ``"silent"`` name no position.
    """

    def __init__(self, store: Store | None = None, port: int = 0) -> None:
        self.store = store or Store()
        self.script: list[Any] = []
        self.refuse: Callable[[Shipment], int] = lambda shipment: 0
        self.largest = 0
        self.sizes: list[int] = []
        self.times: list[float] = []
        self.encodings: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._released = threading.Event()
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536  # one segment an answer, or Nagle costs 40 ms a time

            def do_POST(self) -> None:
                owner.handle(self)

            def log_message(self, format: str, *args: Any) -> None:
                return

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                return

        self._http = Quiet(("127.0.0.1", port), Handler)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        with self._lock:
            self.times.append(time.time())
            self.sizes.append(len(body))
            self.headers.append(dict(request.headers.items()))
            encoding = request.headers["Content-Encoding"]
            self.encodings.append(encoding)
            action = self.script.pop(0) if self.script else 200
            if self.largest and len(body) > self.largest:
                action = 413
            unpack: dict[str, Callable[[bytes], bytes]] = {
                "gzip": gzip.decompress,
                "zstd": lambda data: zstandard.ZstdDecompressor().decompress(data),
                "identity": bytes,
            }
            shipment = msgspec.msgpack.decode(unpack[encoding](body), type=Shipment)
            if action == 200:
                action = self.refuse(shipment) or 200
            answer = b""
            if action in (200, "stored, cut"):
                acknowledgement = self.store.take(shipment)
                answer = msgspec.msgpack.encode(acknowledgement)
        if action == "hang":
            self._released.wait(60)
        elif action == "cut":
            request.connection.close()
        elif action == "stored, cut":
            request.wfile.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer[: len(answer) // 2]
            )
            request.wfile.flush()
        elif action == "garbage":
            self._answer(request, 200, b"<html>welcome to the captive portal</html>")
        elif action == "silent":
            self._answer(request, 200, msgspec.msgpack.encode(Acknowledgement(next={})))
        elif isinstance(action, tuple):
            self._answer(request, action[0], b"busy", {"Retry-After": str(action[1])})
        else:
            self._answer(request, action, answer)
            return
        request.close_connection = True

    def _answer(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def close(self) -> None:
        self._released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


@contextmanager
def serving(store: Store | None = None, port: int = 0) -> Iterator[Server]:
    server = Server(store, port)
    try:
        yield server
    finally:
        server.close()


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Rank:
    """A rank in this process: a journal and a way to write to it."""

    def __init__(self, node_directory: Path, name: str = "rank0", segment_bytes: int = journal.SEGMENT_BYTES) -> None:
        self.directory = journal.create_source(node_directory, name)
        self.writer = journal.Writer(self.directory, segment_bytes=segment_bytes)
        self.payloads: list[bytes] = []

    @property
    def source(self) -> str:
        return self.directory.name

    def write(self, *items: events.Event) -> None:
        for item in items:
            self.payloads.append(events.encode(item))
            self.writer.append(self.payloads[-1])

    def start(self, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "time": time.time(),
            "name": "a run",
            "pid": os.getpid(),
            "process_started": host.started(),
        }
        self.write(RunStarted(**{**fields, **changes}))

    def steps(self, first: int, last: int, **values: float) -> None:
        self.write(*(step(number, **values) for number in range(first, last + 1)))


def step(number: int, **values: float) -> StepEnded:
    return StepEnded(time=time.time(), step=number, values={"train/loss": 1.0 / number, **values})


_RANK_SCRIPT = """
import os, sys, time
from pathlib import Path
from trainwatch import events, journal
from trainwatch.probes import host
node_directory, name, steps, pause, ending = Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:5]), sys.argv[5]
writer = journal.Writer(journal.create_source(node_directory, name))
def write(event):
    writer.append(events.encode(event))
write(events.RunStarted(time=time.time(), name="fake", pid=os.getpid(), process_started=host.started(),
                        environment={"device": "cpu", "cuda_visible_devices": None}))
write(events.PhaseEntered(time=time.time(), phase="train", step=0))
step = 0
while step < steps:
    step += 1
    write(events.StepEnded(time=time.time(), step=step, values={"train/loss": 1 / step},
                           devices={"cpu": {"memory/peak": 1000.0 + step}}))
    time.sleep(pause)
if ending == "end":
    write(events.RunEnded(time=time.time(), step=step, outcome="finished"))
elif ending == "fail":
    write(events.RunEnded(time=time.time(), step=step, outcome="failed", error="RuntimeError: no more", traceback="T"))
elif ending == "hang":
    time.sleep(1000)
"""


def start_rank(
    node_directory: Path, name: str = "rank0", *, steps: int = 10**9, pause: float = 0.01, ending: str = "hang"
) -> subprocess.Popen[bytes]:
    """A rank as a process. Its journal exists when this returns."""
    before = set(node_directory.glob("*/*.twj"))
    process = subprocess.Popen(
        [sys.executable, "-c", _RANK_SCRIPT, str(node_directory), name, str(steps), str(pause), ending]
    )
    wait_for(lambda: any(f.stat().st_size > 100 for f in set(node_directory.glob("*/*.twj")) - before))
    return process


def start_agent(
    node_directory: Path, server: str, *options: str, log: Path | None = None, token: str = ""
) -> subprocess.Popen[bytes]:
    """The agent as a process; its log goes to ``agent.log`` in the folder, as the callback has it."""
    with open(log or node_directory / "agent.log", "ab") as file:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "trainwatch.agent", "--journals", str(node_directory.parent.parent)),
                *("--run", node_directory.parent.name, "--node", node_directory.name, "--server", server, *options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "TRAINWATCH_TOKEN": token},
            start_new_session=True,
        )


@contextmanager
def ending(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leaves no process behind."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)


def find_source(node_directory: Path, stem: str) -> Path:
    """The folder of a source whose name has a random end."""
    (found,) = node_directory.glob(f"{stem}~*")
    return found


def node_folder(home: Path, run: str = RUN, node: str = NODE) -> Path:
    directory = home / "journal" / run / node
    directory.mkdir(parents=True)
    (directory / "project").write_text("tests")
    return directory
