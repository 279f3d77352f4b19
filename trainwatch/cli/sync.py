"""``trainwatch sync``: ships what was recorded without a server."""

from __future__ import annotations

import argparse
from typing import Any

from trainwatch import settings
from trainwatch.cli.terminal import Failure, Mistake, counted, say, settings_with


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("sync", parents=[home], help="ship runs that were recorded without a server")
    parser.add_argument("run_id", nargs="?", metavar="RUN", help="id of one run (default: all)")
    parser.add_argument("--server", metavar="URL", help=f"the server's address (default: {settings.DEFAULT_SERVER})")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ships, and says what."""
    from trainwatch.agent.sync import sync

    home = None if options.home is None else str(options.home)
    chosen = settings_with({"TRAINWATCH_HOME": home, "TRAINWATCH_SERVER": options.server})
    if options.run_id and not (chosen.journals / options.run_id).is_dir():
        raise Mistake(f"there is no run {options.run_id!r} in {chosen.journals}")
    try:
        report = sync(chosen, run=options.run_id)
    except ValueError as error:
        raise Mistake(f"{chosen.server}: {error}") from None
    except OSError as error:
        raise Failure(str(error)) from None
    for folder in report.watched:
        say(f"{folder}: left to the agent that is watching it")
    if report.runs:
        say(f"Shipped {report.events:,} events of {counted(len(report.runs), 'run')} to {chosen.server}:")
        for name in report.runs:
            say(f"  {chosen.server}/runs/{name}")
    elif not report.left:
        say(f"Nothing to ship: {chosen.server} has everything in {chosen.journals}.")
    if report.gone:
        say(f"{counted(report.gone, 'process', 'processes')} had died without a word.")
    if report.left:
        kept = counted(len(report.left), "folder")
        raise Failure(f"{kept} could not be shipped to {chosen.server} and stay on disk: {report.problem}")
    return 0
