"""A receiver of messages on a real socket, whose answers a test scripts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Taken:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.time)

    @property
    def json(self) -> dict[str, Any]:
        """Its body, read."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def delivery(self) -> str:
        """Its delivery id."""
        return self.headers["x-trainwatch-delivery"]


@dataclass
class Answered:
    """What is answered: status, headers, body; seconds to wait before."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"ok"
    wait: float = 0.0


class Receiver:
    """Takes requests and remembers them."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.script: list[Answered] = []
        """The next answers; then 200."""
        self.at: Callable[[str], None] = lambda _stage: None
        """Told how far a request is: accepted, headers, body, answered."""
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.at("headers")
                length = int(self.headers.get("content-length", 0))
                body = self.rfile.read(length)
                if len(body) < length:
                    return  # the sender died while it spoke
                taken = Taken(self.path, {key.lower(): value for key, value in self.headers.items()}, body)
                with outer._lock:
                    outer.taken.append(taken)
                    answer = outer.script.pop(0) if outer.script else Answered()
                outer.at("body")
                time.sleep(answer.wait)
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
                outer.at("answered")

            def handle(self) -> None:
                outer.at("accepted")
                try:
                    super().handle()
                except (BrokenPipeError, ConnectionResetError):
                    return  # a sender that was killed, or had enough

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"

    def serve(self) -> None:
        """Serves until :meth:`stop`."""
        self._server.serve_forever(poll_interval=0.05)

    def stop(self) -> None:
        """Ends."""
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, count: int, seconds: float = 30.0) -> list[Taken]:
        """Waits until so many requests came."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if len(self.taken) >= count:
                return list(self.taken)
            time.sleep(0.01)
        raise AssertionError(f"{len(self.taken)} of {count} messages came")


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Runs a receiver until the block ends."""
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.stop()
        thread.join(10)
