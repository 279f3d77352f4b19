"""``trainwatch serve``: the server and its dashboard."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from trainwatch import __version__, settings
from trainwatch.cli.terminal import Mistake, need, paint, port, say
from trainwatch.local import port_is_free, version_at

PACKAGES: Final = ("alembic", "fastapi", "plotly", "pydantic_settings", "sqlalchemy", "uvicorn")
"""What the extra ``server`` brings."""


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("serve", parents=[home], help="start the server and its dashboard")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1; others need TRAINWATCH_TOKEN)")
    parser.add_argument("--port", type=port, help="port to listen on (default: 8420; 0 takes a free one)")
    parser.add_argument(
        "--database", metavar="URL", help="e.g. postgresql://user@host/name (default: SQLite in --home)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    try:
        return _serve(options)
    except KeyboardInterrupt:
        return 0


def _serve(options: argparse.Namespace) -> int:
    need(PACKAGES, "server")
    from pydantic import ValidationError

    from trainwatch.server import main as server
    from trainwatch.server.settings import Refused, Settings

    wanted: dict[str, Any] = {name: getattr(options, name) for name in ("host", "port", "database", "home")}
    try:
        chosen = Settings(**{name: value for name, value in wanted.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = "TRAINWATCH_" + "_".join(str(part) for part in first["loc"]).upper()
        raise Mistake(f"{name}={first['input']!r}: {first['msg']}") from None
    if chosen.port and not port_is_free(chosen.port, chosen.host):
        host = f"[{chosen.host}]" if ":" in chosen.host else chosen.host
        url = _reachable(f"http://{host}:{chosen.port}")
        who = f"TrainWatch already runs at {url}: open that" if version_at(url) else "another program has it: stop that"
        raise Mistake(f"port {chosen.port} is taken; {who}, or choose another port with --port.")
    home = chosen.home.expanduser()
    sync: list[subprocess.Popen[bytes]] = []

    def ready(url: str) -> None:
        here = _reachable(url)
        say(f"TrainWatch {__version__} is listening on {paint('1', here)}")
        say("  Open it in a browser. In your training script: Trainer(..., callbacks=[TrainWatchCallback()])")
        if url != settings.DEFAULT_SERVER:
            say(f"  Where you train, set TRAINWATCH_SERVER={url}")
        say(f"  Data is kept in {home}. Ctrl-C ends the server; trainings go on, and catch up when it is back.")
        sync.append(_start_sync(home, here))

    # uvicorn ends gracefully on SIGTERM too, and then raises the signal again: without this, what is below would not
    # be reached.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve(chosen, ready=ready)
    except Refused as error:
        raise Mistake(str(error)) from None
    except KeyboardInterrupt:
        pass
    finally:
        for child in sync:
            _end(child)
    return 0


def _reachable(url: str) -> str:
    """Returns the address under which this machine reaches a server that listens on all of them."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _start_sync(home: Path, url: str) -> subprocess.Popen[bytes]:
    """Ships what was recorded on this machine while no server ran, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "trainwatch.cli", "sync", "--home", str(home), "--server", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()  # what it has not shipped stays on disk, for the next time
    try:
        child.wait(2.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
