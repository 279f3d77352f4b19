"""Servers as processes, which can be killed, frozen and started again on the same port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(what: str, condition: Callable[[], object], seconds: float = 60.0) -> float:
    """Waits until something is so; returns the seconds that it took.

    Raises:
        AssertionError: It did not come in time.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.05)
    return time.monotonic() - began


class Replica:
    """One server process.

    Args:
        home: Its home, with SQLite's file, and its log.
        database: Address of the database; empty: SQLite in the home.
        prefix: A command to run it in, such as one that enters a network namespace.
        host: Where it listens.
        settings: Further variables, ``TRAINWATCH_…``.
    """

    def __init__(
        self, home: Path, database: str = "", *, prefix: Sequence[str] = (), host: str = "127.0.0.1", **settings: str
    ) -> None:
        self.port = free_port()
        self.url = f"http://{host}:{self.port}"
        self._log = home / f"server-{self.port}.log"
        self._command = [*prefix, sys.executable, "-m", "trainwatch.server"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWATCH_")}
        self._environment = kept | settings
        self._environment |= {
            "TRAINWATCH_HOME": str(home),
            "TRAINWATCH_HOST": host,
            "TRAINWATCH_PORT": str(self.port),
            "TRAINWATCH_DATABASE": database,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self.process is not None
        return self.process.pid

    def start(self, *, wait: bool = True) -> None:
        """Starts it, and waits until it answers."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Waits until it answers."""
        wait_until(f"the server, whose log ends with {self.log()[-1000:]}", self.answers, 90)

    def answers(self) -> bool:
        """Tells whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code < 500
        except OSError:
            return False

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def kill(self) -> None:
        """Kills it so that it can't say a word."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(30)

    def freeze(self) -> None:
        """Freezes it."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def resident(self) -> int:
        """Bytes of memory that it has resident."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Line:
    """A line between two parts that can be cut: a proxy that goes on holding its connections and passes nothing.

    What was connected before a cut stays dead, as behind a router that forgot it; after :meth:`mend` new connections
    work again.

    Args:
        port: Where it leads to, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._cut = threading.Event()
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._cut.set()

    def mend(self) -> None:
        """New connections pass again; those of before never will."""
        self._cut = threading.Event()

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        self._listener.close()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            cut = self._cut
            self._sockets.append(near)
            if cut.is_set():
                continue  # the other end's machine took the connection, and nothing follows
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._sockets.append(far)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pass, args=(source, sink, cut), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, cut: threading.Event) -> None:
    try:
        while data := source.recv(65536):
            if cut.is_set():
                return  # and both ends stay open
            sink.sendall(data)
        if not cut.is_set():
            sink.shutdown(socket.SHUT_WR)
    except OSError:
        if not cut.is_set():
            for one in (source, sink):
                one.close()
