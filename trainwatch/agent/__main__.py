"""``python -m trainwatch.agent``: the agent as a process. The callback starts it; its standard error is its log."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Final

from trainwatch import settings
from trainwatch.agent.link import Link
from trainwatch.agent.lock import FolderLock
from trainwatch.agent.loop import Agent
from trainwatch.agent.trouble import Trouble

# An agent that is about to end still holds the lock; one that came for a process that starts again outwaits it.
LOCK_SECONDS: Final = 3.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the agent.

    Args:
        arguments: The command line; the process's by default.

    Returns:
        The exit status: 0, also when another agent already works here.
    """
    options = _parser().parse_args(arguments)
    node_directory = options.journals / options.run / options.node
    trouble = Trouble()
    if not node_directory.is_dir():
        trouble.say("start", f"there is no journal in {node_directory}")
        return 1
    lock = FolderLock(node_directory)
    deadline = time.monotonic() + options.lock_seconds
    while not lock.acquire():
        if time.monotonic() >= deadline:
            return 0
        time.sleep(0.1)
    with contextlib.suppress(OSError):
        os.nice(10)  # the training's cores are the training's
    try:
        link = Link(options.server, options.token)
        Agent(node_directory, link, options.sample_seconds, trouble).run()
    except (OSError, ValueError) as error:
        trouble.error("running", error)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    known = settings.load()
    parser = argparse.ArgumentParser(prog="python -m trainwatch.agent", description=__doc__)
    parser.add_argument("--journals", type=Path, default=known.journals, help="folder of all journals")
    parser.add_argument("--run", required=not known.run_id, default=known.run_id, help="id of the run")
    parser.add_argument("--node", default=known.node, help="name of this machine")
    parser.add_argument("--server", default=known.server, help="address of the server")
    # The token has no option: a command line can be read by everybody on the machine.
    parser.set_defaults(token=known.token)
    parser.add_argument("--sample-seconds", type=float, default=known.sample_seconds, help="time between readings")
    parser.add_argument("--lock-seconds", type=float, default=LOCK_SECONDS, help="how long to wait for another agent")
    return parser


if __name__ == "__main__":
    sys.exit(main())
