"""``trainwatch demo``: a server, and two small runs on this machine."""

from __future__ import annotations

import argparse
from typing import Any, Final

from trainwatch.cli import serve
from trainwatch.cli.terminal import Failure, need, port, settings_with

_PACKAGES: Final = (*serve.PACKAGES, "torch", "transformers", "accelerate")


def add(commands: Any, home: argparse.ArgumentParser) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("demo", parents=[home], help="start a server and watch two small runs on this machine")
    parser.add_argument(
        "--scenario", choices=("healthy", "nan", "all"), default="all", help="which runs (default: all)"
    )
    parser.add_argument("--steps", type=_steps, metavar="N", help="steps of each run (default: 400 healthy, 200 nan)")
    parser.add_argument("--port", type=port, help="the dashboard's port (default: 8420, or a free one if it is taken)")
    parser.add_argument("--exit", action="store_true", help="end when the runs have ended")
    parser.add_argument("--open", action="store_true", help="open the dashboard in the browser")
    parser.set_defaults(run=run)


def _steps(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if not 10 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps: use one from 10 to 1000000")
    return number


def run(options: argparse.Namespace) -> int:
    """Plays the demo."""
    need(_PACKAGES, "all")
    from trainwatch.demo.runner import SCENARIOS, Demo, DemoError

    home = settings_with({"TRAINWATCH_HOME": None if options.home is None else str(options.home.resolve())}).home
    names = list(SCENARIOS) if options.scenario == "all" else [options.scenario]
    try:
        return Demo(home, options.port, options.steps).run(names, stay=not options.exit, browser=options.open)
    except (DemoError, OSError) as error:
        raise Failure(str(error)) from None
